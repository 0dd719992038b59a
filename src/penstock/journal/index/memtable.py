"""A topic's newest events, indexed in memory: what the entity index's runs do not cover yet.

A memtable is filled by commits, with the events they have in hand, and by look-ups, with the blocks that were committed
elsewhere since the last one. Events never change and positions are never reused, so it stays right whatever is written
meanwhile, except when compaction by key removes events in the middle: then the index's epoch changes and a new one
begins.

It consists of parts, so that forgetting what runs cover is dropping the first ones. What a part holds for a term is
packed positions: neither the dictionary nor what is in it are followed by the garbage collector, which otherwise stops
every thread for as long as it takes to walk over half a million events.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.events import Event
from penstock.journal.blocks import Block, Wire, text_values
from penstock.limits import INDEX_MEMORY_BYTES, INDEX_RUN_EVENTS

Positions = dict[str, bytearray]
"""The positions of a term's events, ascending, packed as an array of "Q" would be."""
Newest = tuple[bytes, int, bytes]
"""A block's key, length and checksum: enough to see that it is still the newest one."""
State = tuple[int, int | None, Newest | None]
"""Through which position the tail is complete, what the engine's `changes` said before it was, and its newest block."""
Epoch = tuple[int, int]
"""The topic's number, its index's epoch, and whether events without a key are indexed, too."""

_TOGETHER = 256
"""Events handed out at once, at the most: who wants the newest one does not wait for a hundred thousand."""


class MemtablePart:
    """Some thousand events: their blocks, and where each term stands in them. `Memtable` adds to it."""

    __slots__ = ("_by_cause", "_by_correlation", "blocks", "by_key", "count", "lasts", "size", "starts")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.lasts: list[int] = []
        """The last position of each block."""
        self.starts: list[int] = []
        """The first row of each block that is of this memtable."""
        self.count = 0
        self.size = 0
        self.by_key: Positions = {}
        self._by_cause: Positions | None = None
        self._by_correlation: Positions | None = None

    def note_terms(self, block: Block, start: int) -> None:
        """Adds a block to what has been asked for, by cause or correlation."""
        if self._by_cause is not None:
            _note_column(self._by_cause, block, start, "causation")
        if self._by_correlation is not None:
            _note_column(self._by_correlation, block, start, "correlation")

    def by_cause(self) -> Positions:
        if self._by_cause is None:
            self._by_cause = self._column("causation")
        return self._by_cause

    def by_correlation(self) -> Positions:
        if self._by_correlation is None:
            self._by_correlation = self._column("correlation")
        return self._by_correlation

    def _column(self, name: str) -> Positions:
        found: Positions = {}
        for block, start in zip(self.blocks, self.starts, strict=True):
            _note_column(found, block, start, name)
        return found

    def events(self, positions: Sequence[int]) -> list[Event]:
        """The events at positions that this part holds."""
        found: list[Event] = []
        block: Block | None = None
        for seq in positions:
            if block is None or not block.first <= seq <= block.last:
                block = self.blocks[bisect_left(self.lasts, seq)]
            found.append(Event(block, seq - block.first if block.wire.seqs is None else bisect_left(block.seqs, seq)))
        return found


