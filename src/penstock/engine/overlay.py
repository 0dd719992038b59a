"""Write transactions of engines that commit by batch: uncommitted changes, laid over a snapshot.

A key is changed (put or deleted), or lies in a deleted range, or is the snapshot's. Ranges are kept sorted and apart,
so that a scan can jump over them instead of walking through what was deleted.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Self

from penstock.engine.base import END, BaseEngine, check_key, transaction_is_over
from penstock.engine.contract import Snapshot


def laid_over(
    below: Iterator[tuple[bytes, bytes]], changed: Iterable[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Rows with changed ones in the place of theirs; a changed row without a value is a deleted one."""
    found = next(below, None)
    for key, value in changed:
        while found is not None and (found[0] > key if reverse else found[0] < key):
            yield found
            found = next(below, None)
        if found is not None and found[0] == key:
            found = next(below, None)
        if value is not None:
            yield key, value
    if found is not None:
        yield found
        yield from below


class BatchEngine(BaseEngine):
    """An engine that commits by batch: its write transactions collect their changes, and it writes them at the end."""

    def write(self, *, sync: bool = True) -> OverlayWrite:
        self._check_writable()
        return OverlayWrite(self, sync)

    @abstractmethod
    def _begin(self) -> tuple[Snapshot, bool]:
        """Waits for this thread's turn; the newest committed state, and whether another writer changed it."""

    @abstractmethod
    def _commit(self, changes: OverlayWrite) -> None:
        """Makes the changes part of the store, all or none."""


class OverlayWrite:
    """A write transaction: changes that read like a store of their own, and are handed to their engine at the end."""

    __slots__ = ("_base", "_engine", "_order", "changes", "foreign", "kept", "ranges", "relaxed", "writes")

    def __init__(self, engine: BatchEngine, sync: bool) -> None:
        self._engine = engine
        self._base: Snapshot | None = None
        """What the changes are laid over; None before the transaction has begun, and when it is over."""
        self.changes: dict[bytes, bytes | None] = {}
        """The newest value of every changed key; None for a deleted one."""
        self.ranges: list[tuple[bytes, bytes]] = []
        """Deleted ranges; `changes` holds only what happened to their keys afterwards."""
        self._order: list[bytes] | None = None
        self.writes = 0
        self.foreign = False
        self.relaxed = not sync
        self.kept = False

    def keep(self) -> None:
        self.kept = True

    def __enter__(self) -> Self:
        self._base, self.foreign = self._engine._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._base = None
        try:
            if kind is None:
                self._engine._commit(self)
                self._engine._acknowledge()
        finally:
            self._engine._end_turn()

    def _usable(self) -> Snapshot:
        if self._base is None:
            raise transaction_is_over()
        return self._base

    def put(self, key: bytes, value: bytes) -> None:
        check_key(key)
        self._change(key, value if type(value) is bytes else bytes(value))

    def delete(self, key: bytes) -> None:
        check_key(key)
        self._change(key, None)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._usable()
        self.writes += 1
        if self._order is not None and key not in self.changes:
            insort(self._order, key)
        self.changes[key] = value

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self._usable()
        self.writes += 1
        if start >= stop:
            return
        order = self._sorted()
        low, high = bisect_left(order, start), bisect_left(order, stop)
        for key in order[low:high]:
            del self.changes[key]
        del order[low:high]
        kept: list[tuple[bytes, bytes]] = []
        for low_end, high_end in self.ranges:
            if high_end < start or low_end > stop:
                kept.append((low_end, high_end))
            else:
                start, stop = min(start, low_end), max(stop, high_end)
        insort(kept, (start, stop))
        self.ranges = kept

    def get(self, key: bytes) -> bytes | None:
        base = self._usable()
        if key in self.changes:
            return self.changes[key]
        if self.ranges and self._in_range(key):
            return None
        return base.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows = self._below(self._usable(), start, stop, reverse)
        if self.changes:
            order = self._sorted()
            mine = order[bisect_left(order, start) : bisect_left(order, stop)]
            if reverse:
                mine.reverse()
            # What a key held when the scan began: the caller may change keys behind it, and those must not come back.
            values = [self.changes[key] for key in mine]
            rows = laid_over(rows, zip(mine, values, strict=True), reverse=reverse)
        for row in rows:
            yield row
            self._usable()

    def _below(self, base: Snapshot, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """The base's keys outside the deleted ranges."""
        for low, high in self._gaps(start, stop, reverse):
            yield from base.scan(low, high, reverse=reverse)

    def _gaps(self, start: bytes, stop: bytes, reverse: bool) -> list[tuple[bytes, bytes]]:
        gaps = []
        for low, high in self.ranges:
            if high <= start:
                continue
            if low >= stop:
                break
            if start < low:
                gaps.append((start, low))
            start = high
        if start < stop:
            gaps.append((start, stop))
        return gaps[::-1] if reverse else gaps

    def _in_range(self, key: bytes) -> bool:
        at = bisect_right(self.ranges, (key, END)) - 1
        return at >= 0 and self.ranges[at][0] <= key < self.ranges[at][1]

    def _sorted(self) -> list[bytes]:
        if self._order is None:
            self._order = sorted(self.changes)
        return self._order
