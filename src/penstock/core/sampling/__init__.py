"""The state of a whole journal: samples of its topics and queues, and the last week of them.

collect     samples of a journal, what is wrong with it in words, and the same as gauges
history     the last week in numbers, kept in the journal
"""
