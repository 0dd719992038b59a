"""Blocks on their way between a journal and processes that read or make many: Spark's tasks, here or at a server.

ranges       where a range of positions is best cut, and how large it is
stored       the stored bytes of a range's blocks, and several of them in one message
publishing   blocks that become events in one commit, once
causes       the correlation ids of many events at once
"""
