"""Event sourcing over topics: the parts that make a topic an event store.

    projection    state folded from events: declared and folded
    states        states saved, checked and watched; rebuild: every entity of a topic folded again
    causality     causes, effects and correlations across topics, and their picture
    outbox, fence, gate, reactor    drafts that become events together
    copying       topics to files and back
    registry      what one open journal has of all this
    receipts, proof    Merkle roots over topics, proofs that convince a third party, verifying

Entities are keys: `read(key=…)` uses the index in `penstock.core.journal.index.index`. Saved states are under the
prefix `p` (see `states.py`). A gate or a handler that raises leaves the store unchanged.
"""
