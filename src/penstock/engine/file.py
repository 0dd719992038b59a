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
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar

from penstock.durable import like, lock_file
from penstock.engine.base import (
    END,
    HeldRead,
    OpenFiles,
    backup_at,
    check_folder_name,
    check_only_own,
)
from penstock.engine.contract import Durability, Snapshot
from penstock.engine.file_log import (
    COMMIT,
    COPY,
    DELETE,
    HEAD,
    PUT,
    START,
    DataFile,
    Disk,
    Index,
    LogPosition,
    Operation,
    Record,
    check_end,
    encode,
    follow,
    load_index,
    make_header,
    save_index,
)
from penstock.engine.overlay import BatchEngine, OverlayWrite
from penstock.engine.sorted_map import Frozen, SortedMap
from penstock.errors import Closed, Corrupt, Locked, NoStore, OutcomeUnknown, PenstockError, StorageError

RESERVE_BYTES = 4 << 20, 64 << 20
"""The least and the most space reserved ahead of the end, an eighth of the file in between."""


class FileEngine(BatchEngine):
    """A store in one append-only file, for one writing process and any number of reading ones."""

    scheme: ClassVar[str] = "file"
    shared: ClassVar[bool] = False

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

    def _check_writable(self) -> None:
        super()._check_writable()
        if self._broken is not None:
            raise self._broken

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
        with self._lock:
            if self.read_only:
                self._refresh()
            source, keys, seq = self._data, self._index.map.snapshot(), self._position.seq
        try:
            with backup_at(destination) as partial, keys:
                partial.mkdir(0o700)
                copy = Copy(self._disk, partial / "data", generation=1, base=seq)
                copy.add_state(keys, source, lambda: self._closed)
                like(self._folder, partial)
        except Cancelled:
            self._check_usable()

    def _close(self) -> None:
        if not self._shut() or self.read_only:
            return
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


# ── Reading a file store: keys from memory, values from the file ──


READ_AHEAD = 64
"""Rows a long scan reads in one go, when their values are small and lie close together."""


class FileSnapshot:
    """Keys at one moment, and the file their values lie in."""

    __slots__ = ("_data", "_keys")

    def __init__(self, keys: Frozen[int] | SortedMap[int], data: DataFile) -> None:
        self._keys = keys
        self._data = data

    def get(self, key: bytes) -> bytes | None:
        place = self._keys.get(key)
        return None if place is None else self._data.value(place)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = self._keys.scan(start, stop, reverse=reverse)
        ahead = 1  # many a scan is over after its first rows
        while rows := list(islice(found, ahead)):
            yield from zip([key for key, _ in rows], self._data.values([place for _, place in rows]), strict=True)
            ahead = min(2 * ahead, READ_AHEAD)


class FileRead(HeldRead[FileSnapshot]):
    """A snapshot that keeps its file open until it is closed."""

    __slots__ = ("_frozen",)

    def __init__(self, engine: FileEngine, frozen: Frozen[int], data: DataFile) -> None:
        super().__init__(engine, FileSnapshot(frozen, data))
        self._frozen = frozen

    def _let_go(self, view: FileSnapshot) -> None:
        self._frozen.close()


# ── What a file store does beside its writes: saving the index, and compacting when there is much garbage ──
# Both run on a thread that lives as long as the work does. A compaction copies a snapshot while writers go on, then
# what they wrote meanwhile, and makes them wait only for the last piece and for the exchange of the files.


GARBAGE_BYTES = 16 << 20
"""Less garbage than this is not worth a compaction in passing."""
INDEX_BYTES, INDEX_COMMITS = 256 << 20, 50_000
"""After so much growth the index is saved again, so that opening after a crash reads at most as much."""
CATCH_UP_BYTES = 1 << 20
"""How far a copy may be behind when writers are made to wait for its last piece."""

log = logging.getLogger("penstock.engine.file")


