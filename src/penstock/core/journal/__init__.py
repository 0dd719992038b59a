"""The log: topics of events in columnar blocks, one writer with group commit, cursors, subscriptions, transactions.

    core        an open journal: its store, its writer, and what works on them
    log         a topic's log, for the layers above; transaction, worker, following: what holds one
    keys        what lies where in the engine's ordered map; blocks: the bytes of events
    prepare     drafts to columns, in the caller's thread
    writer      group commit, which no signal interrupts; commit: one write transaction and the blocks it writes
    catalog     what the writer knows of each topic
    reading     one topic in one snapshot: blocks, events, searching; to_arrow, from_arrow: its columns
    across      several topics as one log; locating: which topics may hold an id, a cause, a correlation
    summaries   what ranges of positions hold, so that readers skip them; in verified topics, hashes of events
    cursors     how far each named consumer has come
    bulk        events by the block, appended or staged; checking: blocks that came from elsewhere
    upkeep/     merging small blocks, retention, compaction, erasing events, dropping topics
    moving      a whole store copied to another engine
    waking      waking readers that wait, in this process and in others; threads in the background
    compression blocks in zstd, column by column; description: what `journal.describe()` returns
    owners      processes that hold leases and fences, and whether they live
    index/      the entity index behind `read(key=…)`: memtable, runs, merges
    sealed/     history in Parquet files of a lake

Invariants: positions of a topic count from 1 without gaps and are never reused. A block is stored under the position of
its first event. Ids and recording times increase with positions. No event is visible before its commit is as durable as
the engine makes it.
"""
