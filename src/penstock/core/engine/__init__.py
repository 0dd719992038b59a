"""Ordered key-value engines behind one small contract (`contract.Engine`).

    memory      a sorted map (`sorted_map`) in this process; for tests
    sqlite      the default: apsw, write-ahead log, several processes
    line        the line of processes that wait to write one SQLite store
    base        the checks and the transactions that engines share

The other engines are in `penstock.engines`. `url.open_engine` finds the engine that a URL names. Nothing here knows of
topics, events or queues.
"""
