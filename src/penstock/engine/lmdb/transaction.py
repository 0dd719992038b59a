"""Read and write transactions on an LMDB environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import lmdb

from penstock.engine.base import check_key, transaction_is_over
from penstock.engine.contract import MAX_KEY_BYTES
from penstock.engine.lmdb.environment import Environment, explain, opening, release
from penstock.engine.transaction import ReadBlock

if TYPE_CHECKING:
    from penstock.engine.lmdb.engine import LmdbEngine


class _LmdbTransaction:
    """Reading, which read and write transactions do alike."""

    __slots__ = ("_engine", "_txn", "writes")

    def __init__(self, engine: LmdbEngine) -> None:
        self._engine = engine
        self._txn: lmdb.Transaction[bytes] | None = None
        self.writes = 0

    def get(self, key: bytes) -> bytes | None:
        txn = self._usable()
        try:
            return txn.get(key)
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as error:
            raise explain(error, self._engine._name) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        txn = self._usable()
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        try:
            with txn.cursor() as cursor:
                walk = self._backward(cursor, stop) if reverse else self._forward(cursor, start)
                for row in walk:
                    if row[0] < start if reverse else row[0] >= stop:
                        return
                    yield row
                    self._usable()
        except lmdb.Error as error:
            raise explain(error, self._engine._name) from error

    def _forward(self, cursor: lmdb.Cursor[bytes], start: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = cursor.set_range(start)
        while found:
            writes, row = self.writes, cursor.item()
            yield row
            if writes == self.writes:
                found = cursor.next()
            else:  # the cursor may stand anywhere after a change: find the way back by key
                found = cursor.set_range(row[0])
                if found and cursor.key() == row[0]:
                    found = cursor.next()

    def _backward(self, cursor: lmdb.Cursor[bytes], stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._step_before(cursor, stop)
        while found:
            writes, row = self.writes, cursor.item()
            yield row
            found = cursor.prev() if writes == self.writes else self._step_before(cursor, row[0])

    @staticmethod
    def _step_before(cursor: lmdb.Cursor[bytes], key: bytes) -> bool:
        return bool(cursor.prev() if cursor.set_range(key) else cursor.last())

    def _usable(self) -> lmdb.Transaction[bytes]:
        if self._txn is None or self._engine._closed:
            raise transaction_is_over()
        return self._txn


class LmdbRead(_LmdbTransaction, ReadBlock):
    """A read transaction: a slot in LMDB's reader table."""

    __slots__ = ("_environment",)

    def __init__(self, engine: LmdbEngine, environment: Environment) -> None:
        super().__init__(engine)
        self._environment: Environment | None = None
        with opening:
            engine._check_usable()  # again: another thread may have closed the environment
            self._txn = engine._begin_read()
            environment.users += 1
            environment.reads += 1
            self._environment = environment

    def close(self) -> None:
        txn, self._txn = self._txn, None
        environment, self._environment = self._environment, None
        if environment is not None and txn is not None and os.getpid() == self._engine._pid:
            with opening:
                txn.abort()
                environment.reads -= 1
                release(environment)


class LmdbWrite(_LmdbTransaction):
    """The one write transaction of all processes."""

    __slots__ = ("_changed", "_full", "foreign")

    def __init__(self, engine: LmdbEngine) -> None:
        super().__init__(engine)
        self._full = self._changed = False
        self.foreign = False

    def __enter__(self) -> Self:
        self._txn, self.foreign = self._engine._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        txn, self._txn = self._txn, None
        assert txn is not None  # `__enter__` began it
        try:
            if kind is None:
                engine._commit(txn, changed=self._changed)
            else:
                txn.abort()
            if self._full:
                engine._environment.grow()
        finally:
            engine._end_turn()

    def put(self, key: bytes, value: bytes) -> None:
        check_key(key)
        txn = self._usable()
        self.writes += 1
        try:
            self._changed = True
            txn.put(key, value)
        except lmdb.Error as error:
            self._full = isinstance(error, lmdb.MapFullError)
            raise explain(error, self._engine._name) from error

    def delete(self, key: bytes) -> None:
        txn = self._usable()
        self.writes += 1
        try:
            self._changed |= txn.delete(key)
        except lmdb.BadValsizeError:
            return
        except lmdb.Error as error:
            raise explain(error, self._engine._name) from error

    def delete_range(self, start: bytes, stop: bytes) -> None:
        txn = self._usable()
        self.writes += 1
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        try:
            with txn.cursor() as cursor:
                found = cursor.set_range(start)
                while found and cursor.key() < stop:
                    self._changed = True
                    cursor.delete()
                    found = cursor.key() != b""
        except lmdb.Error as error:
            raise explain(error, self._engine._name) from error
