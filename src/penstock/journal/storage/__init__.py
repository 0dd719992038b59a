"""What is stored and how: pure functions from values to bytes and back, no engine and no clock.

keys        the key layout of the whole store
block       the events of one commit, column by column, under one checksum
wire        what a block is made of: the columns of its events, and its runs
columns     integers, text and dictionaries inside a block
joining     blocks made of blocks
payload     payloads to bytes
leaves      what each event says, as it is hashed; the hashes of verified topics
to_arrow, from_arrow   blocks to record batches and back, never row by row
"""
