"""How events get into the store: prepared in the caller's thread, committed in groups by one leader.

prepare     drafts to columns; every error of a call is found here
writer      group commit: the caller that finds the writer idle commits for all
request     what is asked of the writer, and how callers are told
commit      one write transaction: positions, blocks, settings
catalog     what the writer knows of each topic without asking the store
dedup       dedup keys
checked     appends that ask the store first
recent      blocks of a commit; a topic's newest small ones, kept for merging
copies      events with the positions they had elsewhere
exclusive   one caller's transaction during which no other commits
counters    what a writer counts
"""
