"""A cache of blocks near the head of a queue, whose events are read again and again; events never change.

A block with a wrong checksum must not stop the queue: its positions are delivered as poison messages, with the stored
bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from itertools import islice

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block, CodedText, Columns, build_wire, columns_of, unpack_ints
from penstock.core.journal.catalog import load_state, open_block
from penstock.core.journal.commit import Commit
from penstock.core.model.reply import REPLY, keep_reply
from penstock.errors import Corrupt

KEPT_BLOCKS = 128
KEPT_BYTES = 8 << 20
READ_AHEAD = 32
LONGEST_SCAN = 512
"""The rows that are scanned one by one when a block has too many keys to search its bytes; also the approximate
number of keys of a run.
"""


class DamagedBlock(Block):
    """The placeholder for the events of an unreadable block: the same number of events, the first with the stored
    bytes.
    """

    def __init__(self, raw: bytes, topic: str, first: int, last: int) -> None:
        one, count = build_wire(Columns(["damaged"], [raw]), first, 0, 0), last - first + 1
        super().__init__(msgspec.structs.replace(one, count=count, run_counts=count), topic)

    def raw_payload(self, row: int) -> memoryview:
        return self.payload if row == 0 else memoryview(b"")  # one copy is enough to repair the block by hand


class BlockCache:
    """The most recently read blocks of one topic. Only the thread that leads the writer uses this cache."""

    def __init__(self, topic: str, topic_id: int) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._firsts: list[int] = []
        self._kept: list[Block] = []
        self._bytes = 0
        self.reshaped = -1
        """The count of the writer's catalogue at the last refresh."""
        self.hot: Block | None = None
        self.hot_first = self.hot_last = 0
        """The last block, if its positions have no holes: the next message is most likely in the same block."""

    def refresh(self, commit: Commit) -> None:
        """Drops blocks that a compaction, here or in another process, may have removed or cut."""
        if commit.catalog.reshaped == self.reshaped:
            return
        self.reshaped = commit.catalog.reshaped
        trimmed = load_state(commit.tx, self._topic_id, self._topic).trimmed
        while self._firsts and self._firsts[0] <= trimmed:
            self._bytes -= _size(self._kept.pop(0))
            del self._firsts[0]
        self.hot = None

    def find(self, snap: Snapshot, seq: int, through: int) -> tuple[Block, int] | None:
        """Returns the block and row of the first stored event at or above `seq` and at or below `through`."""
        if seq > through:
            return None
        if self.hot is not None and self.hot_first <= seq <= self.hot_last:
            return self.hot, seq - self.hot_first
        at = bisect_right(self._firsts, seq) - 1
        if at >= 0:
            block = self._kept[at]
            if seq <= block.last:
                return self._row_in(block, seq, through)
        found = self._load(snap, seq, through)
        return None if found is None else self._row_in(found, seq, through)

    def _row_in(self, block: Block, seq: int, through: int) -> tuple[Block, int] | None:
        if block.wire.seqs is None:
            first = block.first
            self.hot, self.hot_first, self.hot_last = block, first, block.last
            if seq < first:
                seq = first
            return (block, seq - first) if seq <= through else None
        row = block.row_after(seq - 1)
        return (block, row) if block.seq(row) <= through else None

    def between(self, snap: Snapshot, start: int, end: int) -> Iterator[tuple[Block, int]]:
        """Yields the block and row of every stored event from one position to another."""
        while (found := self.find(snap, start, end)) is not None:
            block, first = found
            for row in range(first, block.row_after(end)):
                yield block, row
            start = block.last + 1

    def event(self, snap: Snapshot, seq: int) -> Event | None:
        """Returns the event at a position, or None when compaction has removed it."""
        found = self.find(snap, seq, seq)
        return None if found is None else Event(*found)

    def _load(self, snap: Snapshot, seq: int, through: int) -> Block | None:
        key = keys.block_key(self._topic_id, seq)
        value = snap.get(key)
        if value is not None:
            block: Block | None = self._open(snap, key, value)
        else:
            low, _ = keys.block_range(self._topic_id)
            block = next((self._open(snap, *row) for row in snap.scan(low, key, reverse=True)), None)
            if block is not None and block.last < seq:
                block = None
        if block is not None:
            self._keep(block)
            if block.last < through:
                self._read_ahead(snap, block.last + 1, through)
            return block
        return self._read_ahead(snap, seq, through)

    def _read_ahead(self, snap: Snapshot, seq: int, through: int) -> Block | None:
        """Reads a few blocks that begin at or above `seq`, and returns the first of them."""
        rows = snap.scan(keys.block_key(self._topic_id, seq), keys.block_key(self._topic_id, through + 1))
        first = None
        size = 0
        for key, value in islice(rows, READ_AHEAD):
            block = self._open(snap, key, value)
            self._keep(block)
            first = first or block
            size += _size(block)  # with the size in the cache: more would evict blocks that were just read
            if size > KEPT_BYTES // 4:
                break
        return first

    def _open(self, snap: Snapshot, key: bytes, value: bytes) -> Block:
        try:
            return open_block(snap, key, value, self._topic)
        except Corrupt:
            first = keys.block_first(key)
            _, end = keys.block_range(self._topic_id)
            after = next(iter(snap.scan(key + b"\0", end)), None)
            last = keys.block_first(after[0]) - 1 if after else first
            return DamagedBlock(value, self._topic, first, last)

    def _keep(self, block: Block) -> None:
        at = bisect_right(self._firsts, block.first)
        if at and self._firsts[at - 1] == block.first:
            self._bytes -= _size(self._kept[at - 1])
            self._kept[at - 1] = block
        else:
            self._firsts.insert(at, block.first)
            self._kept.insert(at, block)
        self._bytes += _size(block)
        while len(self._kept) > KEPT_BLOCKS or (self._bytes > KEPT_BYTES and len(self._kept) > 1):
            # Takes move forward, so the earliest block is no longer needed, unless it was just read.
            oldest = 0 if self._kept[0] is not block else len(self._kept) - 1
            self._bytes -= _size(self._kept.pop(oldest))
            del self._firsts[oldest]


