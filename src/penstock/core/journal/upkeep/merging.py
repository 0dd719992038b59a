"""Merging: small blocks at the end of a topic become large blocks, in the background.

One commit makes one block, so many small commits leave many small blocks. When there are enough small neighbours, they
become one block: first the smallest blocks, later the results. A merged block is compressed. A block of `MERGED_BYTES`
or more, before compression, is not merged. Blocks are read and joined beside the writer. Only the exchange is a commit,
which need not be on disk (a lost merge loses no data).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.engine.contract import Snapshot
from penstock.core.journal import keys
from penstock.core.journal.blocks import REFERENCE_MARK, Block, Wire, compressed, encode_block, join_checked, plain_size
from penstock.core.journal.catalog import load_record, load_state, open_block
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.runs import load_directory
from penstock.core.journal.summaries import RangeRows, range_rows, replace_range_rows
from penstock.core.journal.writer import Writer
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS, MERGE_FAN_IN

_TAIL_BLOCKS = 16 * MERGE_FAN_IN
_Row = tuple[bytes, bytes]


def merge_tail(writer: Writer, topic: str, *, below: int, fan_in: int = MERGE_FAN_IN) -> int:
    """Merges the trailing blocks that are smaller than `below` bytes if there are at least `fan_in` of them.

    Returns the number of merged blocks.
    """
    noted = writer.catalog.reshaped
    tail: list[_Row] = []
    with writer.engine.read() as snap:
        record = load_record(snap, topic)
        if record is None:
            return 0
        # Blocks before a segment are not joined with blocks after it.
        begin = load_state(snap, record.topic_id, topic).in_files + 1
        stop = keys.block_range(record.topic_id)[1]
        for key, value in snap.scan(keys.block_key(record.topic_id, begin), stop, reverse=True):
            apart = value[:1] == REFERENCE_MARK
            if apart or plain_size(value) >= below or len(tail) == _TAIL_BLOCKS:
                break
            tail.append((key, value))
        if len(tail) < max(2, fan_in):
            return 0
        tail.reverse()
        chunks = list(_chunks(snap, tail, topic))
        covered = load_directory(snap, record.topic_id, topic).through if record.settings.indexed else keys.MAX_SEQ
    merged = 0
    for run, blocks in chunks:
        wire = compressed(join_checked(blocks))
        value, about = encode_block(wire), range_rows(wire, indexed=keys.block_first(run[-1][0]) > covered)
        if writer.run_relaxed(_put_joined, topic, record.topic_id, run, wire, value, about, noted):
            merged += len(run)
    return merged


def _chunks(snap: Snapshot, run: list[_Row], topic: str) -> Iterator[tuple[list[_Row], list[Block]]]:
    """Divides a run of blocks at the points where a merged block would exceed the usual size."""
    chunk: list[_Row] = []
    blocks: list[Block] = []
    size = events = 0
    for key, value in run:
        block, own = open_block(snap, key, value, topic), plain_size(value)
        if chunk and (size + own > BLOCK_BYTES or events + block.count > BLOCK_EVENTS):
            if len(chunk) > 1:
                yield chunk, blocks
            chunk, blocks, size, events = [], [], 0, 0
        chunk.append((key, value))
        blocks.append(block)
        size += own
        events += block.count
    if len(chunk) > 1:
        yield chunk, blocks


def _put_joined(
    commit: Commit,
    topic: str,
    topic_id: int,
    run: list[_Row],
    wire: Wire,
    value: bytes,
    about: RangeRows | None,
    noted: int,
) -> bool:
    """Puts a merged block in the place of its parts, unless the parts have changed since they were read."""
    first, last = run[0][0], run[-1][0]
    if commit.catalog.reshaped != noted and list(commit.tx.scan(first, last + b"\0")) != run:
        return False
    commit.exchange()
    commit.tx.delete_range(first + b"\0", last + b"\0")
    commit.tx.put(first, value)
    if wire.seqs is None:
        replace_range_rows(commit.tx, topic_id, topic, wire.first, wire.first + wire.count - 1, about)
    return True
