"""The keys of queues' rows in the engine's ordered map; the package's docstring describes each row."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.core.journal.keys import stored_name
from penstock.errors import Corrupt
from penstock.limits import MAX_NAME_LENGTH

QUEUE = b"qr"
_shared = struct.Struct(">2sIc")
_shared_seq = struct.Struct(">2sIcQ")
_group = struct.Struct(">2sII")
_row = struct.Struct(">2sIIc")
_length = struct.Struct(">H")
_seq = struct.Struct(">Q")
_rank_seq = struct.Struct(">IQ")
_due_seq = struct.Struct(">QQ")
HIGHEST_PRIORITY = (1 << 31) - 1
FRONT = HIGHEST_PRIORITY
"""The rank of messages that were pushed to the front: before all others, also in a queue without priorities."""
LOWEST_PRIORITY = -(1 << 31)
MOST_PURGES = (1 << 16) - 1
ALL_GROUPS = (1 << 32) - 1
"""The group of flow control rows about pushes."""
_SHARED = b"qt"
_GROUP = b"qg"
_FLOW = b"qf"

RECORD, LEASE, BATCH, TRAIL, RUN, TAKEN, BUSY = b"g", b"l", b"i", b"t", b"p", b"v", b"b"
STEP, PROGRESS = b"e", b"o"
"""Notes of calls, by position; see `operations.notes`."""
PLACES = b"r", b"s", b"k", b"f"
"""Messages with a row of their own, by state: ready, waiting, held, failed."""
READY, LANE, TURN, WAITING, HELD = b"y", b"u", b"z", b"w", b"h"
"""The kinds of a group's rows; the kinds of the last line order messages of one state."""


# ── the queue ──────────────────────────────────────────────────────────────────────────────────────────────────────
def queue_key(name: str) -> bytes:
    return QUEUE + name.encode()


def traits_key(topic: int) -> bytes:
    return _shared.pack(_SHARED, topic, b"c")


def dropped_key(topic: int) -> bytes:
    return _shared.pack(_SHARED, topic, b"d")


def pack_dropped(last: int, over_log: bool) -> bytes:
    """Returns the row that a dropped queue leaves: its last position, and whether the topic under it was a log."""
    return _seq.pack(last) + (b"l" if over_log else b"")


def unpack_dropped(value: bytes) -> tuple[int, bool]:
    return unpack_seq(value[: _seq.size]), len(value) > _seq.size


def special_key(topic: int, seq: int) -> bytes:
    return _shared_seq.pack(_SHARED, topic, b"x", seq)


def override_key(topic: int, seq: int) -> bytes:
    return _shared_seq.pack(_SHARED, topic, b"a", seq)


def letter_key(topic: int, origin: str, seq: int) -> bytes:
    """Returns the key of the row of a dead letter.

    Names that are longer than a queue's name are cut, because no queue has such a name.
    """
    text = origin.encode()[: MAX_NAME_LENGTH + 1]
    return _shared.pack(_SHARED, topic, b"l") + _length.pack(len(text)) + text + _seq.pack(seq)


def schedule_key(topic: int, name: str) -> bytes:
    return _shared.pack(_SHARED, topic, b"s") + name.encode()


def schedule_range(topic: int) -> tuple[bytes, bytes]:
    return _shared.pack(_SHARED, topic, b"s"), _shared.pack(_SHARED, topic, b"t")


def tick_key(topic: int, due: int, name: str) -> bytes:
    return _shared_seq.pack(_SHARED, topic, b"q", due) + name.encode()


def split_tick(key: bytes) -> tuple[int, str]:
    """Returns the time of a tick, and the name of its periodic message."""
    return _seq.unpack_from(key, _shared.size)[0], stored_name(key[_shared_seq.size :])


def task_key(topic: int, task: str) -> bytes:
    return _shared.pack(_SHARED, topic, b"m") + task.encode()


def task_range(topic: int) -> tuple[bytes, bytes]:
    return _shared.pack(_SHARED, topic, b"m"), _shared.pack(_SHARED, topic, b"n")


def task_name(key: bytes) -> str:
    return stored_name(key[_shared.size :])


def schedule_name(key: bytes) -> str:
    return stored_name(key[_shared.size :])


def presence_key(topic: int, group: int, consumer: str) -> bytes:
    return _shared.pack(_SHARED, topic, b"n") + struct.pack(">I", group) + consumer.encode()


def presence_range(topic: int) -> tuple[bytes, bytes]:
    return _shared.pack(_SHARED, topic, b"n"), _shared.pack(_SHARED, topic, b"o")


def last_failure_key(topic: int, group: int, consumer: str) -> bytes:
    return _shared.pack(_SHARED, topic, b"e") + struct.pack(">I", group) + consumer.encode()


def last_failure_range(topic: int) -> tuple[bytes, bytes]:
    return _shared.pack(_SHARED, topic, b"e"), _shared.pack(_SHARED, topic, b"f")


def split_presence(key: bytes) -> tuple[int, str]:
    """Returns the group's id and the consumer's name, of a row of its presence or its last failure."""
    return struct.unpack_from(">I", key, _shared.size)[0], stored_name(key[_shared.size + 4 :])


def shared_range(topic: int) -> tuple[bytes, bytes]:
    """Returns the range of the rows of a queue that belong to no group."""
    return struct.pack(">2sI", _SHARED, topic), struct.pack(">2sI", _SHARED, topic + 1)


def join_key(id: str, number: int | None = None) -> bytes:
    """Returns the row of a join of calls, or of the result of one of them."""
    return b"qj" + id.encode() + (b"" if number is None else b"/" + number.to_bytes(4))


