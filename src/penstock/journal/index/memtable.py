"""A topic's newest events, indexed in memory: what the entity index's runs do not cover yet.

A memtable is filled by look-ups, with the blocks that were committed since the last look-up. Events never
change and positions are never reused, so a tail stays right whatever is written meanwhile, except when compaction by
key removes events in the middle: then the index's epoch changes and a new tail begins.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from penstock.events import Event
from penstock.journal.storage.block import Block, Wire
from penstock.journal.storage.columns import text_values
from penstock.limits import INDEX_MEMORY_BYTES

Found = tuple[list[int], list[Event]]
"""Events, and their positions beside them, to be searched."""
Newest = tuple[bytes, int, bytes]
"""A block's key, length and checksum: enough to see that it is still the newest one."""
State = tuple[int, int | None, Newest | None]
"""Through which position the tail is complete, what the engine's `changes` said before it was, and its newest block."""
Epoch = tuple[int, int, bool]
"""The topic's number, its index's epoch, and whether events without a key are indexed, too."""


class Memtable:
    """The events base < position ≤ covered, by key (and, once asked for, by cause and correlation)."""

    __slots__ = (
        "_blocks",
        "_by_cause",
        "_by_correlation",
        "_by_key",
        "_keyless",
        "_lock",
        "base",
        "covered",
        "epoch",
        "size",
        "state",
    )

    def __init__(self, epoch: Epoch, base: int, *, keyless: bool) -> None:
        self.epoch = epoch
        """What was found under another one is not to be used any more."""
        self.base = base
        self.covered = base
        self.size = 0
        self.state: State = (base, None, None)
        """What a look-up may rely on, exchanged as a whole: see `State`."""
        self._lock = threading.Lock()
        self._keyless = keyless
        self._blocks: list[tuple[Block, int]] = []
        self._by_key: dict[str, Found] = {}
        self._by_cause: dict[str, Found] | None = None
        self._by_correlation: dict[str, Found] | None = None

    def __len__(self) -> int:
        return self.covered - self.base

    def extend(
        self, covered: int, blocks: Sequence[tuple[Block, int]], version: int | None, newest: Newest | None
    ) -> bool:
        """Adds blocks after what is covered and notes that it was looked over; False when another thread was faster."""
        with self._lock:
            if self.covered != covered:
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
            if self.covered != covered:
                return True
            start = 0
            for wire in wires:
                if wire is not None:
                    block = Block(wire, topic)
                    stop = start + wire.count
                    self._add(block, 0, keys if keys is None or wire.count == len(keys) else keys[start:stop])
                    self.size += len(block.payload) + 64 * wire.count + 1024
                    start = stop
            # Whether another process has committed as well, a look-up finds out by the newest block.
            self.state = (self.covered, None, newest)
            return self.size <= 2 * INDEX_MEMORY_BYTES

    def add(self, block: Block, size: int) -> None:
        """Adds what a block holds after `covered`."""
        start = block.row_after(self.covered)
        if start < block.count:
            keys = None if block.wire.key is None else text_values(block.wire.key, block.count)[start:]
            self._add(block, start, keys)
            self.size += size

    def _add(self, block: Block, start: int, keys: Sequence[str | None] | None) -> None:
        """Adds the events of a block from a row on, whose keys these are."""
        self._blocks.append((block, start))
        by_key = self._by_key
        if keys is None and self._keyless:
            keys = [None] * (block.count - start)
        if keys is not None:
            seqs = block.seqs
            for row, key in enumerate(keys, start):
                if key is None:
                    if not self._keyless:
                        continue
                    key = ""
                if key in by_key:
                    positions, events = by_key[key]
                    events.append(Event(block, row))
                    positions.append(seqs[row])  # last: what has a position is there
                else:
                    by_key[key] = [seqs[row]], [Event(block, row)]
        if self._by_cause is not None:
            _note(self._by_cause, block, start, "causation")
        if self._by_correlation is not None:
            _note(self._by_correlation, block, start, "correlation")
        self.covered = block.last

    def of_key(self, key: str, after: int, through: int) -> list[Event]:
        """The events of a key in after < position ≤ through, ascending."""
        found = self._by_key.get(key)
        return [] if found is None else _between(found, after, through)

    def entities(self, after: int, through: int) -> list[str]:
        """Every key that has events in after < position ≤ through."""
        return [key for key in list(self._by_key) if _between(self._by_key[key], after, through)]

    def of_cause(self, id: str, after: int, through: int) -> list[Event]:
        """The events caused by an event."""
        with self._lock:
            if self._by_cause is None:
                self._by_cause = {}
                for block, start in self._blocks:
                    _note(self._by_cause, block, start, "causation")
            return _between(self._by_cause.get(id), after, through)

    def of_correlation(self, id: str, after: int, through: int) -> list[Event]:
        """The events of a correlation."""
        with self._lock:
            if self._by_correlation is None:
                self._by_correlation = {}
                for block, start in self._blocks:
                    _note(self._by_correlation, block, start, "correlation")
            return _between(self._by_correlation.get(id), after, through)

    def without(self, base: int, adopt: Callable[[Memtable], None], breathe: Callable[[], None]) -> None:
        """Hands a memtable of what is left when runs cover everything through `base` to `adopt`.

        Events that are added meanwhile are in it, too: those who write wait only for the last step.
        """
        left = Memtable(self.epoch, base, keyless=self._keyless)
        done = 0
        while True:
            with self._lock:
                blocks = self._blocks[done:]
                if not blocks:
                    left.covered = max(self.covered, base)
                    left.state = (left.covered, *self.state[1:])
                    adopt(left)
                    return
            for block, _ in blocks:
                if block.last > base:
                    left.add(block, block_size(block))
                    breathe()
            done += len(blocks)


def block_size(block: Block) -> int:
    """The bytes a block takes in memory, about."""
    return len(block.payload) + 64 * block.count + 1024


def _note(found: dict[str, Found], block: Block, start: int, column: str) -> None:
    values = getattr(block.wire, column)
    if values is not None:
        for row, text in enumerate(text_values(values, block.count)[start:], start):
            if text is not None:
                positions, events = found.setdefault(text, ([], []))
                events.append(Event(block, row))
                positions.append(block.seq(row))


def _between(found: Found | None, after: int, through: int) -> list[Event]:
    if found is None:
        return []
    positions, events = found
    return events[bisect_right(positions, after) : bisect_right(positions, through)]
