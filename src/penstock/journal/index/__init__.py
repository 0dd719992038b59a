"""The entity index: a log-structured merge tree of keys, causes and correlations, built behind the writer.

index       the index as readers and commits see it
memtable    the newest events, indexed in memory: what no run covers yet
rows        sorted rows cut into chunks, and the bloom filter over them
directory   which runs a topic has, and through which position they are complete
contents    what goes into a run, and which runs become one
builder     writing one run in steps; deleting old ones
merge       merging runs
lookup      one look-up over memtable and runs
indexer     the thread that builds and merges
"""
