"""A journal on another machine: `penstock.open("http://…")` gives the surface of a local one, where it makes sense.

    http.py       requests over kept connections, problems turned back into the errors they were
    events.py     events and receipts out of documents
    journal.py, topic.py, queue.py      the surface; delivery.py: a message in hand
    queue_documents.py                  what is said of queues, both ways
    subscription.py                     following a topic: server-sent events, resumed where they broke off

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
