"""Object stores behind one contract: S3, Google Cloud Storage, Azure, a directory, and memory.

    store    the contract, the store that a url names, a store in a directory, the proof of conditional puts
    cloud    the contract over obstore

The buffer, journals in buckets, and what Spark stages use it.
"""
