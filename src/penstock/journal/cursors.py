"""Cursors: how far each named consumer of a topic has come."""

from __future__ import annotations

from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError
from penstock.journal.commit.commit import Commit
from penstock.journal.storage import keys


def read_cursor(snap: Snapshot, number: int, consumer: str) -> int | None:
    value = snap.get(keys.cursor_key(number, consumer))
    return None if value is None else keys.unpack_seq(value)


def read_cursors(snap: Snapshot, number: int) -> dict[str, int]:
    return {keys.stored_name(key[5:]): keys.unpack_seq(value) for key, value in snap.scan(*keys.cursor_range(number))}


def move_cursor(commit: Commit, topic: str, consumer: str, seq: int, *, back: bool) -> None:
    """Sets a cursor; only `back` lets it move to a smaller position. A position nobody has written yet is refused."""
    latest = commit.latest(topic)
    if seq > latest:
        raise ConfigError(f"cursor {consumer!r} of topic {topic!r} cannot move to {seq}: the topic ends at {latest}")
    head = commit.ensure(topic)
    current = read_cursor(commit.tx, head.number, consumer)
    if current is None or seq > current or (back and seq != current):
        commit.tx.put(keys.cursor_key(head.number, consumer), keys.pack_seq(seq))


def drop_cursor(commit: Commit, topic: str, consumer: str) -> bool:
    """Forgets a consumer, so that compaction no longer waits for it."""
    head = commit.head(topic)
    if head is None or read_cursor(commit.tx, head.number, consumer) is None:
        return False
    commit.tx.delete(keys.cursor_key(head.number, consumer))
    return True
