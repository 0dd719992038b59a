"""Delivery state: what queues store, and what the writer keeps of it in memory.

keys        where each row lies in the store
records     the rows: queues, groups, leases and their tokens, messages, failed attempts, consumers
group       one group's messages: where each is, and the one way from place to place; what the feed is told
cache       queues and groups as the writer knows them, changed only inside a commit; who is there
blocks      the events near a queue's head
"""
