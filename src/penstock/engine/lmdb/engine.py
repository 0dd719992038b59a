"""The memory-mapped engine: LMDB, for several reading and writing processes on one machine.

A commit writes the changed pages, syncs, writes the page that names the new state and syncs again: two flushes where
sqlite and file make one. durability="process" leaves the second to the system (LMDB's metasync=False), which a crash of
the machine can only answer with the state before; a mode without the first flush would corrupt, so there is none, and
`sync=False` has no effect. Freed pages are used again, but the file never shrinks while it is open: `backup` makes a
compact copy. A snapshot held for long keeps the pages it sees from being used again, and the file grows instead.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Self

import lmdb

from penstock.durable import like, move_into_place, sync_folder
from penstock.engine.base import BaseEngine, check_backup_target, check_only_own, other_format
from penstock.engine.contract import Durability
from penstock.engine.lmdb.environment import acquire, explain, release
from penstock.engine.lmdb.transaction import LmdbRead, LmdbWrite
from penstock.errors import ConfigError, NoStore, OutcomeUnknown, StorageError

FORMAT = b"penstock lmdb 1"
FORMAT_KEY = b"\xff" * 505
"""Longer than a key may be, so no scan reaches it: its bounds are cut to 501 bytes."""


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
        check_only_own(self._folder, "lmdb", "lock.mdb".__eq__)

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
            raise other_format(self._folder, found, FORMAT)

    # transactions

    def read(self) -> LmdbRead:
        self._check_usable()
        try:
            return LmdbRead(self, self._environment)
        except lmdb.Error as error:
            raise explain(error, self._name) from error

    def _begin_read(self) -> lmdb.Transaction[bytes]:
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

    def _begin(self) -> tuple[lmdb.Transaction[bytes], bool]:
        """Waits for this thread's turn; LMDB's transaction, and whether another writer has committed since."""
        self._take_turn()
        try:
            txn = self._begin_write()
            self._foreign = self._foreign or txn.id() != self._last + 1
        except BaseException as error:
            self._end_turn()
            if isinstance(error, lmdb.Error):
                raise explain(error, self._name) from error
            raise
        return txn, self._foreign

    def _begin_write(self) -> lmdb.Transaction[bytes]:
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

    def _commit(self, txn: lmdb.Transaction[bytes], *, changed: bool) -> None:
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
            return snapshot._usable().id()

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
            move_into_place(partial, target)
        except lmdb.Error as error:
            raise explain(error, self._name) from error
        except OSError as error:
            raise StorageError(f"the backup could not be written to {target}: {error}") from error
        finally:
            if partial.exists():
                (partial / "data.mdb").unlink(missing_ok=True)
                partial.rmdir()

    def close(self) -> None:
        if not self._shut():
            return
        try:
            if not self.read_only and self.durability == "process":
                self._env.sync(True)
        except lmdb.Error as error:
            raise explain(error, self._name) from error
        finally:
            release(self._environment)
