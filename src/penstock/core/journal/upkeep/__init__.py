"""Maintenance of a topic's stored rows beside its appends.

housekeeper   the thread that does it, after every few dozen commits to a topic
merging       small blocks become large ones; summarising: so do the rows of summaries
retention     a prefix of the history is removed, on request or by a topic's settings
by_key        compaction by key: only the newest event of every key stays
erasing       events are blanked, in every place that holds them
thinning      single events go from stored blocks
dropping      a whole topic is removed: its name at once, its rows a little at a time
"""
