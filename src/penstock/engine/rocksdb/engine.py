"""The log-structured engine: RocksDB through rocksdict, for one writing process.

RocksDB has write batches but no transactions here, so a write transaction is an overlay (`overlay`) that becomes one
batch. Reading from another process goes through "secondary" instances, which follow the writer's files: a reader's
`read` costs about a millisecond when only the log has grown, and about five when files have changed. A deleted key
stays in the way of scans until RocksDB has compacted it away: who takes from the head of a range should remember
where the head was and scan from there, or every take walks over all that were taken before. `delete_range` is one
marker however many keys it covers.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

import rocksdict

from penstock.durable import like, move_into_place, sync_folder
from penstock.engine.base import (
    END,
    BaseEngine,
    check_backup_target,
    check_folder_name,
    check_only_own,
    copy_rows,
    other_format,
)
from penstock.engine.contract import MAX_KEY_BYTES, Durability, Snapshot
from penstock.engine.open_files import OpenFiles
from penstock.engine.overlay import OverlayWrite
from penstock.engine.rocksdb import forks
from penstock.engine.rocksdb.files import DatabaseFiles, Secondary, newest_log, open_database
from penstock.engine.rocksdb.log import EMPTY_KEY, Voucher
from penstock.engine.rocksdb.transaction import RocksdbRead
from penstock.engine.rocksdb.view import PinnedRocksdbView, RocksdbView, explain
from penstock.errors import ConfigError, NoStore, OutcomeUnknown, PenstockError, StorageError

FORMAT = b"penstock rocksdb 1"
FORMAT_KEY = b"\xff" * 505
"""Longer than a key may be, so no scan reaches it: its bounds are cut to 501 bytes."""
IDLE_READERS = 2
"""Secondary instances a reader keeps for its next snapshot."""
ATTEMPTS = 20
"""How often a reader tries to open the files of a writer that is just changing them."""


class RocksdbEngine(BaseEngine):
    """A store in a RocksDB database, for one writing process; readers in other processes follow it."""

    scheme: ClassVar[str] = "rocksdb"
    shared: ClassVar[bool] = False

    @classmethod
    def open(cls, path: str, *, read_only: bool = False, durability: Durability = "disk") -> Self:
        return cls(path, read_only=read_only, durability=durability)

    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk") -> None:
        self._folder = Path(path).absolute()
        super().__init__(str(self._folder), read_only=read_only, durability=durability)
        self._unflushed = False
        self._is_closed = True
        """Whether the database itself is closed, as it is when it could not be opened again."""
        self._refused = False
        """RocksDB takes no write after one failed, whatever the disk does now: it is opened again before the next."""
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
        check_folder_name(self._folder, "rocksdb")
        new = not (self._folder / "CURRENT").exists()
        if new and read_only:
            raise NoStore(f"there is no store at {self._folder}; open it for writing once to make it")
        if new:
            check_only_own(self._folder, "rocksdb", _is_rocksdbs)
        forks.note(self)
        try:
            if read_only:
                self._files = OpenFiles(str(self._folder))
                secondary = self._open_secondary()
                self._idle.append(secondary)
                self._check_format(RocksdbView(secondary.db, self._name))
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._open_database()
                self._check_format(RocksdbView(self._db, self._name))
        except PenstockError:
            self._abandon()
            raise
        except OSError as error:
            self._abandon()
            raise StorageError(f"{self._name} cannot be opened: {error}") from error
        except Exception as error:
            self._abandon()
            raise explain(error, self._name) from error

    def _open_database(self) -> None:
        self._db = open_database(self._folder)
        self._files = DatabaseFiles(self._folder)
        self._voucher = Voucher(self._folder)
        # What was in the log is in a file of its own and synced before the database is open.
        self._synced_sequence = self._db.latest_sequence_number()
        self._unflushed = self._refused = self._is_closed = False

    def _check_format(self, view: RocksdbView) -> None:
        found = view.get(FORMAT_KEY)
        if found == FORMAT:
            return
        if found is not None:
            raise other_format(self._folder, found, FORMAT)
        if next(view.scan(b"", END), None) is not None:
            raise ConfigError(f"{self._folder} is a RocksDB database of another program; give the store its own folder")
        if self.read_only:
            raise ConfigError(f"{self._folder} is empty, not a store; open it for writing once to make it one")
        self._db.put(FORMAT_KEY, FORMAT, self._synced)
        sync_folder(self._folder)
        sync_folder(self._folder.parent)

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
            return
        # RocksDB flushes when it is closed, into files that it makes by name, and these may be another writer's now.
        self._db.cancel_all_background(True)
        with suppress(Exception):  # that it could not flush
            self._db.close()

    # transactions

    def read(self) -> RocksdbRead:
        self._check_usable()
        try:
            if self.read_only:
                self._check_files()
                instance = self._take_secondary()
                reading = RocksdbRead(self, RocksdbView(instance.db, self._name), instance)
                self._reads.add(reading)
            else:
                with self._swap:  # and noted before it can be closed
                    self._check_database()
                    reading = RocksdbRead(self, PinnedRocksdbView(self._db, self._name), None)
                    self._reads.add(reading)
        except PenstockError:
            raise
        except Exception as error:
            raise explain(error, self._name) from error
        return reading

    def _take_secondary(self) -> Secondary:
        """An instance of its own for every open snapshot: catching up moves all that is read through one."""
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

    def write(self, *, sync: bool = True) -> OverlayWrite:
        self._check_writable()
        return OverlayWrite(self, sync)

    def _begin(self) -> tuple[Snapshot, bool]:
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
            try:
                self._close_database()
                self._open_database()
            except PenstockError:
                raise
            except Exception as error:
                raise explain(error, self._name) from error
            self._foreign = True

    def _commit(self, changes: OverlayWrite) -> None:
        relaxed = changes.relaxed or self.durability == "process"
        if not changes.changes and not changes.ranges:
            if self._unflushed and not relaxed:
                self._sync()
        else:
            batch = rocksdict.WriteBatch(raw_mode=True)
            if not relaxed:
                batch.put(EMPTY_KEY, self._voucher.value(self._synced_sequence))
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
                    f"{reason}; whether the commit was kept shows when the store is next written to",
                    retryable=isinstance(reason, StorageError) and reason.retryable,
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
        """What tells from outside that the writer has written: the newest log's size, and which files there are."""
        try:
            folder = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - several times faster than Path.stat
            if self._log is None or not self._facts or folder != self._facts[0]:
                self._log = newest_log(self._folder)
            if self._log is None:
                return (folder,)
            log = os.stat(self._log)  # noqa: PTH116
        except FileNotFoundError:
            self._log = None
            return (-1, self._version)  # the files are changing just now: anything but the same facts
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
        """Compacts the whole database, which removes what was deleted from the files."""
        self._check_writable()
        force = rocksdict.CompactOptions()
        force.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force_optimized())
        try:
            self._db.flush()
            self._db.compact_range(None, None, force)
        except Exception as error:
            raise explain(error, self._name) from error

    def size(self) -> int:
        """Bytes of all files in the store's folder."""
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
        target = check_backup_target(destination)
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            if self.read_only:
                self._copy_to(partial)
            else:
                rocksdict.Checkpoint(self._db).create_checkpoint(str(partial))
            like(self._folder, partial)
            move_into_place(partial, target)
        except PenstockError:
            raise
        except OSError as error:
            raise StorageError(f"the backup could not be written to {target}: {error}") from error
        except Exception as error:
            raise explain(error, self._name) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _rocksdb_objects(self) -> Iterable[object]:
        if not self._is_closed:
            yield self._db
        for secondary in self._idle:
            yield secondary.db
        for reading in list(self._reads):
            yield from reading.rocksdb_objects()

    def _copy_to(self, folder: Path) -> None:
        """A secondary instance makes no checkpoints: its keys are written into a new store."""
        with self.read() as snapshot:
            copy = RocksdbEngine(str(folder), durability="process")
            try:
                copy_rows(snapshot, copy)
            finally:
                copy.close()

    def _close(self) -> None:
        if not self._shut():
            return
        with self._swap:
            for reading in list(self._reads):
                reading.close()
            try:
                try:
                    if not self._is_closed:
                        self._db.flush_wal(True)
                finally:
                    self._abandon()
            except Exception as error:
                raise explain(error, self._name) from error


def _is_rocksdbs(name: str) -> bool:
    return name.startswith(("LOCK", "LOG", "MANIFEST-", "OPTIONS-", "IDENTITY", "rocksdict")) or name.endswith(".dbtmp")
