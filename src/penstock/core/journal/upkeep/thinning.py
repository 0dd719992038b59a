"""Thinning: single events are removed from stored blocks.

The blocks are read and rewritten beside the writer, some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.core.engine.contract import Snapshot
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block, block_of_rows, stored_size
from penstock.core.journal.catalog import load_record, load_state, open_block, save_with_end
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.runs import drop_index
from penstock.core.journal.reading import TopicView
from penstock.core.units import in_parts
from penstock.limits import EXCHANGE_BYTES, RETENTION_BLOCKS


class BlockRow(NamedTuple):
    """A block with its key and value in the store."""

    key: bytes
    value: bytes
    block: Block
    first: int
    last: int


class ThinnedBlock(msgspec.Struct, frozen=True):
    """A stored block, and its replacement."""

    key: bytes
    value: bytes
    last: int
    removed: int
    """The number of events that are removed from the block."""
    first: int
    """The position of the first event that remains; 0 when none remains."""
    kept: bytes


def stored_blocks(snap: Snapshot, topic_id: int, topic: str, start: int, stop: int) -> Iterator[BlockRow]:
    """Yields the stored blocks with events in start … stop, ascending.

    Raises Corrupt when a block is missing between them.

    The check is needed here: a rewritten range counts as compacted afterwards, and no later check could tell a lost
    block from a removed one.
    """
    record = load_record(snap, topic)
    if record is None or record.topic_id != topic_id:
        return  # dropped since: its blocks are being removed, and none is lost
    view = TopicView(snap, topic, record)
    yield from view.hot_blocks(max(start - 1, view.state().sealed), stop, _open_stored)


def _open_stored(snap: Snapshot, key: bytes, value: bytes, topic: str) -> BlockRow:
    block = open_block(snap, key, value, topic)
    return BlockRow(key, value, block, block.first, block.last)


def without(stored: BlockRow, kept: Sequence[int]) -> ThinnedBlock:
    """Returns a block with only some of its rows."""
    key, value, block, *_ = stored
    first = block.seq(kept[0]) if kept else 0
    return ThinnedBlock(
        key, value, block.last, block.count - len(kept), first, block_of_rows(block, kept) if kept else b""
    )


def in_steps(blocks: Sequence[ThinnedBlock]) -> Iterator[list[ThinnedBlock]]:
    """Yields as many blocks at a time as one commit should exchange."""
    return in_parts(blocks, lambda block: stored_size(block.value), EXCHANGE_BYTES, RETENTION_BLOCKS)


def exchange(commit: Commit, topic: str, topic_id: int, part: Sequence[ThinnedBlock]) -> bool:
    """Replaces stored blocks by thinned blocks. Returns False when a stored block has changed since it was read."""
    head, tx = commit.head(topic), commit.tx
    if head is None or head.topic_id != topic_id or any(tx.get(one.key) != one.value for one in part):
        return False
    commit.reshape()
    for one in part:
        tx.delete(one.key)
        if one.first:
            tx.put(keys.block_key(topic_id, one.first), one.kept)
    drop_index(tx, topic_id, topic)
    head.newest = None
    state = load_state(tx, topic_id, topic)
    removed = state.removed + sum(one.removed for one in part)
    compacted = max(state.compacted + 1, *(one.last for one in part))  # a new number makes saved states void
    save_with_end(tx, head, replace(state, removed=removed, compacted=compacted))
    return True
