"""The object-store engine: SlateDB, an LSM tree whose files are objects, for one writing process and readers anywhere.

engine      all of it behind the engine contract: commits, compaction, backups, what a store costs
reading     get and scan over a snapshot; tables as they are, and the newest rows of the log over them
database    from a url and options to SlateDB: its stores, its settings, and the requests it makes
lease       one writer at a time, by a conditional put; the object says who it is
bridge      SlateDB's asynchronous Python, called from synchronous code with deadlines, and what its errors mean
"""
