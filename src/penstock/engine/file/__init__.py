"""The engine of one append-only file with an index in memory, for one writing process.

engine      the engine: commits, snapshots, reopening
log         the data file: a header, then one checksummed record per commit
recovery    reading a data file from a position to its end
index       key -> where its value lies, in memory and saved beside the data
snapshot    reading
copy        the live part of a store in a new file: compaction and backups
upkeep      saving the index and compacting, in passing
lock, disk  one writing process; the system calls, so that a test can make one fail
"""
