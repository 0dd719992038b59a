"""Blocks of events that are not appended yet, and what their events ask for besides being appended.

On its way to the commit a block may carry a column for each option (`RowOptions`). It is never stored with them: a
block whose events ask for something is opened by the commit, event by event, as an append of many drafts would be.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import astuple

from penstock.errors import Corrupt
from penstock.journal.storage.block import read_block
from penstock.journal.storage.wire import Wire, decode_wire


class RowOptions(msgspec.Struct, array_like=True):
    """What the events of a block ask for; a column is None where none of them asks."""

    dedup: list[str | None] | None = None
    expect: list[int | None] | None = None
    """The position of the newest event of the row's key."""
    priority: list[int | None] | None = None
    delay: list[int | None] | None = None
    """Milliseconds from the commit on."""
    not_before: list[int | None] | None = None
    """Milliseconds since 1970."""
    max_attempts: list[int | None] | None = None

    @property
    def delivery(self) -> bool:
        """Whether any of them says how it is to be delivered, which only a queue understands."""
        return any(one is not None for one in (self.priority, self.delay, self.not_before, self.max_attempts))

    def lengths(self) -> set[int]:
        """How many values the columns have."""
        return {len(column) for column in astuple(self) if column is not None}


class PendingWire(Wire):
    """A block whose events ask for something."""

    options: RowOptions | None = None


_decode = msgspec.msgpack.Decoder(PendingWire).decode


def with_options(wire: Wire, options: RowOptions) -> Wire:
    """The block with what its events ask for; the block itself when they ask for nothing."""
    if not options.lengths():
        return wire
    made = PendingWire(*astuple(wire))
    made.options = options
    return made


def decode_pending(body: bytes | memoryview) -> Wire:
    """What `encode_wire` made of a block, with or without options; Corrupt when it is something else."""
    try:
        found = _decode(body)
        return found if found.options is not None else decode_wire(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a staged block does not decode: {error}") from error


def read_pending(value: bytes, topic: str) -> Wire:
    """A block as it was staged."""
    read_block(value, topic)  # its checksum
    return decode_pending(memoryview(value)[:-4])


def options_of(wire: Wire) -> RowOptions | None:
    """What a block's events ask for."""
    return wire.options if isinstance(wire, PendingWire) else None
