"""The handles of a program, written once, wherever the journal is.

    journal, topic, queue, transaction      the handles; `penstock.Journal`, … are these
    receiving                               what `queue.receive` gives
    backend                                 what they stand on: the seam between a handle and its home

A handle checks its arguments and asks its backend: `penstock.core.local` has the store in this process,
`penstock.remote` sends requests to a server. What only a journal in this process can do raises ConfigError on a served
one.
"""