def copy_columns(event: Event) -> Columns:
    """Returns an event as columns, to be appended elsewhere; a damaged event as its remaining bytes."""
    rows, row = event._rows, event._row
    assert isinstance(rows, Block)  # queues read their messages from blocks
    if not isinstance(rows, DamagedBlock):
        columns = columns_of(rows, [row])
        if columns.headers is not None and REPLY in event.headers:
            columns.headers = [keep_reply(event.headers, event.id)]
        return columns
    columns = Columns([event.kind], [event.raw])
    columns.binary = [True]
    return columns


def _size(block: Block) -> int:
    return block.payload_size + 64 * block.count


# ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────────
def first_free_row(block: Block, row: int, stop: int, is_busy: Callable[[str | None], bool]) -> int:
    """Returns the first row from `row` on whose key is free, or that has no key; `stop` when all earlier rows are
    busy.
    """
    values, codes = _coded(block)
    if isinstance(codes, int):
        return stop if is_busy(values[codes]) else row
    if codes is not None and len(codes) == block.count:
        free = bytes([not is_busy(value) for value in values])
        if 1 not in free and row == 0 and stop == block.count:
            return stop
        found = codes.translate(free.ljust(256, b"\1")).find(1, row, stop)
        return stop if found < 0 else found
    last = min(stop, row + LONGEST_SCAN)
    return next((at for at in range(row, last) if not is_busy(block.key(at))), last)


def first_rows(block: Block, row: int, stop: int, known: Container[str | None] = ()) -> dict[str | None, int]:
    """Returns every new key among some rows, with its first row."""
    values, codes = _coded(block)
    found: dict[str | None, int] = {}
    if isinstance(codes, int):
        if values[codes] not in known:
            found[values[codes]] = row
    elif codes is not None and len(codes) == block.count:
        for code, value in enumerate(values):
            if value not in known and (at := codes.find(code, row, stop)) >= 0:
                found[value] = at
    else:
        for at in range(row, stop):
            key = block.key(at)
            if key not in known:
                found.setdefault(key, at)
    return found


def row_with_key(block: Block, row: int, stop: int, key: str) -> int | None:
    """Returns the first row from `row` on that has a key."""
    values, codes = _coded(block)
    if row >= stop:
        return None
    if isinstance(codes, int):
        return row if values[codes] == key else None
    if codes is not None:
        if key not in values:
            return None
        code = values.index(key)
        if len(codes) == block.count:
            at = codes.find(code, row, stop)
            return None if at < 0 else at
        numbers = unpack_ints(codes, block.count)
        return next((at for at in range(row, stop) if numbers[at] == code), None)
    return next((at for at in range(row, stop) if block.key(at) == key), None)


def _coded(block: Block) -> tuple[list[str | None], int | bytes | None]:
    """Returns a block's keys and the code of each row; None when the keys have another form."""
    column = block.wire.key
    return (column.values, column.codes) if isinstance(column, CodedText) else ([], None)
