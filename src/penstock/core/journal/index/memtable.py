"""A topic's newest events, indexed in memory: the events that no run of the entity index covers yet.

Commits fill a memtable with their own events; look-ups fill it with blocks that were committed elsewhere since the last
look-up. Events never change and positions are never reused, so a memtable stays correct whatever is written meanwhile.
The only exception is compaction by key, which removes events in the middle: it changes the index's epoch, and a new
memtable begins.

Events are added in order of position, and only events after `covered`. So an event is in the memtable once, even if it
is read twice because row groups of sealed files, blocks and ranges of hashes end at different positions.

A memtable consists of parts, so it removes the events that runs cover by dropping the first parts. A part holds the
positions of a term in packed form. The garbage collector does not visit the dictionary or its contents; otherwise it
would stop every thread while it visits half a million events.

For larger commits without tags, a part holds only hashes (see `journal.summaries`) and no block. A hash takes four
bytes an event and is searched directly. The events that match are read from the store.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic

from penstock.core.journal.blocks import Block, Wire, text_values
from penstock.core.journal.index.runs import tags_of
from penstock.core.journal.reading import TopicView
from penstock.core.journal.summaries import TermHashes, hashes_of, is_hashed, rows_with
from penstock.limits import INDEX_MEMORY_BYTES, INDEX_RUN_EVENTS, SUMMARY_EVENTS

Piece = tuple[Block, Sequence[int]]
"""A block and the indexes of some of its rows, in order of position."""
Positions = dict[str, bytearray]
"""The positions of a term's events, ascending, packed as in an array of "Q"."""
Newest = tuple[bytes, int, bytes]
"""A block's key, length and checksum. They are enough to recognise the newest block."""
State = tuple[int, Newest | None, float]
"""The position through which the memtable is complete, its newest block, and the time when events were last added
(`time.monotonic`).
"""
Epoch = tuple[int, int]
"""The topic's id, and the epoch of its index."""

_KEPT_BYTES = 4 << 20
"""The bytes of blocks that are kept for the next look-up."""
_TERM_BYTES = 160
"""The approximate bytes of a term and its positions."""
_TOGETHER = 256
"""The maximum number of events that are returned at once: a caller of the newest event does not wait for a hundred
thousand.
"""


class MemtablePart:
    """The terms of several thousand events, with the positions of each term. `Memtable` adds events."""

    __slots__ = ("count", "last", "size", "terms")

    def __init__(self) -> None:
        self.last = 0
        """The last position in the part."""
        self.count = 0
        self.size = 0
        self.terms: tuple[Positions, Positions, Positions, Positions] = ({}, {}, {}, {})
        """The positions by keys, causes, correlations and tags."""


