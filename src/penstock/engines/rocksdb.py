"""The log-structured engine: RocksDB through rocksdict, for one writing process.

rocksdict offers write batches but no transactions, so a write transaction is an `OverlayWrite` that becomes one batch.
Other processes read through "secondary" instances, which follow the writer's files: a reader's `read` costs about a
millisecond when only the log has grown, and about five milliseconds when files have changed. A deleted key slows scans
until RocksDB has compacted it. So a caller that takes from the head of a range should remember the head and scan from
there; otherwise every take walks over all earlier takes. `delete_range` is one marker, however many keys it covers.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import rocksdict

from penstock.core.durable import copy_permissions, sync_folder
from penstock.core.engine.base import (
    FORMAT_KEY,
    BatchEngine,
    HeldRead,
    OpenFiles,
    OverlayWrite,
    backup_at,
    check_folder,
    is_made,
    transaction_is_over,
)
from penstock.core.engine.contract import MAX_KEY_BYTES, Durability, EngineView
from penstock.errors import ConfigError, Corrupt, Locked, OutcomeUnknown, PenstockError, StorageError

FORMAT = b"penstock rocksdb 1"
IDLE_READERS = 2
"""The number of secondary instances that a reader keeps for its next snapshots."""
ATTEMPTS = 20
"""The attempts of a reader to open files while a writer changes them."""


class RocksdbEngine(BatchEngine):
    """A store in a RocksDB database, for one writing process; readers in other processes follow it."""

    scheme = "rocksdb"
    shared: ClassVar[bool] = False

    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk") -> None:
        self._folder = Path(path).absolute()
        super().__init__(str(self._folder), read_only=read_only, durability=durability)
        self._unflushed = False
        self._is_closed = True
        """True when the database is closed, also after a failed attempt to open it again."""
        self._refused = False
        """After a failed write RocksDB refuses all writes, even when the disk has recovered.

        So the database is opened again before the next write.
        """
        self._swap = threading.RLock()  # held while the database is opened again, or a snapshot of it is made
        self._synced_sequence = 0
        self._reads: weakref.WeakSet[RocksdbRead] = weakref.WeakSet()
        self._idle: list[Secondary] = []
        self._facts: tuple[int, ...] = ()
        self._log: Path | None = None
        self._version = 0
        self._watch = threading.Lock()
        self._synced = rocksdict.WriteOptions()
        self._synced.sync = True
        self._unsynced = rocksdict.WriteOptions()
        check_folder(self._folder, "rocksdb", "CURRENT", _is_rocksdbs, read_only=read_only)
        note_use(self)
        try:
            with explained(self._name):
                if read_only:
                    self._open_to_read()
                else:
                    self._open_to_write()
        except BaseException:
            self._abandon()
            raise

    def _open_to_read(self) -> None:
        self._files = OpenFiles(str(self._folder))
        secondary = self._open_secondary()
        self._idle.append(secondary)
        is_made(RocksdbView(secondary.db, self._name), self._folder, FORMAT, read_only=True)

    def _open_to_write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open_database()
        if not is_made(RocksdbView(self._db, self._name), self._folder, FORMAT, read_only=False):
            self._db.put(FORMAT_KEY, FORMAT, self._synced)
            sync_folder(self._folder)
            sync_folder(self._folder.parent)

    def _open_database(self) -> None:
        self._db = open_database(self._folder)
        self._files = DatabaseFiles(self._folder)
        self._sync_mark = SyncMark(self._folder)
        # The contents of the log are in a synced file of their own before the database is open.
        self._synced_sequence = self._db.latest_sequence_number()
        self._unflushed = self._refused = self._is_closed = False

    def _abandon(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._close_database()

    def _check_database(self) -> None:
        self._check_usable()  # again, now that no other thread swaps or closes it
        if self._is_closed:
            raise StorageError(
                f"{self._name} could not be opened again after a write failed; the next write tries again",
                retryable=True,
            )

    def _close_database(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if not isinstance(self._files, DatabaseFiles) or self._files.has_lock():
            self._db.close()
            wait_until_released(self._folder)
            return
        # Closing RocksDB flushes into files that it makes by name, and these files may belong to another writer by now.
        self._db.cancel_all_background(True)
        with suppress(Exception):  # the failed flush
            self._db.close()

    # transactions

    def read(self) -> RocksdbRead:
        self._check_usable()
        begun = time.monotonic()
        with explained(self._name):
            if self.read_only:
                self._check_files()
                instance = self._take_secondary()
                reading = RocksdbRead(self, begun, RocksdbView(instance.db, self._name), instance)
                self._reads.add(reading)
            else:
                with self._swap:  # and noted before the database can be closed
                    self._check_database()
                    reading = RocksdbRead(self, begun, PinnedRocksdbView(self._db, self._name), None)
                    self._reads.add(reading)
        return reading

    def _take_secondary(self) -> Secondary:
        """Hands out an instance for one snapshot only: catching up changes every read through the instance."""
        while self._idle:
            instance = self._idle.pop()
            if instance.catch_up():
                return instance
            instance.close()
        return self._open_secondary()

    def _open_secondary(self) -> Secondary:
        for _ in range(ATTEMPTS):
            try:
                instance = Secondary(self._folder)
            except Exception as error:  # most likely a file that the writer has just removed
                failed: PenstockError = explain(error, self._name)
                continue
            if instance.is_whole():
                return instance
            instance.close()
            failed = StorageError(f"the files of {self._name} change too quickly to be read", retryable=True)
        raise failed

    def _end_read(self, instance: Secondary) -> None:
        if self._closed or len(self._idle) >= IDLE_READERS:
            instance.close()
        else:
            self._idle.append(instance)

    def _begin(self) -> tuple[EngineView, bool]:
        self._take_turn()
        try:
            if self._refused:
                self._open_again()
        except BaseException:
            self._end_turn()
            raise
        return RocksdbView(self._db, self._name), self._foreign

    def _open_again(self) -> None:
        with self._swap:
            if any(reading.is_open for reading in self._reads):
                raise StorageError(
                    f"{self._name} takes no writes after one failed until it is opened again, which happens as soon "
                    "as no snapshot of it is open in this process: try again",
                    retryable=True,
                )
            self._check_files()
            with explained(self._name):
                self._close_database()
                self._open_database()
            self._foreign = True

    def _commit(self, changes: OverlayWrite) -> None:
        relaxed = changes.relaxed or self.durability == "process"
        if not changes.changes and not changes.ranges:
            if self._unflushed and not relaxed:
                self._sync()
        else:
            batch = rocksdict.WriteBatch(raw_mode=True)
            if not relaxed:
                batch.put(EMPTY_KEY, self._sync_mark.value(self._synced_sequence))
            for start, stop in changes.ranges:
                batch.delete_range(start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1])
            for key, value in changes.changes.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            try:
                self._db.write(batch, self._unsynced if relaxed else self._synced)
            except Exception as error:
                self._refused = self._foreign = True
                reason = explain(error, self._name)
                raise OutcomeUnknown(
                    f"{reason}; whether the commit was kept shows when the store is next written to"
                ) from error
            self._unflushed = relaxed
            if not relaxed:
                self._synced_sequence = self._db.latest_sequence_number()
        self._foreign = False

    # the rest

    def changes(self) -> int:
        self._check_usable()
        if not self.read_only:
            with self._swap:
                self._check_database()
                return self._db.latest_sequence_number()
        self._check_files()
        with self._watch:
            facts = self._file_facts()
            if facts != self._facts:
                self._facts = facts
                self._version += 1
            return self._version

    def _file_facts(self) -> tuple[int, ...]:
        """Returns the files and the size of the newest log, which change when the writer in another process writes."""
        try:
            folder = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - several times faster than Path.stat
            if self._log is None or not self._facts or folder != self._facts[0]:
                self._log = newest_log(self._folder)
            if self._log is None:
                return (folder,)
            log = os.stat(self._log)  # noqa: PTH116
        except FileNotFoundError:
            self._log = None
            return (-1, self._version)  # the files are changing: return different facts
        except OSError as error:
            raise StorageError(f"{self._name} cannot be read: {error}") from error
        return folder, log.st_ino, log.st_size

    def _flush(self) -> None:
        self._take_turn()
        try:
            if self._refused:
                self._open_again()
            self._sync()
        finally:
            self._end_turn()

    def _sync(self) -> None:
        sequence = self._db.latest_sequence_number()
        try:
            self._db.flush_wal(True)
        except Exception as error:
            self._refused = True
            raise explain(error, self._name) from error
        self._unflushed, self._synced_sequence = False, sequence

    def reclaim(self) -> None:
        """Compacts the whole database, which removes deleted keys from the files."""
        self._check_writable()
        force = rocksdict.CompactOptions()
        force.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force_optimized())
        with explained(self._name):
            self._db.flush()
            self._db.compact_range(None, None, force)

    def garbage(self) -> int:
        """Returns all bytes when keys were deleted since the last compaction, because the bytes that their removal
        frees are unknown.
        """
        self._check_writable()
        with explained(self._name):
            self._db.flush()
            deleted = any(file["num_deletions"] for file in self._db.live_files())
        return self.size() if deleted else 0

    def size(self) -> int:
        """Returns the bytes of all files in the store's folder."""
        self._check_usable()
        total = 0
        for entry in self._folder.iterdir():
            try:
                total += entry.stat().st_size
            except FileNotFoundError:  # removed by a compaction meanwhile
                continue
        return total

    def backup(self, destination: str | os.PathLike[str]) -> None:
        self._check_usable()
        if self.read_only:  # a secondary instance makes no checkpoints
            super().backup(destination)
            return
        with explained(self._name), backup_at(destination) as partial:
            rocksdict.Checkpoint(self._db).create_checkpoint(str(partial))
            copy_permissions(self._folder, partial)

    def _rocksdb_objects(self) -> Iterable[object]:
        if not self._is_closed:
            yield self._db
        for secondary in self._idle:
            yield secondary.db
        for reading in list(self._reads):
            yield from reading.rocksdb_objects()

    def _close(self) -> None:
        if not self._shut():
            return
        with self._swap:
            for reading in list(self._reads):
                reading.close()
            with explained(self._name):
                try:
                    if not self._is_closed:
                        self._db.flush_wal(True)
                finally:
                    self._abandon()


