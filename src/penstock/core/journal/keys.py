"""The key layout: the rows in the engine's ordered map.

    m                         the store: format, id (msgpack)
    i                         the next topic's id
    t name                    a topic: id, settings (msgpack)
    a name                    a topic whose settings have a max_age
    s topic                   a topic's counters that compaction changes: trimmed, removed, high water (msgpack)
    b topic first             a block: the events first … first+n of one or more commits
    o topic first             what the events first … are like: kinds, scopes, times (journal.summaries)
    j topic first             by which terms the events first … are found, until they are indexed (journal.summaries)
    l topic first             hashes of the events first …, in a verified topic (journal.summaries)
    c topic consumer          a cursor: a position, and when it moved there
    d topic bucket dedup      a dedup key: position and id of its event; after all buckets, the windows before (msgpack)
    n name                    a mark: a named number that commits with a transaction
    y topic                   a topic's seals: whose turn it is, files that await their removal (msgpack)
    z topic last              a segment: a Parquet file of sealed events first … last
    w batch                   a large batch that is being staged (journal.bulk, msgpack)
    v batch                   one that is published, with blocks that are stored apart (msgpack)
    x batch piece index       a block that is stored apart
    N hashed topic            a topic's name; N alone: every topic has one (journal.locating)
    A hashed topic            a topic with events whose ids were given elsewhere (journal.locating)
    C hash hashed-topic       a topic with events of a correlation or of a cause (journal.locating)
    U hashed topic            a topic of which C says nothing after a position (journal.locating)
    E topic erasure           an erasure under way; E alone: freed bytes may still hold erased ones (upkeep.erasing)
    L topic seq               the hash of an erased event, in a topic with published roots (upkeep.erasing)
    e name                    where a dropped topic of this name ended: one made later begins after it (msgpack)
    g topic                   a dropped topic whose rows are not all cleared yet (journal.upkeep.dropping, msgpack)
    f owner                   an exclusive fence that is open: in which file (entity.fence)
    u                         an unfinished copy: the id of the journal it is made from
    h …                       the past in numbers: what the console's charts show (sampling.history)
    k …                       the entity index        (entity layer)
    p …                       projections' snapshots  (entity layer)
    r …                       published Merkle roots  (entity layer)
    q …                       queues                  (queue layer)

`topic` is its id, 4 bytes; positions are 8 bytes; both big-endian, so that byte order is numeric order. `hashed
topic` is two bytes of a hash of a topic's name, and its id.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from penstock.errors import Corrupt
from penstock.limits import MAX_POSITION

T = TypeVar("T")

STORE = b"m"
NEXT_TOPIC = b"i"
TOPIC = b"t"
AGED = b"a"
STATE = b"s"
BLOCK = b"b"
SUMMARY = b"o"
HASHES = b"j"
LEAVES = b"l"
CURSOR = b"c"
DEDUP = b"d"
MARK = b"n"
SEALS = b"y"
SEGMENT = b"z"
HISTORY = b"h"
COPYING = b"u"
STAGED = b"w"
PUBLISHED = b"v"
APART = b"x"
DROPPED = b"g"
ENDED = b"e"
FENCE = b"f"
NAME = b"N"
OTHER_IDS = b"A"
CAUSAL = b"C"
UNFOLDED = b"U"
ERASING = b"E"
ERASED_LEAF = b"L"
ROOTS = b"r"

_block = struct.Struct(">cIQ")
_topic = struct.Struct(">cI")
_dedup = struct.Struct(">cII")
_seq = struct.Struct(">Q")
_piece = struct.Struct(">II")
_hashed_topic = struct.Struct(">HI")

MAX_SEQ = MAX_POSITION
MAX_BUCKET = (1 << 32) - 1


TopicId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""A topic's id, which fits into a key; a stored record with another number is damaged."""
StoredPosition = Annotated[int, msgspec.Meta(ge=0, le=MAX_POSITION)]

block_key: Callable[[int, int], bytes] = partial(_block.pack, BLOCK)
"""The key of a topic's block by its first position. Every commit makes such a key, so this is not a Python function."""


summary_key: Callable[[int, int], bytes] = partial(_block.pack, SUMMARY)
hashes_key: Callable[[int, int], bytes] = partial(_block.pack, HASHES)
leaves_key: Callable[[int, int], bytes] = partial(_block.pack, LEAVES)
"""The key of some hashes by the position of the first."""


def block_first(key: bytes) -> int:
    """Returns the first position of the block, or of the hashes, under a key."""
    try:
        return _seq.unpack_from(key, 5)[0]  # type: ignore[no-any-return]
    except struct.error:
        raise Corrupt(f"the key of a block has {len(key)} bytes, and should have {_block.size}") from None


def block_range(topic: int) -> tuple[bytes, bytes]:
    return _topic.pack(BLOCK, topic), _topic.pack(BLOCK, topic + 1)


def segment_key(topic: int, last: int) -> bytes:
    return _block.pack(SEGMENT, topic, last)


