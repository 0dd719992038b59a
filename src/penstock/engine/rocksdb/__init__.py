"""The log-structured engine: RocksDB through rocksdict, for one writing process."""
