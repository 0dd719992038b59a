"""LMDB environments, shared by the engine objects of a process, and what LMDB's errors mean."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path

import lmdb

from penstock.engine.contract import Durability
from penstock.engine.lmdb.pages import check_file
from penstock.errors import Corrupt, Locked, PenstockError, StorageError

MAP_BYTES = (1 << 40, 1 << 36, 1 << 32, 1 << 28)
"""Address space asked for; the file itself grows as it is filled. Where the first is refused, the next is tried."""
MAX_READERS = 1024
FULL = (errno.ENOSPC, errno.EDQUOT)
PROBE_BYTES = 64 << 10


class Environment:
    """LMDB allows an environment to be opened once in a process: engine objects of one store share it."""

    def __init__(self, folder: Path, *, read_only: bool, durability: Durability) -> None:
        self.folder = folder
        self.read_only = read_only
        self.synced = durability == "disk"
        self.users = 1
        self.reads = 0
        self.env = self._open()

    def _open(self) -> lmdb.Environment:
        for map_bytes in MAP_BYTES:
            try:
                return lmdb.open(
                    str(self.folder),
                    map_size=map_bytes,
                    readonly=self.read_only,
                    create=not self.read_only,
                    metasync=self.synced,
                    max_readers=MAX_READERS,
                    max_spare_txns=4,
                )
            except (lmdb.MemoryError, OverflowError) as error:
                refused: Exception = error
            except lmdb.Error as error:
                if error.code != errno.ENOMEM:
                    raise
                refused = error
        raise refused

    def reopen(self) -> bool:
        """Opens it again after LMDB gave it up; False while another engine object or a snapshot uses it."""
        with opening:
            if self.users != 1:
                return False
            self.env.close()
            self.env = self._open()
            return True

    def grow(self) -> bool:
        """Asks for twice the address space; False while snapshots of this process use the present one."""
        return self._set_map_bytes(2 * self.env.info()["map_size"])

    def adopt_map(self) -> bool:
        """Takes over the address space another process has asked for."""
        return self._set_map_bytes(0)

    def _set_map_bytes(self, map_bytes: int) -> bool:
        with opening:
            if self.reads:
                return False
            self.env.set_mapsize(map_bytes)
            return True


_open: dict[tuple[str, bool], Environment] = {}
# Reentrant: the collector may end a transaction, and with it an environment, while this thread holds it.
opening = threading.RLock()


def acquire(folder: Path, *, read_only: bool, durability: Durability) -> Environment:
    """The environment of a folder, opened now or shared with the engines that have it open; `release` gives it back."""
    name = str(folder.resolve())
    # A reader opens it as a writer would where it may: LMDB allows one way in a process, and a writer may come later.
    read_only = read_only and not os.access(folder / "data.mdb", os.W_OK)
    with opening:
        shared = _open.get((name, False)) or _open.get((name, True))
        if shared is None:
            check_file(folder)
            shared = _open[name, read_only] = Environment(folder, read_only=read_only, durability=durability)
            return shared
        if shared.read_only and not read_only:
            raise Locked(
                f"lmdb:{folder} is open in this process for reading only, because it could not be written, and LMDB "
                "allows one way at a time: close that one first"
            )
        shared.users += 1
        return shared


def release(environment: Environment) -> None:
    """Gives an environment back; the last one to do so closes it."""
    with opening:
        environment.users -= 1
        if environment.users == 0:
            for name in [name for name, other in _open.items() if other is environment]:
                del _open[name]
            environment.env.close()


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room for a few pages more; tried, because quotas do not show otherwise."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as error:
        return error.errno in FULL
    return False


def explain(error: lmdb.Error, name: str) -> PenstockError:
    """The penstock error that says what an LMDB error means for a store."""
    match error:
        case lmdb.CorruptedError() | lmdb.PageNotFoundError() | lmdb.InvalidError():
            return Corrupt(f"LMDB found {name} damaged: {error}; restore a backup")
        case lmdb.PanicError():
            return StorageError(
                f"{name} takes no writes after its meta page could not be written until it is opened again, which "
                "happens as soon as no snapshot and no other journal of this process uses it: try again",
                retryable=True,
            )
        case lmdb.MapFullError() | lmdb.MapResizedError():
            return StorageError(
                f"{name} has outgrown the address space this system granted; once no snapshot is open in this process "
                "it gets more, so try again",
                retryable=True,
            )
        case lmdb.ReadersFullError():
            return StorageError(f"{name} has {MAX_READERS} snapshots open; close some", retryable=True)
        case lmdb.TxnFullError():
            return StorageError(f"a transaction on {name} changes more pages than LMDB can hold: {error}; split it")
    # LMDB reports a write that the disk had no room to finish as an I/O error.
    if error.code in FULL or (error.code == errno.EIO and is_full(Path(name.partition(":")[2]))):
        return StorageError(f"the disk of {name} is full; nothing of this transaction was kept", retryable=True)
    return StorageError(f"LMDB refused on {name}: {error}")