def _is_rocksdbs(name: str) -> bool:
    return name.startswith(("LOCK", "LOG", "MANIFEST-", "OPTIONS-", "IDENTITY", "rocksdict")) or name.endswith(".dbtmp")


# ── Reading a RocksDB database, and what its errors mean ──


MISSING = "key not found"
READ_AHEAD, READ_AHEAD_BYTES = 64, 1 << 20
"""The rows, and the bytes of values, that a long scan reads in one call."""


class RocksdbView:
    """A view with get and scan over the newest state of a database, or over a secondary instance that does not move.

    A scan reads a growing number of rows at a time, because an iterator that waits between two rows would keep the
    database open.
    """

    __slots__ = ("_db", "_name")

    def __init__(self, db: rocksdict.Rdict, name: str) -> None:
        self._db: Any = db  # None once dropped; ended transactions are not read
        self._name = name

    def get(self, key: bytes) -> bytes | None:
        if not key:  # the log's own (`SyncMark`); no caller's key is empty
            return None
        try:
            return self._db.get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise self._explained(error) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        # The empty key does not belong to callers: every scan begins behind it.
        start, stop = start[: MAX_KEY_BYTES + 1] or b"\0", stop[: MAX_KEY_BYTES + 1]
        ahead, last = 1, start >= stop  # one row first: the next row may follow many deleted rows
        while not last:
            try:
                rows, last = _next_rows(self._iterator(start, stop, reverse), start, stop, reverse, ahead)
            except Exception as error:
                raise self._explained(error) from error
            yield from rows
            ahead = min(4 * ahead, READ_AHEAD)
            if rows and reverse:
                stop = rows[-1][0]
            elif rows:
                start = rows[-1][0] + b"\0"

    def _explained(self, error: Exception) -> PenstockError:
        """Returns the error that an exception of a read stands for. Another thread may have closed the store during the
        read."""
        error.__traceback__ = None  # the traceback's frames would keep an iterator and with it the database
        return transaction_is_over() if self._db is None else explain(error, self._name)

    def _iterator(self, start: bytes, stop: bytes, reverse: bool) -> rocksdict.RdictIter:
        """Returns an iterator at the first key."""
        # The upper bound stops the iterator before deleted keys behind the range. rocksdict passes no lower bound to
        # RocksDB, so a backward scan past the start may cross deleted keys.
        bounds = rocksdict.ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        iterator: rocksdict.RdictIter = self._db.iter(bounds)
        if reverse:
            iterator.seek_to_last()
        else:
            iterator.seek(start)
        return iterator

    def drop(self) -> None:
        self._db = None

    def rocksdb_objects(self) -> list[object]:
        """Returns the RocksDB objects that a forked child must not destroy."""
        return [self._db]


