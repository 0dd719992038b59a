"""The default engine: one SQLite database in write-ahead mode, through apsw.

A table `kv(k, v)` with an index of the keys, and a table `numbered(id, v)` for keys that are numbers: an append to the
end of a log writes one page there, and two in `kv`. One connection writes (threads take turns, processes wait for
SQLite's own lock), a pool of connections reads, one more is asked for `changes`. A commit is one or two writes and one
fdatasync of the write-ahead log, which is preallocated: fdatasync of bytes inside a file is cheaper than of bytes that
grow it.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar, Self

import apsw

from penstock.core.durable import copy_permissions, sync_file, sync_folder
from penstock.core.engine.base import BaseEngine, OpenFiles, backup_at, check_key, transaction_is_over
from penstock.core.engine.contract import MAX_KEY_BYTES, Durability, Held, SqlParameters, SqlRow
from penstock.core.engine.line import PAUSE, TURN_SECONDS, Line
from penstock.errors import Closed, ConfigError, Corrupt, NoStore, OutcomeUnknown, PenstockError, StorageError

LOG_LIMIT_BYTES = 64 << 20
"""The size to which a log that grew during a long read is cut when it starts over."""
CACHE_KIB = 8000
"""The page cache of the writing connection, which holds the paths from the root to where keys of every kind are
added.
"""
VACUUM_PAGES = 1000
"""The free pages that one transaction of `reclaim` returns to the file system."""
PURGE_MS = 5_000
"""Milliseconds for which `purge` waits for readers that hold the log."""
IDLE_READERS = 8
"""The number of read connections that are kept open for the next readers."""

CONNECT = "PRAGMA wal_autocheckpoint=0"
"""The statement that every connection runs: the engine itself decides when the log is checkpointed."""
COMMIT = "COMMIT"
BEGIN_READ = "BEGIN; SELECT 1 FROM kv LIMIT 1"
IS_MIXED = "SELECT EXISTS (SELECT 1 FROM kv WHERE k >= x'62' AND k < x'63')"
"""Asks whether rows of `kv` lie between the keys of the numbered table, which begin with a b."""
BEGIN_READ_NUMBERED = f"BEGIN; {IS_MIXED}"
SYNC = "PRAGMA synchronous=FULL"
NO_SYNC = "PRAGMA synchronous=NORMAL"
DATA_VERSION = "PRAGMA data_version"


class SqliteEngine(BaseEngine):
    """A store in one SQLite database that several processes may read and write at once."""

    scheme = "sqlite"
    shared: ClassVar[bool] = True

    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk", vfs: str = "") -> None:
        self._path = Path(path).absolute()
        self._file = str(self._path)
        # SQLite's log is beside the file, not beside a link to the file.
        beside = os.path.realpath(self._file) if self._path.is_symlink() else self._file
        self._beside, self._log, self._index = beside, Path(beside + "-wal"), beside + "-shm"
        super().__init__(self._file, read_only=read_only, durability=durability)
        self._vfs = vfs
        self._idle: list[apsw.Connection] = []
        self._reading: set[apsw.Connection] = set()
        self._watch = threading.Lock()
        self._version = -1
        self._immutable = False
        self.numbered = False
        """True if the store has the table of numbered keys: a store of the first format has none."""
        self._line = Line(beside)
        self._beside_others = False
        """True if another process has written recently."""
        self._turn_ends = self._waits_until = 0.0
        if read_only:
            self._open_to_read()
        else:
            self._open_to_write()

    # opening

    def _connect(self, more: int = 0) -> apsw.Connection:
        name = self._file
        flags = more | (apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE)
        if self._immutable:
            name = self._path.as_uri() + "?immutable=1"
            flags |= apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(name, flags=flags, vfs=self._vfs or None)
        self._check_files()  # this file was opened by the name
        connection.set_busy_handler(wait_a_little)
        return connection

    def _wait_in_line(self, calls: int) -> bool:
        """Waits as the writing connection's busy handler: first with short sleeps, then in the line of waiting
        processes.
        """
        if calls < SHORT_WAITS:
            return wait_a_little(calls)
        if calls == SHORT_WAITS:
            self._waits_until = time.monotonic() + WAIT_SECONDS
        if time.monotonic() > self._waits_until:
            return False
        self._line.let_others_go()
        time.sleep(PAUSE)
        return True

    def _give_way(self) -> None:
        """Lets waiting processes write after this process has written for a while."""
        if time.monotonic() < self._turn_ends:
            return
        if self._line.is_empty():
            self._beside_others = False
        else:
            self._line.let_others_go()

    def _connect_reader(self) -> apsw.Connection:
        connection = self._connect()
        run_all(connection, f"{CONNECT}; PRAGMA query_only=ON")
        return connection

    def _open_to_read(self) -> None:
        if not self._path.is_file():
            raise NoStore(f"there is no store at {self._file}; open it for writing once to make it")
        try:
            try:
                self._watcher = self._connect_reader()
                found = stored_format(self._watcher, self._file)
            except (apsw.CantOpenError, apsw.ReadOnlyError):
                # A read-only folder has no room for SQLite's shared memory. Without a log beside the database, the file
                # alone is the store.
                if self._log.exists() or os.access(self._path.parent, os.W_OK):
                    raise
                self._immutable = True
                self._watcher = self._connect_reader()
                found = stored_format(self._watcher, self._file)
        except apsw.Error as error:
            raise self._explain(error) from error
        if not found:
            self._watcher.close()
            raise ConfigError(f"{self._file} is empty, not a store; open it for writing once to make it one")
        self.numbered = found == FORMAT
        self._files = OpenFiles(self._file)

    def _open_to_write(self) -> None:
        if self._path.is_dir():
            raise ConfigError(f"{self._file} is a folder; a sqlite store is one file: name the file")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect(apsw.SQLITE_OPEN_CREATE)
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
        found = stored_format(writer, self._file)
        if not found:
            run_all(writer, f"PRAGMA page_size={PAGE_BYTES}; PRAGMA auto_vacuum=INCREMENTAL")
        switch_to_log(writer)
        run_all(writer, f"{CONNECT}; PRAGMA journal_size_limit={LOG_LIMIT_BYTES}")
        run_all(writer, f"PRAGMA cache_size=-{CACHE_KIB}; {SYNC}")
        self._wal = WriteAheadLog(self._beside, writer, self._wait_in_line)
        writer.set_wal_hook(self._note_log_pages)
        self._syncing = True
        self._unsynced = self._logged = False
        if not found:
            run_all(writer, MAKE)
        self.numbered = found in (0, FORMAT)
        self._writer_execute = writer.cursor().execute
        writer.set_busy_handler(self._wait_in_line)
        self.sql_guard = SqlGuard(self)
        writer.authorizer = self.sql_guard.check
        if self._wal.in_doubt:
            self._wal.repair()
        self._wal.allocate()
        # The log is a new file whenever no process had the store open. SQLite ignores a failed sync of its name.
        sync_folder(self._path.parent)

    # reading

    def read(self) -> SqliteRead:
        if self._closed or self._lost or os.getpid() != self._pid:
            self._check_usable()
        if self.read_only:
            self._check_files()
        begun = time.monotonic()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect_reader()
            self._reading.add(connection)
            try:
                # The first read fixes the snapshot.
                found = connection.execute(BEGIN_READ_NUMBERED if self.numbered else BEGIN_READ).get
                reading = SqliteRead(self, begun, connection, bool(found))
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
        # No lock here, because the garbage collector may call this at any moment: the caller that removes it from the
        # set ends it.
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
            # The connection is broken, or in the middle of a call on another thread, which then closes it by dropping
            # it.
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

    # Every commit passes through `write`, `_begin` and `_commit`, so their checks are inline; the functions that report
    # an error are called only after a failed check.

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
            if self._wal.in_doubt:
                self._wal.repair()
            if sync is not self._syncing:
                execute(SYNC if sync else NO_SYNC)
                self._syncing = sync
            if self._beside_others:
                self._give_way()
            execute(BEGIN_WRITE)
            if self._line.place:
                self._line.leave()
            self._logged = False
            if self._writer.data_version() != self._version:
                self._foreign = self._beside_others = True
                self._turn_ends = time.monotonic() + TURN_SECONDS
        except BaseException as error:
            self._line.leave()
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
                self._wal.raise_doubt()
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
            # SQLite syncs nothing when nothing changed, for example when a relaxed commit wrote the same values before.
            if not self._logged:
                self._wal.sync()
            self._unsynced = False
        wal = self._wal
        wal.unchecked_commits += 1
        enough = CHECKPOINT_COMMITS if self._syncing else UNSYNCED_COMMITS
        if wal.unchecked_commits >= enough or not (0 <= wal.pages - wal.checked_pages < CHECKPOINT_PAGES):
            wal.checkpoint_in_passing(enough)

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
        """Syncs the log; a checkpoint has synced everything that left the log for the database."""
        self._wal.sync()

    def reclaim(self) -> None:
        """Moves pages from the end of the file into free pages, a few at a time, cuts the file and empties the log."""
        self._check_writable()
        try:
            while self._vacuum_some():
                pass
            self._take_turn()
            try:
                self._wal.checkpoint_waiting(apsw.SQLITE_CHECKPOINT_TRUNCATE, milliseconds=50)
                self._wal.allocate()
            finally:
                self._end_turn()
        except apsw.Error as error:
            raise self._explain(error) from error

    def purge(self) -> None:
        """Writes the whole database anew, and empties the log; needs as much room again meanwhile."""
        self._check_writable()
        try:
            self._take_turn()
            guard = self._writer.authorizer
            try:
                if self._wal.in_doubt:
                    self._wal.repair()
                self._writer.authorizer = None  # it lets no statement touch a whole database
                self._writer_execute("VACUUM")
                self._wal.empty(milliseconds=PURGE_MS)
                self._wal.allocate()
            finally:
                self._writer.authorizer = guard
                self._version = self._writer.data_version()
                self._end_turn()
        except apsw.BusyError as error:
            raise StorageError(
                f"{self._file} still has bytes of what was erased: a reader has held the log for "
                f"{PURGE_MS // 1000} seconds; let it end, and call maintain() again",
                retryable=True,
            ) from error
        except apsw.Error as error:
            raise self._explain(error) from error

    def garbage(self) -> int:
        """Returns bytes of free pages, and of the log beyond its working size."""
        self._check_usable()
        try:
            with self._watch:
                free: int = self._watcher.execute("PRAGMA freelist_count").get
        except apsw.Error as error:
            raise self._explain(error) from error
        return free * PAGE_BYTES + self._log_excess()

    def _log_excess(self) -> int:
        """Returns bytes of the log beyond the part that is allocated in advance."""
        try:
            return max(0, self._log.stat().st_size - LOG_BYTES)
        except FileNotFoundError:
            return 0

    def _vacuum_some(self) -> bool:
        """Frees some pages in a short transaction, so that other writers get their turns. Returns False when no free
        page is left."""
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
            self._foreign = foreign  # the next writer does not know of it yet
            return free > VACUUM_PAGES
        finally:
            self._end_turn()

    def size(self) -> int:
        """Returns the bytes of the database and of the used part of the log."""
        self._check_usable()
        try:
            with self._watch:
                pages = self._watcher.execute("PRAGMA page_count").get
                page_bytes = self._watcher.execute("PRAGMA page_size").get
        except apsw.Error as error:
            raise self._explain(error) from error
        return int(pages * page_bytes + self._log_excess())

    def backup(self, destination: str | os.PathLike[str]) -> None:
        self._check_usable()
        with backup_at(destination) as partial:
            partial.touch()
            copy_permissions(self._path, partial)  # before the file has content
            try:
                connection = self._connect()
                try:
                    connection.execute("VACUUM INTO ?", (str(partial),))
                finally:
                    connection.close(True)
            except apsw.Error as error:
                raise self._explain(error) from error

    def _close(self) -> None:
        if not self._shut():  # a parent's connections are left alone: closing them could take its locks away
            return
        self._close_idle()
        with self._watch:
            self._watcher.close(True)
        if not self.read_only:
            self._wal.close()
        self._line.close()

    def _explain(self, error: apsw.Error) -> PenstockError:
        if self._closed:
            return Closed(f"{self._name} is closed")
        return explain(error, self._file)


# ── Read and write transactions on a SQLite connection ──


GET = "SELECT v FROM kv WHERE k=?"
PUT = "INSERT INTO kv(k,v) VALUES(?,?) ON CONFLICT(k) DO UPDATE SET v=excluded.v"
DELETE = "DELETE FROM kv WHERE k=?"
DELETE_RANGE = "DELETE FROM kv WHERE k>=? AND k<?"
SCAN = "SELECT k,v FROM kv WHERE k>=? AND k<? ORDER BY k"
SCAN_REVERSE = "SELECT k,v FROM kv WHERE k>=? AND k<? ORDER BY k DESC"
GET_NUMBERED = "SELECT v FROM numbered WHERE id=?"
PUT_NUMBERED = "INSERT INTO numbered(id,v) VALUES(?,?) ON CONFLICT(id) DO UPDATE SET v=excluded.v"
DELETE_NUMBERED = "DELETE FROM numbered WHERE id=?"
DELETE_RANGE_NUMBERED = "DELETE FROM numbered WHERE id>=? AND id<?"
SCAN_NUMBERED = "SELECT id,v FROM numbered WHERE id>=? AND id<? ORDER BY id"
SCAN_NUMBERED_REVERSE = "SELECT id,v FROM numbered WHERE id>=? AND id<? ORDER BY id DESC"

# A numbered key is one letter, a number of 4 bytes and a number of 8 bytes, as the blocks of a log have them. The two
# numbers are one of SQLite's row ids, which keeps the order of the keys. A key with larger numbers lies in `kv`.

NUMBERED = ord("b")
_NUMBERED_KEY = struct.Struct(">cIQ")
NUMBERED_BYTES = _NUMBERED_KEY.size
_SECOND_BITS = 40
_MOST_FIRST, _MOST_SECOND = (1 << 23) - 2, (1 << _SECOND_BITS) - 1
_NO_NUMBER = -1
_AFTER_ALL = (1 << 63) - 1
_BEFORE_NUMBERED, _AFTER_NUMBERED = bytes([NUMBERED]), bytes([NUMBERED + 1])


def number_of(key: bytes) -> int:
    """Returns the row id of a key of 13 bytes that begins with the letter of numbered keys; -1 when it lies in `kv`."""
    _, first, second = _NUMBERED_KEY.unpack(key)
    return first << _SECOND_BITS | second if first <= _MOST_FIRST and second <= _MOST_SECOND else _NO_NUMBER


def number_from(bound: bytes) -> int:
    """Returns the smallest row id whose key is not before a bound, which may be any bytes."""
    first: int
    second: int
    size = len(bound)  # nearly always of a key, or of its beginning
    if size == NUMBERED_BYTES and bound[0] == NUMBERED:
        _, first, second = _NUMBERED_KEY.unpack(bound)
        if first <= _MOST_FIRST and second <= _MOST_SECOND:
            return first << _SECOND_BITS | second
    elif size == 5 and bound[0] == NUMBERED and (first := int.from_bytes(bound[1:])) <= _MOST_FIRST:
        return first << _SECOND_BITS
    if bound <= _BEFORE_NUMBERED:
        return 0
    if bound >= _AFTER_NUMBERED:
        return _AFTER_ALL
    first, second = int.from_bytes(bound[1:5].ljust(4, b"\0")), int.from_bytes(bound[5:13].ljust(8, b"\0"))
    if first > _MOST_FIRST:
        return _AFTER_ALL
    number = (first << _SECOND_BITS) + min(second, _MOST_SECOND + 1)
    return number + (size > NUMBERED_BYTES and second <= _MOST_SECOND)


def _refuse(*_: object) -> object:
    raise transaction_is_over()


class _SqliteTransaction:
    """The reading part of read and write transactions."""

    __slots__ = ("_connection", "_engine", "_execute", "_mixed", "_scans")

    _engine: SqliteEngine
    _connection: apsw.Connection | None
    _execute: Callable[..., Any]
    _scans: set[apsw.Cursor]
    _mixed: bool | None
    """True if rows of `kv` lie between the numbered keys; None until this is asked."""

    def get(self, key: bytes) -> bytes | None:
        try:
            if (
                len(key) == NUMBERED_BYTES
                and key[0] == NUMBERED
                and self._engine.numbered
                and (number := number_of(key)) >= 0
            ):
                found = self._execute(GET_NUMBERED, (number,)).get
            else:
                found = self._execute(GET, (key,)).get
            if found.__class__ is not bytes and found is not None:
                raise damaged_row(key)
            return found
        except UnicodeDecodeError as error:
            raise damaged_row(key) from error
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if not self._engine.numbered:
            return self._rows(start, stop, reverse)
        if start[:1] == _BEFORE_NUMBERED and stop <= _AFTER_NUMBERED:
            if self._mixed is False or not self._is_mixed():
                return self._numbered_rows(start, stop, reverse)
        elif start >= _AFTER_NUMBERED or stop <= _BEFORE_NUMBERED:
            return self._rows(start, stop, reverse)
        from heapq import merge

        return merge(self._rows(start, stop, reverse), self._numbered_rows(start, stop, reverse), reverse=reverse)

    def _is_mixed(self) -> bool:
        """Returns True if rows of `kv` lie between the numbered keys."""
        if self._mixed is None:
            try:
                self._mixed = bool(self._execute(IS_MIXED).get)
            except apsw.Error as error:
                raise self._engine._explain(error) from error
        return self._mixed

    def _numbered_rows(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows of the numbered table between two keys, with their keys."""
        if self._connection is None or self._engine._closed:
            raise transaction_is_over()
        cursor, pack = self._connection.cursor(), _NUMBERED_KEY.pack
        self._scans.add(cursor)
        statement = SCAN_NUMBERED_REVERSE if reverse else SCAN_NUMBERED
        try:
            for number, value in cursor.execute(statement, (number_from(start), number_from(stop))):
                key = pack(_BEFORE_NUMBERED, number >> _SECOND_BITS, number & _MOST_SECOND)
                if value.__class__ is not bytes:
                    raise damaged_row(key)
                yield key, value
        except UnicodeDecodeError as error:
            raise damaged_row(start) from error
        except (apsw.CursorClosedError, apsw.ConnectionClosedError) as error:
            raise transaction_is_over() from error
        except apsw.Error as error:
            raise self._engine._explain(error) from error
        finally:
            self._scans.discard(cursor)
            cursor.close(True)

    def _rows(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows of `kv` between two keys."""
        if self._connection is None or self._engine._closed:
            raise transaction_is_over()
        cursor = self._connection.cursor()
        self._scans.add(cursor)
        try:
            for row in cursor.execute(SCAN_REVERSE if reverse else SCAN, (start, stop)):
                if row[1].__class__ is not bytes or row[0].__class__ is not bytes:
                    raise damaged_row(row[0])
                yield row
        except UnicodeDecodeError as error:
            raise damaged_row(start) from error
        except (apsw.CursorClosedError, apsw.ConnectionClosedError) as error:
            raise transaction_is_over() from error
        except apsw.Error as error:
            raise self._engine._explain(error) from error
        finally:
            self._scans.discard(cursor)
            cursor.close(True)

    def _end_scans(self) -> None:
        """Ends every use of the connection: an unfinished scan would keep its snapshot alive after the commit."""
        while self._scans:
            with suppress(apsw.ThreadingViolationError):  # another thread reads the scan and closes it at its end
                self._scans.pop().close(True)


class SqliteRead(_SqliteTransaction, Held):
    """A read transaction on a connection of its own."""

    __slots__ = ("begun",)

    def __init__(self, engine: SqliteEngine, begun: float, connection: apsw.Connection, mixed: bool) -> None:
        self._engine = engine
        self.begun = begun
        self._connection = connection
        self._execute = connection.execute
        self._scans = set()
        self._mixed = mixed

    def close(self) -> None:
        connection, self._connection, self._execute = self._connection, None, _refuse
        if self._scans:
            self._end_scans()
        if connection is not None:
            self._engine._end_read(connection)

    def __del__(self) -> None:
        with suppress(AttributeError):  # interrupted before the constructor ended
            if self._connection is not None:  # it is nearly always closed, and this check costs no call
                self.close()


class SqliteWrite(_SqliteTransaction):
    """A write transaction on the engine's one writing connection."""

    begun: float = math.inf

    __slots__ = ("_sync", "foreign", "writes")

    def __init__(self, engine: SqliteEngine, sync: bool) -> None:
        self._engine = engine
        self._connection = None
        self._execute = _refuse
        self._scans = set()
        self._mixed = None
        self._sync = sync
        self.foreign = False
        self.writes = 0

    def __enter__(self) -> Self:
        engine = self._engine
        self.foreign = engine._begin(self._sync)
        self._connection = engine._writer
        self._execute = engine._writer_execute
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        engine = self._engine
        try:
            self._connection, self._execute = None, _refuse
            if self._scans:
                self._end_scans()
            if kind is None:
                engine._commit()
                files = engine._files
                try:  # the first check of `OpenFiles.missing`, inline because every commit pays for it
                    found = None if files is None else os.stat(files.folder)  # noqa: PTH116
                except OSError:
                    found = None
                if found is None or files is None or (found.st_ino, found.st_ctime_ns) != files.unchanged:
                    engine._acknowledge()
            else:
                engine._rollback()
        finally:
            engine._turn_owner = 0
            engine._turn.release()

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        # In a backward scan, SQLite returns a row again that was replaced just after it was returned.
        last = stop if reverse else b""
        for row in super().scan(start, stop, reverse=reverse):
            if row[0] < last if reverse else row[0] > last:
                last = row[0]
                yield row

    def put(self, key: bytes, value: bytes) -> None:
        size = len(key)
        if not 0 < size <= MAX_KEY_BYTES:
            check_key(key)
        self.writes += 1
        try:
            if key[0] != NUMBERED or not self._engine.numbered:
                self._execute(PUT, (key, value))
            elif size == NUMBERED_BYTES and (number := number_of(key)) >= 0:
                self._execute(PUT_NUMBERED, (number, value))
            else:
                self._mixed = True
                self._execute(PUT, (key, value))
        except apsw.Error as error:
            raise self._engine._explain(error) from error
        except OverflowError as error:
            raise ConfigError(f"a value of {len(value)} bytes is too large: sqlite takes 1,000,000,000") from error

    def delete(self, key: bytes) -> None:
        self.writes += 1
        try:
            if (
                len(key) == NUMBERED_BYTES
                and key[0] == NUMBERED
                and self._engine.numbered
                and (number := number_of(key)) >= 0
            ):
                self._execute(DELETE_NUMBERED, (number,))
            else:
                self._execute(DELETE, (key,))
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def sql(self, statement: str, parameters: SqlParameters) -> list[SqlRow]:
        connection = self._connection
        if connection is None:
            raise transaction_is_over()
        # Not from the statement cache: the authorizer is not called for a statement that is already prepared.
        cursor, guard = connection.cursor(), self._engine.sql_guard
        self._execute(SAVEPOINT)
        try:
            with guard:
                rows = list(cursor.execute(statement, parameters, can_cache=False))
        except BaseException as error:
            if connection.in_transaction:
                self._execute(UNDO)
            else:
                self.writes += 1  # OR ROLLBACK has undone all of this transaction: it is spoiled
            raise guard.explain(error) or error from error
        self._execute(RELEASE)
        return rows

    def keep(self) -> None:
        return  # the operating system has the commit when the block ends

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self.writes += 1
        try:
            self._execute(DELETE_RANGE, (start, stop))
            if start < _AFTER_NUMBERED and stop > _BEFORE_NUMBERED and self._engine.numbered:
                self._execute(DELETE_RANGE_NUMBERED, (number_from(start), number_from(stop)))
        except apsw.Error as error:
            raise self._engine._explain(error) from error


# ── SQL on a program's own tables, in the transactions of the store ──


STORE_TABLES = ("kv", "numbered")
SAVEPOINT = "SAVEPOINT own_sql"
RELEASE = "RELEASE own_sql"
UNDO = "ROLLBACK TO own_sql; RELEASE own_sql"
_SECOND_NAMES_TABLE = {
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_ALTER_TABLE,
}
"""Actions whose second name is the table's."""
_REFUSED = {
    apsw.SQLITE_TRANSACTION: "the block of the transaction is what commits or rolls back",
    apsw.SQLITE_SAVEPOINT: "a savepoint would undo appends behind the journal's back",
    apsw.SQLITE_ATTACH: "the transaction is of one file",
    apsw.SQLITE_DETACH: "the transaction is of one file",
    apsw.SQLITE_PRAGMA: "the settings of the connection are the store's",
    **dict.fromkeys(
        (
            apsw.SQLITE_CREATE_TEMP_TABLE,
            apsw.SQLITE_CREATE_TEMP_INDEX,
            apsw.SQLITE_CREATE_TEMP_VIEW,
            apsw.SQLITE_CREATE_TEMP_TRIGGER,
        ),
        "what is temporary would outlive the transaction, and could hide the store's table",
    ),
}
"""Actions that statements of programs must not use, with the reason."""


class SqlGuard:
    """A guard within whose block statements must not touch the store's own table, or the settings that it relies on."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._on = False
        self._why = ""

    def __enter__(self) -> None:
        self._on, self._why = True, ""

    def __exit__(self, *_: object) -> None:
        self._on = False

    def check(self, action: int, first: str | None, second: str | None, schema: str | None, inner: str | None) -> int:
        """Decides, as SQLite's authorizer, on an action of a statement that is being prepared."""
        if self._on:
            table = second if action in _SECOND_NAMES_TABLE else first
            if action in _REFUSED:
                self._why = _REFUSED[action]
            elif table is not None and (own := table.lower().removeprefix("sqlite_autoindex_").removesuffix("_1")) in (
                STORE_TABLES if self._engine.numbered else STORE_TABLES[:1]
            ):
                self._why = f"the table {own!r} is the store's own"
            elif table is not None and table.lower() == "sqlite_dbpage":
                self._why = "pages of the file are the store's"
            if self._why:
                return apsw.SQLITE_DENY
        return apsw.SQLITE_OK

    def explain(self, error: BaseException) -> PenstockError | None:
        """Returns the penstock error for a statement that failed; None for what is no error of SQLite."""
        if self._why:
            return ConfigError(f"tx.sql does not take this statement: {self._why}")
        if isinstance(error, KeyError):
            return ConfigError(f"tx.sql: there is no value for the parameter {error}")
        if isinstance(error, _OWN_FAULTS):
            return ConfigError(f"tx.sql: {error}")
        return self._engine._explain(error) if isinstance(error, apsw.Error) else None


_OWN_FAULTS = (
    *(apsw.SQLError, apsw.BindingsError, apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError),
    *(apsw.IncompleteExecutionError, TypeError, OverflowError, ValueError),
)
"""Errors of a statement or its parameters, not of the store."""


# ── How a SQLite database is recognised as a store, and made one ──


APPLICATION_ID = 0x50454E53
"""Marks a database as penstock's in SQLite's header ("PENS")."""
FORMAT, FIRST_FORMAT = 2, 1
"""The layout of the tables, in SQLite's user_version. A store of the first format has no table of numbered keys; it
stays as it is, because another process may have it open with a version that knows no other format."""
WAIT_SECONDS = 60.0
"""The seconds that a connection waits for another process before it gives up."""

MAKE = (
    "BEGIN IMMEDIATE;"
    # Not WITHOUT ROWID: SQLite would then read a large value as a whole to compare its key with another key.
    "CREATE TABLE IF NOT EXISTS kv(id INTEGER PRIMARY KEY, k BLOB NOT NULL UNIQUE, v BLOB NOT NULL) STRICT;"
    "CREATE TABLE IF NOT EXISTS numbered(id INTEGER PRIMARY KEY, v BLOB NOT NULL) STRICT;"
    f"PRAGMA application_id={APPLICATION_ID};"
    f"PRAGMA user_version={FORMAT};"
    "COMMIT"
)


def run_all(connection: apsw.Connection, sql: str) -> None:
    """Runs every statement; apsw alone stops at the first statement that returns a row, as many pragmas do."""
    for _ in connection.execute(sql):
        pass


def stored_format(connection: apsw.Connection, file: str) -> int:
    """Returns the format of the store in a database; 0 for an empty one. Raises ConfigError when it holds something
    else."""
    try:
        application, version, tables = connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
            " (SELECT count(*) FROM sqlite_schema)"
        ).fetchall()[0]
    except apsw.NotADBError as error:
        raise ConfigError(
            f"{file} is not a SQLite database: another program made it, or its first page is damaged"
        ) from error
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise ConfigError(f"{file} is a SQLite database of another program; give the store a file of its own")
    if version not in (FORMAT, FIRST_FORMAT):
        raise ConfigError(
            f"{file} has sqlite store format {version}, this version of penstock reads formats {FIRST_FORMAT} and "
            f"{FORMAT}; use the version that made it, or copy its events over"
        )
    return int(version)


