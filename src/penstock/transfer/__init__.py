"""Blocks on their way between a journal and processes that read or make many: Spark's tasks, here or at a server.

reading      stored blocks, the size of ranges and where they are parted, where wanted events are
objects      blocks that tasks put into a folder or a bucket
publishing   blocks that become events in one commit, once
"""
