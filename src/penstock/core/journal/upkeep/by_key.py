"""Compaction by key: only the newest event of every key remains."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.engine.contract import Engine, Snapshot
from penstock.core.journal import keys
from penstock.core.journal.blocks import plain_size, stored_size, text_values
from penstock.core.journal.catalog import load_state, save_state
from penstock.core.journal.commit import Commit
from penstock.core.journal.upkeep.retention import Hold, held_back
from penstock.core.journal.upkeep.thinning import ThinnedBlock, exchange, stored_blocks, without
from penstock.core.journal.writer import Writer
from penstock.limits import EXCHANGE_BYTES, RETENTION_BLOCKS

_TRIES = 100
"""The number of times that compaction by key reads changed blocks again.

After that, it leaves the rest to the next time.
"""
SCAN_BYTES = 4 << 20
"""The number of bytes that are read in one snapshot."""


def compact_by_key(writer: Writer, topic: str, holds: Sequence[Hold]) -> int:
    """Keeps only the newest event of every key, and every event without a key. Returns the number of removed events.

    No event that a queue holds is removed. The topic is read beside the writer, twice. Each commit exchanges a few
    blocks.
    """

    def begin(commit: Commit) -> tuple[int, int, int]:
        head = commit.head(topic)
        if head is None:
            return 0, 0, 0
        in_files = load_state(commit.tx, head.topic_id, topic).in_files
        return head.topic_id, in_files, held_back(commit, topic, head.latest, holds)[0]

    topic_id, at, through = writer.run_relaxed(begin)
    if through <= at:
        return 0
    newest = _newest_positions(writer.engine, topic_id, topic, at)
    removed = tries = 0
    while at < through and tries < _TRIES:
        with writer.engine.read() as snap:
            thinned, reached = _newest_only(snap, topic_id, topic, at, through, newest)
        if thinned and not writer.run_relaxed(exchange, topic, topic_id, thinned):
            tries += 1  # merged or removed since they were read
            continue
        removed += sum(one.removed for one in thinned)
        at, tries = reached, 0

    def end(commit: Commit) -> None:
        head = commit.head(topic)
        if head is not None and head.topic_id == topic_id:
            state = load_state(commit.tx, topic_id, topic)
            if state.compacted < through:
                save_state(commit.tx, topic_id, replace(state, compacted=through))

    writer.run_relaxed(end)
    return removed


def _newest_positions(engine: Engine, topic_id: int, topic: str, after: int) -> dict[str, int]:
    """Returns the position of the newest event of every key."""
    newest: dict[str, int] = {}
    more = True
    while more:
        more = False
        with engine.read() as snap:
            scanned = 0
            for _, value, block, *_ in stored_blocks(snap, topic_id, topic, after + 1, keys.MAX_SEQ):
                if scanned >= SCAN_BYTES:  # a long-lived snapshot prevents the engine from freeing space
                    more = True
                    break
                newest.update(
                    (key, seq)
                    for key, seq in zip(text_values(block.wire.key, block.count), block.seqs, strict=True)
                    if key is not None
                )
                scanned += plain_size(value)
                after = block.last
    return newest


def _newest_only(
    snap: Snapshot, topic_id: int, topic: str, after: int, through: int, newest: dict[str, int]
) -> tuple[list[ThinnedBlock], int]:
    """Returns the next blocks with events whose keys occur again later, without these events.

    Also returns the position that was reached.
    """
    thinned: list[ThinnedBlock] = []
    size = scanned = 0
    for stored in stored_blocks(snap, topic_id, topic, after + 1, through):
        block = stored.block
        if size >= EXCHANGE_BYTES or scanned >= SCAN_BYTES or len(thinned) == RETENTION_BLOCKS:
            return thinned, block.first - 1
        kept = [
            row
            for row, (key, seq) in enumerate(zip(text_values(block.wire.key, block.count), block.seqs, strict=True))
            if key is None or seq > through or seq >= newest.get(key, 0)
        ]
        scanned += plain_size(stored.value)
        if len(kept) < block.count:
            thinned.append(without(stored, kept))
            size += stored_size(stored.value)
    return thinned, through
