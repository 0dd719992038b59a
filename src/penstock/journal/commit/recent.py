"""A topic's newest small blocks as the writer still has them in memory, so that merging them needs no reading.

One-by-one appends leave one small block each. The writer keeps their columns; the commit that would write the last of
`MERGE_FAN_IN` small blocks writes one block for all of them instead, in the place of the others, in the same
transaction. What the writer does not remember (after a restart, or when other processes write too) the housekeeper
merges by reading it.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.journal.storage.block import Columns, build_joined
from penstock.limits import BLOCK_BYTES, MERGE_FAN_IN, SMALL_BYTES


class RecentBlock(NamedTuple):
    """The events of one commit, as they went into a block of their own."""

    first: int
    recorded_ms: int
    base_id: int
    columns: Columns


class RecentBlocks:
    """Neighbouring small blocks at the end of a topic, each of one commit."""

    __slots__ = ("parts", "size", "stamp")

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        """What the catalogue counted when this began: blocks exchanged by others since make it worthless."""
        self.parts: list[RecentBlock] = []
        self.size = 0

    def takes(self, part: RecentBlock, size: int) -> bool:
        """Whether a block belongs to the tail: small, and right after the last one."""
        if size >= SMALL_BYTES or part.columns.chain is not None:
            return False
        if not self.parts:
            return True
        last = self.parts[-1]
        return last.first + len(last.columns.kinds) == part.first

    def add(self, part: RecentBlock, size: int) -> None:
        self.parts.append(part)
        self.size += size

    @property
    def full(self) -> bool:
        """Whether one more block makes the merge worth its writes."""
        return len(self.parts) >= MERGE_FAN_IN - 1 or self.size >= BLOCK_BYTES // 2

    def joined(self, last: RecentBlock) -> bytes:
        """One block of everything here and the newest commit's events."""
        return build_joined([*self.parts, last])
