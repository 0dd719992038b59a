"""Delivery state: the records of queues, and the writer's cache of them.

keys        where each row lies in the store
records     the rows: queues, groups, messages, failed attempts, consumers
rows        one group's record and the keys of its rows; what failed attempts left behind
lanes       one group's lanes: messages in order by ordering key, and lanes that take turns
places      where each message of a group is, and the one way from place to place
leases      which messages consumers hold, and until when; their tokens
group       a group: places, lanes and leases, counted together
feed        what a queue's feed is told
cache       queues and groups as the writer knows them, changed only inside a commit; who is there
blocks      the events near a queue's head
"""
