"""Moves blocks from processes that make many, such as Spark's tasks, into a journal.

objects      blocks that tasks put into a folder or a bucket
committing   the operations of the wire that plan and commit such blocks
publishing   blocks that become events in one commit, once
"""
