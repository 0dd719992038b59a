"""The engine of one append-only file: a commit is one write and one fdatasync, and nothing else.

    shop/data     the records (file_log)
    shop/index    the saved index, a shortcut for opening (file_index)
    shop/lock     held by the one writing process

Keys and the places of their values are in memory, values are read from the file. Overwritten and deleted values are
garbage; when there is more of it than there is data, a thread copies what is live into a new file and puts it in the
old one's place. Snapshots keep the file they began with. Readers in other processes follow the writer's file as it
grows and change to the new one; they can see a commit as soon as it is written, an instant before it is on disk.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from penstock.durable import like
from penstock.engine.base import BaseEngine, check_backup_target, check_folder_name, check_only_own
from penstock.engine.contract import Durability, Snapshot
from penstock.engine.file.copy import Cancelled, Copy, create_data_file
from penstock.engine.file.disk import Disk
from penstock.engine.file.index import Index, load_index
from penstock.engine.file.lock import FolderLock
from penstock.engine.file.log import HEAD, START, DataFile, Operation, encode
from penstock.engine.file.recovery import LogPosition, check_end, follow
from penstock.engine.file.snapshot import FileRead, FileSnapshot
from penstock.engine.file.upkeep import Upkeep
from penstock.engine.open_files import OpenFiles
from penstock.engine.overlay import OverlayWrite
from penstock.errors import Corrupt, NoStore, OutcomeUnknown, PenstockError, StorageError

RESERVE_BYTES = 4 << 20, 64 << 20
"""The least and the most space reserved ahead of the end, an eighth of the file in between."""


class FileEngine(BaseEngine):
    """A store in one append-only file, for one writing process and any number of reading ones."""

    scheme: ClassVar[str] = "file"
    shared: ClassVar[bool] = False

    @classmethod
    def open(cls, path: str, *, read_only: bool = False, durability: Durability = "disk") -> Self:
        return cls(path, read_only=read_only, durability=durability)

    def __init__(
        self, path: str, *, read_only: bool = False, durability: Durability = "disk", disk: Disk | None = None
    ) -> None:
        self._folder = Path(path).absolute()
        super().__init__(str(self._folder), read_only=read_only, durability=durability)
        self._disk = disk or Disk()
        self._path = self._folder / "data"
        self._lock = threading.RLock()  # guards what a snapshot is made of: index, data, position
        self._broken: PenstockError | None = None
        self._folder_lock: FolderLock | None = None
        check_folder_name(self._folder, "file")
        try:
            if read_only:
                self._open_to_read()
            else:
                self._open_to_write()
        except OSError as error:
            raise StorageError(f"{self._name} cannot be opened: {error}") from error
        self._upkeep = Upkeep(self)

    # opening

    def _open_to_read(self) -> None:
        if not self._path.exists():
            raise NoStore(f"there is no store at {self._folder}; open it for writing once to make it")
        self._files = OpenFiles(str(self._folder))
        self._load()

    def _open_to_write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            check_only_own(self._folder, "file", ("lock", "data.new").__contains__)
        self._folder_lock = FolderLock(self._folder, self._name)
        try:
            for leftover in ("data.new", "index.new"):
                (self._folder / leftover).unlink(missing_ok=True)
            if not self._path.exists():
                create_data_file(self._disk, self._folder / "data.new", generation=1, base=0)
                self._disk.rename(self._folder / "data.new", self._path)
                self._disk.sync_folder(self._folder)
                self._disk.sync_folder(self._folder.parent)
            unsure = self._load()
            self._files = OpenFiles(str(self._folder / "lock"), str(self._path))
            self._repair(unsure)
        except BaseException:
            self._folder_lock.release()
            raise

    def _load(self, after: int = 0) -> int:
        """Reads the index, saved or made anew, and what was written after it, of a file of a later generation."""
        data = DataFile(self._disk, self._path, writable=not self.read_only)
        if data.generation <= after:
            raise StorageError(
                f"{self._name} was replaced while it was open ({self._path} is another store, or an earlier state); "
                "close it and open it again"
            )
        saved = load_index(self._folder, salt=data.salt, generation=data.generation)
        if saved is None:
            index, position = Index(), LogPosition(START, data.base, data.base)
        else:
            index, position = saved.index, LogPosition(saved.end, saved.seq, saved.seq)
        unsure = follow(data, index, position)
        self._torn = check_end(data, position)
        self._data, self._index, self._position = data, index, position
        return unsure

    def _repair(self, unsure: int) -> None:
        """Cuts a torn end, and puts on disk what a process that died may have left in memory.

        That part is written once more first: after a sync that failed, the system takes pages for written that are not.
        """
        position, descriptor = self._position, self._data.descriptor
        if self._torn:
            self._disk.truncate(descriptor, position.end)
        while unsure < position.end:
            piece = self._data.read(unsure, min(1 << 20, position.end - unsure))
            self._disk.write(descriptor, piece, unsure)
            unsure += len(piece)
        if self._torn or position.synced < position.seq:
            self._disk.sync(descriptor)
        position.synced = position.seq
        self._reserved = self._data.size()

    # reading

    def read(self) -> FileRead:
        self._check_usable()
        with self._lock:
            if self.read_only:
                self._refresh()
            return FileRead(self, self._index.map.snapshot(), self._data)

    def _refresh(self) -> None:
        """Takes in what a writer in another process has done since; also when it has changed to a new file."""
        try:
            if os.stat(self._path).st_ino != self._data.inode:  # noqa: PTH116 - several times faster than Path.stat
                self._load(after=self._data.generation)
                return
            if self._data.read(self._position.end, HEAD.size).strip(b"\0"):
                try:
                    follow(self._data, self._index, self._position)
                except Corrupt:
                    # The writer may have taken back a commit that failed after this reader saw it: begin again.
                    self._load()
        except OSError as error:
            raise StorageError(f"{self._name} cannot be read: {error}") from error

    # writing

    def write(self, *, sync: bool = True) -> OverlayWrite:
        self._check_writable()
        if self._broken is not None:
            raise self._broken
        return OverlayWrite(self, sync)

    def _begin(self) -> tuple[Snapshot, bool]:
        self._take_turn()
        if self._broken is not None:
            self._end_turn()
            raise self._broken
        return FileSnapshot(self._index.map, self._data), self._foreign

    def _commit(self, changes: OverlayWrite) -> None:
        position = self._position
        sync = not changes.relaxed and self.durability == "disk"
        if not changes.changes and not changes.ranges:
            if sync and position.synced < position.seq:
                self._sync_all()
            self._foreign = False
            return
        seq, begin = position.seq + 1, position.end
        record, operations = encode(
            changes.changes, changes.ranges, offset=begin, seq=seq, synced=position.synced, seed=self._data.seed
        )
        if begin + len(record) > self._reserved:
            self._reserve(begin + len(record))
        self._append(record, begin, sync)
        with self._lock:
            self._apply(operations)
            position.end = begin + len(record)
            position.seq = seq
            if sync:
                position.synced = seq
        self._foreign = False
        self._upkeep.in_passing()

    def _append(self, record: bytes, begin: int, sync: bool) -> None:
        try:
            self._disk.write(self._data.descriptor, record, begin)
            if sync:
                self._sync(self._data)
        except BaseException as error:
            self._take_back(begin, error)
            if isinstance(error, OSError) and self._broken is not None:
                raise OutcomeUnknown(
                    f"{self._path} could not be written or synced: {error}; whether the commit was kept shows when the "
                    "store is next opened"
                ) from error
            if isinstance(error, OSError):
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise StorageError(
                    f"{self._path} could not be written: {error}; nothing of this transaction was kept", retryable=full
                ) from error
            raise

    def _take_back(self, begin: int, cause: BaseException) -> None:
        """Removes the record of a failed commit; when that fails too, the next opening finds out what is there."""
        try:
            self._disk.truncate(self._data.descriptor, begin)
            self._reserved = begin
        except OSError as error:
            self._break(f"a commit failed ({cause}) and its bytes could not be removed ({error})")

    def _sync(self, data: DataFile) -> None:
        """fdatasync. When it fails it is not known what is on disk, and asking again would get a false yes."""
        try:
            self._disk.sync(data.descriptor)
        except OSError as error:
            self._break(f"fdatasync failed ({error})")
            raise

    def _break(self, reason: str) -> None:
        self._broken = StorageError(
            f"{self._name} takes no more writes: {reason}. Close it and open it again; what was acknowledged is safe"
        )

    def _apply(self, operations: list[Operation]) -> None:
        try:
            self._index.apply(operations)
        except BaseException:  # an interrupt: the record is written, so the index must have all of it
            self._index.apply(operations)
            raise

    def _reserve(self, needed: int) -> None:
        least, most = RESERVE_BYTES
        reserve = needed + min(max(needed // 8, least), most)
        with suppress(OSError, AttributeError):  # a full disk, or a system without it: the file grows as it is written
            self._disk.allocate(self._data.descriptor, self._reserved, reserve - self._reserved)
            self._reserved = reserve

    def reclaim(self) -> None:
        """Copies what is live into a new file unless there is hardly any garbage."""
        self._check_writable()
        if self._broken is not None:
            raise self._broken
        try:
            self._upkeep.compact_if_over(self._index.live // 100 + 4096)
        except Cancelled:
            self._check_usable()
        except OSError as error:
            raise StorageError(f"{self._name} could not be compacted: {error}; it is as it was") from error

    # the rest

    def changes(self) -> int:
        self._check_usable()
        if self.read_only:
            with self._lock:
                self._refresh()
        return self._position.seq

    def _flush(self) -> None:
        self._take_turn()
        try:
            if self._broken is not None:
                raise self._broken
            self._sync_all()
        finally:
            self._end_turn()

    def _sync_all(self) -> None:
        try:
            self._sync(self._data)
        except OSError as error:
            raise StorageError(f"{self._path} could not be synced: {error}") from error
        self._position.synced = self._position.seq

    def size(self) -> int:
        """Bytes of the data file up to its end; the space reserved behind it is not counted."""
        self._check_usable()
        return self._position.end

    def backup(self, destination: str | os.PathLike[str]) -> None:
        self._check_usable()
        target = check_backup_target(destination)
        with self._lock:
            if self.read_only:
                self._refresh()
            source, keys, seq = self._data, self._index.map.snapshot(), self._position.seq
        partial = target.with_name(target.name + ".partial")
        try:
            partial.mkdir(0o700, exist_ok=True)
            with keys:
                copy = Copy(self._disk, partial / "data", generation=1, base=seq)
                copy.add_state(keys, source, lambda: self._closed)
                copy.sync()
            like(self._folder, partial)
            self._disk.sync_folder(partial)
            self._disk.rename(partial, target)
            self._disk.sync_folder(target.parent)
        except Cancelled:
            self._check_usable()
        except OSError as error:
            raise StorageError(f"the backup could not be written to {target}: {error}") from error
        finally:
            if partial.exists():
                (partial / "data").unlink(missing_ok=True)
                partial.rmdir()

    def _close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid or self.read_only:
            self._closed = True
            return
        self._take_turn()
        try:
            self._closed = True
        finally:
            self._end_turn()
        self._upkeep.wait()
        try:
            if self._broken is None and not self._lost:
                self._disk.truncate(self._data.descriptor, self._position.end)
                self._upkeep.save_index()
        except (OSError, StorageError) as error:
            raise StorageError(f"{self._name} was closed, but not everything could be put on disk: {error}") from error
        finally:
            if self._folder_lock is not None:
                self._folder_lock.release()
