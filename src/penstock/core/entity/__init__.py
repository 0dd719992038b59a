"""Event sourcing over topics: what makes a topic an event store.

    projection    state folded from events: declared and folded
    states        states saved, checked and watched; rebuild: every entity of a topic folded again
    causality     causes, effects and correlations across topics, and their picture
    outbox, fence, gate, reactor    drafts that become events together
    copying       topics to files and back
    registry      what one open journal has of all this
    receipts, proof    Merkle roots over topics, proofs that convince a third party, verifying

Entities are keys: `read(key=…)` and `generation(key)` use the index in `penstock.core.journal.index.index`. Saved
states lie under the prefix `p` (see `states.py`). A gate or a handler that raises leaves the store as it was.
"""
