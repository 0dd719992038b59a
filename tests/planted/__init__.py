"""Planted faults: the tests are graded by the mistakes that they find.

`catalogue.py` describes the faults, `__main__.py` plants one at a time in a copy of the tree and says which test finds
it, `test_planted.py` sees by day that every fault still has its place in the sources.
"""
