"""Which consumers are there: a row for each that gave its name, with its machine, its start and its last sign of life.

A sign of life is a take (one that waits looks every second) or an extended lease. It is written down at most every few
seconds, so that it costs a busy consumer nothing.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.engine.contract import Snapshot
from penstock.journal.commit.commit import Commit
from penstock.journal.owners import this_host
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueState

PRESENCE_MS = 5_000
"""How often a consumer's presence is written down, at the most."""
_times = struct.Struct(">QQ")


class Presence(msgspec.Struct, frozen=True):
    """A consumer as its row has it."""

    seen_ms: int
    since_ms: int
    """When it first took something, as the process or the server that it asks knows; 0: not known."""
    host: str


def read_presence(value: bytes) -> Presence:
    if len(value) < _times.size:  # it was written before machines and starts were
        return Presence(keys.unpack_seq(value), 0, "")
    seen, since = _times.unpack_from(value)
    return Presence(seen, since, value[_times.size :].decode())


def presences(snap: Snapshot, topic: int) -> list[tuple[bytes, bytes, Presence]]:
    """The consumers of a queue: key, row, what it says."""
    return [(key, value, read_presence(value)) for key, value in snap.scan(*keys.presence_range(topic))]


def note_presence(
    commit: Commit, queue: QueueState, label: str, consumer: str, host: str | None, since_ms: int
) -> None:
    """Says, every few seconds, that a consumer is there. Without a host it runs in this process."""
    number = queue.record.groups.get(label, 0)
    known = queue.seen.get((number, consumer))
    if known is None or not 0 <= commit.now_ms - known.seen_ms < PRESENCE_MS:
        since = since_ms or (commit.now_ms if known is None else known.since_ms)
        _write(commit, queue, number, consumer, Presence(commit.now_ms, since, this_host() if host is None else host))


def note_extension(commit: Commit, queue: QueueState, label: str, consumer: str) -> None:
    """The same of a consumer that has something in hand, and may take nothing for hours."""
    number = queue.record.groups.get(label, 0)
    known = queue.seen.get((number, consumer))
    if known is None:
        row = commit.tx.get(keys.presence_key(queue.topic, number, consumer))
        known = None if row is None else read_presence(row)
    if known is not None and not 0 <= commit.now_ms - known.seen_ms < PRESENCE_MS:
        _write(commit, queue, number, consumer, Presence(commit.now_ms, known.since_ms, known.host))


def forget_presence(commit: Commit, queue: QueueState, label: str, consumer: str) -> bool:
    """A consumer has ended; False when none of that name was there."""
    number = queue.record.groups.get(label, 0)
    queue.seen.pop((number, consumer), None)
    key = keys.presence_key(queue.topic, number, consumer)
    if commit.tx.get(key) is None:
        return False
    commit.tx.delete(key)
    return True


def _write(commit: Commit, queue: QueueState, number: int, consumer: str, presence: Presence) -> None:
    queue.seen[number, consumer] = presence
    value = _times.pack(presence.seen_ms, presence.since_ms) + presence.host.encode()
    commit.tx.put(keys.presence_key(queue.topic, number, consumer), value)
