"""A topic's newest events, indexed in memory: what the entity index's runs do not cover yet.

A tail is filled by whoever looks something up, with the blocks that were committed since the last look-up. Events never
change and positions are never reused, so a tail stays right whatever is written meanwhile, except when compaction by
key removes events in the middle: then the index's epoch changes and a new tail begins.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from penstock.events import Event
from penstock.journal.storage.block import Block
from penstock.journal.storage.columns import text_values

_seq_of: Callable[[Event], int] = lambda event: event.seq  # noqa: E731


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
        self._by_key: dict[str, list[Event]] = {}
        self._by_cause: dict[str, list[Event]] | None = None
        self._by_correlation: dict[str, list[Event]] | None = None

    def __len__(self) -> int:
        return self.covered - self.base

    def extend(
        self, covered: int, blocks: Sequence[tuple[Block, int]], version: int | None, newest: Newest | None
    ) -> bool:
        """Adds blocks after what is covered and notes that it was looked over; False when somebody else was faster."""
        with self._lock:
            if self.covered != covered:
                return False
            for block, size in blocks:
                self.add(block, size)
            self.state = (self.covered, version, newest)
            return True

    def add(self, block: Block, size: int) -> None:
        """Adds what a block holds after `covered`."""
        start = block.row_after(self.covered)
        if start >= block.count:
            return
        self._blocks.append((block, start))
        self.size += size
        by_key = self._by_key
        if block.wire.key is not None or self._keyless:
            for row, key in enumerate(text_values(block.wire.key, block.count)[start:], start):
                if key is None:
                    if not self._keyless:
                        continue
                    key = ""
                found = by_key.get(key)
                if found is None:
                    by_key[key] = [Event(block, row)]
                else:
                    found.append(Event(block, row))
        if self._by_cause is not None:
            _note(self._by_cause, block, start, "causation")
        if self._by_correlation is not None:
            _note(self._by_correlation, block, start, "correlation")
        self.covered = block.last

    def of_key(self, key: str, after: int, through: int) -> list[Event]:
        """The events of a key in after < position ≤ through, ascending."""
        return _between(self._by_key.get(key), after, through)

    def entities(self) -> list[str]:
        """Every key that has events here."""
        return list(self._by_key)

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

    def after(self, base: int) -> Memtable:
        """A tail of what is left when runs cover everything through `base`."""
        with self._lock:
            left = Memtable(self.epoch, base, keyless=self._keyless)
            share = self.size / max(1, len(self._blocks))
            for block, _ in self._blocks:
                if block.last > base:
                    left.add(block, int(share))
            left.covered = max(self.covered, base)
            left.state = (left.covered, *self.state[1:])
            return left


def _note(found: dict[str, list[Event]], block: Block, start: int, column: str) -> None:
    values = getattr(block.wire, column)
    if values is not None:
        for row, text in enumerate(text_values(values, block.count)[start:], start):
            if text is not None:
                found.setdefault(text, []).append(Event(block, row))


def _between(events: list[Event] | None, after: int, through: int) -> list[Event]:
    if not events:
        return []
    start = bisect_right(events, after, key=_seq_of) if events[0].seq <= after else 0
    stop = len(events)
    if events[-1].seq > through:
        stop = bisect_right(events, through, key=_seq_of)
    return events[start:stop]
