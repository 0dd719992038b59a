"""A topic's newest small blocks as the writer still has them in memory, so that merging them needs no reading.

One-by-one appends leave one small block each. The writer keeps their columns; the commit that would write the last of
`MERGE_FAN_IN` small blocks writes one block for all of them instead, in the place of the others, in the same
transaction. What the writer does not remember (after a restart, or when other processes write too) the housekeeper
merges by reading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.engine.contract import WriteTx
from penstock.journal.storage.block import Columns, Wire, build_joined, build_wire, seal
from penstock.journal.storage.keys import block_key
from penstock.limits import BLOCK_BYTES, MERGE_FAN_IN, SMALL_BYTES

if TYPE_CHECKING:
    from penstock.journal.commit.catalog import Head

RecentBlock = tuple[int, int, int, Columns]
"""The events of one commit: their first position, their recording time, their first id, and their columns."""


class RecentBlocks(msgspec.Struct, eq=False, weakref=False):
    """Neighbouring small blocks at the end of a topic, each of one commit."""

    stamp: int
    """What the catalogue counted when this began: blocks exchanged by others since make it worthless."""
    parts: list[RecentBlock]
    size: int = 0
    next: int = 0
    """The position after the last one; 0: there is none."""


def write_block(tx: WriteTx, head: Head, stamp: int, part: RecentBlock) -> tuple[bytes, bytes, Wire | None]:
    """Writes one commit's events: as a block of their own, or together with the small ones before them.

    Returns the stored key and value, and the block itself where it holds nothing but these events.
    """
    first, recorded_ms, base_id, columns = part
    tail = head.tail
    if tail is None or tail.stamp != stamp:
        tail = head.tail = RecentBlocks(stamp, [])
    fits = columns.chain is None and tail.next in (first, 0)
    parts = tail.parts
    if fits and (len(parts) >= MERGE_FAN_IN - 1 or tail.size >= BLOCK_BYTES // 2):
        key, value = block_key(head.number, parts[0][0]), build_joined([*parts, part])
        tx.delete_range(key + b"\0", block_key(head.number, first))
        tx.put(key, value)
        head.tail = None
        return key, value, None
    wire = build_wire(columns, first, recorded_ms, base_id)
    key, value = block_key(head.number, first), seal(wire)
    tx.put(key, value)
    size = len(value)
    if fits and size < SMALL_BYTES:
        parts.append(part)
        tail.size += size
        tail.next = first + len(columns.kinds)
    else:
        head.tail = None
    return key, value, wire
