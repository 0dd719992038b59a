"""The engine of one append-only file: a commit is one write and one fdatasync, and nothing else.

    shop/data     the records
    shop/index    the saved index, a shortcut for opening
    shop/lock     held by the one writing process

Keys and the offsets of their values are in memory; values are read from the file. Overwritten and deleted values are
garbage. When there is more garbage than data, a thread copies the live values into a new file and replaces the old
file. Snapshots keep the file that they began with. Readers in other processes follow the writer's file as it grows, and
change to the new file. They can see a commit as soon as it is written, an instant before it is on disk.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import ClassVar

from penstock.core.durable import lock_file, sync_file, sync_folder
from penstock.core.engine.base import END, BatchEngine, HeldRead, OpenFiles, OverlayWrite, check_folder, crc32
from penstock.core.engine.contract import MAX_KEY_BYTES, Durability, EngineView
from penstock.core.engine.sorted_map import Frozen, SortedMap
from penstock.core.units import in_parts
from penstock.errors import Closed, ConfigError, Corrupt, Locked, OutcomeUnknown, PenstockError, StorageError

CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC
RESERVE_BYTES = 4 << 20, 64 << 20
"""The least and the most space reserved ahead of the end; between these bounds it is an eighth of the file."""


class FileEngine(BatchEngine):
    """A store in one append-only file, for one writing process and any number of reading processes."""

    scheme = "file"
    shared: ClassVar[bool] = False

    def __init__(
        self, path: str, *, read_only: bool = False, durability: Durability = "disk", disk: Disk | None = None
    ) -> None:
        self._folder = Path(path).absolute()
        super().__init__(str(self._folder), read_only=read_only, durability=durability)
        self._disk = disk or Disk()
        self._path = self._folder / "data"
        self._lock = threading.RLock()  # guards the parts of a snapshot: index, data, position
        self._broken: PenstockError | None = None
        self._folder_lock: FolderLock | None = None
        try:
            check_folder(self._folder, "file", "data", ("lock", "data.new").__contains__, read_only=read_only)
            if read_only:
                self._open_to_read()
            else:
                self._open_to_write()
        except OSError as error:
            raise StorageError(f"{self._name} cannot be opened: {error}") from error
        self._upkeep = Upkeep(self)

    # opening

    def _open_to_read(self) -> None:
        self._files = OpenFiles(str(self._folder))
        self._load()

    def _open_to_write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
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
        """Opens the data file, which must be of a later generation than `after`, and its index."""
        data = DataFile(self._disk, self._path, writable=not self.read_only)
        if data.generation <= after:
            raise StorageError(
                f"{self._name} was replaced while it was open ({self._path} is another store, or an earlier state); "
                "close it and open it again"
            )
        index, position = load_index(self._folder, data)
        unsure = follow(data, index, position)
        self._torn = check_end(data, position)
        self._data, self._index, self._position = data, index, position
        return unsure

    def _repair(self, unsure: int) -> None:
        """Cuts a torn end, and syncs records that a dead process may have left in the system's memory.

        These records are first written once more: after a failed sync the system treats pages as written that are not.
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

    def read(self) -> HeldRead:
        self._check_usable()
        begun = time.monotonic()
        with self._lock:
            if self.read_only:
                self._refresh()
            keys = self._index.map.snapshot()
            return HeldRead(self, begun, FileSnapshot(keys, self._data), keys)

    def _refresh(self) -> None:
        """Reads the newer commits of a writer in another process, also when the writer has changed to a new file."""
        try:
            if os.stat(self._path).st_ino != self._data.inode:  # noqa: PTH116 - several times faster than Path.stat
                self._load(after=self._data.generation)
                return
            if self._data.read(self._position.end, HEAD.size).strip(b"\0"):
                try:
                    follow(self._data, self._index, self._position)
                except Corrupt:
                    # The writer may have removed a failed commit that this reader saw: begin again.
                    self._load()
        except OSError as error:
            raise StorageError(f"{self._name} cannot be read: {error}") from error

    # writing

    def _check_writable(self) -> None:
        super()._check_writable()
        if self._broken is not None:
            raise self._broken

    def _begin(self) -> tuple[EngineView, bool]:
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
        """Removes the record of a failed commit.

        When this fails too, the next opening finds out which records exist.
        """
        try:
            self._disk.truncate(self._data.descriptor, begin)
            self._reserved = begin
        except OSError as error:
            self._break(f"a commit failed ({cause}) and its bytes could not be removed ({error})")

    def _sync(self, data: DataFile) -> None:
        """Calls fdatasync.

        After a failure the state of the disk is unknown, and a second call would falsely succeed.
        """
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
        # a full disk, or a system without this call: the file grows with each write
        with suppress(OSError, AttributeError):
            self._disk.allocate(self._data.descriptor, self._reserved, reserve - self._reserved)
            self._reserved = reserve

    def reclaim(self) -> None:
        """Copies the live values into a new file, unless there is hardly any garbage."""
        self._compact_if_over(self._index.live // 100 + 4096)

    def purge(self) -> None:
        """Copies what is live into a new file."""
        self._compact_if_over(-1)

    def _compact_if_over(self, garbage: int) -> None:
        self._check_writable()
        try:
            self._upkeep.compact_if_over(garbage)
        except Cancelled:
            self._check_usable()
        except OSError as error:
            raise StorageError(f"{self._name} could not be compacted: {error}; it is as it was") from error

    def garbage(self) -> int:
        """Returns the bytes of values that were overwritten or deleted."""
        self._check_usable()
        return self._upkeep.garbage()

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
        """Returns the bytes of the data file up to its end, without the space reserved behind the end."""
        self._check_usable()
        return self._position.end

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
"""The rows that a long scan reads in one call, when their values are small and close together."""


class FileSnapshot:
    """The keys at one moment, and the file that holds their values."""

    __slots__ = ("_data", "_keys")

    def __init__(self, keys: Frozen[int] | SortedMap[int], data: DataFile) -> None:
        self._keys = keys
        self._data = data

    def get(self, key: bytes) -> bytes | None:
        pointer = self._keys.get(key)
        return None if pointer is None else self._data.value(pointer)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = self._keys.scan(start, stop, reverse=reverse)
        ahead = 1  # many scans end after their first rows
        while rows := list(islice(found, ahead)):
            yield from zip([key for key, _ in rows], self._data.values([pointer for _, pointer in rows]), strict=True)
            ahead = min(2 * ahead, READ_AHEAD)


# ── What a file store does beside its writes: saving the index, and compacting when there is much garbage ──
# Compaction and saving the index run on a thread that ends with the work. A compaction copies a snapshot while writers
# continue, and then their newer commits. Writers wait only for the last piece and for the exchange of the files.


GARBAGE_BYTES = 16 << 20
"""The least garbage that makes a background compaction worth its cost."""
INDEX_BYTES, INDEX_COMMITS = 256 << 20, 50_000
"""The growth after which the index is saved again; opening after a crash reads at most this much."""
CATCH_UP_BYTES = 1 << 20
"""The most bytes that a copy may still lack when writers begin to wait for its last part."""

log = logging.getLogger("penstock.engine.file")


class Upkeep:
    """The upkeep of one engine's files, one piece of work at a time."""

    def __init__(self, engine: FileEngine) -> None:
        self._engine = engine
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed_at = 0
        self._saved_end = engine._position.end
        self._saved_seq = engine._position.seq

    def in_passing(self) -> None:
        """Starts the upkeep that is due; the writer calls this after each commit."""
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
        """Waits until no work is under way; the work of a closed engine ends early."""
        if self._thread is not None:
            self._thread.join()
        with self._working:
            pass

    def garbage(self) -> int:
        return self._engine._position.end - START - self._engine._index.live

    def _wants_compaction(self) -> bool:
        garbage = self.garbage()
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
            self._failed_at = self.garbage()
            self._saved_end, self._saved_seq = engine._position.end, engine._position.seq
            log.warning("the upkeep of %s failed and will be tried again later: %s", engine._name, error)

    def save_index(self) -> None:
        """Syncs the data and saves its index."""
        with self._working:
            self._save_index()

    def _save_index(self) -> None:
        engine = self._engine
        with engine._lock:
            data, keys, live = engine._data, engine._index.map.snapshot(), engine._index.live
            end, seq = engine._position.end, engine._position.seq
        with keys:
            engine._sync(data)
            engine._check_files()  # files beside the data are written by name
            save_index(engine._folder, data, keys, end, seq, live)
        self._saved_end, self._saved_seq = end, seq

    def compact_if_over(self, garbage: int) -> None:
        """Compacts when there is more garbage than `garbage`."""
        with self._working:
            if self.garbage() <= garbage:
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
            except OSError as error:  # the compaction is complete; the next opening makes the index from the data
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
            # The new file is in place. After a power cut the old file may be back, so nothing may be appended.
            engine._break(f"the folder could not be synced after a compaction ({error})")
            raise
        copy.data.path = engine._path
        with engine._lock:
            engine._data, engine._index = copy.data, copy.index
            engine._position = LogPosition(copy.end, copy.seq, copy.seq)
            engine._reserved = copy.end


def _catch_up(copy: Copy, source: DataFile, begin: int, end: int) -> int:
    """Copies all commits between two offsets, or raises `Corrupt`."""
    for record in source.records(begin, copy.seq, end):
        copy.add_record(record, source)
        begin = record.end
    if begin != end:
        raise Corrupt("a record is damaged; restore a backup", file=str(source.path), offset=begin)
    return end


# ── Writing the live part of a file store into a new data file: compaction, and backups ──


COPY_BYTES = 1 << 20
"""The approximate number of value bytes in one record of a copy."""


class Cancelled(Exception):
    """The store is being closed, so the copy is no longer needed."""


class Copy:
    """A new data file that is being filled; an engine goes on with its `data` and `index`."""

    def __init__(self, disk: Disk, path: Path, *, generation: int, base: int) -> None:
        self._disk = disk
        create_data_file(disk, path, generation=generation, base=base)
        self.data = DataFile(disk, path, writable=True)
        self.index = Index()
        self.end = START
        self.seq = base

    def add_state(self, keys: Frozen[int], source: DataFile, stop: Callable[[], bool]) -> None:
        """Copies every value of a snapshot; a damaged value raises `Corrupt`."""
        rows = ((key, source.value(pointer)) for key, pointer in keys.scan(b"", END))
        for part in in_parts(rows, lambda row: len(row[0]) + len(row[1]), COPY_BYTES):
            if stop():
                raise Cancelled
            self._append(dict(part), [], COPY)

    def add_record(self, record: Record, source: DataFile) -> None:
        """Copies a commit made after the snapshot."""
        changes: dict[bytes, bytes | None] = {}
        ranges: list[tuple[bytes, bytes]] = []
        for kind, key, pointer, stop in record.operations:
            if kind == PUT:
                changes[key] = source.value(pointer)
            elif kind == DELETE:
                changes[key] = None
            else:
                ranges.append((key, stop))
        self.seq = record.seq
        self._append(changes, ranges, COMMIT)

    def sync(self) -> None:
        self._disk.sync(self.data.descriptor)

    def _append(self, changes: Mapping[bytes, bytes | None], ranges: list[tuple[bytes, bytes]], kind: int) -> None:
        # Nothing reads the file before all of it is on disk, so every record may claim to be on disk.
        record, operations = encode(
            changes, ranges, offset=self.end, seq=self.seq, synced=self.seq, seed=self.data.seed, kind=kind
        )
        self._disk.write(self.data.descriptor, record, self.end)
        self.index.apply(operations)
        self.end += len(record)


def create_data_file(disk: Disk, path: Path, *, generation: int, base: int) -> None:
    """Makes an empty data file, on disk before this returns."""
    descriptor = disk.open(path, CREATE)
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
                "close it there, use it through `penstock serve`, or open it for reading only"
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


def _release_in_child() -> None:
    """Closes the copies of locks in a forked child, which would otherwise keep the locks after its parent ends."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_release_in_child)


# ── The data file: a header, then one record per commit ──
#     header   magic "PENSTOCK", crc, version, salt, generation, base            64 bytes, padded with zeros
#     record   head: magic, crc, offset, seq, synced, table bytes, value bytes, kind
#              table: one entry per operation: kind, lengths, crc of the value, key
#              values, one after the other
#
# The crc of a record covers its head and table, and starts from the file's salt; every value has its own crc in the
# table. With its own offset in the head, a record is valid in one place of one file only: bytes that merely look like
# one (a copy of a store kept as a value, the rest of an overwritten record) never are. `seq` counts commits without a
# gap; `synced` says up to which commit the file was on disk when the record was written. So a bad record that a later
# one calls synced is corruption; one that nothing vouches for is the torn end of a crash. Zeros after the last record
# are reserved space.


VERSION = 1
FILE_MAGIC = b"PENSTOCK"
FILE_HEADER = struct.Struct("<8sIIQQQ")
START = 64
"""The offset of the first record."""

RECORD_MAGIC = b"\xabPnR"
HEAD = struct.Struct("<4sIQQQIQI")
HEAD_BODY = struct.Struct("<QQQIQI")
ENTRY = struct.Struct("<BHII")
COMMIT, COPY = 1, 2
"""Kinds of record: a commit, or a piece of the state that compaction (or a backup) copied into a new file."""
PUT, DELETE, RANGE = 1, 2, 3
"""Kinds of operation in a table."""

NO_HEAD = bytes(HEAD.size)
WINDOW = 256 << 10
TOGETHER_BYTES = 256 << 10
"""Values within this many bytes of the file are read in one call."""
MAX_VALUE_BYTES = (1 << 32) - 1
MAX_TABLE_BYTES = (1 << 32) - 1

Operation = tuple[int, bytes, int, bytes]
"""Kind, key, the place of the value (packed), the stop of a range."""


def pack_pointer(offset: int, length: int, crc: int) -> int:
    """Packs a value's place into one integer, which takes a third of the memory of a tuple."""
    return offset << 64 | length << 32 | crc


def pointer_length(pointer: int) -> int:
    return pointer >> 32 & 0xFFFFFFFF


@dataclass(slots=True)
class Record:
    """A record with a valid head and table; its values are checked when they are read."""

    offset: int
    end: int
    seq: int
    synced: int
    kind: int
    operations: list[Operation]


class DataFile:
    """An open data file. Its holder can read it even after compaction has replaced it."""

    def __init__(self, disk: Disk, path: Path, *, writable: bool) -> None:
        self.disk = disk
        self.path = path
        self.descriptor = -1
        self.descriptor = disk.open(path, os.O_RDWR if writable else os.O_RDONLY)
        header = os.pread(self.descriptor, FILE_HEADER.size, 0)
        if len(header) < FILE_HEADER.size or not header.startswith(FILE_MAGIC):
            raise ConfigError(f"{path} is not a file store: another program made it, or its first bytes are damaged")
        _, crc, version, salt, self.generation, self.base = FILE_HEADER.unpack(header)
        if crc != crc32(header[12:]):
            raise Corrupt("the header of the file is damaged; restore a backup", file=str(path), offset=0)
        if version != VERSION:
            raise ConfigError(
                f"{path} has file store format {version}, this version of penstock reads format {VERSION}; "
                "use the version that made it, or copy its events over"
            )
        self.seed: int = salt & 0xFFFFFFFF
        self.salt: int = salt
        self.inode = os.fstat(self.descriptor).st_ino

    def __del__(self) -> None:
        if self.descriptor >= 0:
            self.disk.close(self.descriptor)
            self.descriptor = -1

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def value(self, pointer: int) -> bytes:
        """Returns the value at a pointer, after its checksum was compared."""
        offset, length = pointer >> 64, pointer_length(pointer)
        value = self.read(offset, length)
        if len(value) != length or crc32(value) != pointer & 0xFFFFFFFF:
            raise Corrupt("a stored value fails its checksum; restore a backup", file=str(self.path), offset=offset)
        return value

    def values(self, pointers: list[int]) -> Iterable[bytes]:
        """Returns the values of several pointers. Values that lie close together are read in one call."""
        if len(pointers) == 1:
            return [self.value(pointers[0])]
        start = min(pointers) >> 64
        length = max([(pointer >> 64) + pointer_length(pointer) for pointer in pointers]) - start
        if length > TOGETHER_BYTES:
            return map(self.value, pointers)
        data = self.read(start, length)
        values = []
        for pointer in pointers:
            at = (pointer >> 64) - start
            value = data[at : at + pointer_length(pointer)]
            if crc32(value) != pointer & 0xFFFFFFFF:
                self.value(pointer)  # says what is wrong
            values.append(value)
        return values

    def read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self.descriptor, length, offset)
            while len(data) < length:
                more = os.pread(self.descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read at {offset}: {error}") from error
        return data

    def records(self, offset: int, seq: int, size: int) -> Iterator[Record]:
        """Yields the records from an offset on, beginning with the record after commit `seq`, until a record is
        missing or invalid.
        """
        window, begin = b"", offset
        ahead = WINDOW
        while True:
            at = offset - begin
            if at + HEAD.size > len(window):
                window, begin, at = self.read(offset, ahead), offset, 0
            head = window[at : at + HEAD.size]
            table_bytes = _table_bytes(head)
            if at + HEAD.size + table_bytes > len(window):
                if offset + HEAD.size + table_bytes > size:
                    return
                window, begin, at = self.read(offset, HEAD.size + table_bytes), offset, 0
            record = self._record(head, window[at + HEAD.size : at + HEAD.size + table_bytes], offset)
            if record is None or record.end > size or record.seq != (seq + 1 if record.kind == COMMIT else self.base):
                return
            yield record
            # Reading far ahead pays for small records; for large values it would read bytes that no caller requested.
            ahead = WINDOW if record.end - offset < WINDOW // 4 else HEAD.size + 4096
            offset, seq = record.end, record.seq

    def _record(self, head: bytes, table: bytes, offset: int) -> Record | None:
        if len(head) < HEAD.size or head[:4] != RECORD_MAGIC:
            return None
        _, crc, own_offset, seq, synced, table_bytes, value_bytes, kind = HEAD.unpack(head)
        if own_offset != offset or len(table) != table_bytes or crc != crc32(table, crc32(head[8:], self.seed)):
            return None
        first = offset + HEAD.size + table_bytes
        return Record(offset, first + value_bytes, seq, synced, kind, _operations(table, first))

    def is_sound(self, record: Record) -> bool:
        """Returns True when each value of a record has the checksum in the record's table."""
        try:
            for kind, _, pointer, _ in record.operations:
                if kind == PUT:
                    self.value(pointer)
        except Corrupt:
            return False
        return True

    def vouched(self, offset: int, size: int) -> int:
        """Returns the newest commit that any valid record after an offset declares as synced; 0 for none."""
        highest = 0
        at = offset
        while at < size:
            window = self.read(at, 4 << 20)
            found = window.find(RECORD_MAGIC)
            while found >= 0:
                start = at + found
                head = self.read(start, HEAD.size)
                table_bytes = _table_bytes(head)
                if table_bytes and start + HEAD.size + table_bytes <= size:
                    record = self._record(head, self.read(start + HEAD.size, table_bytes), start)
                    if record is not None:
                        highest = max(highest, record.synced)
                found = window.find(RECORD_MAGIC, found + 1)
            at += max(len(window) - len(RECORD_MAGIC) + 1, 1)
        return highest


def _table_bytes(head: bytes) -> int:
    return int.from_bytes(head[32:36], "little") if len(head) == HEAD.size and head[:4] == RECORD_MAGIC else 0


def _operations(table: bytes, first: int) -> list[Operation]:
    operations: list[Operation] = []
    at, value_at = 0, first
    while at < len(table):
        kind, key_bytes, length, crc = ENTRY.unpack_from(table, at)
        at += ENTRY.size
        key = table[at : at + key_bytes]
        at += key_bytes
        if kind == PUT:
            operations.append((PUT, key, pack_pointer(value_at, length, crc), b""))
            value_at += length
        elif kind == RANGE:
            operations.append((RANGE, key, 0, table[at : at + length]))
            at += length
        else:
            operations.append((DELETE, key, 0, b""))
    return operations


def make_header(salt: int, generation: int, base: int) -> bytes:
    """Returns the first bytes of a new data file whose state begins after commit `base`."""
    body = FILE_HEADER.pack(FILE_MAGIC, 0, VERSION, salt, generation, base)[12:]
    return (FILE_MAGIC + crc32(body).to_bytes(4, "little") + body).ljust(START, b"\0")


def encode(
    changes: Mapping[bytes, bytes | None],
    ranges: list[tuple[bytes, bytes]],
    *,
    offset: int,
    seq: int,
    synced: int,
    seed: int,
    kind: int = COMMIT,
) -> tuple[bytes, list[Operation]]:
    """Returns the bytes of a record at an offset, and its operations as a later read returns them."""
    table: list[bytes] = []
    values: list[bytes] = []
    operations: list[Operation] = []
    for start, stop in ranges:
        # Keys have at most MAX_KEY_BYTES bytes, so further bytes of a bound decide nothing.
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        table += (ENTRY.pack(RANGE, len(start), len(stop), 0), start, stop)
        operations.append((RANGE, start, 0, stop))
    at = 0
    for key, value in changes.items():
        if value is None:
            table += (ENTRY.pack(DELETE, len(key), 0, 0), key)
            operations.append((DELETE, key, 0, b""))
            continue
        length, crc = len(value), crc32(value)
        if length > MAX_VALUE_BYTES:
            raise ConfigError(f"a value of {length} bytes is too large: the file engine takes {MAX_VALUE_BYTES}")
        table += (ENTRY.pack(PUT, len(key), length, crc), key)
        values.append(value)
        operations.append((PUT, key, pack_pointer(at, length, crc), b""))
        at += length
    entries = b"".join(table)
    if len(entries) > MAX_TABLE_BYTES:
        raise ConfigError(f"one transaction changes too much for one record: {len(changes)} keys")
    body = HEAD_BODY.pack(offset, seq, synced, len(entries), at, kind)
    crc = crc32(entries, crc32(body, seed))
    first = offset + HEAD.size + len(entries) << 64
    return (
        b"".join((RECORD_MAGIC, crc.to_bytes(4, "little"), body, entries, *values)),
        [(kind, key, pointer + first if kind == PUT else 0, stop) for kind, key, pointer, stop in operations],
    )


# ── The file engine's index: key → where its value lies, in memory, and saved beside the data so that opening is quick
# The saved index is a shortcut. It names its data file and the offset that it covers. A missing or damaged index, or an
# index of another file, is made again from the data. The index proves only that everything up to its end was on disk
# when it was written.


INDEX_MAGIC = b"PENSTOCKIDX1"
INDEX_HEADER = struct.Struct("<12sIQQQQQQ")


class Index:
    """The keys of a data file, and the number of bytes that they use."""

    __slots__ = ("live", "map")

    def __init__(self) -> None:
        self.map: SortedMap[int] = SortedMap()
        self.live = 0
        """The bytes of the data file that hold live values; the rest is garbage."""

    def apply(self, operations: list[Operation]) -> None:
        """Applies a record's operations; applying them twice changes nothing more."""
        for kind, key, pointer, stop in operations:
            if kind == PUT:
                old = self.map.put(key, pointer)
                self.live += ENTRY.size + len(key) + pointer_length(pointer)
                if old is not None:
                    self.live -= ENTRY.size + len(key) + pointer_length(old)
            elif kind == DELETE:
                old = self.map.delete(key)
                if old is not None:
                    self.live -= ENTRY.size + len(key) + pointer_length(old)
            else:
                for gone, old in self.map.delete_range(key, stop):
                    self.live -= ENTRY.size + len(gone) + pointer_length(old)


def save_index(folder: Path, data: DataFile, keys: Frozen[int], end: int, seq: int, live: int) -> None:
    """Writes the index of a data file that is on disk up to `end`."""
    names: list[bytes] = []
    pointers: list[int] = []
    for name, pointer in keys.scan(b"", END):
        names.append(name)
        pointers.append(pointer)
    body = b"".join(
        (
            array("H", map(len, names)).tobytes(),
            array("Q", [pointer >> 64 for pointer in pointers]).tobytes(),
            array("Q", [pointer & 0xFFFFFFFFFFFFFFFF for pointer in pointers]).tobytes(),
            *names,
        )
    )
    facts = INDEX_HEADER.pack(INDEX_MAGIC, 0, data.salt, data.generation, end, seq, live, len(names))[16:]
    temporary, disk = folder / "index.new", data.disk
    descriptor = disk.open(temporary, CREATE)
    try:
        disk.write(descriptor, INDEX_MAGIC + crc32(body, crc32(facts)).to_bytes(4, "little") + facts + body, 0)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(temporary, folder / "index")


def load_index(folder: Path, data: DataFile) -> tuple[Index, LogPosition]:
    """Returns the saved index of a data file and the offset that it covers; an empty index when no index is usable."""
    index, nothing = Index(), LogPosition(START, data.base, data.base)
    try:
        saved = (folder / "index").read_bytes()
    except OSError:
        return index, nothing
    if len(saved) < INDEX_HEADER.size or not saved.startswith(INDEX_MAGIC):
        return index, nothing
    _, crc, salt, generation, end, seq, live, count = INDEX_HEADER.unpack_from(saved)
    if salt != data.salt or generation != data.generation or crc != crc32(saved[16:]):
        return index, nothing
    at = INDEX_HEADER.size
    lengths, offsets, sizes = array("H"), array("Q"), array("Q")
    for column in (lengths, offsets, sizes):
        column.frombytes(saved[at : at + count * column.itemsize])
        at += count * column.itemsize
    put = index.map.put
    bounds = accumulate(lengths, initial=at)
    begin = next(bounds)
    for stop, offset, size in zip(bounds, offsets, sizes, strict=True):
        put(saved[begin:stop], offset << 64 | size)
        begin = stop
    index.live = live
    return index, LogPosition(end, seq, seq)


# ── Reading a data file from where one is to where it ends: at opening, and by readers that follow a writer ──
# The end is the first offset without a valid record. The bytes behind it decide its meaning. Only zeros: the plain end.
# Other bytes that no later record calls synced: the torn end of a crash, which the next writer cuts. A record that a
# later record calls synced: corruption, because it was once whole; it is reported and never cut.


ZEROS = bytes(1 << 20)


@dataclass(slots=True)
class LogPosition:
    """The state of reading a data file: its end, its newest commit, and the newest commit known to be on disk."""

    end: int
    seq: int
    synced: int


def follow(data: DataFile, index: Index, position: LogPosition) -> int:
    """Applies every record after a position and advances the position. Returns the offset of the first record that may
    not be on disk."""
    while True:
        size = data.size()
        if size < position.end:
            raise Corrupt(
                f"the file has {size} bytes, fewer than the {position.end} that were on disk; restore a backup",
                file=str(data.path),
                offset=size,
            )
        unsure = _read_records(data, index, position, size)
        beyond = data.read(position.end, HEAD.size)
        if beyond == NO_HEAD[: len(beyond)] or not _was_whole(data, position, size):
            return unsure
        # A writer in another process finished the record during the check: go on from there.


def check_end(data: DataFile, position: LogPosition) -> bool:
    """Returns True when bytes other than zeros follow the end. Raises `Corrupt` when they show that a record was
    overwritten."""
    size = data.size()
    at = position.end
    while at < size:
        window = data.read(at, len(ZEROS))
        if window != ZEROS[: len(window)]:
            _was_whole(data, position, size)
            return True
        at += max(len(window), 1)
    return False


def _was_whole(data: DataFile, position: LogPosition, size: int) -> bool:
    """Reads the next record again.

    Returns True when it is whole, False when a crash tore it; raises `Corrupt` when it was on disk.
    """
    if data.vouched(position.end, size) <= position.seq:
        return False
    if next(data.records(position.end, position.seq, data.size()), None) is None:
        raise Corrupt(
            f"the record of commit {position.seq + 1} is damaged although it was on disk; restore a backup",
            file=str(data.path),
            offset=position.end,
        )
    return True


def _read_records(data: DataFile, index: Index, position: LogPosition, size: int) -> int:
    """Applies the valid records. Returns the offset of the first record that no other record declares as synced."""
    waiting: deque[Record] = deque()
    for record in data.records(position.end, position.seq, size):
        position.synced = max(position.synced, record.seq if record.kind == COPY else record.synced)
        waiting.append(record)
        while waiting and waiting[0].seq <= position.synced:
            _apply(index, position, waiting.popleft())
    unsure = position.end
    for record in waiting:
        if not data.is_sound(record):
            break
        _apply(index, position, record)
    return unsure


def _apply(index: Index, position: LogPosition, record: Record) -> None:
    index.apply(record.operations)
    position.end = record.end
    position.seq = record.seq


# ── The system calls the file engine makes, in one object, so that a test can make the N-th of them fail ──


class Disk:
    """The real disk."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Writes all of the data."""
        done = os.pwrite(descriptor, data, offset)
        if done != len(data):
            view = memoryview(data)
            while done < len(data):
                done += os.pwrite(descriptor, view[done:], offset + done)

    def sync(self, descriptor: int) -> None:
        sync_file(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        """Reserves zeroed space; overwriting it later makes `sync` cheaper than growing the file."""
        os.posix_fallocate(descriptor, offset, length)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)
