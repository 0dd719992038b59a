"""Where flow control keeps its state: rows of a group that a purge leaves alone, because a limit goes on counting.

q  the window of the queue's own rate          r<key>  the window of a key's rate
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from penstock.engine.contract import Snapshot
from penstock.errors import Corrupt

_PREFIX = b"qf"
_group = struct.Struct(">2sII")
_row = struct.Struct(">2sIIc")

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
    except msgspec.DecodeError as error:
        raise Corrupt(f"a record of queue {queue!r} does not decode: {error}", topic=queue) from error


encode_row = _encode
