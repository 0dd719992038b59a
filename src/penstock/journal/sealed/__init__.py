"""Sealed history: a topic's oldest events in Parquet files of a lake, read as if they were still in the store.

segments    the journal's record of which file holds which events, and who is sealing
files       reading sealed files
writing     one file: written, read back, compared, given its name
report      what a seal did
planning    which positions a seal puts into which file
folder      a topic's folder in a lake: its marker, and files that became no segment
sealing     `seal`: moves settled history into files, verified before the journal removes it
"""
