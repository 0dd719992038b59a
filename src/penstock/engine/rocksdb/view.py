"""Reading a RocksDB database, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rocksdict

from penstock.engine.base import transaction_is_over
from penstock.engine.contract import MAX_KEY_BYTES
from penstock.errors import Corrupt, Locked, PenstockError, StorageError

MISSING = "key not found"


class RocksdbView:
    """get and scan over the newest state of a database, or over a secondary instance that is held still."""

    __slots__ = ("_db", "_iterators", "_name")

    def __init__(self, db: rocksdict.Rdict, name: str) -> None:
        self._db: Any = db  # None once dropped; transactions that are over are not read from
        self._name = name
        # Iterators keep the database open, so they live here, where closing can drop them, and not in generators.
        self._iterators: dict[int, rocksdict.RdictIter] = {}

    def get(self, key: bytes) -> bytes | None:
        if not key:  # the log's own, see `log`; no caller's key is empty
            return None
        try:
            return self._db.get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise self._explained(error) from error

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        # The empty key is not a caller's (`log`): every scan begins behind it.
        start, stop = start[: MAX_KEY_BYTES + 1] or b"\0", stop[: MAX_KEY_BYTES + 1]
        if start >= stop:
            return
        try:
            # No name for the iterator: the frame of an error that is kept would keep it, and the database open.
            yield from self._walk(*self._iterator(start, stop, reverse), start, stop, reverse)
        except PenstockError:
            raise
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> PenstockError:
        """What an exception of a read means: the store may have been closed by another thread in the middle of it."""
        error.__traceback__ = None  # its frames would keep iterators, and they the database, as long as it is kept
        return transaction_is_over() if self._db is None else explain(error, self._name)

    def _iterator(self, start: bytes, stop: bytes, reverse: bool) -> tuple[rocksdict.RdictIter, int]:
        """An iterator standing on the first key, and the number under which it is kept."""
        # The upper bound keeps it from walking on over keys deleted behind the range. rocksdict passes no lower bound
        # on, so walking backwards past the start may cross deleted keys.
        bounds = rocksdict.ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        iterator = self._db.iter(bounds)
        if reverse:
            iterator.seek_to_last()
        else:
            iterator.seek(start)
        name = id(iterator)
        self._iterators[name] = iterator
        if self._db is None:  # dropped meanwhile
            self._iterators.clear()
        return iterator, name

    def _walk(
        self, iterator: rocksdict.RdictIter, name: int, start: bytes, stop: bytes, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        try:
            while iterator.valid():
                key = iterator.key()
                if key < start or key >= stop:
                    return
                value = iterator.value()
                del iterator
                yield key, value
                iterator = self._found_again(name, key)
                # Stepping only when asked: the next key may lie behind many deleted ones.
                if reverse:
                    iterator.prev()
                else:
                    iterator.next()
            iterator.status()
        finally:
            self._forget(name)

    def _found_again(self, name: int, key: bytes) -> rocksdict.RdictIter:
        """The iterator after the caller had its turn, standing on the key."""
        iterator = self._iterators.get(name)
        if iterator is None:
            raise transaction_is_over()
        return iterator

    def _forget(self, name: int) -> None:
        self._iterators.pop(name, None)

    def drop(self) -> None:
        self._iterators.clear()
        self._db = None

    def rocksdb_objects(self) -> list[object]:
        """What of this must not be destroyed in a forked child."""
        return [self._db, *self._iterators.values()]


class PinnedRocksdbView(RocksdbView):
    """get and scan over one moment of a database that is being written to.

    rocksdict's snapshots answer `get`, but their iterators show the newest state. So a snapshot comes with one iterator
    made at the same moment, which does stay there; scans share it, each finding its place again, and only while nothing
    has been written since do they have iterators of their own, with bounds.
    """

    __slots__ = ("_sequence", "_snapshot")

    PINNED = 0

    def __init__(self, db: rocksdict.Rdict, name: str) -> None:
        super().__init__(db, name)
        while True:
            self._sequence = db.latest_sequence_number()
            self._snapshot: Any = db.snapshot()
            self._iterators[self.PINNED] = db.iter()
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

    def _iterator(self, start: bytes, stop: bytes, reverse: bool) -> tuple[rocksdict.RdictIter, int]:
        iterator, name = super()._iterator(start, stop, reverse)
        if self._db.latest_sequence_number() == self._sequence:
            return iterator, name
        self._forget(name)
        pinned = self._iterators[self.PINNED]
        if reverse:
            pinned.seek_for_prev(stop)
            if pinned.valid() and pinned.key() == stop:
                pinned.prev()
        else:
            pinned.seek(start)
        return pinned, self.PINNED

    def _found_again(self, name: int, key: bytes) -> rocksdict.RdictIter:
        iterator = super()._found_again(name, key)
        if name == self.PINNED and (not iterator.valid() or iterator.key() != key):
            iterator.seek(key)
        return iterator

    def _forget(self, name: int) -> None:
        if name != self.PINNED:
            super()._forget(name)

    def drop(self) -> None:
        super().drop()
        self._snapshot = None

    def rocksdb_objects(self) -> list[object]:
        return [*super().rocksdb_objects(), self._snapshot]


def explain(error: Exception, name: str) -> PenstockError:
    """The penstock error that says what an exception of rocksdict, which has only text, means for a store."""
    text = str(error)
    if isinstance(error, RuntimeError) and "borrowed" in text:  # by another thread, which closes the database
        return transaction_is_over()
    if type(error) is not Exception and not isinstance(error, rocksdict.DbClosedError):
        raise error  # not rocksdict's: a signal handler's, say
    if "lock hold by current process" in text or "While lock file" in text:
        return Locked(
            f"{name} is open for writing elsewhere, and its engine allows one process: "
            f"close it there, or open it with read_only=True ({text})"
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
