"""Read and write transactions on a SQLite connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import apsw

from penstock.engine.base import check_key, transaction_is_over
from penstock.engine.contract import MAX_KEY_BYTES
from penstock.engine.sqlite.errors import damaged_row
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.engine.sqlite.engine import SqliteEngine

GET = "SELECT v FROM kv WHERE k=?"
PUT = "INSERT INTO kv(k,v) VALUES(?,?) ON CONFLICT(k) DO UPDATE SET v=excluded.v"
DELETE = "DELETE FROM kv WHERE k=?"
DELETE_RANGE = "DELETE FROM kv WHERE k>=? AND k<?"
SCAN = "SELECT k,v FROM kv WHERE k>=? AND k<? ORDER BY k"
SCAN_REVERSE = "SELECT k,v FROM kv WHERE k>=? AND k<? ORDER BY k DESC"


def _refuse(*_: object) -> object:
    raise transaction_is_over()


class _SqliteTransaction:
    """Reading, which read and write transactions do alike."""

    __slots__ = ("_connection", "_engine", "_execute", "_scans")

    _engine: SqliteEngine
    _connection: apsw.Connection | None
    _execute: Callable[..., Any]
    _scans: set[apsw.Cursor]

    def get(self, key: bytes) -> bytes | None:
        try:
            found = self._execute(GET, (key,)).get
            if found.__class__ is not bytes and found is not None:
                raise damaged_row(key)
            return found
        except UnicodeDecodeError as error:
            raise damaged_row(key) from error
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
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
            with suppress(apsw.ThreadingViolationError):  # being read by another thread, which closes it at its end
                self._scans.pop().close(True)


class SqliteRead(_SqliteTransaction):
    """A read transaction on a connection of its own."""

    __slots__ = ()

    def __init__(self, engine: SqliteEngine, connection: apsw.Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._execute = connection.execute
        self._scans = set()

    def close(self) -> None:
        connection, self._connection, self._execute = self._connection, None, _refuse
        if self._scans:
            self._end_scans()
        if connection is not None:
            self._engine._end_read(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # interrupted before it was made
            if self._connection is None:
                return
            self.close()


class SqliteWrite(_SqliteTransaction):
    """A write transaction on the engine's one writing connection."""

    __slots__ = ("_sync", "foreign", "writes")

    def __init__(self, engine: SqliteEngine, sync: bool) -> None:
        self._engine = engine
        self._connection = None
        self._execute = _refuse
        self._scans = set()
        self._sync = sync
        self.foreign = False
        self.writes = 0

    def __enter__(self) -> Self:
        engine = self._engine
        self.foreign = engine._begin(self._sync)
        self._connection = engine._writer
        self._execute = engine._writer_execute
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        try:
            self._connection, self._execute = None, _refuse
            if self._scans:
                self._end_scans()
            if kind is None:
                engine._commit()
                if engine._files is None or engine._files.missing() is not None:
                    engine._acknowledge()  # only when it has something to say: every commit pays for this call
            else:
                engine._rollback()
        finally:
            engine._turn_owner = 0
            engine._turn.release()

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        # Walking backwards, SQLite shows a row again that was replaced just after it was shown.
        last = stop if reverse else b""
        for row in super().scan(start, stop, reverse=reverse):
            if row[0] < last if reverse else row[0] > last:
                last = row[0]
                yield row

    def put(self, key: bytes, value: bytes) -> None:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            check_key(key)
        self.writes += 1
        try:
            self._execute(PUT, (key, value))
        except apsw.Error as error:
            raise self._engine._explain(error) from error
        except OverflowError as error:
            raise ConfigError(f"a value of {len(value)} bytes is too large: sqlite takes 1,000,000,000") from error

    def delete(self, key: bytes) -> None:
        self.writes += 1
        try:
            self._execute(DELETE, (key,))
        except apsw.Error as error:
            raise self._engine._explain(error) from error

    def keep(self) -> None:
        return  # the system has it when the block ends

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self.writes += 1
        try:
            self._execute(DELETE_RANGE, (start, stop))
        except apsw.Error as error:
            raise self._engine._explain(error) from error
