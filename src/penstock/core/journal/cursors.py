"""Cursors: the position that each named consumer of a topic has reached."""

from __future__ import annotations

import struct
from datetime import datetime
from operator import itemgetter

import msgspec

from penstock.core.clock import from_ms
from penstock.core.engine.contract import Snapshot
from penstock.core.journal import keys
from penstock.core.journal.catalog import TopicRecord
from penstock.core.journal.commit import Commit
from penstock.core.journal.reading import TopicView
from penstock.errors import ConfigError

_moved = struct.Struct(">QQ")


class TopicConsumer(msgspec.Struct, frozen=True):
    """A consumer of a topic: its position, and the time when its cursor last moved."""

    name: str
    position: int
    lag: int
    """The number of events that the consumer has left to read."""
    moved_at: datetime | None = None
    """The time when the cursor last moved: a consumer that lags and has not moved for long is dead, not slow.

    None when the time is unknown.
    """


def read_cursor(snap: Snapshot, topic_id: int, consumer: str) -> int | None:
    value = snap.get(keys.cursor_key(topic_id, consumer))
    return None if value is None else keys.unpack_seq(value[:8])


def read_cursors(snap: Snapshot, topic_id: int) -> dict[str, int]:
    return {
        keys.stored_name(key[5:]): keys.unpack_seq(value[:8])
        for key, value in snap.scan(*keys.topic_range(keys.CURSOR, topic_id))
    }


def read_consumers(view: TopicView) -> list[TopicConsumer]:
    """Returns every consumer with its cursor, by name."""
    rows = view.snap.scan(*keys.topic_range(keys.CURSOR, view.topic_id))
    return _consumers(view, [(keys.stored_name(key[5:]), value) for key, value in rows])


def read_consumer(view: TopicView, consumer: str) -> TopicConsumer | None:
    """Returns one consumer; None for a consumer that never committed."""
    value = view.snap.get(keys.cursor_key(view.topic_id, consumer))
    return None if value is None else _consumers(view, [(consumer, value)])[0]


def _consumers(view: TopicView, rows: list[tuple[str, bytes]]) -> list[TopicConsumer]:
    found = [(name, keys.unpack_seq(value[:8]), value[8:]) for name, value in rows]
    lags = view.lags({seq for _, seq, _ in found}) if found else {}
    return [_consumer(name, seq, lags[seq], moved) for name, seq, moved in found]


def _consumer(name: str, seq: int, lag: int, moved: bytes) -> TopicConsumer:
    # an older store, without the time
    return TopicConsumer(name, seq, lag, from_ms(keys.unpack_seq(moved)) if moved else None)


def move_cursor(commit: Commit, topic: str, consumer: str, seq: int, back: bool = False) -> TopicConsumer:
    """Sets a cursor; only with `back` it may move to a smaller position. A position that is not written yet is refused.

    A position of a dropped topic of this name stands for the beginning of the existing topic.
    """
    latest = commit.latest(topic)
    if seq > latest:
        raise ConfigError(f"cursor {consumer!r} of topic {topic!r} cannot move to {seq}: the topic ends at {latest}")
    head = commit.ensure(topic)
    view = TopicView(commit.tx, topic, TopicRecord(head.topic_id, head.settings), commit.now_ms)
    value = commit.tx.get(keys.cursor_key(head.topic_id, consumer))
    current = None if value is None else keys.unpack_seq(value[:8])
    if seq and (not current or back):  # otherwise it is already after the beginning
        seq = max(seq, view.began())
    if value is None or current is None or seq > current or (back and seq != current):
        value, current = _moved.pack(seq, commit.now_ms), seq
        commit.tx.put(keys.cursor_key(head.topic_id, consumer), value)
        if head.slowest is not None and (consumer == head.slowest[0] or seq <= head.slowest[1]):
            head.slowest = None
    return _consumer(consumer, current, view.lag(current, latest), value[8:])


def drop_cursor(commit: Commit, topic: str, consumer: str) -> bool:
    """Forgets a consumer, so that compaction no longer waits for it."""
    head = commit.head(topic)
    if head is None or read_cursor(commit.tx, head.topic_id, consumer) is None:
        return False
    commit.tx.delete(keys.cursor_key(head.topic_id, consumer))
    head.slowest = None
    return True


def slowest_cursor(commit: Commit, topic: str) -> tuple[str, int] | None:
    """Returns the slowest consumer and its position, which is read once as long as it does not move."""
    head = commit.head(topic)
    if head is None:
        return None
    if head.slowest is None:
        head.slowest = min(read_cursors(commit.tx, head.topic_id).items(), key=itemgetter(1), default=None)
    return head.slowest
