"""The memory-mapped engine: LMDB, for several reading and writing processes on one machine."""
