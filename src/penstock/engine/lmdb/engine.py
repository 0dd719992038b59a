"""The memory-mapped engine: LMDB, for several reading and writing processes on one machine.

A commit writes the changed pages, syncs, writes the page that names the new state and syncs again: two flushes where
sqlite and file make one. durability="process" leaves the second to the system (LMDB's metasync=False), which a crash of
the machine can only answer with the state before; a mode without the first flush would corrupt, so there is none, and
`sync=False` has no effect. Freed pages are used again, but the file never shrinks while it is open: `backup` makes a
compact copy. A snapshot held for long keeps the pages it sees from being used again, and the file grows instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import lmdb

from penstock.durable import like, settle, sync_folder
from penstock.engine.base import BaseEngine, check_backup_target, check_key, transaction_is_over
from penstock.engine.contract import MAX_KEY_BYTES, Durability
from penstock.engine.lmdb.environment import Environment, acquire, explain, opening, release
from penstock.errors import ConfigError, NoStore, OutcomeUnknown, StorageError

FORMAT = b"penstock lmdb 1"
FORMAT_KEY = b"\xff" * 505
"""Longer than a key may be, so no scan reaches it: its bounds are cut to 501 bytes."""


class _LmdbTransaction:
    """Reading, which read and write transactions do alike."""

    __slots__ = ("_engine", "_txn", "writes")

    def __init__(self, engine: LmdbEngine) -> None:
        self._engine = engine
        self._txn: Any = None
        self.writes = 0

    def get(self, key: bytes) -> bytes | None:
        txn = self._usable()
        try:
            return txn.get(key)  # type: ignore[no-any-return]
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

    def _forward(self, cursor: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
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

    def _backward(self, cursor: Any, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._step_before(cursor, stop)
        while found:
            writes, row = self.writes, cursor.item()
            yield row
            found = cursor.prev() if writes == self.writes else self._step_before(cursor, row[0])

    @staticmethod
    def _step_before(cursor: Any, key: bytes) -> bool:
        return bool(cursor.prev() if cursor.set_range(key) else cursor.last())

    def _usable(self) -> Any:
        if self._txn is None or self._engine._closed:
            raise transaction_is_over()
        return self._txn


class LmdbRead(_LmdbTransaction):
    """A read transaction: a slot in LMDB's reader table."""

    __slots__ = ("_environment",)

    def __init__(self, engine: LmdbEngine, environment: Environment) -> None:
        super().__init__(engine)
        self._environment: Environment | None = None
        with opening:
            self._txn = engine._begin_read()
            environment.users += 1
            environment.reads += 1
            self._environment = environment

    def close(self) -> None:
        txn, self._txn = self._txn, None
        environment, self._environment = self._environment, None
        if environment is not None and os.getpid() == self._engine._pid:
            with opening:
                txn.abort()
                environment.reads -= 1
                release(environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # interrupted before it was made
            self.close()


class LmdbWrite(_LmdbTransaction):
    """The one write transaction of all processes."""

    __slots__ = ("_changed", "_full", "foreign")

    def __init__(self, engine: LmdbEngine) -> None:
        super().__init__(engine)
        self._full = self._changed = False
        self.foreign = False

    def __enter__(self) -> Self:
        engine = self._engine
        engine._take_turn()
        try:
            self._txn = engine._begin_write()
            self.foreign = engine._foreign or self._txn.id() != engine._last + 1
            engine._foreign = self.foreign
        except BaseException as error:
            engine._end_turn()
            if isinstance(error, lmdb.Error):
                raise explain(error, engine._name) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        txn, self._txn = self._txn, None
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


class LmdbEngine(BaseEngine):
    """A store in an LMDB environment that several processes may read and write at once."""

    scheme: ClassVar[str] = "lmdb"
    shared: ClassVar[bool] = True

    @classmethod
    def open(cls, path: str, *, read_only: bool = False, durability: Durability = "disk") -> Self:
        return cls(path, read_only=read_only, durability=durability)

    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk") -> None:
        self._folder = Path(path).absolute()
        super().__init__(str(self._folder), read_only=read_only, durability=durability)
        self._foreign = True
        self._last = -1
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"{self._folder} is a file; an lmdb store is a folder: give it a name of its own")
        self._check_folder()
        try:
            if not read_only:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._environment = acquire(self._folder, read_only=read_only, durability=durability)
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise ConfigError(
                f"{self._folder} holds a data.mdb that this LMDB cannot read ({error}): another program or another "
                "version of LMDB made it, or its first page is damaged"
            ) from error
        except lmdb.Error as error:
            raise explain(error, self._name) from error
        except OSError as error:
            raise StorageError(f"{self._name} cannot be opened: {error}") from error
        self._env = self._environment.env
        try:
            self._env.reader_check()  # frees the slots of readers that died
            self._check_format()
        except BaseException as error:
            release(self._environment)
            if isinstance(error, lmdb.Error):
                raise explain(error, self._name) from error
            raise

    def _check_folder(self) -> None:
        if (self._folder / "data.mdb").exists():
            return
        if self.read_only:
            raise NoStore(f"there is no store at {self._folder}; open it for writing once to make it")
        if self._folder.is_dir():
            others = sorted(
                entry.name for entry in self._folder.iterdir() if entry.name not in ("data.mdb", "lock.mdb")
            )
            if others:
                raise ConfigError(
                    f"{self._folder} holds other things ({', '.join(others[:3])}) and no lmdb store; "
                    "give the store a folder of its own"
                )

    def _check_format(self) -> None:
        with self._begin_read() as txn:
            found = txn.get(FORMAT_KEY)
            entries = txn.stat()["entries"]
        if found is None and entries == 0:
            if self.read_only:
                raise ConfigError(f"{self._folder} is empty, not a store; open it for writing once to make it one")
            with self._env.begin(write=True) as txn:
                txn.put(FORMAT_KEY, FORMAT, overwrite=False)
            sync_folder(self._folder)
            sync_folder(self._folder.parent)
            return
        if found is None:
            raise ConfigError(
                f"{self._folder} is an LMDB environment of another program; give the store its own folder"
            )
        if found != FORMAT:
            raise ConfigError(
                f"{self._folder} has the format {found.decode(errors='replace')!r}, this version of penstock reads "
                f"{FORMAT.decode()!r}; use the version that made it, or copy its events over"
            )

    # transactions

    def read(self) -> LmdbRead:
        self._check_usable()
        try:
            return LmdbRead(self, self._environment)
        except lmdb.Error as error:
            raise explain(error, self._name) from error

    def _begin_read(self) -> Any:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:
            if not self._environment.adopt_map():
                raise
        except lmdb.ReadersFullError:
            self._env.reader_check()
        return self._env.begin()

    def write(self, *, sync: bool = True) -> LmdbWrite:
        """A write transaction; `sync=False` has no effect: LMDB has no weaker commit that is safe."""
        self._check_writable()
        return LmdbWrite(self)

    def _begin_write(self) -> Any:
        try:
            return self._env.begin(write=True)
        except lmdb.MapResizedError:
            if not self._environment.adopt_map():
                raise
            return self._env.begin(write=True)
        except lmdb.PanicError:
            if not self._environment.reopen():
                raise
            self._env, self._foreign = self._environment.env, True
            return self._env.begin(write=True)

    def _commit(self, txn: Any, *, changed: bool) -> None:
        number = txn.id()
        try:
            txn.commit()
            # The environment may have been opened by another engine object of this process with less durability.
            if self.durability == "disk" and not self._environment.synced:
                self._env.sync(True)
        except lmdb.Error as error:
            self._foreign = True
            if self._meta_failed():
                raise OutcomeUnknown(
                    f"the meta page of {self._name} could not be written: {error}; whether the commit was kept shows "
                    "when the store is next opened"
                ) from error
            raise explain(error, self._name) from error
        # A transaction that changed nothing takes no number, and the next one of any process has the same. To ask LMDB
        # for the last one now could tell another process's, and what that wrote would be taken for known.
        self._last = number if changed else number - 1
        self._foreign = False

    def _meta_failed(self) -> bool:
        """Whether a commit failed at its last step: before that nothing of it counts, and LMDB goes on."""
        try:
            self._env.begin(write=True).abort()
        except lmdb.PanicError:
            return True
        except lmdb.Error:
            pass
        return False

    # the rest

    def changes(self) -> int:
        self._check_usable()
        # Not the environment's last_txnid: that one moves on before a reader can see what was committed: one that
        # then looks once and waits for the next change would wait in vain.
        with self.read() as snapshot:
            return snapshot._usable().id()  # type: ignore[no-any-return]

    def flush(self) -> None:
        self._check_usable()
        if self.read_only:
            return
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise explain(error, self._name) from error

    def reclaim(self) -> None:
        """Frees the slots of readers that died, whose snapshots kept pages; the file itself does not shrink."""
        self._check_writable()
        self._env.reader_check()

    def size(self) -> int:
        """Bytes of the file; pages freed by deletions count until they are used again."""
        self._check_usable()
        return int((self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"])

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a copy without the free pages."""
        self._check_usable()
        target = check_backup_target(destination)
        partial = target.with_name(target.name + ".partial")
        try:
            partial.mkdir(0o700, exist_ok=True)
            (partial / "data.mdb").unlink(missing_ok=True)
            self._env.copy(str(partial), compact=True)
            like(self._folder, partial)
            settle(partial, target)
        except lmdb.Error as error:
            raise explain(error, self._name) from error
        except OSError as error:
            raise StorageError(f"the backup could not be written to {target}: {error}") from error
        finally:
            if partial.exists():
                (partial / "data.mdb").unlink(missing_ok=True)
                partial.rmdir()

    def close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._closed = True
            return
        self._take_turn()
        self._closed = True
        self._end_turn()
        try:
            if not self.read_only and self.durability == "process":
                self._env.sync(True)
        except lmdb.Error as error:
            raise explain(error, self._name) from error
        finally:
            release(self._environment)
