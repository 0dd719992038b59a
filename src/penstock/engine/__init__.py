"""Ordered key-value engines behind one small contract (`contract.Engine`).

    memory    a sorted map in this process; for tests
    sqlite    the default: apsw, write-ahead log, several processes
    rocksdb   the best single write on slow disks: rocksdict, one process
    slatedb   objects in S3, Google Cloud Storage, Azure or a folder; one writing process, readers anywhere
    file      one append-only, checksummed file with its index in memory; one writing process, many readers

Nothing here knows of topics, events or queues. `url.open_engine` finds the engine a url names.
"""