class Upkeep:
    """Looks after one engine's files; one piece of work at a time."""

    def __init__(self, engine: FileEngine) -> None:
        self._engine = engine
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed_at = 0
        self._saved_end = engine._position.end
        self._saved_seq = engine._position.seq

    def in_passing(self) -> None:
        """Starts what is due; called by the writer after each commit."""
        position = self._engine._position
        if (
            position.end - self._saved_end <= INDEX_BYTES
            and position.seq - self._saved_seq <= INDEX_COMMITS
            and not self._wants_compaction()
        ):
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=f"penstock {self._engine._name}", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is under way; a closed engine's work ends early."""
        if self._thread is not None:
            self._thread.join()
        with self._working:
            pass

    def _garbage(self) -> int:
        return self._engine._position.end - START - self._engine._index.live

    def _wants_compaction(self) -> bool:
        garbage = self._garbage()
        return garbage > GARBAGE_BYTES and garbage > self._engine._index.live and garbage > 2 * self._failed_at

    def _run(self) -> None:
        engine = self._engine
        try:
            if self._wants_compaction():
                self.compact_if_over(GARBAGE_BYTES)
            else:
                self.save_index()
        except Cancelled:
            pass
        except (PenstockError, OSError) as error:
            self._failed_at = self._garbage()
            self._saved_end, self._saved_seq = engine._position.end, engine._position.seq
            log.warning("the upkeep of %s failed and will be tried again later: %s", engine._name, error)

    def save_index(self) -> None:
        """Puts the data on disk and saves the index that belongs to it."""
        with self._working:
            self._save_index()

    def _save_index(self) -> None:
        engine = self._engine
        with engine._lock:
            data, keys, live = engine._data, engine._index.map.snapshot(), engine._index.live
            end, seq = engine._position.end, engine._position.seq
        with keys:
            engine._sync(data)
            engine._check_files()  # what is beside the data is written by its name
            save_index(
                engine._disk,
                engine._folder,
                keys,
                salt=data.salt,
                generation=data.generation,
                end=end,
                seq=seq,
                live=live,
            )
        self._saved_end, self._saved_seq = end, seq

    def compact_if_over(self, garbage: int) -> None:
        """Compacts when there is more garbage than that."""
        with self._working:
            if self._garbage() <= garbage:
                return
            target = self._engine._folder / "data.new"
            try:
                self._compact(target)
            except BaseException as error:
                target.unlink(missing_ok=True)
                if isinstance(error, Closed):
                    raise Cancelled from error
                raise
            self._failed_at = 0
            try:
                self._save_index()
            except OSError as error:  # the compaction is done; the next opening makes the index from the data
                log.warning("the index of %s could not be saved: %s", self._engine._name, error)

    def _compact(self, target: Path) -> None:
        engine = self._engine
        with engine._lock:
            source, keys, position = engine._data, engine._index.map.snapshot(), engine._position
            done, seq = position.end, position.seq
        with keys:
            copy = Copy(engine._disk, target, generation=source.generation + 1, base=seq)
            copy.add_state(keys, source, lambda: engine._closed)
        while position.end - done > CATCH_UP_BYTES and not engine._closed:
            done = _catch_up(copy, source, done, position.end)
        copy.sync()
        engine._take_turn()
        try:
            if engine._broken is not None:
                raise engine._broken
            _catch_up(copy, source, done, position.end)
            copy.sync()
            self._exchange(copy, target)
        finally:
            engine._end_turn()

    def _exchange(self, copy: Copy, target: Path) -> None:
        engine, files = self._engine, self._engine._files
        assert files is not None  # it is open for writing
        engine._check_files()
        with files.replacing(str(engine._path), str(target)):
            engine._disk.rename(target, engine._path)
        try:
            engine._disk.sync_folder(engine._folder)
        except OSError as error:
            # The new file is in place but may be gone after a power cut, and the old one back: nothing may be added.
            engine._break(f"the folder could not be synced after a compaction ({error})")
            raise
        copy.data.path = engine._path
        with engine._lock:
            engine._data, engine._index = copy.data, copy.index
            engine._position = LogPosition(copy.end, copy.seq, copy.seq)
            engine._reserved = copy.end


