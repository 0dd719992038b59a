"""A journal in this process: what the handles of `penstock.core.surface` stand on.

    backend       the journal whose store this process opens: the store, the registries over it, a topic's hot paths
    topics        what the operations on topics and on the whole journal do
    queues        what the operations on queues do
    bulk          what the operations on many events at once do
    scanning      topics as a query reads them

A `JournalCore` (`penstock.core.journal.core`) owns the store and its writer; `LocalBackend` holds one, and over it the
`QueueRegistry` and the `EntityRegistry`. An operation that a server is asked for runs the same function.
"""
