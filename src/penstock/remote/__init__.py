"""A journal at the other end of a url: the backends for the handles of `penstock.core.surface`.

    client        requests over kept connections, problems turned back into the errors they were
    backend       the journal: operations as requests, submissions in the background, sealing step by step
    topic, queues, subscription, worker    the hot paths of topics and queues as requests; states folded here
    events        events, receipts and drafts as documents, read in pages, lines or Arrow batches
    scanning      topics as a query reads them

Every request has a timeout. The error of a request says so when the request may or may not have been performed.
"""
