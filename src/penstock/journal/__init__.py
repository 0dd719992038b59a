"""The log: topics of events in columnar blocks, one writer with group commit, cursors, subscriptions, transactions.

    journal, topic, transaction, subscription, worker    what users hold
    reading     one topic in one snapshot: blocks, events, searching
    cursors     how far each named consumer has come
    owners      processes that hold leases and fences, and whether they live
    interrupts  keeps Ctrl-C out of the middle of a commit
    waking/     waking readers that wait, in this process and in others
    storage/    what is stored and how: key layout, blocks, columns, Arrow
    commit/     how events get into the store: prepare, group commit, dedup
    upkeep/     merging small blocks, retention, compaction
    index/      the entity index behind `read(key=…)`: memtable, runs, merges
    sealed/     history in Parquet files of a lake

Invariants: positions of a topic count from 1 without gaps and are never reused; a block lies under the position of its
first event; ids and recording times increase with positions; nothing is visible before its commit is as durable as
the engine makes it.
"""
