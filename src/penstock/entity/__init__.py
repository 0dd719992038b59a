"""Event sourcing over topics: what makes a topic an event store.

    staging.py      drafts for several topics that one commit appends together; under outboxes, fences and reactors
    outbox.py       drafts gathered locally, appended as one atomic batch
    fence.py        drafts hidden until the fence commits, and the guard that keeps others out meanwhile
    gate.py         functions that see every draft and may refuse it
    projection.py   state folded from events: the class and its handlers
    folding.py      the fold itself, a block at a time
    snapshot.py     folded states kept in the store, by projection, version and key
    project.py      the newest state of an entity: a snapshot and what came after it
    rebuild.py      folding every entity of a topic again, with progress
    watch.py        states as they change
    causality.py    causes, effects and correlations across the topics of a journal
    graph.py        a correlation's events as DOT, Mermaid or SVG
    chain.py        verifying per-entity hash chains, and receipts against them
    reactor.py      events appended because of events, each input once
    exporting.py    whole journals to files: JSON Lines, Parquet
    importing.py    and back

Entities are keys: `read(key=…)` and `generation(key)` go through the index in `penstock.journal.index.index`. Snapshots
lie under the prefix `p` (see `snapshot.py`). A gate or a handler that raises leaves the store as it was.
"""
