"""Where flow control keeps its state: rows of a group that a purge leaves alone, because a limit goes on counting.

    q  the window of the queue's own rate          r<key>  the window of a key's rate
    k  the circuit breaker                         t<lane> a lane's turn, and its first ready message

and of the queue (under the group `ALL_GROUPS`), because pushes are for all groups:

    o<key>  what a throttle let through last       u<key>  what a debounce holds back
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.engine.contract import Snapshot
from penstock.errors import Corrupt
from penstock.journal.commit.commit import Commit

_PREFIX = b"qf"
_group = struct.Struct(">2sII")
_row = struct.Struct(">2sIIc")

ALL_GROUPS = (1 << 32) - 1
FORGET_STEP = 1024
"""Rows of keys that one commit looks at to forget those that do not count any more."""

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


def flow_key(topic: int, group: int, tag: bytes, name: str = "") -> bytes:
    return _row.pack(_PREFIX, topic, group, tag) + name.encode()


def flow_rows(topic: int, group: int, tag: bytes) -> tuple[bytes, bytes]:
    """All of a group's rows of one kind."""
    return _row.pack(_PREFIX, topic, group, tag), _row.pack(_PREFIX, topic, group, bytes([tag[0] + 1]))


def flow_of_group(topic: int, group: int) -> tuple[bytes, bytes]:
    """Every row of a group."""
    return _group.pack(_PREFIX, topic, group), _group.pack(_PREFIX, topic, group + 1)


def flow_of_queue(topic: int) -> tuple[bytes, bytes]:
    """Every row of every group of a queue."""
    return _group.pack(_PREFIX, topic, 0), _group.pack(_PREFIX, topic + 1, 0)


def read_row(snap: Snapshot, key: bytes, kind: type[T], queue: str) -> T | None:
    """What a row says; None when it is not there."""
    value = snap.get(key)
    return None if value is None else decode_row(value, kind, queue)


def decode_row(value: bytes, kind: type[T], queue: str) -> T:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a record of queue {queue!r} does not decode: {error}", topic=queue) from error


encode_row = _encode


def forget_rows(commit: Commit, rows: tuple[bytes, bytes], after: bytes, is_over: Callable[[bytes], bool]) -> bytes:
    """Removes some rows that do not count any more; returns where to go on, from the beginning at the end."""
    seen, last = 0, b""
    over: list[bytes] = []
    for key, value in commit.tx.scan(max(rows[0], after), rows[1]):
        if is_over(value):
            over.append(key)
        seen, last = seen + 1, key
        if seen == FORGET_STEP:
            break
    for key in over:
        commit.tx.delete(key)
    return last + b"\0" if seen == FORGET_STEP else b""
