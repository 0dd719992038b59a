"""A journal at the other end of a url: what the handles of `penstock.surface` stand on.

    client        requests over kept connections, problems turned back into the errors they were
    backend       the journal: operations as requests, submissions in the background, sealing step by step
    topic, queues, subscription, worker    the hot paths of topics and queues as requests; states folded here
    events        events, receipts and drafts as documents, read in pages, lines or Arrow batches
    scanning      topics as a query reads them

Everything is bounded by a timeout; a request that may or may not have been done says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.remote.backend import RemoteJournal

__all__ = ["connect"]


def connect(url: str, *, token: str | None = None, read_only: bool = False, timeout: float = 60.0) -> RemoteJournal:
    """A journal served at an http or https url."""
    from penstock.remote.backend import RemoteJournal

    return RemoteJournal(url, token=token, read_only=read_only, timeout=timeout)
