"""Event sourcing over topics: what makes a topic an event store.

    projection/   state folded from events: declared, folded, saved, rebuilt, watched
    causality/    causes, effects and correlations across topics, and their picture
    staging/      outboxes, fences, gates, reactors: drafts that become events together
    copying/      whole journals to files and back
    receipts/     Merkle roots over topics, proofs that convince a third party, verifying
    topic, journal    what event sourcing adds to both

Entities are keys: `read(key=…)` and `generation(key)` go through the index in `penstock.journal.index.index`. Snapshots
lie under the prefix `p` (see `projection/snapshot.py`). A gate or a handler that raises leaves the store as it was.
"""
