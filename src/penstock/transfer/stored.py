"""Stored blocks as they are: found in a snapshot without being decoded, and several of them in one message.

A message is the blocks one after the other, each with its length (4 bytes, big-endian) before it. The reader of a block
checks its checksum, so that the sender need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock.engine.contract import Snapshot
from penstock.errors import Corrupt
from penstock.journal.blocks import Block, read_block, seal, unpack_signed, whole_value
from penstock.journal.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.sealed.files import sealed_blocks

_LENGTH = 4


class StoredBlock(msgspec.Struct, gc=False):
    """A block's bytes, and the positions of its first and last event."""

    first: int
    last: int
    value: bytes


class _Edges(msgspec.Struct, array_like=True, gc=False):
    """What of a `Wire` says which positions it holds; the rest is passed over."""

    format: int
    count: int
    first: int
    run_counts: msgspec.Raw
    run_time: msgspec.Raw
    run_times: msgspec.Raw
    run_ids: msgspec.Raw
    kinds: msgspec.Raw
    kind_codes: msgspec.Raw
    lengths: msgspec.Raw
    payload: msgspec.Raw
    seqs: bytes | None = None


_edges = msgspec.msgpack.Decoder(_Edges).decode


def stored_blocks(view: TopicView, after: int, through: int) -> Iterator[StoredBlock]:
    """The blocks with events in after < position ≤ through, ascending. Sealed ones are made of their row groups."""
    if after >= through:
        return
    state = load_state(view.snap, view.topic_id, view.name)
    if state.sealed > after:
        high = min(through, state.sealed)
        for block in sealed_blocks(view.snap, view.topic_id, view.name, after, high, state.trimmed):
            yield StoredBlock(block.first, block.last, seal(block.wire))
        after = high
        if after >= through:
            return
    yield from view.hot_blocks(after, through, state, _stored)


def _stored(snap: Snapshot, key: bytes, value: bytes, topic: str) -> StoredBlock:
    value = whole_value(snap, value, topic)
    try:
        found = _edges(memoryview(value)[:-4])
        last = found.first + found.count - 1 if found.seqs is None else unpack_signed(found.seqs, found.count)[-1]
    except (msgspec.DecodeError, Corrupt, IndexError) as error:
        raise Corrupt(f"a block does not decode: {error}", topic=topic) from error
    return StoredBlock(found.first, last, value)


def message_of(values: Iterable[bytes]) -> bytes:
    """Blocks as one message."""
    pieces: list[bytes] = []
    for value in values:
        pieces += (len(value).to_bytes(_LENGTH), value)
    return b"".join(pieces)


def values_of(message: bytes | memoryview) -> Iterator[memoryview]:
    """The blocks in a message; ValueError when it ends in the middle of one."""
    view = memoryview(message)
    at = 0
    while at < len(view):
        start = at + _LENGTH
        at = start + int.from_bytes(view[at:start])
        if start > len(view) or at > len(view):
            raise ValueError(f"a message of {len(view)} bytes ends in the middle of a block")
        yield view[start:at]


def blocks_of(message: bytes, topic: str) -> list[Block]:
    """The blocks in a message, opened; Corrupt when one was damaged on its way, or before."""
    try:
        return [read_block(value, topic) for value in values_of(message)]
    except ValueError as error:
        raise Corrupt(str(error), topic=topic) from error
