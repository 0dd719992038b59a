"""The core: everything that an embedded journal needs, on SQLite or in memory. It imports nothing of the outer rings.

    model, documents, events, schema   values: what is pushed, taken, read and written
    engine                             the contract of a store, SQLite and memory
    journal                            topics over a store: group commit, blocks, reading, following, retention
    queue, entity                      delivery state; projections, causes, outboxes
    consuming, surface                 what a program holds: deliveries, subscriptions, handles
    protocol                           the operations, declared once for handles, servers and clients
    local                              the implementation of every operation in this process
    observe, sampling                  metrics, traces, samples of a whole journal

Beside these: `clock` (time), `names` (checks of names and arguments), `units` (sizes and durations as text), `durable`
(files that survive a power cut) and `ticket` (results under way).

Dependencies point one way; the layers in `pyproject.toml` name every package once.
"""
