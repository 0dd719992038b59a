"""A journal on another machine: `penstock.open("http://…")` gives the surface of a local one, where it makes sense.

    client        requests over kept connections, problems turned back into the errors they were
    events        events, receipts and drafts out of documents, and into them
    journal, topic                       the surface; local_only: the part of it that is refused
    queues/       queues, deliveries, their workers
    reading       reading a topic in pages, lines or Arrow batches
    subscription  following a topic: server-sent events, resumed where they broke off
    worker        handlers over topics

What needs the store itself is not here: transactions, fences, gates, backups, maintenance. Those raise ConfigError that
says what to do instead. Everything is bounded by a timeout; a request that may or may not have been done says so.
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
