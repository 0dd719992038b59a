"""Taking single events out of stored blocks: read and rewritten beside the writer, exchanged a few blocks at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.engine.contract import Snapshot
from penstock.journal.commit.catalog import load_record, load_state, missing, open_block, save_state
from penstock.journal.commit.commit import Commit
from penstock.journal.index.directory import drop_index
from penstock.journal.storage import keys
from penstock.journal.storage.apart import stored_size
from penstock.journal.storage.block import Block
from penstock.journal.storage.joining import select
from penstock.limits import EXCHANGE_BYTES
from penstock.units import in_parts

Stored = tuple[bytes, bytes, Block]
"""A block with its key and value in the store."""


class ThinnedBlock(msgspec.Struct, frozen=True):
    """A block as it is stored, and what is to lie in its place."""

    key: bytes
    value: bytes
    last: int
    removed: int
    """How many events go."""
    first: int
    """Where the first one lies that stays; 0: none does."""
    kept: bytes


def stored_blocks(snap: Snapshot, number: int, topic: str, start: int, stop: int) -> Iterator[Stored]:
    """The stored blocks with events in start … stop, ascending; Corrupt when one is missing between them.

    What is rewritten here counts as compacted afterwards, and no check could tell a lost block from a removed one.
    """
    record = load_record(snap, topic)
    if record is None or record.number != number:
        return  # dropped since: its blocks are being cleared away, and none of them is lost
    state = load_state(snap, number, topic)
    whole = max(start - 1, state.trimmed, state.compacted, state.sealed)
    low, _ = keys.block_range(number)
    low = next((key for key, _ in snap.scan(low, keys.block_key(number, start + 1), reverse=True)), low)
    for key, value in snap.scan(low, keys.block_key(number, stop + 1)):
        block = open_block(snap, key, value, topic)
        if block.last < start:
            continue
        if block.first > whole + 1:
            raise missing(topic, whole + 1, block.first - 1)
        whole = max(whole, block.last)
        yield key, value, block


def without(stored: Stored, kept: Sequence[int]) -> ThinnedBlock:
    """A block of which only some rows stay."""
    key, value, block = stored
    first = block.seq(kept[0]) if kept else 0
    return ThinnedBlock(key, value, block.last, block.count - len(kept), first, select(block, kept) if kept else b"")


def in_steps(blocks: Sequence[ThinnedBlock]) -> Iterator[list[ThinnedBlock]]:
    """As many at a time as one commit should exchange."""
    return in_parts(blocks, lambda block: stored_size(block.value), EXCHANGE_BYTES)


def exchange(commit: Commit, topic: str, number: int, part: Sequence[ThinnedBlock]) -> bool:
    """Puts thinned blocks in the place of what was stored; False when that has changed since it was read."""
    head, tx = commit.head(topic), commit.tx
    if head is None or head.number != number or any(tx.get(one.key) != one.value for one in part):
        return False
    commit.reshape()
    for one in part:
        tx.delete(one.key)
        if one.first:
            tx.put(keys.block_key(number, one.first), one.kept)
    drop_index(tx, number, topic)
    head.newest = None
    state = load_state(tx, number, topic)
    changed = msgspec.structs.replace(
        state,
        removed=state.removed + sum(one.removed for one in part),
        latest=head.latest,
        recorded_ms=head.recorded_ms,
        last_id=head.last_id.to_bytes(16),
        compacted=max(state.compacted + 1, *(one.last for one in part)),  # another number: saved states are void by it
    )
    save_state(tx, number, changed)
    return True
