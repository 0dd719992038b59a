"""The object-store engine: SlateDB, an LSM tree whose files are objects, for one writing process and readers anywhere.

place       from a url and options to SlateDB's store, and to the one the lease lies in
bridge      SlateDB's asynchronous Python, called from synchronous code, with deadlines
reading     get and scan over a snapshot (view); tables as they are, and the newest rows of the log over them (follower)
lease       one writer at a time, by a conditional put; the object says who it is
database    opening SlateDB: its settings, and the requests it makes
format      how a database is recognised as a store
usage       objects by purpose, requests by cause
folder      conditional puts in a folder, without locks
upkeep      compaction, collection, backup
engine      all of it behind the engine contract; providers: the same under the scheme of each provider
"""
