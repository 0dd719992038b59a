"""The engines outside the core. Each engine is an entry point of the distribution, like an engine of another package.

    rocksdb   the best single write on slow disks: rocksdict, one process
    file      one append-only, checksummed file with its index in memory; one writing process, many readers
    slatedb   objects in S3, Google Cloud Storage, Azure or a folder; one writing process, readers anywhere

An engine imports the contract and its base (`penstock.core.engine`) and nothing else of the core.
"""
