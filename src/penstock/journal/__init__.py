"""The log: topics of events in columnar blocks, one writer with group commit, cursors, subscriptions, transactions.

    keys.py                     where everything lies in the engine's ordered map
    columns.py, block.py        the stored form of events; joining.py: blocks made of blocks; arrow.py: record batches
    names.py, payload.py, prepare.py    checking and encoding, in the caller's thread
    writer.py, commit.py, catalog.py    group commit, one transaction, what the writer knows of each topic
    exclusive.py                a user's transaction, which has the writer to itself
    dedup.py, cursors.py        what an append or a consumer is remembered by
    reading.py                  one topic in one snapshot: blocks, events, searching
    topic.py, subscription.py, worker.py, transaction.py, journal.py    what users hold
    signal.py                   waking those who wait, in this process and in others
    settle.py, compaction.py, keeper.py    merging, removing, and when
    keyindex.py and its kin     the index behind `read(key=…)`, built in passing

Invariants: positions of a topic count from 1 without gaps and are never reused; a block lies under the position of its
first event; ids and recording times increase with positions; nothing is visible before its commit is as durable as
the engine makes it.
"""
