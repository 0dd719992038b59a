"""The uncommitted changes of a write transaction, laid over a snapshot: for engines that commit by batch.

A key is changed (put or deleted), or lies in a deleted range, or is the snapshot's. Ranges are kept sorted and apart,
so that a scan can jump over them instead of walking through what was deleted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self

from penstock.engine.base import END, check_key, transaction_is_over
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


class Overlay:
    """Changes over `base` that read like a store of their own."""

    __slots__ = ("_order", "base", "changes", "ranges", "writes")

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.changes: dict[bytes, bytes | None] = {}
        """The newest value of every changed key; None for a deleted one."""
        self.ranges: list[tuple[bytes, bytes]] = []
        """Deleted ranges; `changes` holds only what happened to their keys afterwards."""
        self._order: list[bytes] | None = None
        self.writes = 0

    def put(self, key: bytes, value: bytes) -> None:
        check_key(key)
        self._change(key, value if type(value) is bytes else bytes(value))

    def delete(self, key: bytes) -> None:
        check_key(key)
        self._change(key, None)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self.writes += 1
        if self._order is not None and key not in self.changes:
            insort(self._order, key)
        self.changes[key] = value

    def delete_range(self, start: bytes, stop: bytes) -> None:
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
        try:
            return self.changes[key]
        except KeyError:
            pass
        if self.ranges and self._in_range(key):
            return None
        return self.base.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        below = self._below(start, stop, reverse)
        if not self.changes:
            yield from below
            return
        order = self._sorted()
        mine = order[bisect_left(order, start) : bisect_left(order, stop)]
        if reverse:
            mine.reverse()
        # What a key held when the scan began: the caller may change keys behind it, and those must not come back.
        values = [self.changes[key] for key in mine]
        yield from laid_over(below, zip(mine, values, strict=True), reverse=reverse)

    def _below(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """The base's keys outside the deleted ranges."""
        for low, high in self._gaps(start, stop, reverse):
            yield from self.base.scan(low, high, reverse=reverse)

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


class BatchEngine(Protocol):
    """What `OverlayWrite` asks of an engine that commits by batch."""

    def _begin(self) -> tuple[Snapshot, bool]:
        """Waits for this thread's turn; the newest committed state, and whether another writer changed it."""
        ...

    def _commit(self, changes: OverlayWrite) -> None:
        """Makes the changes part of the store, all or none."""
        ...

    def _acknowledge(self) -> None:
        """Raises unless the store is where it was opened."""
        ...

    def _end_turn(self) -> None: ...


class OverlayWrite(Overlay):
    """A write transaction: an overlay that is handed to its engine when the block ends well."""

    __slots__ = ("_engine", "_over", "foreign", "kept", "relaxed")

    base: Snapshot

    def __init__(self, engine: BatchEngine, sync: bool) -> None:
        super().__init__(_NOTHING)
        self._engine = engine
        self._over = True
        self.foreign = False
        self.relaxed = not sync
        self.kept = False

    def keep(self) -> None:
        self.kept = True

    def __enter__(self) -> Self:
        self.base, self.foreign = self._engine._begin()
        self._over = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        try:
            if kind is None:
                self._engine._commit(self)
                self._engine._acknowledge()
        finally:
            self.base = _NOTHING
            self._engine._end_turn()

    def get(self, key: bytes) -> bytes | None:
        if self._over:
            raise transaction_is_over()
        return super().get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if self._over:
            raise transaction_is_over()
        for item in super().scan(start, stop, reverse=reverse):
            yield item
            if self._over:
                raise transaction_is_over()

    def _change(self, key: bytes, value: bytes | None) -> None:
        if self._over:
            raise transaction_is_over()
        super()._change(key, value)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        if self._over:
            raise transaction_is_over()
        super().delete_range(start, stop)


class _Absent:
    """The base of a transaction that has not begun, or is over."""

    def get(self, key: bytes) -> bytes | None:
        raise transaction_is_over()

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        raise transaction_is_over()


_NOTHING = _Absent()
