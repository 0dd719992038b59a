"""Engines outside the core. Each is an entry point of the distribution, as the engine of another package would be.

    rocksdb   the best single write on slow disks: rocksdict, one process
    file      one append-only, checksummed file with its index in memory; one writing process, many readers
    slatedb   objects in S3, Google Cloud Storage, Azure or a folder; one writing process, readers anywhere

An engine imports the contract and its base (`penstock.core.engine`) and nothing else of the core.
"""
