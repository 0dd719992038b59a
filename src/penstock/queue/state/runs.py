"""Runs of held messages: neighbouring positions whose ordering keys are all busy, set aside without a row for each.

A million messages may wait behind one key. A take that has to get past them writes, for some blocks of them, one row
that says from where to where they lie and how many are left (`p`), and for every key among them one that says where
its first one is (`h`, with the run's end as its value). When the key is free again its first message gets a row of its
own, and the key's row moves on to the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING

from penstock.engine.contract import Snapshot
from penstock.journal.commit.commit import Commit
from penstock.journal.storage.block import Block
from penstock.journal.storage.columns import CodedText, unpack_ints
from penstock.queue.state import keys
from penstock.queue.state.records import HELD, MessageRow

if TYPE_CHECKING:
    from penstock.queue.state.group import Group

SHORTEST_RUN = 16
"""Fewer messages than this get a row each."""
LONGEST_SCAN = 512
"""Rows scanned one by one, where a block has too many keys to search its bytes; and about as many keys of a run."""

_value = struct.Struct(">QQ")


# ── in a block ───────────────────────────────────────────────────────────────────────────────────────────────────────
def first_free(block: Block, row: int, stop: int, is_busy: Callable[[str | None], bool]) -> int:
    """The first row from `row` on whose key is free (or that has none); `stop` when all before it are busy."""
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
    """Every key among some rows that is not known yet, and its first row."""
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


def next_row(block: Block, row: int, stop: int, key: str) -> int | None:
    """The first row from `row` on that has a key."""
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
    """A block's keys and which row has which; None where they are not in that form."""
    column = block.wire.key
    return (column.values, column.codes) if isinstance(column, CodedText) else ([], None)


# ── in a group ───────────────────────────────────────────────────────────────────────────────────────────────────────
class HeldRun:
    """A run in the making: messages of neighbouring blocks, right above the frontier, whose keys are all busy."""

    __slots__ = ("_blocked", "_count", "_end", "_firsts", "_group", "_snap", "_start")

    def __init__(self, snap: Snapshot, group: Group) -> None:
        self._snap = snap
        self._group = group
        self._blocked: dict[str | None, bool] = {None: False}
        self._firsts: dict[str | None, int] = {}
        self._start = self._end = self._count = 0

    def _is_busy(self, key: str | None) -> bool:
        known = self._blocked.get(key)
        if known is None:
            known = self._blocked[key] = self._group.is_busy(self._snap, key or "")
        return known

    def first_free(self, block: Block, row: int, stop: int) -> int:
        """The first row from `row` on that does not belong to the run."""
        return first_free(block, row, stop, self._is_busy)

    def add(self, block: Block, row: int, stop: int) -> None:
        """Takes in some rows of a block."""
        for key, at in first_rows(block, row, stop, self._firsts).items():
            self._firsts[key] = block.seq(at)
        self._start = self._start or block.seq(row)
        self._end = block.seq(stop - 1)
        self._count += stop - row

    @property
    def is_full(self) -> bool:
        """Whether it has as many keys, each of which is a row, as one step should write."""
        return len(self._firsts) >= LONGEST_SCAN

    def store(self, commit: Commit) -> None:
        """Writes the run down, and moves the frontier to its end."""
        tx, group = commit.tx, self._group
        for key, seq in self._firsts.items():
            tx.put(keys.held_key(group.topic, group.number, key or "", seq), keys.pack_seq(self._end))
        tx.put(keys.run_key(group.topic, group.number, self._start), _value.pack(self._end, self._count))
        group.record.held += self._count
        group.record.runs += 1
        group.advance(commit, self._end)


def runs(snap: Snapshot, group: Group, through: int | None = None, after: int = 0) -> Iterator[tuple[int, int, int]]:
    """Where each run begins and ends, and how many messages are left in it, ascending.

    Those from the one on that begins last at or before the position `after`.
    """
    if group.record.runs:
        low, high = keys.rows(group.topic, group.number, b"p")
        if after:
            stop = keys.run_key(group.topic, group.number, after + 1)
            low = next((key for key, _ in snap.scan(low, stop, reverse=True)), stop)
        if through is not None:
            high = keys.run_key(group.topic, group.number, through + 1)
        for key, value in snap.scan(low, high):
            yield keys.tail_seq(key), *_value.unpack(value)


