"""The reader of a journal that another process writes: fixed tables, with the log's newest rows over them.

SlateDB's reader has no snapshots, and opening a reader at every change would read the log again each time. So the
tables are opened once, and every further object of the log is read once, into a sorted map whose snapshots cost
nothing. When the map has grown, or the tables will soon be collected, newer tables are opened under the map, and their
rows leave the map. A read always shows the state after a commit, all of it in the object store.

Tables stay fixed only with a checkpoint, which has to be written. The reader makes a checkpoint in a folder, where it
costs little, and where `hold` asks for it. Without a checkpoint SlateDB's reader looks for newer tables once more right
after it was opened, or a moment later on a busy machine. A view that would then show rows of a newer commit raises an
error.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import slatedb.uniffi as sl

from penstock.core.engine.base import END, laid_over
from penstock.core.engine.contract import MAX_KEY_BYTES
from penstock.core.engine.sorted_map import Frozen, SortedMap
from penstock.engines.slatedb.bridge import TimedOut, call, explained, next_rows
from penstock.engines.slatedb.database import SNAPSHOT_SECONDS, ObjectLocation, open_reader
from penstock.engines.slatedb.lease import read_lease
from penstock.errors import ConfigError, Corrupt, NoStore, PenstockError, StorageError
from penstock.limits import FOLLOW_BYTES, FOLLOW_IDLE_SECONDS, FOLLOW_SECONDS, FOLLOW_STALE_SECONDS, TABLE_COMMITS

log = logging.getLogger("penstock.engine.slatedb")

MANIFEST_SECONDS = 30.0
"""The seconds after which a reader without news checks that it missed no collected object."""
RENEW_SECONDS = SNAPSHOT_SECONDS / 3
"""The age of the tables after which newer tables are opened, if there are any."""
HOLD_TIMEOUT = 5.0
"""The seconds that a reader waits for a checkpoint before it goes on without a checkpoint."""
CALM_SECONDS = FOLLOW_IDLE_SECONDS
"""The seconds without growth of the log after which its next growth makes the reader check that the store is still the
same store.

A new store in the place of a deleted store does not have a log as long as the old log so soon, and a busy store costs
no further requests.
"""
LOG_PATH = "wal/{:020d}.sst"
LOG_FETCHES = 8
"""The most objects of the log that are fetched at once. No more are fetched than there are.

