"""Delivery state: what queues store, and what the writer keeps of it in memory.

keys        where each row lies in the store
records     the rows: queues, groups, leases, messages that are not where a plain queue has them
group       one group's rows and counters, changed together
cache       queues and groups as the writer knows them, changed only inside a commit
blocks      the events near a queue's head
presence    consumers that are there, and on which machines
"""