def place_key(token: str) -> bytes:
    """Returns the row that says where the message is whose outcome has this token."""
    return b"qc" + token.encode()


# ── a group ────────────────────────────────────────────────────────────────────────────────────────────────────────
def group_prefix(topic: int, group: int, purges: int = 0) -> bytes:
    """Returns the prefix of every row of a group, after so many purges of its queue."""
    return _group.pack(_GROUP, topic, purges << 16 | group)


def group_range(topic: int, group: int, purges: int) -> tuple[bytes, bytes]:
    """Returns every row of a group."""
    return group_prefix(topic, group, purges), group_prefix(topic, group + 1, purges)


def groups_range(topic: int) -> tuple[bytes, bytes]:
    """Returns every row of every group of a queue, also those from before a purge."""
    return group_prefix(topic, 0), group_prefix(topic + 1, 0)


def purged_ranges(topic: int, purges: int) -> list[tuple[bytes, bytes]]:
    """Returns the rows of groups from before the last purge; the number begins anew after `MOST_PURGES`."""
    first, end = groups_range(topic)
    return [(first, group_prefix(topic, 0, purges)), (group_prefix(topic, 0, purges + 1), end)]


def ready_key(group: bytes, priority: int, seq: int) -> bytes:
    return group + READY + _rank_seq.pack(HIGHEST_PRIORITY - priority, seq)


def waiting_key(group: bytes, due: int, seq: int) -> bytes:
    return group + WAITING + _due_seq.pack(due, seq)


def turn_key(group: bytes, turn: int, seq: int) -> bytes:
    return group + TURN + _due_seq.pack(turn, seq)


def batch_key(group: bytes, first: int, lease: int) -> bytes:
    return group + BATCH + _due_seq.pack(first, lease)


def busy_key(group: bytes, key: str) -> bytes:
    return group + BUSY + _text(key)


def lane_key(group: bytes, lane: str, seq: int) -> bytes:
    return group + LANE + _text(lane) + _seq.pack(seq)


def lane_end(group: bytes, lane: str) -> bytes:
    """Returns the key behind every row of a lane."""
    return group + LANE + _text(lane) + b"\xff" * 9


def held_key(group: bytes, key: str, seq: int) -> bytes:
    return group + HELD + _text(key) + _seq.pack(seq)


def held_range(group: bytes, key: str) -> tuple[bytes, bytes]:
    prefix = group + HELD + _text(key)
    return prefix, prefix + b"\xff" * 9


def _text(value: str) -> bytes:
    text = value.encode()
    return _length.pack(len(text)) + text


# ── what a key says ────────────────────────────────────────────────────────────────────────────────────────────────
def tail_seq(key: bytes) -> int:
    """Returns the number at the end of a key: a position, or a lease's id."""
    return _seq.unpack_from(key, len(key) - 8)[0]  # type: ignore[no-any-return]


def split_ready(key: bytes) -> tuple[int, int]:
    """Returns priority and position of a ready row."""
    rank, seq = _rank_seq.unpack_from(key, _row.size)
    return HIGHEST_PRIORITY - rank, seq


def split_due(key: bytes) -> tuple[int, int]:
    """Returns due time and position of a waiting row; turn and position of a row of turns; position and lease of a
    batch.
    """
    return _due_seq.unpack_from(key, _row.size)


def pack_seq(seq: int) -> bytes:
    return _seq.pack(seq)


def pack_seqs(seqs: list[int]) -> bytes:
    return struct.pack(f">{len(seqs)}Q", *seqs)


def unpack_seqs(value: bytes) -> list[int]:
    return list(struct.unpack(f">{len(value) // 8}Q", value))


def unpack_seq(value: bytes) -> int:
    return _seq.unpack(value)[0]  # type: ignore[no-any-return]


# ── what a row says ──────────────────────────────────────────────────────────────────────────────────────────────────
T = TypeVar("T")
encode = msgspec.msgpack.Encoder().encode


def row_decoder(kind: type[T]) -> Callable[[bytes, str], T]:
    """Returns the decoder of rows of one kind; its Corrupt errors name the queue."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(value: bytes, queue: str) -> T:
        try:
            return decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"a record of queue {queue!r} does not decode: {error}", topic=queue) from error

    return read


# ── flow control ──────────────────────────────────────────────────────────────────────────────────────────────────────
def flow_key(topic: int, group: int, tag: bytes, name: str = "") -> bytes:
    return _row.pack(_FLOW, topic, group, tag) + name.encode()


def flow_rows(topic: int, group: int, tag: bytes) -> tuple[bytes, bytes]:
    """Returns all of a group's rows of one kind."""
    return _row.pack(_FLOW, topic, group, tag), _row.pack(_FLOW, topic, group, bytes([tag[0] + 1]))


def flow_tag(key: bytes) -> bytes:
    """Returns the kind of a row."""
    return key[_group.size : _row.size]


def flow_name(key: bytes) -> bytes:
    """Returns the key, text or lane that a row is about."""
    return key[_row.size :]


def flow_of_group(topic: int, group: int) -> tuple[bytes, bytes]:
    """Returns every row of a group."""
    return _group.pack(_FLOW, topic, group), _group.pack(_FLOW, topic, group + 1)


def flow_of_queue(topic: int) -> tuple[bytes, bytes]:
    """Returns every row of every group of a queue."""
    return _group.pack(_FLOW, topic, 0), _group.pack(_FLOW, topic + 1, 0)