def _catch_up(copy: Copy, source: DataFile, begin: int, end: int) -> int:
    """Copies the commits between two offsets, all of them or `Corrupt`."""
    for record in source.records(begin, copy.seq, end):
        copy.add_record(record, source)
        begin = record.end
    if begin != end:
        raise Corrupt("a record is damaged; restore a backup", file=str(source.path), offset=begin)
    return end


# ── Writing the live part of a file store into a new data file: compaction, and backups ──


COPY_BYTES = 1 << 20
"""About how many bytes of values go into one record of a copy."""


class Cancelled(Exception):
    """The store is being closed, so the copy is not wanted any more."""


class Copy:
    """A new data file that is being filled; `data` and `index` are what an engine needs to go on with it."""

    def __init__(self, disk: Disk, path: Path, *, generation: int, base: int) -> None:
        self._disk = disk
        create_data_file(disk, path, generation=generation, base=base)
        self.data = DataFile(disk, path, writable=True)
        self.index = Index()
        self.end = START
        self.seq = base

    def add_state(self, keys: Frozen[int], source: DataFile, stop: Callable[[], bool]) -> None:
        """Copies every value of a snapshot; a damaged one raises `Corrupt` instead of being copied."""
        changes: dict[bytes, bytes | None] = {}
        waiting = 0
        for key, place in keys.scan(b"", END):
            value = source.value(place)
            changes[key] = value
            waiting += len(key) + len(value)
            if waiting >= COPY_BYTES:
                self._append(changes, [], COPY)
                changes, waiting = {}, 0
                if stop():
                    raise Cancelled
        if changes:
            self._append(changes, [], COPY)

    def add_record(self, record: Record, source: DataFile) -> None:
        """Copies a commit made after the snapshot."""
        changes: dict[bytes, bytes | None] = {}
        ranges: list[tuple[bytes, bytes]] = []
        for kind, key, place, stop in record.operations:
            if kind == PUT:
                changes[key] = source.value(place)
            elif kind == DELETE:
                changes[key] = None
            else:
                ranges.append((key, stop))
        self.seq = record.seq
        self._append(changes, ranges, COMMIT)

    def sync(self) -> None:
        self._disk.sync(self.data.descriptor)

    def _append(self, changes: dict[bytes, bytes | None], ranges: list[tuple[bytes, bytes]], kind: int) -> None:
        # Nothing reads the file before all of it is on disk, so every record may say that it is.
        record, operations = encode(
            changes, ranges, offset=self.end, seq=self.seq, synced=self.seq, seed=self.data.seed, kind=kind
        )
        self._disk.write(self.data.descriptor, record, self.end)
        self.index.apply(operations)
        self.end += len(record)


def create_data_file(disk: Disk, path: Path, *, generation: int, base: int) -> None:
    """Makes an empty data file, on disk before this returns."""
    descriptor = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(descriptor, make_header(int.from_bytes(os.urandom(8)), generation, base), 0)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


# ── The lock that keeps a store to one writing process: a file beside the data, locked with flock ──


_held: set[int] = set()


class FolderLock:
    """Holds the lock of a store's folder until `release` (or until it is forgotten)."""

    def __init__(self, folder: Path, name: str) -> None:
        self._descriptor = -1
        path = folder / "lock"
        try:
            descriptor = lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = path.read_bytes()[:32].decode(errors="replace").strip() if path.exists() else ""
            holder = holder or "another process"
            who = "this process" if holder == str(os.getpid()) else f"process {holder}"
            raise Locked(
                f"{name} is open for writing in {who}, and its engine allows one writer: "
                "close it there, or open it with read_only=True"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        _held.add(descriptor)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


def _let_go_in_child() -> None:
    """A forked child shares its parent's locks and would keep them when the parent ends: it lets go of its copies."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)