def _next_rows(
    iterator: rocksdict.RdictIter, start: bytes, stop: bytes, reverse: bool, most: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Returns up to so many rows (fewer when they are large) from an iterator's position, and whether they are the
    last rows.
    """
    rows: list[tuple[bytes, bytes]] = []
    size = 0
    while iterator.valid():
        key = iterator.key()
        if not start <= key < stop:
            return rows, True
        value = iterator.value()
        rows.append((key, value))
        size += len(value)
        if len(rows) == most or size >= READ_AHEAD_BYTES:
            return rows, False
        if reverse:
            iterator.prev()
        else:
            iterator.next()
    iterator.status()
    return rows, True


class PinnedRocksdbView(RocksdbView):
    """A view with get and scan over one moment of a database with a writer.

    rocksdict's snapshots answer `get`, but their iterators show the newest state. So a snapshot has one iterator that
    was made at the same moment and stays there. Scans have bounded iterators of their own only while nothing has been
    written since.
    """

    __slots__ = ("_pinned", "_sequence", "_snapshot")

    def __init__(self, db: rocksdict.Rdict, name: str) -> None:
        super().__init__(db, name)
        while True:
            self._sequence = db.latest_sequence_number()
            self._snapshot: Any = db.snapshot()
            self._pinned: Any = db.iter()
            if db.latest_sequence_number() == self._sequence:
                break

    def get(self, key: bytes) -> bytes | None:
        if not key:
            return None
        try:
            return self._snapshot[key]  # type: ignore[no-any-return]
        except Exception as error:
            if str(error) == MISSING:
                return None
            raise self._explained(error) from error

    def _iterator(self, start: bytes, stop: bytes, reverse: bool) -> rocksdict.RdictIter:
        iterator = super()._iterator(start, stop, reverse)
        if self._db.latest_sequence_number() == self._sequence:
            return iterator
        pinned: rocksdict.RdictIter = self._pinned
        if reverse:
            pinned.seek_for_prev(stop)
            if pinned.valid() and pinned.key() == stop:
                pinned.prev()
        else:
            pinned.seek(start)
        return pinned

    def drop(self) -> None:
        self._db = self._snapshot = self._pinned = None

    def rocksdb_objects(self) -> list[object]:
        return [self._db, self._snapshot, self._pinned]


def explain(error: Exception, name: str) -> PenstockError:
    """Returns the penstock error for an exception of rocksdict, which has only text."""
    text = str(error)
    if isinstance(error, RuntimeError) and "borrowed" in text:  # another thread is closing the database
        return transaction_is_over()
    if isinstance(error, OSError) and error.errno:  # penstock reads logs and the manifest before RocksDB opens them
        return StorageError(f"{name} cannot be opened: {error}", retryable=not isinstance(error, PermissionError))
    if type(error) is not Exception and not isinstance(error, rocksdict.DbClosedError):
        raise error  # not an error of rocksdict, but for example of a signal handler
    if "lock hold by current process" in text or "While lock file" in text:
        return Locked(
            f"{name} is open for writing elsewhere, and its engine allows one writer (`fuser` of its LOCK names it): "
            "close it there, use it through `penstock serve`, or open it for reading only"
        )
    if "Corruption" in text:
        return Corrupt(f"RocksDB found {name} damaged: {text}; restore a backup")
    if "No space left" in text:
        return StorageError(f"the disk of {name} is full", retryable=True)
    if "Too many open files" in text:
        return StorageError(f"this process has too many files open to go on with {name}: {text}", retryable=True)
    if isinstance(error, rocksdict.DbClosedError):
        return transaction_is_over()
    return StorageError(f"RocksDB refused on {name}: {text}")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns errors of rocksdict and the system into penstock errors; other errors pass."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise explain(error, name) from error


# ── Read transactions on a RocksDB database; its write transactions are `OverlayWrite` ──


class RocksdbRead(HeldRead):
    """A snapshot of the database, or a secondary instance that does not move."""

    __slots__ = ("_instance", "_rocksdb_view", "_store")

    def __init__(self, engine: RocksdbEngine, begun: float, view: RocksdbView, instance: Secondary | None) -> None:
        super().__init__(engine, begun, view)
        self._store = engine
        self._rocksdb_view = view
        self._instance = instance

    def rocksdb_objects(self) -> Iterable[object]:
        """Returns the RocksDB objects that a forked child must not destroy."""
        yield from self._rocksdb_view.rocksdb_objects()
        if self._instance is not None:
            yield self._instance.db

    def close(self) -> None:
        if not self.is_open or self._store.is_foreign_process():  # forked: the objects belong to the parent
            return
        super().close()
        self._rocksdb_view.drop()
        instance, self._instance = self._instance, None
        if instance is not None:
            self._store._end_read(instance)


# ── Opening a RocksDB database: its options, coming back after a crash, and instances that follow another process's ──


WRITE_BUFFER_BYTES = 16 << 20
RELEASE_SECONDS = 10.0
"""The seconds that closing waits for other threads to end their reads."""

log = logging.getLogger("penstock.engine.rocksdb")


def open_database(folder: Path) -> rocksdict.Rdict:
    """Opens a database for writing, in the state after its last commit, or before the first commit that a crash
    removed.

    Only unsynced commits may be missing after this point. Where a record in the log shows that more was on disk, the
    missing part was damaged: `Corrupt` is raised and the files stay unchanged.
    """
    check_end(folder)
    check_types(folder)
    try:
        return _open_database(folder)
    except Exception as error:
        if "MANIFEST" not in str(error) or "Corruption" not in str(error) or not cut_torn_end(folder):
            raise
    log.warning("the manifest of rocksdb:%s had a torn end, which a crash left", folder)
    return _open_database(folder)


def _open_database(folder: Path) -> rocksdict.Rdict:
    # A log that was cut exactly between two records looks whole, even when a later log follows: so only a single log
    # can be trusted in this way.
    if len([path for path in folder.glob("[0-9]*.log") if path.stat().st_size]) < 2:
        try:
            return rocksdict.Rdict(str(folder), make_options(whole=True))
        except Exception as error:
            if "Corruption" not in str(error):
                raise
    found = rocksdict.Rdict(str(folder), make_options(), access_type=rocksdict.AccessType.read_only())
    last = found.latest_sequence_number()
    found.close()
    if (known := SyncMark(folder).highest()) > last:
        raise Corrupt(
            f"the log of rocksdb:{folder} is damaged: it ends at {last} although {known} was on disk; restore a backup"
        )
    log.warning("rocksdb:%s comes back as it was before its last unsynced commits, which a crash took", folder)
    return rocksdict.Rdict(str(folder), make_options())


class Secondary:
    """An instance that follows the writer's files, and the folder that RocksDB needs for its own log."""

    def __init__(self, folder: Path) -> None:
        own = tempfile.mkdtemp(prefix="penstock-rocksdb-")
        self._folder = folder
        self._files = list_files(folder)
        try:
            options = make_options()
            options.set_max_log_file_size(0)  # RocksDB never begins another log, so the folder may be removed
            self.db = rocksdict.Rdict(str(folder), options, access_type=rocksdict.AccessType.secondary(own))
        finally:
            # RocksDB continues to write to its unlinked log, so a reader that dies leaves nothing behind.
            shutil.rmtree(own, ignore_errors=True)

    def catch_up(self) -> bool:
        """Reads new entries of the writer's log.

        Returns False when files have changed too, and a new instance is needed.

        After a compaction an older instance can show deleted keys again (RocksDB 10), and an instance that is opened
        while files are removed can miss their contents. So an instance is used only while the files stay the same.
        """
        self.db.try_catch_up_with_primary()
        return self.is_whole()

    def is_whole(self) -> bool:
        return list_files(self._folder) == self._files

    def close(self) -> None:
        self.db.close()


def wait_until_released(folder: Path) -> None:
    """Waits until RocksDB has released a database's lock, which is its last step.

    A thread in the middle of a read keeps the database open. An opener that did not wait would see files that RocksDB
    is still exchanging, and report them as damaged.
    """
    deadline = time.monotonic() + RELEASE_SECONDS
    while holds_lock(folder / "LOCK"):
        if time.monotonic() > deadline:
            log.warning("rocksdb:%s is closed, and a read in another thread keeps it open", folder)
            return
        time.sleep(0.001)


def holds_lock(path: Path) -> bool:
    """Returns True when this process holds a lock on a file; False also where the system cannot tell.

    The file is not opened, because closing a descriptor would release the lock.
    """
    try:
        held = Path("/proc/locks").read_text()
        inode = path.stat().st_ino
    except OSError:
        return False
    me, ending = str(os.getpid()), f":{inode}"
    locks = (line.split() for line in held.splitlines())
    return any(len(words) > 5 and words[4] == me and words[5].endswith(ending) for words in locks)


class DatabaseFiles(OpenFiles):
    """The lock of a database that is open for writing, and the log of its commits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "LOCK"))
        self._database = folder
        self._log = newest_log(folder)

    def _look(self) -> str | None:
        if self._log is not None and not self._log.exists():
            newest = newest_log(self._database)  # RocksDB creates the next log before it removes one
            if newest is None or _number(newest) < _number(self._log):
                return str(self._log)
            self._log = newest
        return super()._look()

    def has_lock(self) -> bool:
        """Returns True when no other process can hold the folder. Only then may a file be made in it by name."""
        return super()._look() is None


def newest_log(folder: Path) -> Path | None:
    """Returns the log that receives commits now; None when there is no log."""
    return max(folder.glob("[0-9]*.log"), key=_number, default=None)


def _number(log: Path) -> int:
    return int(log.stem) if log.stem.isdecimal() else -1


def list_files(folder: Path) -> dict[str, int]:
    """Returns the files of a database, with the size of the file that lists the others."""
    names = [name for name in os.listdir(folder) if name.endswith((".sst", ".log")) or name.startswith("MANIFEST")]  # noqa: PTH208
    return {name: _size(folder / name) if name.startswith("MANIFEST") else 0 for name in names}


def _size(path: Path) -> int:
    """Returns the size of a file; -1 when the file is gone, for example because the writer has just replaced it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def make_options(*, whole: bool = False) -> rocksdict.Options:
    """Returns the options of a database: bounded memory and files.

    With `whole`, a log with any error is refused; otherwise the log is read up to the first error.
    """
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_max_open_files(512)
    options.set_is_fd_close_on_exec(True)
    # Files in which half of a window is deleted are compacted early, so that scans do not walk over deleted keys.
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
    modes = rocksdict.DBRecoveryMode
    options.set_wal_recovery_mode(modes.absolute_consistency() if whole else modes.point_in_time())
    return options


# ── What a fork does to RocksDB: its threads are not in the child, and everything that waits for them hangs ──
# So a child that is forked after RocksDB was used opens no database. It never destroys the objects that it inherited,
# because destroying them joins threads that do not exist in the child.


_engines: weakref.WeakSet[RocksdbEngine] = weakref.WeakSet()
_used = False
_forked_from: int | None = None


def note_use(engine: RocksdbEngine) -> None:
    """Notes that an engine holds objects of RocksDB in this process; ConfigError where RocksDB cannot run."""
    global _used
    if _forked_from is not None:
        raise ConfigError(
            f"this process was forked from process {_forked_from}, which had a rocksdb store open, and RocksDB's "
            "threads do not survive a fork: open the store in a process that is started afresh "
            '(multiprocessing.get_context("spawn"), subprocess), or fork before the first rocksdb store is opened'
        )
    _used = True
    _engines.add(engine)


def _keep_for_ever() -> None:
    global _forked_from
    if not _used:
        return
    _forked_from = os.getppid()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc: RocksDB's library would also join the threads when the process exits
        libc.on_exit(libc._exit, None)
    for engine in list(_engines):
        for each in engine._rocksdb_objects():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


os.register_at_fork(after_in_child=_keep_for_ever)


# ── RocksDB's write-ahead log, read to tell what a power cut may take from what it may not ──
# Takes and merges are not synced, so a power cut may leave a hole before bytes that were kept; the store then comes
# back as it was before the hole. Damage to what was acknowledged looks the same. To tell them apart every synced commit
# begins with a put of the empty key, which no caller can use, whose value says up to which commit (RocksDB's sequence
# number) the log was known to be on disk, with a mark of the database. A log that such a record vouches for beyond the
# point it can be read to was damaged.
#
# The log is made of blocks of 32 KiB; a record in it is a masked CRC-32C, a length, a type and the bytes of a batch, or
# a piece of one.


BLOCK_BYTES = 32 << 10
HEAD = struct.Struct("<IHB")
BEGINS = (1, 2)
"""The types of a whole record, and of the first piece of one."""
BATCH_HEAD_BYTES = 12
VOUCHER = b"\x01\x00\x10"
"""The first bytes of a batch whose first operation puts sixteen bytes under the empty key."""
EMPTY_KEY = b""
AGAIN = range(5, 9)
"""The types of records in recycled logs; penstock recycles no logs.

RocksDB waits forever for the end of such a record, and a changed bit can turn an ordinary record into such a record.
"""


class SyncMark:
    """Makes the values of the empty key in one database, which state the sequence number up to which everything is on
    disk.

    The values carry a mark of the database, so that bytes of another database's log inside a payload prove nothing
    here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            identity = (folder / "IDENTITY").read_bytes()
        except OSError:
            identity = b""
        self._mark = hashlib.blake2b(identity, digest_size=8).digest()

    def value(self, sequence: int) -> bytes:
        return sequence.to_bytes(8, "big") + self._mark

    def highest(self) -> int:
        """Returns the highest sequence number that any valid record in the database's logs declares as synced."""
        highest = 0
        for path in self._folder.glob("[0-9]*.log"):
            with path.open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    highest = self._highest_in(block, highest)
        return highest

    def _highest_in(self, block: bytes, highest: int) -> int:
        # The search does not go from record to record: behind a record with a changed length the others would not be
        # found.
        at = -1
        while (at := block.find(VOUCHER, at + 1)) >= 0:
            head = at - BATCH_HEAD_BYTES - HEAD.size
            value = block[at + len(VOUCHER) :][:16]
            if head < 0 or value[8:] != self._mark or block[head + HEAD.size - 1] not in BEGINS:
                continue
            sequence = int.from_bytes(value[:8], "big")
            if sequence > highest and is_sound(block, head):
                highest = sequence
        return highest


def check_types(folder: Path) -> None:
    """Raises Corrupt when a log has a record of a type that penstock's logs never have: RocksDB would read it
    without end.
    """
    for path in folder.glob("[0-9]*.log"):
        data = path.read_bytes()
        for at, _, kind in record_spans(data):
            if kind in AGAIN:
                raise Corrupt("the log of a rocksdb store is damaged; restore a backup", file=str(path), offset=at)


def record_spans(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields the begin, end and type of each record or fragment, as far as the lengths lead from one to the next."""
    at = 0
    while at + HEAD.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD.size:
            at += left
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        if kind == 0 or HEAD.size + length > min(left, len(data) - at):
            return
        end = at + HEAD.size + length
        yield at, end, kind
        at = end


def is_sound(data: bytes, at: int) -> bool:
    """Returns True when the record or fragment at an offset matches its checksum."""
    crc: int
    length: int
    crc, length, _ = HEAD.unpack_from(data, at)
    covered = data[at + HEAD.size - 1 : at + HEAD.size + length]
    return len(covered) == length + 1 and _masked(_crc32c(covered)) == crc


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE: list[int] = []


def _crc32c(data: bytes) -> int:
    if not _TABLE:
        _TABLE.extend(_make_table())
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ── RocksDB's manifest after a power cut: a torn last record is cut away, where that loses nothing ──
# RocksDB syncs each record of its manifest before it acts on it, and refuses a manifest whose last one is torn. Without
# that record the database is as it was just before: the files and the log it replaced are still there, because they are
# removed only after the record was synced. That is checked before anything is cut; where it does not hold, the record
# was on disk and was damaged later.
#
# A record that is longer than the rest of its manifest RocksDB passes over as cut off, with all the files it names, and
# removes those: where a changed length does that, `Corrupt` is raised before RocksDB is let near.


KINDS = range(1, 5)
"""The types of a fragment of a record. The types of recycled logs (5 to 8) are never in a manifest. A changed bit may
produce such a type, and RocksDB then reads a last record without end."""
LAST = (1, 4)
"""The types of a whole record, and of the last piece of one."""
NUMBERS = {2: "log", 3: "next file", 4: "last sequence", 9: "previous log", 10: "oldest log", 203: "column families"}
"""The tags of a record that a number follows."""
TEXTS = (1, 201, 8193)
"""The tags that a text follows."""


SCANNED_BYTES = 4096
"""The bytes after a torn record that are searched for the beginning of another record, because the torn record's length
may be wrong."""


def check_end(folder: Path) -> None:
    """Raises Corrupt when a database's manifest ends within a record, and no crash can have torn the record."""
    path, data = _manifest(folder)
    end = _chain_end(data)
    if end < len(data) and not cut_torn_end(folder):
        raise Corrupt("the manifest of a rocksdb store is damaged; restore a backup", file=str(path), offset=end)


def _chain_end(data: bytes) -> int:
    """Returns the offset at which the chain of records ends. Lengths lead from record to record; RocksDB checks the
    checksums."""
    end = 0
    for _, after, kind in record_spans(data):
        if kind not in KINDS:
            return end
        end = after
    left = BLOCK_BYTES - end % BLOCK_BYTES
    return end + left if left < HEAD.size else end


def _manifest(folder: Path) -> tuple[Path, bytes]:
    """Returns a database's manifest; no bytes when it cannot be read, because RocksDB then reports the error."""
    path = folder / "CURRENT"
    try:
        path = folder / path.read_text().strip()
        return path, path.read_bytes()
    except (OSError, UnicodeDecodeError):
        return path, b""


def cut_torn_end(folder: Path) -> bool:
    """Cuts a torn last record off a database's manifest.

    Returns False and changes nothing when this could lose data.
    """
    path, data = _manifest(folder)
    records, end = _read(data)
    if end >= len(data) or not records or _has_sound_record(data, end):
        return False
    if not _has_its_log(path, records):
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(folder)
    return True


def _has_its_log(manifest: Path, records: list[bytes]) -> bool:
    """Returns True when the log that was in use at the last sound record is still there.

    A flush writes the number of the current log. Opening writes only a lower bound for the number of its own log: it
    makes this log just before the manifest, after all older logs were flushed.
    """
    log = 0
    for record in records:
        numbers = _numbers(record)
        log = max(log, numbers.get("oldest log", 0), numbers.get("log", 0))
    opened = int(manifest.name.removeprefix("MANIFEST-"))
    numbers_of_logs = range(log, max(log + 1, opened))
    return any(_number(path) in numbers_of_logs for path in manifest.parent.glob("[0-9]*.log"))


def _read(data: bytes) -> tuple[list[bytes], int]:
    """Returns the whole records up to the first invalid record, and where they end."""
    records: list[bytes] = []
    pieces, end = b"", 0
    for at, following, kind in record_spans(data):
        if not is_sound(data, at):
            break
        pieces += data[at + HEAD.size : following]
        if kind in LAST:
            records.append(pieces)
            pieces, end = b"", following
    return records, end


def _has_sound_record(data: bytes, begin: int) -> bool:
    """Returns True when a sound record follows an offset, which means that the torn record was not the last record."""
    for near in range(begin + 1, min(begin + SCANNED_BYTES, len(data) - HEAD.size)):
        if data[near + HEAD.size - 1] in KINDS and is_sound(data, near):
            return True
    at = begin
    while at + HEAD.size <= len(data):
        _, length, kind = HEAD.unpack_from(data, at)
        if at != begin and kind and is_sound(data, at):
            return True
        block_end = at - at % BLOCK_BYTES + BLOCK_BYTES
        following = at + HEAD.size + length
        at = following if kind and following + HEAD.size <= block_end else block_end
    return False


def _numbers(record: bytes) -> dict[str, int]:
    """Returns the numbers that a record begins with."""
    found: dict[str, int] = {}
    at = 0
    while at < len(record):
        tag, at = _varint(record, at)
        if tag in NUMBERS:
            found[NUMBERS[tag]], at = _varint(record, at)
        elif tag in TEXTS:
            length, at = _varint(record, at)
            at += length
        else:
            break
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