class Memtable:
    """The events base < position ≤ covered, by key (and, once asked for, by cause and correlation)."""

    __slots__ = ("_lock", "_over", "_parts", "base", "covered", "epoch", "size", "state")

    def __init__(self, epoch: Epoch, base: int) -> None:
        self.epoch = epoch
        """What was found under another one is not to be used any more."""
        self.base = base
        self.covered = base
        self.size = 0
        self.state: State = (base, None, None)
        """What a look-up may rely on, exchanged as a whole: see `State`."""
        self._lock = threading.Lock()
        self._parts: tuple[MemtablePart, ...] = (MemtablePart(),)
        """In order; events are added to the last one."""
        self._over = False
        """Another memtable has taken its parts over: nothing is added here any more."""

    def __len__(self) -> int:
        return self.covered - self.base

    def extend(
        self, covered: int, blocks: Sequence[tuple[Block, int]], version: int | None, newest: Newest | None
    ) -> bool:
        """Adds blocks after what is covered and notes that it was looked over; False when another thread was faster."""
        with self._lock:
            if self.covered != covered or self._over:
                return False
            for block, size in blocks:
                self.add(block, size)
            self.state = (self.covered, version, newest)
            return True

    def add_committed(
        self,
        topic: str,
        covered: int,
        wires: Sequence[Wire | None],
        keys: Sequence[str | None] | None,
        newest: Newest,
    ) -> bool:
        """Adds what a commit of this process has just written after `covered`; unless something came in between.

        So that a look-up during a bulk load has next to nothing to read: the writer has the events in hand. False when
        it has become too large to be kept.
        """
        with self._lock:
            if self.covered != covered or self._over:
                return True
            start = 0
            for wire in wires:
                if wire is not None:
                    block = Block(wire, topic)
                    stop = start + wire.count
                    part = keys if keys is None or wire.count == len(keys) else keys[start:stop]
                    self._add(block, 0, len(block.payload) + 64 * wire.count + 1024, part)  # a call less
                    start = stop
            # Whether another process has committed as well, a look-up finds out by the newest block.
            self.state = (self.covered, None, newest)
            return self.size <= 2 * INDEX_MEMORY_BYTES

    def add(self, block: Block, size: int) -> None:
        """Adds what a block holds after `covered`."""
        start = block.row_after(self.covered)
        if start < block.count:
            keys = None if block.wire.key is None else text_values(block.wire.key, block.count)[start:]
            self._add(block, start, size, keys)

    def _add(self, block: Block, start: int, size: int, keys: Sequence[str | None] | None) -> None:
        """Adds the events of a block from a row on, whose keys these are."""
        part = self._parts[-1]
        if part.count >= INDEX_RUN_EVENTS:
            part = MemtablePart()
            self._parts += (part,)
        part.lasts.append(block.last)
        part.starts.append(start)
        part.blocks.append(block)
        part.count += block.count - start
        part.size += size
        if keys is not None:
            _note(part.by_key, keys, block.seqs[start:])  # last: what has a position has a block
        if block.wire.causation is not None or block.wire.correlation is not None:
            part.note_terms(block, start)
        self.size += size
        self.covered = block.last

    def of_key(self, key: str, after: int, through: int, *, reverse: bool = False) -> Iterable[list[Event]]:
        """The events of a key in after < position ≤ through, some at a time, in order."""
        found: list[tuple[MemtablePart, array[int]]] = []
        for part in self._parts:
            packed = part.by_key.get(key)
            if packed is not None:
                positions = _between(packed, after, through)
                if positions:
                    found.append((part, positions))
        if not found:
            return ()
        part, positions = found[0]
        if len(found) > 1 or len(positions) > _TOGETHER:
            return _some_of(found, reverse)
        if reverse:
            positions.reverse()
        return (part.events(positions),)

    def entities(self, after: int, through: int) -> list[str]:
        """Every key that has events in after < position ≤ through."""
        found: dict[str, None] = {}
        for part in self._parts:
            by_key = part.by_key
            found |= dict.fromkeys(key for key in list(by_key) if _between(by_key[key], after, through))
        return list(found)

    def of_cause(self, id: str, after: int, through: int) -> list[Event]:
        """The events caused by an event."""
        return self._noted(MemtablePart.by_cause, id, after, through)

    def of_correlation(self, id: str, after: int, through: int) -> list[Event]:
        """The events of a correlation."""
        return self._noted(MemtablePart.by_correlation, id, after, through)

    def _noted(self, column: Callable[[MemtablePart], Positions], id: str, after: int, through: int) -> list[Event]:
        with self._lock:
            found = [(part, column(part).get(id, b"")) for part in self._parts]
            return [event for part, packed in found for event in part.events(_between(packed, after, through))]

    def without(self, base: int, adopt: Callable[[Memtable], None]) -> None:
        """Hands a memtable of what is left when runs cover everything through `base` to `adopt`.

        It costs next to nothing. What begins before `base` and ends after it is kept as a whole.
        """
        with self._lock:
            left = Memtable(self.epoch, base)
            left._lock = self._lock  # they share parts
            left._parts = tuple(part for part in self._parts if part.count and part.lasts[-1] > base)
            left.size = sum(part.size for part in left._parts)
            left.covered = max(self.covered, base)
            left.state = (left.covered, *self.state[1:])
            if not left._parts or left._parts[-1].count * 4 >= len(left):
                # So that it, too, can be dropped soon; not for a few events, because a look-up asks every part.
                left._parts += (MemtablePart(),)
            self._over = True
            adopt(left)


def block_size(block: Block) -> int:
    """The bytes a block takes in memory, about."""
    return len(block.payload) + 64 * block.count + 1024


def _note(found: Positions, terms: Sequence[str | None], seqs: Sequence[int]) -> None:
    packed = array("Q", seqs).tobytes()
    for term, at in zip(terms, range(0, len(packed), 8), strict=True):
        if term is not None:
            positions = found.get(term)
            if positions is None:
                found[term] = bytearray(packed[at : at + 8])
            else:
                positions += packed[at : at + 8]


def _note_column(found: Positions, block: Block, start: int, column: str) -> None:
    values = block.wire.causation if column == "causation" else block.wire.correlation
    if values is not None:
        _note(found, text_values(values, block.count)[start:], block.seqs[start:])


def _between(packed: bytes | bytearray, after: int, through: int) -> array[int]:
    """A copy: an array over the packed positions themselves would keep the writer from adding to them."""
    positions = array("Q", packed)
    return positions[bisect_right(positions, after) : bisect_right(positions, through)]


def _some_of(found: list[tuple[MemtablePart, array[int]]], reverse: bool) -> Iterator[list[Event]]:
    for part, positions in reversed(found) if reverse else found:
        if reverse:
            positions.reverse()
        for start in range(0, len(positions), _TOGETHER):
            yield part.events(positions[start : start + _TOGETHER])
