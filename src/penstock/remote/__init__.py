"""A journal at the other end of a url: what the handles of `penstock.surface` stand on.

    client        requests over kept connections, problems turned back into the errors they were
    backend       operations as requests; submissions in the background
    topic, queues                the hot paths of topics and queues as requests
    reading, subscription        reading in pages, lines or Arrow batches; following, resumed where it broke off
    worker, rebuilding           handlers over topics; states folded here
    events        events, receipts and drafts out of documents, and into them
    journal       the journal that a server serves; sealing it step by step

Everything is bounded by a timeout; a request that may or may not have been done says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.remote.journal import RemoteJournal

__all__ = ["connect"]


def connect(url: str, *, token: str | None = None, read_only: bool = False, timeout: float = 60.0) -> RemoteJournal:
    """A journal served at an http or https url."""
    from penstock.remote.journal import RemoteJournal

    return RemoteJournal(url, token=token, read_only=read_only, timeout=timeout)
