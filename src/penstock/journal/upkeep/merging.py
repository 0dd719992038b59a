"""Merging small blocks of a topic's tail, in passing.

One commit makes one block, so that many small commits leave many small blocks. When enough small neighbours have
gathered they become one: first the smallest among themselves, and when enough of the results have gathered, those. A
block of `MERGED_BYTES` or more is left alone. The reading and joining happens beside the writer; only the exchange
takes its turn, in a commit that need not be on disk (a lost merge loses nothing).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engine.contract import Engine, Snapshot
from penstock.journal.commit.catalog import load_record, open_block
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.journal.commit.writer import Writer
from penstock.journal.storage import keys
from penstock.journal.storage.apart import stored_size
from penstock.journal.storage.block import Block
from penstock.journal.storage.joining import merge
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS, MERGE_FAN_IN

_TAIL_BLOCKS = 16 * MERGE_FAN_IN
_Stored = tuple[bytes, bytes]


def merge_tail(engine: Engine, writer: Writer, topic: str, *, below: int, fan_in: int = MERGE_FAN_IN) -> int:
    """Merges the trailing blocks smaller than `below` bytes if there are `fan_in` of them; returns how many were."""
    noted = writer.catalog.reshaped
    tail: list[_Stored] = []
    with engine.read() as snap:
        record = load_record(snap, topic)
        if record is None:
            return 0
        for key, value in snap.scan(*keys.block_range(record.number), reverse=True):
            if stored_size(value) >= below or len(tail) == _TAIL_BLOCKS:
                break
            tail.append((key, value))
        if len(tail) < max(2, fan_in):
            return 0
        tail.reverse()
        chunks = list(_chunks(snap, tail, topic))
    merged = 0
    for run, blocks in chunks:
        joined = merge(blocks)
        if writer.run(WriteRequest(_Exchange(run, joined, noted), len(joined), relaxed=True)):
            merged += len(run)
    return merged


def _chunks(snap: Snapshot, run: list[_Stored], topic: str) -> Iterator[tuple[list[_Stored], list[Block]]]:
    """Cuts a run where a merged block would grow past the usual size."""
    chunk: list[_Stored] = []
    blocks: list[Block] = []
    size = events = 0
    for key, value in run:
        block = open_block(snap, key, value, topic)
        if chunk and (size + len(value) > BLOCK_BYTES or events + block.count > BLOCK_EVENTS):
            if len(chunk) > 1:
                yield chunk, blocks
            chunk, blocks, size, events = [], [], 0, 0
        chunk.append((key, value))
        blocks.append(block)
        size += len(value)
        events += block.count
    if len(chunk) > 1:
        yield chunk, blocks


class _Exchange:
    """Puts a merged block in the place of its parts, unless they have changed since they were read."""

    def __init__(self, run: list[_Stored], joined: bytes, noted: int) -> None:
        self._run = run
        self._joined = joined
        self._noted = noted

    def __call__(self, commit: Commit) -> bool:
        first, last = self._run[0][0], self._run[-1][0]
        if commit.catalog.reshaped != self._noted and list(commit.tx.scan(first, last + b"\0")) != self._run:
            return False
        commit.exchange()
        commit.tx.delete_range(first + b"\0", last + b"\0")
        commit.tx.put(first, self._joined)
        return True