def switch_to_log(connection: apsw.Connection) -> None:
    """Turns write-ahead mode on.

    SQLite does not call the busy handler for this, so two concurrent openers retry here.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").get
            break
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
    if mode != "wal":
        raise ConfigError("this file system cannot hold SQLite's write-ahead log; keep the store on a local disk")


# ── What SQLite's errors mean in penstock's words ──


def damaged_row(key: object) -> Corrupt:
    """Returns the error for a row that holds a number, a text or null where bytes were stored: SQLite types values,
    not columns.
    """
    return Corrupt(f"a row of the database holds no bytes (key {key!r}): the file is damaged")


def write_failed(error: apsw.IOError) -> bool:
    """Returns True when a commit failed while its pages were written. Without its last page, SQLite ignores the
    commit."""
    # Errors that Python code raises inside SQLite do not have it.
    return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_WRITE


def explain(error: apsw.Error, file: str) -> PenstockError:
    """Returns the penstock error for an apsw error of the store in `file`."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return Corrupt(f"SQLite found the database damaged: {error}; restore a backup", file=file)
        case apsw.FullError():
            return StorageError(f"the disk of {file} is full; nothing of this transaction was kept", retryable=True)
        case apsw.BusyError() | apsw.LockedError():
            return StorageError(f"another process kept {file} locked for too long: {error}", retryable=True)
        case apsw.TooBigError():
            return ConfigError(f"a value is larger than SQLite stores in one (1,000,000,000 bytes): {error}")
        case apsw.ConstraintError():
            return ConfigError(f"keys and values are bytes, nothing else: {error}")
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return StorageError(f"{file} cannot be opened or written: {error}; look at its folder's permissions")
        case apsw.IOError():
            return StorageError(f"reading or writing {file} failed: {error}; nothing of this transaction was kept")
    return StorageError(f"SQLite refused on {file}: {type(error).__name__}: {error}")