SlateDB looks for as many objects behind the newest object in vain, with three requests each.
"""
_ROW_OVERHEAD = 120

LogRow = tuple[bytes | None, int]
"""The value of a key, None when it was deleted, and the number of the commit."""


class Follower:
    """Follows the writer of a journal, wherever it is."""

    def __init__(self, location: ObjectLocation) -> None:
        self._location = location
        self._name = location.name
        self._timeout = location.options.timeout
        self._checkpoint: str | None = None
        self._admin = location.admin()
        self._lock = threading.Lock()
        self._rows: SortedMap[LogRow] = SortedMap()
        self._bytes = 0
        self._applied = 0
        self._pause = 0.0
        self._manifest_read = self._based = float("-inf")
        self._looked = float("-inf")
        """The time at which the last look at the log ended, with or without an error."""
        self._seen = float("-inf")
        """The time at which the last successful look began. Everything stored before that time is known."""
        self._failed: PenstockError | None = None
        """The error of the newest look at the log, None after a look that succeeded."""
        self._manifest = -1
        self._retired: list[tuple[weakref.ref[SlatedbView], sl.DbReader, str | None]] = []
        self._reader: sl.DbReader | None = None
        self._base: SlatedbView
        self._view: LayeredView
        self._held = 0
        self._newest = 0
        self._writer = (0, "")
        """The last known writer: its number and its name."""
        self._grown = float("-inf")
        self.replaced: ConfigError | None = None
        """The error to raise once another store has replaced this store."""
        self.version = 0
        self.log_checks = 0
        """The number of requests that asked the store whether the log has grown."""
        self.log_reads = 0
        """The number of log objects that were read."""

    def open(self) -> None:
        """Opens the newest tables; ConfigError when there is no store."""
        self._check_same()
        manifest = call(self._admin.read_manifest(None), self._timeout)
        if manifest is None:
            raise NoStore(f"there is no store at {self._name}; open it for writing once to make it")
        with self._lock:
            self._open_tables(manifest)
            self._read_log()

    def view(self) -> LayeredView:
        """Returns the newest known state, which is at most one pause old."""
        self.refresh()
        return self._view

    def refresh(self, *, at_once: bool = False) -> None:
        """Reads new objects of the log, unless the last look was a moment ago.

        While another thread looks, this thread takes the known state. After a time without reads the known state is
        old, and this thread waits for the other look. `at_once` looks in any case, and checks that the store is still
        the same store.
        """
        asked = time.monotonic()
        now = at_once or self._location.folder is not None or self._is_ahead()
        if not now and self._has_looked():
            return
        old = asked - self._seen > FOLLOW_STALE_SECONDS and self._failed is None
        if not self._lock.acquire(blocking=now or old):
            return
        try:
            if at_once or (self._seen < asked and (now or not self._has_looked())):
                self._refresh_now(at_once)
            elif self._failed is not None:  # the look that this thread waited for
                raise self._failed.with_traceback(None)
        finally:
            self._lock.release()

    def _has_looked(self) -> bool:
        """Returns True while the pause after the last look lasts."""
        return time.monotonic() - self._looked < self._pause

    def _refresh_now(self, thoroughly: bool) -> None:
        begun = time.monotonic()
        try:
            if self.replaced is not None:
                raise self.replaced.with_traceback(None)
            with explained(self._name, "read"):
                if thoroughly:
                    self._check_same()
                self._catch_up()
            self._seen, self._failed = begun, None
        except PenstockError as error:
            self._failed = error
            raise
        finally:
            self._looked = time.monotonic()

    def _catch_up(self) -> None:
        grown = self._read_log()
        if grown:
            self._pause = FOLLOW_SECONDS
        else:
            self._pause = min(max(self._pause, FOLLOW_SECONDS) * 1.25, FOLLOW_IDLE_SECONDS)
        now = time.monotonic()
        full = self._bytes > FOLLOW_BYTES and now - self._manifest_read > MANIFEST_SECONDS / 10
        if full or now - self._manifest_read > MANIFEST_SECONDS or self._is_ahead():
            self._refresh_manifest(now)
        for retired in [one for one in self._retired if one[0]() is None]:
            self._retired.remove(retired)
            _, reader, checkpoint = retired
            call(reader.shutdown(), self._timeout)
            self._delete_checkpoint(checkpoint)

    def _refresh_manifest(self, now: float) -> None:
        self._check_same()
        manifest = call(self._admin.read_manifest(None), self._timeout)
        self._manifest_read = now
        if manifest is None:
            raise ConfigError(f"the store at {self._name} was removed")
        missed = manifest.replay_after_wal_id > self._applied or self._is_ahead()
        old = manifest.id != self._manifest and now - self._based > RENEW_SECONDS
        if missed or old or self._bytes > FOLLOW_BYTES:
            self._open_tables(manifest)
            self._read_log()

    def _check_same(self) -> None:
        """Raises ConfigError when the store was deleted and another made in its place: their rows must not be mixed.

        Each writer has a number and a name of its own; another store counts from 1 again.
        """
        try:
            lease = read_lease(self._location.objects, self._name)
        except Corrupt:  # the next writer handles it
            return
        if lease is None:
            return
        known, now = self._writer, (lease.epoch, lease.owner)
        if now[0] < known[0] or (now[0] == known[0] and now != known):
            self.replaced = ConfigError(
                f"the store at {self._name} was deleted, and another was made in its place, while it was read: close "
                "this journal and open it again"
            )
            raise self.replaced
        self._writer = now

    def _is_ahead(self) -> bool:
        """Returns True when the tables moved by themselves and hold commits that were not yet read from the log."""
        reader = self._reader  # another thread may close it meanwhile
        return reader is not None and self._checkpoint is None and commits_in(reader) > self._newest

    def _open_tables(self, manifest: sl.VersionedManifest) -> None:
        """Opens the newest tables.

        They hold every commit up to a number, and the rows of these commits leave the map.
        """
        checkpoint, manifest = self._make_checkpoint(manifest)
        reader = open_reader(self._location, checkpoint)
        self._held = commits_in(reader)
        self._newest = max(self._newest, self._held)
        if self._reader is not None:
            self._retired.append((weakref.ref(self._base), self._reader, self._checkpoint))
        self._reader, self._checkpoint = reader, checkpoint
        self._base = SlatedbView(reader, self._name, self._timeout)
        rows, self._rows, self._bytes = self._rows, SortedMap(), 0
        for key, (value, commit) in rows.scan(b"", END):
            if commit > self._held:
                self._put(key, value, commit)
        # Read before the tables were opened, so no later object can be missing from both.
        self._applied = max(self._applied, manifest.replay_after_wal_id)
        self._manifest = manifest.id
        self._based = self._manifest_read = time.monotonic()
        self._publish()

    def _make_checkpoint(self, manifest: sl.VersionedManifest) -> tuple[str | None, sl.VersionedManifest]:
        """Makes a checkpoint with this process's name, which keeps the newest tables for a while, and returns it
        with its manifest.
        """
        hold = self._location.options.hold
        seconds = hold or (SNAPSHOT_SECONDS if self._location.folder is not None else 0)
        if not seconds:
            return None, manifest
        name = f"penstock reader {socket.gethostname()} {os.getpid()}"
        options = sl.CheckpointOptions(lifetime_ms=round(seconds * 1000), source=None, name=name)
        try:
            made = call(self._admin.create_detached_checkpoint(options), min(self._timeout, HOLD_TIMEOUT))
            found = call(self._admin.read_manifest(made.manifest_id), self._timeout)
        except (sl.Error, TimedOut) as error:  # a reader's credentials need not allow writing
            level = logging.WARNING if hold else logging.DEBUG
            log.log(level, "tables of %s are read without a checkpoint that keeps them: %s", self._name, error)
            return None, manifest
        return made.id, found or manifest

    def _delete_checkpoint(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        try:
            call(self._admin.delete_checkpoint(checkpoint), min(self._timeout, HOLD_TIMEOUT))
        except (sl.Error, TimedOut) as error:
            log.info("a checkpoint of %s expires by itself: %s", self._name, error)

    def _read_log(self) -> bool:
        """Reads every new object of the log, each as a whole, so that no reader sees half a commit.

        It stops at the end that it found at its beginning, because beside a busy writer there is always one more
        object. Most objects that appeared since the last look are in tables by now, and are read from there, because a
        writer may be faster than this reader.
        """
        end = self._find_end()
        if end == self._applied:
            return False
        if time.monotonic() - self._grown > CALM_SECONDS:
            self._check_same()
        grown = False
        if end - self._applied > TABLE_COMMITS:
            manifest = call(self._admin.read_manifest(None), self._timeout)
            if manifest is not None and manifest.replay_after_wal_id > self._applied:
                self._open_tables(manifest)
                grown = True
                if self._applied >= end:
                    return grown
        options = sl.SlateDbWalReaderOptions(max_fetch_tasks=min(LOG_FETCHES, end - self._applied))
        log = sl.SlateDbWalReader.with_options(self._location.path, self._location.store, options)
        iterator = call(log.iterator(self._applied + 1), self._timeout)
        while self._applied < end:
            found = call(iterator.next(), self._timeout)
            if found is None:
                break
            self.log_reads += 1
            for row in found.rows:
                if row.seq > self._held:
                    deleted = row.kind is sl.RowEntryKind.TOMBSTONE
                    self._put(bytes(row.key), None if deleted else bytes(row.value or b""), row.seq)
                    self._newest = max(self._newest, row.seq)
            self._applied = found.last_consumed_wal_file_id
            self._grown = time.monotonic()
            if found.rows:
                grown = True
                self._publish()
        return grown

    def _find_end(self) -> int:
        """Returns the log's last object.

        Looks at doubled distances until an object is missing, then halves the distance.
        """
        last, none = self._applied, self._applied + 1
        while self._exists(none):
            last, none = none, 2 * none - self._applied
        while none - last > 1:
            middle = (last + none) // 2
            if self._exists(middle):
                last = middle
            else:
                none = middle
        return last

    def _exists(self, number: int) -> bool:
        self.log_checks += 1
        return self._location.objects.exists(LOG_PATH.format(number))

    def _put(self, key: bytes, value: bytes | None, commit: int) -> None:
        old = self._rows.put(key, (value, commit))
        if old is not None:
            self._bytes -= _size(key, old[0])
        self._bytes += _size(key, value)

    def _publish(self) -> None:
        newest = self._newest if self._checkpoint is None else None
        self._view = LayeredView(self._base, self._rows.snapshot(), newest)
        self.version += 1

    def close(self) -> None:
        """Closes the tables and deletes their checkpoints."""
        readers = [(reader, checkpoint) for _, reader, checkpoint in self._retired]
        if self._reader is not None:
            readers.append((self._reader, self._checkpoint))
        self._retired, self._reader = [], None
        for reader, checkpoint in readers:
            try:
                call(reader.shutdown(), self._timeout)
            except (sl.Error, TimedOut) as error:
                log.warning("a reader of %s did not close: %s", self._name, error)
            self._delete_checkpoint(checkpoint)


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + _ROW_OVERHEAD


# ── Reading one state of the database: a snapshot of the writer's, or tables with the log's newest rows over them ──


FETCH_BYTES = 1 << 20
"""The most bytes of a call to SlateDB, once a scan has shown that it continues."""
FETCH_ROWS = 512
AHEAD_BYTES = 1 << 20
"""The bytes after which a scan counts as long; its next rows are fetched ahead."""
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
    """The next rows of a scan: few at first, because most scans end soon, then enough to make a call worthwhile."""

    __slots__ = ("_iterator", "_timeout", "_wanted", "over", "size")

    def __init__(self, iterator: sl.DbIterator, timeout: float) -> None:
        self._iterator = iterator
        self._timeout = timeout
        self._wanted = 2
        self.over = False
        self.size = 0
        """The bytes of values so far."""

    def __call__(self) -> Rows:
        if self.over:
            return []
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
    """Yields the rest of a long scan: a thread fetches the next rows while the caller works on the earlier rows.

    Waiting for SlateDB needs no interpreter, so both run in parallel.
    """
    thread = ThreadPoolExecutor(1, "penstock-scan")
    try:
        coming = deque(thread.submit(fetch) for _ in range(AHEAD_FETCHES))
        while rows := coming.popleft().result():
            coming.append(thread.submit(fetch))
            yield from rows
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


class SlatedbView:
    """A view with get and scan over a fixed source of SlateDB: a DbSnapshot or a DbReader."""

    __slots__ = ("__weakref__", "_name", "_timeout", "source")

    def __init__(self, source: sl.DbSnapshot | sl.DbReader, name: str, timeout: float) -> None:
        self.source = source
        self._name = name
        self._timeout = timeout

    def get(self, key: bytes) -> bytes | None:
        if not key:  # SlateDB refuses an empty key; no stored key is empty
            return None
        with explained(self._name, "read"):
            return call(self.source.get(key), self._timeout)  # type: ignore[no-any-return]

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        if start >= stop:
            return
        bounds = sl.KeyRange(start=start or None, start_inclusive=True, end=stop, end_inclusive=False)
        with explained(self._name, "read"):
            iterator = call(self.source.scan_with_options(bounds, _ORDERS[reverse]), self._timeout)
            fetch = _Fetch(iterator, self._timeout)
            while not fetch.over and fetch.size < AHEAD_BYTES:
                yield from fetch()
            if not fetch.over:
                yield from _fetched_ahead(fetch)

    def check_has_not_passed(self, newest: int) -> None:
        """Raises an error when the tables have moved by themselves to commits that a view must not show."""
        if commits_in(self.source) > newest:
            raise StorageError(
                f"{self._name} was written to while it was opened, and what was read is neither its state before nor "
                "after that: read again",
                retryable=True,
            )


class LayeredView:
    """A view that shows the log's newest rows before the rows of the tables.

    Where the tables may move, `newest` is the last visible commit; a read raises an error when the tables have become
    newer.
    """

    __slots__ = ("__weakref__", "_base", "_newest", "_rows")

    def __init__(self, base: SlatedbView, rows: Frozen[LogRow], newest: int | None) -> None:
        self._base = base
        self._rows = rows
        self._newest = newest

    def get(self, key: bytes) -> bytes | None:
        row = self._rows.get(key)
        if row is not None:
            return row[0]
        found = self._base.get(key)
        self._check()
        return found

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        below = self._checked(self._base.scan(start, stop, reverse=reverse))
        above = ((key, value) for key, (value, _) in self._rows.scan(start, stop, reverse=reverse))
        yield from laid_over(below, above, reverse=reverse)

    def _checked(self, below: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows of a scan.

        A scan reads one state of the tables, the state at its beginning, so a check after the first row is enough.
        """
        first = next(below, None)
        self._check()
        if first is not None:
            yield first
            yield from below

    def _check(self) -> None:
        if self._newest is not None:
            self._base.check_has_not_passed(self._newest)


def commits_in(reader: sl.DbReader) -> int:
    """Returns the number of the last commit that the tables hold.

    SlateDB raises it before a read can see newer ones.
    """
    return reader.status().durable_seq  # type: ignore[no-any-return]


# ── What a standby does while it waits for the lease, so that taking over has less left to fetch ──


def warm_up(location: ObjectLocation) -> None:
    """Starts a thread that reads the indexes, first and last blocks of the newest tables into the cache, for opening.

    This also opens connections to the store. A later table is not in the cache, which does no harm.
    """
    threading.Thread(target=_warm_up, args=(location,), name="penstock-warm", daemon=True).start()


def _warm_up(location: ObjectLocation) -> None:
    timeout = location.options.timeout
    try:
        reader = open_reader(location)
        try:
            view = SlatedbView(reader, location.name, timeout)
            for reverse in (False, True):
                next(view.scan(b"", END, reverse=reverse), None)
        finally:
            call(reader.shutdown(), timeout)
    except (sl.Error, TimedOut, StorageError) as error:  # taking over fetches it itself
        log.info("nothing of %s is fetched in advance: %s", location.name, error)
