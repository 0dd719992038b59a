"""A journal in this process: the backend of the handles in `penstock.core.surface`.

    backend       the journal whose store this process opens: the store, the registries over it, a topic's hot paths
    topics        what the operations on topics and on the whole journal do
    queues        what the operations on queues do
    bulk          what the operations on many events at once do
    scanning      topics as a query reads them

A `JournalCore` (`penstock.core.journal.core`) owns the store and its writer. `LocalBackend` holds the core, the
`QueueRegistry` and the `EntityRegistry`. A server runs the same functions for its operations.
"""
