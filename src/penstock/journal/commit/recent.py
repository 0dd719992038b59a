"""Writing a commit's events as blocks: a large batch as several, a small one beside its neighbours or with them.

One-by-one appends leave one small block each. The writer keeps their columns; the commit that would write the last of
`MERGE_FAN_IN` small blocks writes one block for all of them instead, in the place of the others, in the same
transaction. What the writer does not remember (after a restart, or when other processes write too) the housekeeper
merges by reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.contract import WriteTx
from penstock.journal.storage.block import build_joined, build_wire, seal
from penstock.journal.storage.keys import block_key
from penstock.journal.storage.wire import Columns, Wire
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS, MERGE_FAN_IN, SMALL_BYTES

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
    fits = tail.next in (first, 0)
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


def write_blocks(tx: WriteTx, topic: int, part: RecentBlock) -> tuple[bytes, bytes, list[Wire | None]]:
    """Writes more events than make one block; returns the last block's key and value, and all of them."""
    position, recorded_ms, base_id, columns = part
    start, count, weights = 0, len(columns.kinds), columns.weights()
    wires: list[Wire | None] = []
    while start < count:
        stop = start + _fitting(weights, start)
        wire = build_wire(columns.slice(start, stop), position + start, recorded_ms, base_id + start)
        key, value = block_key(topic, position + start), seal(wire)
        tx.put(key, value)
        wires.append(wire)
        start = stop
    return key, value, wires


def _fitting(weights: Sequence[int], start: int) -> int:
    """How many events from `start` on make a block of the usual size; at least one."""
    fitting = 0
    for total in accumulate(weights[start : start + BLOCK_EVENTS]):
        if total > BLOCK_BYTES and fitting:
            break
        fitting += 1
    return fitting
