"""Sealed history: a topic's oldest events in Parquet files of a lake.

Reads of them work as if the events were still in the store.

segments    the journal's record of which file holds which events, and who is sealing; what lies in the lakes
files       reading sealed files
sealing     `seal`: moves settled history into files, verified before the journal removes it
referring   segments by reference: files that tasks wrote become events; sweeping those that did not
bulk        the file that a task writes
synced_files   files of an Iceberg table that are on disk before its catalog names them
writing     one file: written, read back, compared, given its name; the folder it lies in
columns     fields of payloads as typed columns; files by the values of one
tables      sealed files as a table that others read: delta, iceberg
"""
