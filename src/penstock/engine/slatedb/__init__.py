"""The object-store engine: SlateDB, an LSM tree whose files are objects, for one writing process and readers anywhere.

place       from a url and options to SlateDB's store, and to the one the lease lies in
bridge      SlateDB's asynchronous Python, called from synchronous code, with deadlines
view        reading: get and scan over a snapshot
lease       one writer at a time, by a conditional put; the object says who it is
writer      the open database of the writing process
follower    the reading side: tables as they are, and the newest rows of the log over them
upkeep      compaction, collection, backup
requests    how many requests were made, and why
engine      all of it behind the engine contract
"""