def seals_key(topic: int) -> bytes:
    return _topic.pack(SEALS, topic)


def topic_range(prefix: bytes, topic: int) -> tuple[bytes, bytes]:
    """Returns the range of a topic's rows under a prefix that the topic's id follows."""
    return _topic.pack(prefix, topic), _topic.pack(prefix, topic + 1)


dropped_key: Callable[[int], bytes] = partial(_topic.pack, DROPPED)


def dropped_topic(key: bytes) -> int:
    """Returns the id of the topic that a dropped topic's key names."""
    if len(key) != _topic.size:
        raise Corrupt(f"the key of a dropped topic has {len(key)} bytes, and should have {_topic.size}")
    return int.from_bytes(key[1:])


def topic_of(key: bytes) -> int:
    """Returns the id of the topic in a key that begins with a prefix and that id."""
    return int.from_bytes(key[1:5])


def topic_key(name: str) -> bytes:
    return TOPIC + name.encode()


def ended_key(name: str) -> bytes:
    return ENDED + name.encode()


ID_BITS = 0xFFF << 32
"""The bits of an id that carry a hash of its topic's name."""


def id_bits(name: str) -> int:
    """Returns the bits that the ids of a topic's events have in common."""
    return zlib.crc32(name.encode()) >> 20 << 32


def hashed_topic(name: str, topic: int) -> bytes:
    """Returns two bytes of a hash of a topic's name, which the ids of its events carry too, and its id."""
    return _hashed_topic.pack(id_bits(name) >> 32, topic)


def hashed_topic_id(topic: bytes) -> int:
    """Returns the id in a hashed topic."""
    return int.from_bytes(topic[-4:])


def aged_key(name: str) -> bytes:
    return AGED + name.encode()


state_key: Callable[[int], bytes] = partial(_topic.pack, STATE)
erasing_key: Callable[[int], bytes] = partial(_topic.pack, ERASING)
erased_leaf_key: Callable[[int, int], bytes] = partial(_block.pack, ERASED_LEAF)


def cursor_key(topic: int, consumer: str) -> bytes:
    return _topic.pack(CURSOR, topic) + consumer.encode()


def dedup_key(topic: int, bucket: int, dedup: str) -> bytes:
    return _dedup.pack(DEDUP, topic, bucket) + dedup.encode()


def windows_key(topic: int) -> bytes:
    """Returns the key of the record of a topic's earlier dedup windows, which follows all its buckets."""
    return _dedup.pack(DEDUP, topic, MAX_BUCKET)


def dedup_range(topic: int, stop_bucket: int) -> tuple[bytes, bytes]:
    """Returns the range of the dedup keys in buckets before `stop_bucket`."""
    return _topic.pack(DEDUP, topic), _dedup.pack(DEDUP, topic, stop_bucket)


def mark_key(name: str) -> bytes:
    return MARK + name.encode()


def staged_key(batch: bytes) -> bytes:
    """Returns the key of the record of an unpublished batch; its name is 16 bytes."""
    return STAGED + batch


def published_key(batch: bytes) -> bytes:
    return PUBLISHED + batch


def apart_key(batch: bytes, piece: int, index: int) -> bytes:
    return APART + batch + _piece.pack(piece, index)


def piece_range(batch: bytes, piece: int) -> tuple[bytes, bytes]:
    return apart_key(batch, piece, 0), apart_key(batch, piece + 1, 0)


def batch_range(batch: bytes) -> tuple[bytes, bytes]:
    """Returns the range of the blocks of a batch."""
    return APART + batch, APART + batch + b"\xff" * 9


def pack_seq(seq: int) -> bytes:
    return _seq.pack(seq)


def unpack_seq(value: bytes) -> int:
    if len(value) != 8:
        raise Corrupt(f"a stored position has {len(value)} bytes, and should have 8")
    return _seq.unpack(value)[0]  # type: ignore[no-any-return]


def stored_name(raw: bytes) -> str:
    """Returns the name in a key; raises Corrupt when it is no text, which only damage can cause."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"a stored name is no text: {raw[:80]!r}") from error


def stored(decode: Callable[[bytes], T], value: bytes, what: str) -> T:
    """Returns the decoded value of a row; raises Corrupt when it does not decode, which only damage can cause."""
    try:
        return decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{what} does not decode: {error}") from error


def with_checksum(body: bytes) -> bytes:
    """Returns a row's bytes followed by their CRC-32."""
    return body + zlib.crc32(body).to_bytes(4)


def without_checksum(value: bytes) -> memoryview | None:
    """Returns the value that `with_checksum` got; None when the checksum differs, which only damage can cause."""
    body = memoryview(value)[:-4]
    return body if len(value) >= 4 and zlib.crc32(body) == int.from_bytes(value[-4:]) else None


def prefix_end(prefix: bytes) -> bytes:
    """Returns the smallest key after every key that begins with `prefix` (whose last byte is not 255)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
