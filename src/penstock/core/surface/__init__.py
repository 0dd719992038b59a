"""The handles of a program, written once for journals here and at a server.

    journal, topic, queue, transaction      the handles; `penstock.Journal`, … are these
    receiving                               what `queue.receive` gives
    backend                                 what they stand on: the seam between a handle and its home

A handle checks its arguments and calls its backend: `penstock.core.local` has the store in this process,
`penstock.remote` sends requests to a server. Operations that need the store in this process raise ConfigError on a
served journal.
"""