class HashedPart:
    """The hashes of the terms of several thousand neighbouring events. `Memtable` adds events."""

    __slots__ = ("first", "last", "terms")

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.terms = (bytearray(), bytearray(), bytearray())
        """The hashes of keys, causes and correlations; empty when no event has such a term."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def size(self) -> int:
        return sum(map(len, self.terms))

    def add(self, hashes: TermHashes) -> None:
        """Adds the events that follow."""
        count, more = self.count, hashes.last - hashes.first + 1
        for mine, theirs in zip(self.terms, (hashes.keys, hashes.causes, hashes.correlations), strict=True):
            if mine or theirs:
                mine += bytes(4 * count - len(mine)) + (theirs or bytes(4 * more))
        self.last = hashes.last  # set last: every position before it has a hash

    def positions(self, column: int, term: str, after: int, through: int, *, reverse: bool = False) -> Iterator[int]:
        """Returns the positions of events in after < position ≤ through that may have a term."""
        first = self.first
        start, stop = max(after + 1 - first, 0), max(min(through, self.last) + 1 - first, 0)
        return (first + row for row in rows_with(self.terms[column], term, start, stop, reverse=reverse))


KEYS, CAUSES, CORRELATIONS, TAGS = range(4)
"""The columns of a part. A part of hashes has no tags."""
_TERMS = ("key", "causation", "correlation")
Part = MemtablePart | HashedPart


class KeptBlocks:
    """The last few megabytes of blocks that were committed here or read for a look-up. It is thread-safe."""

    __slots__ = ("_blocks", "_firsts", "_lock", "_size")

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._firsts: list[int] = []
        self._size = 0
        self._lock = threading.Lock()

    def pieces(self, view: TopicView, positions: Iterable[int], committed: int) -> list[tuple[Block, list[int]]]:
        """Returns the rows at given positions, from kept blocks or else from the store.

        Events that compaction removed are left out.

        Blocks with events through `committed` are kept. Later events may belong to a transaction, which may be rolled
        back.
        """
        found: list[tuple[Block, list[int]]] = []
        block: Block | None = None
        for seq in positions:
            if block is None or not block.first <= seq <= block.last:
                with self._lock:
                    at = bisect_right(self._firsts, seq)
                    block = self._blocks[self._firsts[at - 1]] if at else None
                if block is None or block.last < seq:
                    block = view.block_holding(seq)
                    if block is not None and block.last <= committed:
                        self.keep(block, block_size(block))
            row = None
            if block is not None and block.first <= seq <= block.last:
                row = seq - block.first if block.wire.seqs is None else block.row_of(seq)
            if row is None or block is None:
                view.check_gone(seq)
            else:
                if not found or found[-1][0] is not block:
                    found.append((block, []))
                found[-1][1].append(row)
        return found

    def keep(self, block: Block, size: int) -> None:
        with self._lock:
            before = self._blocks.pop(block.first, None)  # a merged block is larger
            if before is None:
                insort(self._firsts, block.first)
            else:
                self._size -= block_size(before)
            self._blocks[block.first] = block
            self._size += size
            while self._size > _KEPT_BYTES and len(self._firsts) > 1:
                first = next(iter(self._blocks))
                self._size -= block_size(self._blocks.pop(first))
                del self._firsts[bisect_left(self._firsts, first)]


class Memtable:
    """The events at base < position ≤ covered, by key, cause, correlation and tag."""

    __slots__ = ("_kept", "_lock", "_over", "_parts", "base", "covered", "epoch", "size", "state")

    def __init__(self, epoch: Epoch, base: int) -> None:
        self.epoch = epoch
        """The epoch of the index. A memtable of another epoch is void."""
        self.base = base
        self.covered = base
        self.size = 0
        self.state: State = (base, None, monotonic())
        """The state that a look-up may rely on (see `State`). It is replaced as a whole."""
        self._lock = threading.Lock()
        self._parts: tuple[Part, ...] = (MemtablePart(),)
        """The parts, in order. Events are added to the last part."""
        self._kept = KeptBlocks()
        self._over = False
        """True if another memtable has taken over the parts. Then this memtable accepts no more events."""

    def __len__(self) -> int:
        return self.covered - self.base

    def extend(self, covered: int, blocks: Sequence[tuple[Block, int]], newest: Newest | None) -> bool:
        """Adds blocks after the covered positions, and records the newest block.

        Returns False when another thread was faster.
        """
        with self._lock:
            if self.covered != covered or self._over:
                return False
            for block, size in blocks:
                self.add(block, size)
            self.state = (self.covered, newest, monotonic() if blocks else self.state[2])
            return True

    def add_committed(
        self, topic: str, covered: int, wires: Sequence[Wire | None], keys: Sequence[str | None] | None, newest: Newest
    ) -> bool:
        """Adds the events that a commit of this process has just written after `covered`, unless other events came in
        between.

        So a look-up during a bulk load has almost nothing to read: the writer has the events in memory. Returns False
        when the memtable has become too large to keep.
        """
        with self._lock:
            if self.covered != covered or self._over:
                return True
            start = 0
            for wire in wires:
                if wire is not None and is_hashed(wire):
                    self.add_hashes(hashes_of(wire))
                    block = Block(wire, topic)
                    self._kept.keep(block, block_size(block))  # often this block is read next
                    start += wire.count
                elif wire is not None:
                    block = Block(wire, topic)
                    stop = start + wire.count
                    part = keys if keys is None or wire.count == len(keys) else keys[start:stop]
                    self._add(block, 0, len(wire.payload) + 64 * wire.count + 1024, part)  # one call less
                    start = stop
            self.state = (self.covered, newest, monotonic())
            return self.size <= 2 * INDEX_MEMORY_BYTES

    def add_hashes(self, hashes: TermHashes) -> None:
        """Adds the hashes of the events that come after `covered`."""
        hashes = hashes.after(self.covered)
        if hashes.first > hashes.last:
            return
        part = self._parts[-1]
        if not isinstance(part, HashedPart) or part.count >= INDEX_RUN_EVENTS or part.last != hashes.first - 1:
            part = HashedPart(hashes.first)
            self._parts += (part,)
        before = part.size
        part.add(hashes)
        self.size += part.size - before
        self.covered = hashes.last

    def add(self, block: Block, size: int) -> None:
        """Adds the events of a block after `covered`."""
        start = block.row_after(self.covered)
        if block.count - start >= SUMMARY_EVENTS and is_hashed(block.wire):
            self.add_hashes(hashes_of(block.wire))
        elif start < block.count:
            keys = None if block.wire.key is None else text_values(block.wire.key, block.count)[start:]
            self._add(block, start, size, keys)

    def _add(self, block: Block, start: int, size: int, keys: Sequence[str | None] | None) -> None:
        """Adds the events of a block from a row on; this row is the first after `covered`. `keys` are their keys."""
        part = self._parts[-1]
        if isinstance(part, HashedPart) or part.count >= INDEX_RUN_EVENTS:
            part = MemtablePart()
            self._parts += (part,)
        part.last = block.last
        count = block.count - start
        part.count += count
        self._kept.keep(block, size)
        seqs = range(block.first + start, block.last + 1) if block.wire.seqs is None else block.seqs[start:]
        noted = 0
        if keys is not None:
            _note(part.terms[KEYS], keys, seqs)
            noted += count
        if block.wire.causation is not None:
            _note(part.terms[CAUSES], text_values(block.wire.causation, block.count)[start:], seqs)
            noted += count
        if block.wire.correlation is not None:
            _note(part.terms[CORRELATIONS], text_values(block.wire.correlation, block.count)[start:], seqs)
            noted += count
        if block.wire.tags is not None:
            tags, positions = tags_of(text_values(block.wire.tags, block.count)[start:], seqs)
            _note(part.terms[TAGS], tags, positions)
            noted += len(tags)
        part.size += _TERM_BYTES * noted
        self.size += _TERM_BYTES * noted
        self.covered = block.last

    def pieces(
        self, view: TopicView, column: int, term: str, after: int, through: int, *, reverse: bool = False
    ) -> Iterator[Piece]:
        """Yields the rows with a key, cause or correlation in after < position ≤ through, in order.

        Every piece has rows.
        """
        for part in self._parts[::-1] if reverse else self._parts:
            if isinstance(part, HashedPart):
                positions: Iterable[int] = part.positions(column, term, after, through, reverse=reverse)
            elif (packed := part.terms[column].get(term)) is not None:
                positions = reversed(_between(packed, after, through)) if reverse else _between(packed, after, through)
            else:
                continue
            for block, rows in self.rows_at(view, positions):
                if isinstance(part, HashedPart):  # another term may have the same hash
                    term_of = getattr(block, _TERMS[column])
                    rows = [row for row in rows if term_of(row) == term]
                if rows:
                    yield block, rows

    def tagged(self, tag: str, after: int, through: int, *, reverse: bool = False) -> Iterator[int]:
        """Returns the positions of the events that have a tag in after < position ≤ through, in order."""
        for part in self._parts[::-1] if reverse else self._parts:
            if isinstance(part, MemtablePart) and (packed := part.terms[TAGS].get(tag)) is not None:
                positions = _between(packed, after, through)
                yield from reversed(positions) if reverse else positions

    def rows_at(self, view: TopicView, positions: Iterable[int]) -> Iterator[Piece]:
        """Yields the rows at given positions, some at a time. Every piece has rows. Recently read blocks are kept."""
        positions = iter(positions)
        while some := list(islice(positions, _TOGETHER)):
            yield from self._kept.pieces(view, some, self.covered)

    def entities(self, view: TopicView, after: int, through: int) -> list[str]:
        """Returns every key that has events in after < position ≤ through."""
        found: dict[str, None] = {}
        for part in self._parts:
            if isinstance(part, HashedPart):
                low, high = max(after, part.first - 1), min(through, part.last)
                for block in view.blocks(low, high) if part.terms[KEYS] else ():
                    for key, seq in zip(text_values(block.wire.key, block.count), block.seqs, strict=True):
                        if key is not None and low < seq <= high:
                            found[key] = None
            else:
                by_key = part.terms[KEYS]
                found |= dict.fromkeys(key for key in list(by_key) if _between(by_key[key], after, through))
        return list(found)

    def without(self, base: int, adopt: Callable[[Memtable], None]) -> None:
        """Calls `adopt` with a memtable of the events that remain when runs cover everything through `base`.

        This costs almost nothing. A part that begins before `base` and ends after it is kept as a whole.
        """
        with self._lock:
            left = Memtable(self.epoch, base)
            left._lock = self._lock  # both memtables share parts
            left._kept = self._kept
            left._parts = tuple(part for part in self._parts if part.count and part.last > base)
            left.size = sum(part.size for part in left._parts)
            left.covered = max(self.covered, base)
            left.state = (left.covered, self.state[1], monotonic())
            if not left._parts or left._parts[-1].count * 4 >= len(left):
                # A new part begins, so that this part too can be dropped soon. For few events no part begins, because a
                # look-up asks every part.
                left._parts += (MemtablePart(),)
            self._over = True
            adopt(left)


def block_size(block: Block) -> int:
    """Returns the approximate size of a block in memory, in bytes."""
    return block.payload_size + 64 * block.count + 1024


def _note(found: Positions, terms: Sequence[str | None], seqs: Sequence[int]) -> None:
    packed = array("Q", seqs).tobytes()
    for term, at in zip(terms, range(0, len(packed), 8), strict=True):
        if term is not None:
            positions = found.get(term)
            if positions is None:
                found[term] = bytearray(packed[at : at + 8])
            else:
                positions += packed[at : at + 8]


def _between(packed: bytes | bytearray, after: int, through: int) -> array[int]:
    """Returns a copy: an array over the packed positions themselves would prevent the writer from adding positions."""
    positions = array("Q", packed)
    return positions[bisect_right(positions, after) : bisect_right(positions, through)]
