"""How events get into the store: prepared in the caller's thread, committed in groups by one leader.

prepare     drafts to columns; every error of a call is found here
writer      group commit: the caller that finds the writer idle commits for all
commit      one write transaction: positions, blocks, settings
catalog     what the writer knows of each topic without asking the store
dedup       dedup keys
recent      a topic's newest small blocks, kept for merging
bulk        whole blocks; copies: events with the positions they had elsewhere
exclusive   one caller's transaction during which no other commits
interrupts  keeps Ctrl-C out of the middle of a commit
counters    what a writer counts
"""