# ── The write-ahead log of a store, as the writing connection has it: its size on disk, its syncs, its checkpoints ──


PAGE_BYTES = 4096
CHECKPOINT_PAGES, CHECKPOINT_COMMITS = 2000, 256
"""The pages and small commits after which the log is checkpointed. A log short enough to be overwritten syncs faster
than a log that grows."""
UNSYNCED_COMMITS = 8 * CHECKPOINT_COMMITS
"""The same for commits that are not synced: they gain nothing from a short log, and a checkpoint costs two syncs."""
LONG_LOG_PAGES = 8 * CHECKPOINT_PAGES
"""The length of a log that readers without a pause keep from starting over; writers then wait a moment for such a
pause.
"""
LOG_BYTES = 32 + CHECKPOINT_PAGES * (PAGE_BYTES + 24)
"""The bytes of the write-ahead log that are allocated in advance, as many as are written between two checkpoints."""
BEGIN_WRITE = "BEGIN IMMEDIATE"
ROLLBACK = "ROLLBACK"


class WriteAheadLog:
    """Syncs the log, copies it into the database so that it can start over, and makes it whole after a failed sync."""

    def __init__(self, store: str, writer: apsw.Connection, wait: Callable[[int], bool]) -> None:
        self._wait = wait
        """The writing connection's busy handler."""
        self._path = Path(store + "-wal")
        self._mark = Path(store + "-suspect")
        self.in_doubt = self._mark.exists()
        """True when the log may have a hole on disk."""
        self._writer = writer
        self.pages = 0
        self.checked_pages = 0
        self.unchecked_commits = 0

    def allocate(self) -> None:
        """Grows the log file to its working size.

        The caller holds SQLite's write lock, so that no other process writes to it.
        """
        if not hasattr(os, "posix_fallocate"):
            return
        self._writer.execute(BEGIN_WRITE)
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(descriptor, 0, LOG_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            pass  # a full disk, or a file system without this call: the log grows with each write
        finally:
            self._writer.execute(ROLLBACK)

    def checkpoint_in_passing(self, enough: int) -> None:
        """Copies the log into the database after `enough` commits or many pages, so that it can start over."""
        pages = self.pages
        if pages < self.checked_pages:
            self.checked_pages = 0
        grown = pages - self.checked_pages
        if grown < CHECKPOINT_COMMITS or (grown < CHECKPOINT_PAGES and self.unchecked_commits < enough):
            return
        self.checked_pages, self.unchecked_commits = pages, 0
        with suppress(apsw.Error):  # the commit is complete; the next write meets the same error
            if pages < LONG_LOG_PAGES:
                self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                self.checkpoint_waiting(apsw.SQLITE_CHECKPOINT_RESTART, milliseconds=50)

    def checkpoint_waiting(self, mode: int, *, milliseconds: int) -> None:
        self._writer.set_busy_timeout(milliseconds)
        try:
            with suppress(apsw.BusyError):
                self._checkpoint(mode)
        finally:
            self._writer.set_busy_handler(self._wait)

    def empty(self, *, milliseconds: int) -> None:
        """Copies the whole log into the database and cuts it; BusyError when a reader needs it for longer than that."""
        self._writer.set_busy_timeout(milliseconds)
        try:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._writer.set_busy_handler(self._wait)

    def _checkpoint(self, mode: int) -> None:
        try:
            self._writer.wal_checkpoint(mode=mode)
        except apsw.IOError:
            self.raise_doubt()  # the checkpoint syncs the log first
            raise

    def sync(self) -> None:
        """Syncs the log; raises OutcomeUnknown on failure."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                sync_file(descriptor)
            except OSError:
                self.raise_doubt()
                raise
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutcomeUnknown(f"{self._path} could not be synced: {error}; it may be lost in a power cut") from error

    # After a failed sync the system treats pages as written that are not, and the next sync succeeds: commits would be
    # acknowledged behind a hole, which a power cut reveals. So before any further write, the log is written again byte
    # for byte and synced, and its checksums are compared to its end. Until this succeeds, nothing is written. A file
    # beside the store tells the next process if this process dies first. The file need not be on disk itself, because
    # after a power cut memory and disk agree again.

    def raise_doubt(self) -> None:
        """Notes that a sync failed."""
        self.in_doubt = True
        with suppress(OSError):  # the disk refuses the file too, but this process still knows
            self._mark.touch(0o600)

    def repair(self) -> None:
        """Repairs the log after a failed sync, while no process writes to it; raises StorageError on failure."""
        frames = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        self._writer.execute(BEGIN_WRITE)
        try:
            self._write_again()
            if sound_frames(self._path) < frames:
                raise StorageError(
                    f"{self._path} lost commits that were not yet on disk when a sync of it failed; close the store in "
                    "every process and open it again: it comes back with everything that was acknowledged"
                )
            self._mark.unlink(missing_ok=True)
            self.in_doubt = False
        except OSError as error:
            raise StorageError(
                f"{self._path} could not be synced before and still cannot be ({error}); nothing more is written to it",
                retryable=True,
            ) from error
        finally:
            self._writer.execute(ROLLBACK)

    def _write_again(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            at = 0
            while piece := os.pread(descriptor, PIECE_BYTES, at):
                if piece.strip(b"\0"):
                    os.pwrite(descriptor, piece, at)
                at += len(piece)
            sync_file(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Closes the writing connection; the last connection of a store copies the log into the database."""
        if self.in_doubt:
            try:
                self.repair()
            except (StorageError, apsw.Error):
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # never from a log with a hole
        self._writer.close(True)


SHORT_WAITS = 3
"""The number of attempts before a process takes a place in the line."""


def wait_a_little(calls: int) -> bool:
    """Waits as SQLite's busy handler, first with short sleeps, because most commits of other processes take under a
    millisecond.
    """
    pause = min(0.0002 * (calls + 1), 0.005)
    if calls * 0.005 > WAIT_SECONDS:
        return False
    time.sleep(pause)
    return True


# ── Following the checksums of a write-ahead log ──


HEADER = struct.Struct(">IIIIIIII")
FRAME = struct.Struct(">IIIIII")
PIECE_BYTES = 1 << 20
LITTLE_ENDIAN, BIG_ENDIAN = 0x377F0682, 0x377F0683
"""The first number of a log says how the words that are summed up are stored."""


def sound_frames(path: Path) -> int:
    """Returns the number of frames of a log whose checksums follow from the frames before them."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    with file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            return 0
        magic, _, page_bytes, _, *salts, first, second = HEADER.unpack(header)
        if magic not in (LITTLE_ENDIAN, BIG_ENDIAN):
            return 0
        sums = _add(header[:24], magic, (0, 0))
        if sums != (first, second):
            return 0
        frames = 0
        while len(frame := file.read(FRAME.size + page_bytes)) == FRAME.size + page_bytes:
            _, _, *its_salts, first, second = FRAME.unpack_from(frame)
            if its_salts != salts:
                break
            sums = _add(frame[FRAME.size :], magic, _add(frame[:8], magic, sums))
            if sums != (first, second):
                break
            frames += 1
        return frames


def _add(data: bytes, magic: int, sums: tuple[int, int]) -> tuple[int, int]:
    words = array("I", data)
    if (magic == BIG_ENDIAN) == (array("I", b"\1\0\0\0")[0] == 1):
        words.byteswap()
    first, second = sums
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
