"""The default engine: one SQLite database in write-ahead mode, through apsw.

One table, `kv(k, v)`, clustered by key. One connection writes (threads take turns, processes wait for SQLite's own
lock), a pool of connections reads, one more is asked for `changes`. A commit is one or two writes and one fdatasync of
the write-ahead log, which is preallocated: fdatasync of bytes inside a file is cheaper than of bytes that grow it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import apsw

from penstock.engine.base import BaseEngine, check_backup_target, check_key, sync_folder, transaction_is_over
from penstock.engine.contract import Durability
from penstock.engine.sqlite_errors import explain
from penstock.errors import Closed, ConfigError, PenstockError, StorageError

APPLICATION_ID = 0x50454E53
"""Marks a database as penstock's in SQLite's header ("PENS")."""
FORMAT = 1
"""The layout of the tables, in SQLite's user_version."""

PAGE_BYTES = 8192
CHECKPOINT_PAGES = 1000
LOG_BYTES = 32 + CHECKPOINT_PAGES * (PAGE_BYTES + 24)
"""How much of the write-ahead log is allocated in advance: as much as is filled between two checkpoints."""
LOG_LIMIT_BYTES = 64 << 20
"""A log that a long read made larger than this is cut back when it starts over."""
WAIT_SECONDS = 60.0
"""How long a write waits for another process before it gives up."""
IDLE_READERS = 8
"""Read connections kept open for the next reader."""

SCHEMA = "CREATE TABLE IF NOT EXISTS kv(k BLOB PRIMARY KEY, v BLOB NOT NULL) STRICT, WITHOUT ROWID"
BEGIN_WRITE = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
BEGIN_READ = "BEGIN; SELECT 1 FROM kv LIMIT 1"
END_READ = "COMMIT"
GET = "SELECT v FROM kv WHERE k=?"
PUT = "REPLACE INTO kv(k,v) VALUES(?,?)"
DELETE = "DELETE FROM kv WHERE k=?"
DELETE_RANGE = "DELETE FROM kv WHERE k>=? AND k<?"
SCAN = "SELECT k,v FROM kv WHERE k>=? AND k<? ORDER BY k"
SCAN_REVERSE = "SELECT k,v FROM kv WHERE k>=? AND k<? ORDER BY k DESC"
SYNC = "PRAGMA synchronous=FULL"
NO_SYNC = "PRAGMA synchronous=NORMAL"
DATA_VERSION = "PRAGMA data_version"


def _refuse(*_: object) -> Any:
    raise transaction_is_over()


class _Transaction:
    """Reading, which read and write transactions do alike."""

    __slots__ = ("_connection", "_engine", "_execute", "_scans")

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._connection: apsw.Connection | None = None
        self._execute: Callable[..., Any] = _refuse
        self._scans: set[apsw.Cursor] = set()

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._execute(GET, (key,)).get  # type: ignore[no-any-return]
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if self._connection is None or self._engine._closed:
            raise transaction_is_over()
        cursor = self._connection.cursor()
        self._scans.add(cursor)
        try:
            yield from cursor.execute(SCAN_REVERSE if reverse else SCAN, (start, stop))
        except (apsw.CursorClosedError, apsw.ConnectionClosedError) as error:
            raise transaction_is_over() from error
        except apsw.Error as error:
            raise self._engine._explain(error) from error
        finally:
            self._scans.discard(cursor)
            cursor.close(True)

    def _let_go(self) -> apsw.Connection | None:
        """Ends every use of the connection: an unfinished scan would keep its snapshot alive after the commit."""
        connection, self._connection = self._connection, None
        self._execute = _refuse
        while self._scans:
            self._scans.pop().close(True)
        return connection


