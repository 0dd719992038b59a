"""Reading one state of the database: a snapshot of the writer's, or tables with the log's newest rows over them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import slatedb.uniffi as sl

from penstock.engine.base import transaction_is_over
from penstock.engine.contract import MAX_KEY_BYTES, Snapshot
from penstock.engine.memory.sorted_map import Frozen
from penstock.engine.slatedb.bridge import TimedOut, call, next_rows
from penstock.engine.slatedb.errors import explain
from penstock.errors import StorageError

FETCH_BYTES = 1 << 20
"""What one call to SlateDB brings at the most, once a scan has shown that it goes on."""
FETCH_ROWS = 512
READ_AHEAD_BYTES = 2 << 20
READ_AHEAD_TASKS = 4

_ORDERS = [
    sl.ScanOptions(
        durability_filter=sl.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=READ_AHEAD_BYTES,
        cache_blocks=True,
        max_fetch_tasks=READ_AHEAD_TASKS,
        order=order,
    )
    for order in (sl.IterationOrder.ASCENDING, sl.IterationOrder.DESCENDING)
]


class SlatedbView:
    """get and scan over one of SlateDB's sources that stands still: a DbSnapshot or a DbReader."""

    __slots__ = ("__weakref__", "_name", "_timeout", "source")

    def __init__(self, source: Any, name: str, timeout: float) -> None:
        self.source = source
        self._name = name
        self._timeout = timeout

    def get(self, key: bytes) -> bytes | None:
        if not key:  # SlateDB takes that for a mistake; no key is empty
            return None
        try:
            return call(self.source.get(key), self._timeout)  # type: ignore[no-any-return]
        except sl.Error as error:
            raise explain(error, self._name) from error
        except TimedOut as error:
            raise self._late(error) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        if start >= stop:
            return
        bounds = sl.KeyRange(start=start or None, start_inclusive=True, end=stop, end_inclusive=False)
        wanted = 2
        try:
            iterator = call(self.source.scan_with_options(bounds, _ORDERS[reverse]), self._timeout)
            while True:
                rows = next_rows(iterator, wanted, self._timeout)
                yield from rows
                if len(rows) < wanted:
                    return
                average = sum(len(value) for _, value in rows) // len(rows) + 64
                wanted = max(1, min(wanted * 4, FETCH_ROWS, FETCH_BYTES // average))
        except sl.Error as error:
            raise explain(error, self._name) from error
        except TimedOut as error:
            raise self._late(error) from error

    def _late(self, error: TimedOut) -> StorageError:
        return StorageError(f"{self._name} could not be read: {error}; try again", retryable=True)


class LayeredView:
    """The log's newest rows (None: deleted) over tables that stand still."""

    __slots__ = ("__weakref__", "_base", "_rows")

    def __init__(self, base: SlatedbView, rows: Frozen[bytes | None]) -> None:
        self._base = base
        self._rows = rows

    def get(self, key: bytes) -> bytes | None:
        for _, value in self._rows.scan(key, key + b"\0"):
            return value
        return self._base.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        below = self._base.scan(start, stop, reverse=reverse)
        found = next(below, None)
        for key, value in self._rows.scan(start, stop, reverse=reverse):
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


class Open(Protocol):
    """What a read transaction asks of its engine."""

    _closed: bool


class SlatedbRead:
    """A snapshot held open."""

    __slots__ = ("__weakref__", "_engine", "_view")

    def __init__(self, engine: Open, view: Snapshot) -> None:
        self._engine = engine
        self._view: Snapshot | None = view

    def _usable(self) -> Snapshot:
        if self._view is None or self._engine._closed:
            raise transaction_is_over()
        return self._view

    def get(self, key: bytes) -> bytes | None:
        return self._usable().get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for row in self._usable().scan(start, stop, reverse=reverse):
            yield row
            self._usable()

    def close(self) -> None:
        self._view = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
