"""Sealed history: a topic's oldest events in Parquet files of a lake, read as if they were still in the store.

segments    the journal's record of which file holds which events, and who is sealing
files       reading sealed files
writing     one file: written, read back, compared, given its name
sealing     `seal`: moves settled history into files, verified before the journal removes it
"""