class SqliteRead(_Transaction):
    """A read transaction on a connection of its own."""

    __slots__ = ()

    def __init__(self, engine: SqliteEngine, connection: apsw.Connection) -> None:
        super().__init__(engine)
        self._connection = connection
        self._execute = connection.execute

    def close(self) -> None:
        connection = self._let_go()
        if connection is not None:
            self._engine._end_read(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class SqliteWrite(_Transaction):
    """A write transaction on the engine's one writing connection."""

    __slots__ = ("_sync", "_untouched", "foreign")

    def __init__(self, engine: SqliteEngine, sync: bool) -> None:
        super().__init__(engine)
        self._sync = sync
        self._untouched = True
        self.foreign = False

    def __enter__(self) -> Self:
        engine = self._engine
        engine._take_turn()
        try:
            self.foreign = engine._begin(self._sync)
        except BaseException:
            engine._end_turn()
            raise
        self._connection = engine._writer
        self._execute = engine._writer_execute
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        try:
            self._let_go()
            if kind is None:
                engine._commit()
            else:
                engine._rollback()
        finally:
            engine._end_turn()

    def get(self, key: bytes) -> bytes | None:
        self._untouched = False
        return super().get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._untouched = False
        # Walking backwards, SQLite shows a row again that was replaced just after it was shown.
        last = stop if reverse else b""
        for row in super().scan(start, stop, reverse=reverse):
            if row[0] < last if reverse else row[0] > last:
                last = row[0]
                yield row

    def put(self, key: bytes, value: bytes) -> None:
        self._untouched = False
        check_key(key)
        try:
            self._execute(PUT, (key, value))
        except apsw.Error as error:
            raise self._engine._explain(error) from error
        except OverflowError as error:
            raise ConfigError(f"a value of {len(value)} bytes is too large: sqlite takes 1,000,000,000") from error

    def delete(self, key: bytes) -> None:
        self._untouched = False
        try:
            self._execute(DELETE, (key,))
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self._untouched = False
        try:
            self._execute(DELETE_RANGE, (start, stop))
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def relax(self) -> None:
        """Has an effect only before anything was read or written: SQLite fixes how a transaction syncs at its start.

        Later it does nothing, and the commit is on disk after all; `write(sync=False)` says it in time.
        """
        if self._untouched and self._sync and self._connection is not None:
            self._sync = False
            self.foreign = self._engine._begin_again() or self.foreign


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
        self._log = Path(self._file + "-wal")
        super().__init__(self._file, read_only=read_only, durability=durability)
        self._vfs = vfs
        self._idle: list[apsw.Connection] = []
        self._reading: set[apsw.Connection] = set()
        self._watch = threading.Lock()
        self._foreign = True
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
        connection.set_busy_handler(_wait_a_little)
        return connection

    def _connect_reader(self) -> apsw.Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE)
        connection.execute("PRAGMA query_only=ON; PRAGMA wal_autocheckpoint=0")
        return connection

    def _open_to_read(self) -> None:
        if not self._path.is_file():
            raise ConfigError(f"there is no store at {self._file}; open it for writing once to make it")
        try:
            try:
                self._watcher = self._connect_reader()
                made = _is_made(self._watcher, self._file)
            except (apsw.CantOpenError, apsw.ReadOnlyError):
                # A folder that may not be written has no room for SQLite's shared memory. Without a log beside the
                # database there is nothing in it either, so the file alone is the store.
                if self._log.exists() or os.access(self._path.parent, os.W_OK):
                    raise
                self._immutable = True
                self._watcher = self._connect_reader()
                made = _is_made(self._watcher, self._file)
        except apsw.Error as error:
            raise self._explain(error) from error
        if not made:
            self._watcher.close()
            raise ConfigError(f"{self._file} is empty, not a store; open it for writing once to make it one")

    def _open_to_write(self) -> None:
        if self._path.is_dir():
            raise ConfigError(f"{self._file} is a folder; a sqlite store is one file: name the file")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                self._prepare_writer()
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
        made = _is_made(writer, self._file)
        if not made:
            writer.execute(f"PRAGMA page_size={PAGE_BYTES}; PRAGMA auto_vacuum=INCREMENTAL")
        _switch_to_log(writer)
        writer.execute(
            f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}; PRAGMA journal_size_limit={LOG_LIMIT_BYTES};"
            f"PRAGMA cache_size=-8000; {SYNC}"
        )
        self._syncing = True
        if not made:
            writer.execute(BEGIN_WRITE)
            writer.execute(f"{SCHEMA}; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; {COMMIT}")
            sync_folder(self._path.parent)
        self._writer_execute = writer.cursor().execute
        self._allocate_log()

    def _allocate_log(self) -> None:
        """Grows the log file to its working size; inside SQLite's write lock, so that nobody else is writing to it."""
        if not hasattr(os, "posix_fallocate"):
            return
        self._writer.execute(BEGIN_WRITE)
        try:
            descriptor = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(descriptor, 0, LOG_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            pass  # a full disk, or a file system without it: the log grows as it is written
        finally:
            self._writer.execute(ROLLBACK)

    # reading

    def read(self) -> SqliteRead:
        self._check_usable()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect_reader()
            self._reading.add(connection)
            try:
                connection.execute(BEGIN_READ).get  # noqa: B018 - the first read fixes the snapshot
            except BaseException:
                self._reading.discard(connection)
                connection.close(True)
                raise
        except apsw.Error as error:
            raise self._explain(error) from error
        reading = SqliteRead(self, connection)
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
        if len(self._idle) >= IDLE_READERS:
            connection.close(True)
            return
        try:
            connection.execute(END_READ)
        except apsw.Error:
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

    def write(self, *, sync: bool = True) -> SqliteWrite:
        """A write transaction; `sync=False` says in advance what `relax` says inside it."""
        self._check_writable()
        return SqliteWrite(self, sync)

    def _begin(self, sync: bool) -> bool:
        """Starts a transaction on the writing connection and says whether anybody else has committed meanwhile."""
        execute = self._writer_execute
        sync = sync and self.durability == "disk"
        try:
            if sync is not self._syncing:
                execute(SYNC if sync else NO_SYNC)
                self._syncing = sync
            execute(BEGIN_WRITE)
            if self._writer.data_version() != self._version:
                self._foreign = True
        except apsw.Error as error:
            raise self._explain(error) from error
        return self._foreign

    def _begin_again(self) -> bool:
        self._rollback()
        return self._begin(False)

    def _commit(self) -> None:
        try:
            self._writer_execute(COMMIT)
        except BaseException as error:
            self._rollback()
            if isinstance(error, apsw.Error):
                raise self._explain(error) from error
            raise
        self._version = self._writer.data_version()
        self._foreign = False

    def _rollback(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer_execute(ROLLBACK)
            self._version = self._writer.data_version()
        except apsw.Error as error:
            raise self._explain(error) from error

    # the rest

    def changes(self) -> int:
        self._check_usable()
        try:
            with self._watch:
                return self._watcher.execute(DATA_VERSION).get  # type: ignore[no-any-return]
        except apsw.Error as error:
            raise self._explain(error) from error

    def flush(self) -> None:
        """Syncs the log; what left the log for the database was synced on the way."""
        self._check_usable()
        try:
            descriptor = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise StorageError(f"{self._file}-wal could not be synced: {error}") from error
        finally:
            os.close(descriptor)

    def reclaim(self) -> None:
        """Moves pages from the end of the file into free ones, a few at a time, cuts the file and empties the log."""
        self._check_writable()
        try:
            while True:
                self._take_turn()
                try:
                    free = self._writer_execute("PRAGMA freelist_count").get
                    if not free:
                        break
                    for _ in self._writer_execute("PRAGMA incremental_vacuum(1000)"):
                        pass
                    self._version = self._writer.data_version()
                finally:
                    self._end_turn()
            self._take_turn()
            try:
                self._writer.set_busy_timeout(500)
                self._writer_execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self._writer.set_busy_handler(_wait_a_little)
                self._allocate_log()
                self._end_turn()
        except apsw.Error as error:
            raise self._explain(error) from error

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
            connection = self._connect(apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE)
            try:
                connection.execute("VACUUM INTO ?", (str(partial),))
            finally:
                connection.close(True)
            descriptor = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(partial, target)
            sync_folder(target.parent)
        except apsw.Error as error:
            raise self._explain(error) from error
        except FileExistsError as error:
            raise ConfigError(f"{target} exists already; a backup never overwrites: give it a new name") from error
        except OSError as error:
            raise StorageError(f"the backup could not be written to {target}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)

    def close(self) -> None:
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
                self._writer.close(True)
        finally:
            if not self.read_only:
                self._end_turn()

    def _explain(self, error: apsw.Error) -> PenstockError:
        if self._closed:
            return Closed(f"{self._name} is closed")
        return explain(error, self._file)


def _wait_a_little(calls: int) -> bool:
    """SQLite's busy handler: short sleeps first, because most commits of other processes take under a millisecond."""
    pause = min(0.0002 * (calls + 1), 0.005)
    if calls * 0.005 > WAIT_SECONDS:
        return False
    time.sleep(pause)
    return True


def _is_made(connection: apsw.Connection, file: str) -> bool:
    """Whether the database holds a store of this format; ConfigError when it holds something else."""
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
        return False
    if application != APPLICATION_ID:
        raise ConfigError(f"{file} is a SQLite database of another program; give the store a file of its own")
    if version != FORMAT:
        raise ConfigError(
            f"{file} has sqlite store format {version}, this version of penstock reads format {FORMAT}; "
            "use the version that made it, or copy its events over"
        )
    return True


def _switch_to_log(connection: apsw.Connection) -> None:
    """Turns write-ahead mode on; SQLite does not call the busy handler for this, so two openers are sorted out here."""
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
