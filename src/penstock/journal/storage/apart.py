"""Blocks stored apart: a large one was written before its place in the topic was known.

Under its block key then lies a reference: where the block is, and the positions, recording time and ids of its events,
which are filled in when it is read. A reference begins with a byte that no block begins with, and ends with its
checksum, as a block does.
"""

from __future__ import annotations

import zlib

import msgspec

from penstock.engine.contract import Snapshot
from penstock.errors import Corrupt
from penstock.journal.storage.block import Block, read_block, seal
from penstock.journal.storage.wire import Wire, set_one_run

_MARK = 0xC1
"""msgpack never uses this byte."""


class Reference(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a block is that is stored apart, and what is filled in when it is read."""

    key: bytes
    size: int
    count: int
    first: int
    recorded_ms: int
    id: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


_encode = msgspec.msgpack.Encoder().encode
_Stored = tuple[bytes, int, int, int, int, bytes]
_decode = msgspec.msgpack.Decoder(_Stored).decode


def pack_reference(made: Reference) -> bytes:
    """The stored form of a reference."""
    number = made.id.to_bytes(16)
    body = bytes((_MARK,)) + _encode((made.key, made.size, made.count, made.first, made.recorded_ms, number))
    return body + zlib.crc32(body).to_bytes(4)


def reference_in(value: bytes, topic: str) -> Reference | None:
    """The reference that is stored in a block's place; None when the block itself is."""
    if value[:1] != b"\xc1":
        return None
    if zlib.crc32(value[:-4]) != int.from_bytes(value[-4:]):
        raise Corrupt("a block's reference fails its checksum", topic=topic)
    try:
        key, size, count, first, recorded_ms, number = _decode(value[1:-4])
    except msgspec.DecodeError as error:
        raise Corrupt(f"a block's reference does not decode: {error}", topic=topic) from error
    return Reference(key, size, count, first, recorded_ms, int.from_bytes(number))


def stored_size(value: bytes) -> int:
    """How many bytes a block takes, wherever it is; what is damaged counts as what lies here."""
    try:
        found = reference_in(value, "")
    except Corrupt:
        return len(value)
    return len(value) if found is None else found.size


def read_apart(snap: Snapshot, found: Reference, topic: str) -> Block:
    """The block that a reference means."""
    value = snap.get(found.key)
    if value is None:
        raise Corrupt("a block that is stored apart is missing", topic=topic, seq=found.first)
    wire = read_block(value, topic).wire
    if wire.count != found.count:
        raise Corrupt(f"a block stored apart has {wire.count} events, not {found.count}", topic=topic, seq=found.first)
    stamp(wire, found.first, found.recorded_ms, found.id)
    return Block(wire, topic)


def whole_value(snap: Snapshot, value: bytes, topic: str) -> bytes:
    """A block in its stored form, wherever it is."""
    found = reference_in(value, topic)
    return value if found is None else seal(read_apart(snap, found, topic).wire)


def stamp(wire: Wire, first: int, recorded_ms: int, number: int) -> None:
    """Makes a block's events one run: at positions from `first` on, recorded together, with ids counting up."""
    wire.first = first
    set_one_run(wire, recorded_ms, number)
