"""Processes that use one journal in every way, killed at any moment, and an oracle of what was acknowledged.

`worker` does the work and writes the oracle, `check` compares, `__main__` kills.
"""
