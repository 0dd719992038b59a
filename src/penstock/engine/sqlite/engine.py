"""The default engine: one SQLite database in write-ahead mode, through apsw.

One table, `kv(k, v)`, with an index of the keys. One connection writes (threads take turns, processes wait for
SQLite's own lock), a pool of connections reads, one more is asked for `changes`. A commit is one or two writes and one
fdatasync of the write-ahead log, which is preallocated: fdatasync of bytes inside a file is cheaper than of bytes that
grow it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import ClassVar, Self

import apsw

from penstock.durable import like, move_into_place, sync_folder
from penstock.engine.base import BaseEngine, check_backup_target
from penstock.engine.contract import Durability
from penstock.engine.open_files import OpenFiles
from penstock.engine.sqlite.checkpoints import (
    BEGIN_WRITE,
    CHECKPOINT_COMMITS,
    CHECKPOINT_PAGES,
    LOG_BYTES,
    PAGE_BYTES,
    ROLLBACK,
    WriteAheadLog,
    wait_a_little,
)
from penstock.engine.sqlite.errors import explain, write_failed
from penstock.engine.sqlite.format import MAKE, is_made, run_all, switch_to_log
from penstock.engine.sqlite.log import LogDoubt
from penstock.engine.sqlite.transaction import SqliteRead, SqliteWrite
from penstock.errors import Closed, ConfigError, NoStore, OutcomeUnknown, PenstockError, StorageError

LOG_LIMIT_BYTES = 64 << 20
"""A log that a long read made larger than this is cut back when it starts over."""
CACHE_KIB = 8000
"""Pages the writing connection keeps: the paths from the root to where keys of every kind are added."""
VACUUM_PAGES = 1000
"""Free pages given back in one transaction of `reclaim`."""
IDLE_READERS = 8
"""Read connections kept open for the next reader."""

CONNECT = "PRAGMA wal_autocheckpoint=0"
"""What every connection is told: the engine itself decides when the log is copied into the database."""
COMMIT = "COMMIT"
BEGIN_READ = "BEGIN; SELECT 1 FROM kv LIMIT 1"
SYNC = "PRAGMA synchronous=FULL"
NO_SYNC = "PRAGMA synchronous=NORMAL"
DATA_VERSION = "PRAGMA data_version"


class SqliteEngine(BaseEngine):
    """A store in one SQLite database that several processes may read and write at once."""

    scheme: ClassVar[str] = "sqlite"
    shared: ClassVar[bool] = True

    @classmethod
    def open(cls, path: str, *, read_only: bool = False, durability: Durability = "disk") -> Self:
        return cls(path, read_only=read_only, durability=durability)

    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk", vfs: str = "") -> None:
        self._path = Path(path).absolute()
        self._file = str(self._path)
        # Where SQLite has its log: beside the file, not beside a link to it.
        beside = os.path.realpath(self._file) if self._path.is_symlink() else self._file
        self._log, self._index = Path(beside + "-wal"), beside + "-shm"
        self._doubt = LogDoubt(beside)
        super().__init__(self._file, read_only=read_only, durability=durability)
        self._vfs = vfs
        self._idle: list[apsw.Connection] = []
        self._reading: set[apsw.Connection] = set()
        self._watch = threading.Lock()
        self._version = -1
        self._immutable = False
        if read_only:
            self._open_to_read()
        else:
            self._open_to_write()

    # opening

    def _connect(self, flags: int) -> apsw.Connection:
        name = self._file
        if self._immutable:
            name = self._path.as_uri() + "?immutable=1"
            flags |= apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(name, flags=flags, vfs=self._vfs or None)
        self._check_files()  # this one was opened by the name
        connection.set_busy_handler(wait_a_little)
        return connection

    def _connect_reader(self) -> apsw.Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE)
        run_all(connection, f"{CONNECT}; PRAGMA query_only=ON")
        return connection

    def _open_to_read(self) -> None:
        if not self._path.is_file():
            raise NoStore(f"there is no store at {self._file}; open it for writing once to make it")
        try:
            try:
                self._watcher = self._connect_reader()
                made = is_made(self._watcher, self._file)
            except (apsw.CantOpenError, apsw.ReadOnlyError):
                # A folder that may not be written has no room for SQLite's shared memory. Without a log beside the
                # database there is nothing in it either, so the file alone is the store.
                if self._log.exists() or os.access(self._path.parent, os.W_OK):
                    raise
                self._immutable = True
                self._watcher = self._connect_reader()
                made = is_made(self._watcher, self._file)
        except apsw.Error as error:
            raise self._explain(error) from error
        if not made:
            self._watcher.close()
            raise ConfigError(f"{self._file} is empty, not a store; open it for writing once to make it one")
        self._files = OpenFiles(self._file)

    def _open_to_write(self) -> None:
        if self._path.is_dir():
            raise ConfigError(f"{self._file} is a folder; a sqlite store is one file: name the file")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                self._prepare_writer()
                self._files = OpenFiles(self._file, str(self._log), self._index)
                self._watcher = self._connect_reader()
            except BaseException:
                self._writer.close(True)
                raise
        except apsw.Error as error:
            raise self._explain(error) from error
        except OSError as error:
            raise StorageError(f"cannot make the folder of {self._file}: {error}") from error

    def _prepare_writer(self) -> None:
        writer = self._writer
        made = is_made(writer, self._file)
        if not made:
            run_all(writer, f"PRAGMA page_size={PAGE_BYTES}; PRAGMA auto_vacuum=INCREMENTAL")
        switch_to_log(writer)
        run_all(writer, f"{CONNECT}; PRAGMA journal_size_limit={LOG_LIMIT_BYTES}")
        run_all(writer, f"PRAGMA cache_size=-{CACHE_KIB}; {SYNC}")
        self._wal = WriteAheadLog(self._log, self._doubt, writer)
        writer.set_wal_hook(self._note_log_pages)
        self._syncing = True
        self._unsynced = self._logged = False
        if not made:
            run_all(writer, MAKE)
            sync_folder(self._path.parent)
        self._writer_execute = writer.cursor().execute
        if self._doubt.raised:
            self._wal.repair()
        self._wal.allocate()

    # reading

    def read(self) -> SqliteRead:
        if self._closed or self._lost or os.getpid() != self._pid:
            self._check_usable()
        if self.read_only:
            self._check_files()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect_reader()
            self._reading.add(connection)
            try:
                connection.execute(BEGIN_READ).get  # noqa: B018 - the first read fixes the snapshot
                reading = SqliteRead(self, connection)
            except BaseException:
                self._reading.discard(connection)
                connection.close(True)
                raise
        except apsw.Error as error:
            raise self._explain(error) from error
        if self._closed:
            reading.close()
            raise Closed(f"{self._name} is closed")
        return reading

    def _end_read(self, connection: apsw.Connection) -> None:
        # No lock here, the collector may call this in the middle of anything: who removes it from the set ends it.
        try:
            self._reading.remove(connection)
        except KeyError:
            return
        try:
            if len(self._idle) >= IDLE_READERS:
                connection.close(True)
                return
            connection.execute(COMMIT)
        except apsw.Error:
            # Broken, or in the middle of a call on another thread, which then closes it by dropping it.
            with suppress(apsw.ThreadingViolationError):
                connection.close(True)
            return
        self._idle.append(connection)
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        for connections in (self._idle, self._reading):
            while connections:
                try:
                    connection = connections.pop()
                except (IndexError, KeyError):
                    break
                with suppress(apsw.ThreadingViolationError):  # busy on another thread, which closes it by dropping it
                    connection.close(True)

    # writing

    # Every commit passes through `write`, `_begin` and `_commit`: what they check is written out, and the function that
    # says what is wrong is called only where something is.

    def write(self, *, sync: bool = True) -> SqliteWrite:
        if self._closed or self._lost or self.read_only or os.getpid() != self._pid:
            self._check_writable()
        return SqliteWrite(self, sync)

    def _begin(self, sync: bool) -> bool:
        """Waits for this thread's turn, starts a transaction on the writing connection, and says whether another
        process has committed meanwhile."""
        if self._turn.acquire(False):
            self._turn_owner = get_ident()
        else:
            self._take_turn()
        try:
            if self._closed:
                self._check_usable()
            execute = self._writer_execute
            sync = sync and self.durability == "disk"
            if self._doubt.raised:
                self._wal.repair()
            if sync is not self._syncing:
                execute(SYNC if sync else NO_SYNC)
                self._syncing = sync
            execute(BEGIN_WRITE)
            self._logged = False
            if self._writer.data_version() != self._version:
                self._foreign = True
        except BaseException as error:
            self._end_turn()
            if isinstance(error, apsw.Error):
                raise self._explain(error) from error
            raise
        return self._foreign

    def _commit(self) -> None:
        try:
            self._writer_execute(COMMIT)
        except BaseException as error:
            if isinstance(error, apsw.IOError):
                self._doubt.raise_()
            self._rollback()
            if isinstance(error, apsw.IOError) and not write_failed(error):
                raise OutcomeUnknown(
                    f"{self._file} could not be synced: {error}; whether the commit was kept shows when the store is "
                    "next opened"
                ) from error
            if isinstance(error, apsw.Error):
                raise self._explain(error) from error
            raise
        self._version = self._writer.data_version()
        self._foreign = False
        if not self._syncing:
            self._unsynced = True
        elif self._unsynced:
            # SQLite syncs nothing when nothing changed, as when a relaxed commit wrote the very same before.
            if not self._logged:
                self._wal.sync()
            self._unsynced = False
        wal = self._wal
        wal.unchecked_commits += 1
        if wal.unchecked_commits >= CHECKPOINT_COMMITS or not (0 <= wal.pages - wal.checked_pages < CHECKPOINT_PAGES):
            wal.checkpoint_in_passing(self._syncing)

    def _note_log_pages(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal.pages, self._logged = pages, True
        return apsw.SQLITE_OK

    def _rollback(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer_execute(ROLLBACK)
            self._version = self._writer.data_version()
        except apsw.Error as error:
            raise self._explain(error) from error

    # the rest

    def changes(self) -> int:
        if self._closed or os.getpid() != self._pid:
            self._check_usable()
        if self._files is None or self._files.missing() is not None:
            self._check_files()
        try:
            with self._watch:
                return self._watcher.execute(DATA_VERSION).get  # type: ignore[no-any-return]
        except apsw.Error as error:
            raise self._explain(error) from error

    def _flush(self) -> None:
        """Syncs the log; what left the log for the database was synced on the way."""
        self._wal.sync()

    def reclaim(self) -> None:
        """Moves pages from the end of the file into free ones, a few at a time, cuts the file and empties the log."""
        self._check_writable()
        try:
            while self._vacuum_some():
                pass
            self._take_turn()
            try:
                self._wal.checkpoint_waiting(apsw.SQLITE_CHECKPOINT_TRUNCATE, milliseconds=500)
                self._wal.allocate()
            finally:
                self._end_turn()
        except apsw.Error as error:
            raise self._explain(error) from error

    def _vacuum_some(self) -> bool:
        """One short transaction, so that other writers get their turns; False when there is nothing left to do."""
        foreign = self._begin(True)
        try:
            try:
                free: int = self._writer_execute("PRAGMA freelist_count").get
                for _ in self._writer_execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})"):
                    pass
            except BaseException:
                self._rollback()
                raise
            self._commit()
            self._foreign = foreign  # the next writer has not heard of it yet
            return free > VACUUM_PAGES
        finally:
            self._end_turn()

    def size(self) -> int:
        """Bytes of the database, with what is still in the log; the log's preallocated part is not counted."""
        self._check_usable()
        try:
            with self._watch:
                pages = self._watcher.execute("PRAGMA page_count").get
                page_bytes = self._watcher.execute("PRAGMA page_size").get
        except apsw.Error as error:
            raise self._explain(error) from error
        try:
            log = self._log.stat().st_size
        except FileNotFoundError:
            log = 0
        return int(pages * page_bytes + max(0, log - LOG_BYTES))

    def backup(self, destination: str | os.PathLike[str]) -> None:
        self._check_usable()
        target = check_backup_target(destination)
        partial = target.with_name(target.name + ".partial")
        partial.unlink(missing_ok=True)
        try:
            partial.touch()
            like(self._path, partial)  # before there is anything in it
            connection = self._connect(apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE)
            try:
                connection.execute("VACUUM INTO ?", (str(partial),))
            finally:
                connection.close(True)
            move_into_place(partial, target)
        except apsw.Error as error:
            raise self._explain(error) from error
        except OSError as error:
            raise StorageError(f"the backup could not be written to {target}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._closed = True  # the connections are the parent's; closing them here could take its locks away
            return
        if not self.read_only:
            self._take_turn()
        try:
            self._closed = True
            self._close_idle()
            with self._watch:
                self._watcher.close(True)
            if not self.read_only:
                self._wal.close()
        finally:
            if not self.read_only:
                self._end_turn()

    def _explain(self, error: apsw.Error) -> PenstockError:
        if self._closed:
            return Closed(f"{self._name} is closed")
        return explain(error, self._file)
