"""A journal at the other end of a url: what the handles of `penstock.core.surface` stand on.

    client        requests over kept connections, problems turned back into the errors they were
    backend       the journal: operations as requests, submissions in the background, sealing step by step
    topic, queues, subscription, worker    the hot paths of topics and queues as requests; states folded here
    events        events, receipts and drafts as documents, read in pages, lines or Arrow batches
    scanning      topics as a query reads them

Everything is bounded by a timeout; a request that may or may not have been done says so.
"""
