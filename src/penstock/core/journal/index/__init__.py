"""The entity index: a log-structured merge tree of keys, causes and correlations, built behind the writer.

index       the index as readers and commits see it, and one look-up over memtable and runs
memtable    the newest events, indexed in memory: what no run covers yet
runs        sorted rows cut into chunks, the bloom filter over them, and the directory of a topic's runs
indexer     the thread that builds runs and merges them
"""
