"""Reading one state of the database: a snapshot of the writer's, or tables with the log's newest rows over them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import slatedb.uniffi as sl

from penstock.engine.contract import MAX_KEY_BYTES, Snapshot
from penstock.engine.memory.sorted_map import Frozen
from penstock.engine.overlay import laid_over
from penstock.engine.slatedb.bridge import TimedOut, call, next_rows
from penstock.engine.slatedb.errors import explain
from penstock.engine.transaction import HeldRead
from penstock.errors import StorageError

FETCH_BYTES = 1 << 20
"""What one call to SlateDB brings at the most, once a scan has shown that it goes on."""
FETCH_ROWS = 512
AHEAD_BYTES = 1 << 20
"""Bytes after which a scan is taken for a long one, whose next rows are fetched before they are asked for."""
AHEAD_FETCHES = 2
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


Rows = list[tuple[bytes, bytes]]


class _Fetch:
    """The next rows of a scan: few at first, for most scans end soon, then as many as make a call worth it."""

    __slots__ = ("_iterator", "_timeout", "_wanted", "over", "size")

    def __init__(self, iterator: sl.DbIterator, timeout: float) -> None:
        self._iterator = iterator
        self._timeout = timeout
        self._wanted = 2
        self.over = False
        self.size = 0
        """Bytes of values so far."""

    def __call__(self) -> Rows:
        wanted = self._wanted
        rows = next_rows(self._iterator, wanted, self._timeout)
        if len(rows) < wanted:
            self.over = True
            return rows
        size = sum(len(value) for _, value in rows)
        self.size += size
        self._wanted = max(1, min(wanted * 4, FETCH_ROWS, FETCH_BYTES // (size // wanted + 64)))
        return rows


def _fetched_ahead(fetch: _Fetch) -> Iterator[tuple[bytes, bytes]]:
    """The rest of a long scan: a thread fetches the next rows while the caller works on the ones before.

    Waiting for SlateDB needs no interpreter, so the two go on beside each other.
    """
    asked: SimpleQueue[bool] = SimpleQueue()
    answers: SimpleQueue[Rows | BaseException | None] = SimpleQueue()
    threading.Thread(target=_answer, args=(fetch, asked, answers), name="penstock-scan", daemon=True).start()
    try:
        for _ in range(AHEAD_FETCHES):
            asked.put(True)
        while (found := answers.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            asked.put(True)
            yield from found
    finally:
        asked.put(False)


def _answer(fetch: _Fetch, asked: SimpleQueue[bool], answers: SimpleQueue[Rows | BaseException | None]) -> None:
    """Fetches as often as it is asked, until the scan is over or is left."""
    while asked.get():
        try:
            answers.put(None if fetch.over else fetch())
        except BaseException as error:  # the caller's to raise
            answers.put(error)
            return


class SlatedbView:
    """get and scan over one of SlateDB's sources that stands still: a DbSnapshot or a DbReader."""

    __slots__ = ("__weakref__", "_name", "_timeout", "source")

    def __init__(self, source: sl.DbSnapshot | sl.DbReader, name: str, timeout: float) -> None:
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
        try:
            iterator = call(self.source.scan_with_options(bounds, _ORDERS[reverse]), self._timeout)
            fetch = _Fetch(iterator, self._timeout)
            while not fetch.over and fetch.size < AHEAD_BYTES:
                yield from fetch()
            if not fetch.over:
                yield from _fetched_ahead(fetch)
        except sl.Error as error:
            raise explain(error, self._name) from error
        except TimedOut as error:
            raise self._late(error) from error

    def check_has_not_passed(self, newest: int) -> None:
        """Raises when the tables have moved on by themselves to commits that a view is not to show."""
        if commits_in(self.source) > newest:
            raise StorageError(
                f"{self._name} was written to while it was opened, and what was read is neither its state before nor "
                "after that: read again",
                retryable=True,
            )

    def _late(self, error: TimedOut) -> StorageError:
        return StorageError(f"{self._name} could not be read: {error}; try again", retryable=True)


class LayeredView:
    """The log's newest rows (None: deleted) over tables.

    Where the tables may move, `newest` is the last commit that is shown; a read that they have made newer raises.
    """

    __slots__ = ("__weakref__", "_base", "_newest", "_rows")

    def __init__(self, base: SlatedbView, rows: Frozen[bytes | None], newest: int | None) -> None:
        self._base = base
        self._rows = rows
        self._newest = newest

    def get(self, key: bytes) -> bytes | None:
        for _, value in self._rows.scan(key, key + b"\0"):
            return value
        found = self._base.get(key)
        self._check()
        return found

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        below = self._checked(self._base.scan(start, stop, reverse=reverse))
        yield from laid_over(below, self._rows.scan(start, stop, reverse=reverse), reverse=reverse)

    def _checked(self, below: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """A scan reads one state of the tables, that of its beginning: to ask after the first row is enough."""
        first = next(below, None)
        self._check()
        if first is not None:
            yield first
            yield from below

    def _check(self) -> None:
        if self._newest is not None:
            self._base.check_has_not_passed(self._newest)


def commits_in(reader: sl.DbReader) -> int:
    """The number of the last commit that the tables hold. SlateDB raises it before a read can see newer ones."""
    return reader.status().durable_seq  # type: ignore[no-any-return]


class SlatedbRead(HeldRead[Snapshot]):
    """A snapshot held open."""

    __slots__ = ()