def members(snap: Snapshot, group: Group, through: int | None = None, after: int = 0) -> Iterator[tuple[int, str]]:
    """The messages of all runs, ascending, with their keys; see `runs` for what is left out."""
    for start, end, _ in runs(snap, group, through, after):
        yield from _members_of(snap, group, start, end if through is None else min(end, through))


def _members_of(snap: Snapshot, group: Group, start: int, end: int) -> Iterator[tuple[int, str]]:
    parts: dict[str | None, list[tuple[int, int]]] = {}
    at = start
    while (found := group.queue.blocks.find(snap, at, end)) is not None:
        block, begin = found
        for row in range(begin, block.row_after(end)):
            seq, key = block.seq(row), block.key(row)
            if key not in parts:
                parts[key] = [] if key is None else _parts(snap, group, key, seq, end)
            if key is not None and any(first <= seq <= last for first, last in parts[key]):
                yield seq, key
        at = block.last + 1


def _parts(snap: Snapshot, group: Group, key: str, start: int, end: int) -> list[tuple[int, int]]:
    """The stretches of one run in which a key's messages are held."""
    low = keys.held_key(group.topic, group.number, key, start)
    stop = keys.held_key(group.topic, group.number, key, end + 1)
    return [(keys.tail_seq(row), keys.unpack_seq(value)) for row, value in snap.scan(low, stop) if value]


def member(snap: Snapshot, group: Group, seq: int) -> MessageRow | None:
    """A message that is held in a run, or None."""
    found = _stretch(snap, group, seq)
    return None if found is None else MessageRow(seq, HELD, key=found[0])


def take_out(commit: Commit, group: Group, seq: int) -> None:
    """Gives a message of a run a row of its own."""
    found = _stretch(commit.tx, group, seq)
    assert found is not None
    unfold(commit, group, found[0], seq, found[1], found[2])


def _stretch(snap: Snapshot, group: Group, seq: int) -> tuple[str, int, int] | None:
    """The key of a message that is held in a run, and from where to where its key is held there."""
    low, _ = keys.rows(group.topic, group.number, b"p")
    run = next(iter(snap.scan(low, keys.run_key(group.topic, group.number, seq + 1), reverse=True)), None)
    if run is None or _value.unpack(run[1])[0] < seq:
        return None
    event = group.queue.blocks.event(snap, seq)
    key = None if event is None else event.key
    if key is None:
        return None
    low, _ = keys.held_range(group.topic, group.number, key)
    stop = keys.held_key(group.topic, group.number, key, seq + 1)
    row = next(iter(snap.scan(low, stop, reverse=True)), None)
    if row is None or not row[1] or keys.unpack_seq(row[1]) < seq:
        return None
    return key, keys.tail_seq(row[0]), keys.unpack_seq(row[1])


def unfold(commit: Commit, group: Group, key: str, seq: int, first: int, last: int) -> MessageRow:
    """Gives a message of a run a row of its own; the key's messages before and after it stay in the run."""
    tx = commit.tx
    if first < seq:
        tx.put(keys.held_key(group.topic, group.number, key, first), keys.pack_seq(seq - 1))
    following = _next(tx, group, key, seq + 1, last)
    if following is not None:
        tx.put(keys.held_key(group.topic, group.number, key, following), keys.pack_seq(last))
    _shrink(commit, group, seq)
    group.record.held -= 1
    message = MessageRow(seq, HELD, key=key)
    group.place(commit, message)
    return message


def _next(snap: Snapshot, group: Group, key: str, start: int, end: int) -> int | None:
    """The next position of a key in a part of a run."""
    while (found := group.queue.blocks.find(snap, start, end)) is not None:
        block, row = found
        if isinstance(block, Block):
            at = next_row(block, row, block.row_after(end), key)
            if at is not None:
                return block.seq(at)
        start = block.last + 1
    return None


def _shrink(commit: Commit, group: Group, seq: int) -> None:
    """One message less in the run that holds a position."""
    low, _ = keys.rows(group.topic, group.number, b"p")
    for row, value in commit.tx.scan(low, keys.run_key(group.topic, group.number, seq + 1), reverse=True):
        end, left = _value.unpack(value)
        if left > 1:
            commit.tx.put(row, _value.pack(end, left - 1))
        else:
            commit.tx.delete(row)
            group.record.runs -= 1
        break
