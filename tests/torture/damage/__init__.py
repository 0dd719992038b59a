"""Bytes changed in everything penstock stores: named by an error, harmless, or on the list of what cannot be found.

`subjects` makes what is damaged and reads it, `__main__` damages it byte by byte.
"""
