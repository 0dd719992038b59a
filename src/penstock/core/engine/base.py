"""The parts that engines share.

Engines refuse use after close, after a fork, for writing when read-only, and when their files have lost their names.
This module also has read transactions, and write transactions that are committed as a batch.
"""

from __future__ import annotations

import math
import os
import threading
import time
import zlib
from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from penstock.core.durable import as_storage_error, copy_permissions, move_into_place
from penstock.core.engine.contract import MAX_KEY_BYTES, Durability, Engine, EngineView, Held, SqlParameters, SqlRow
from penstock.core.units import in_parts
from penstock.errors import Closed, ConfigError, NoStore, OutcomeUnknown, PenstockError, ReadOnly, StorageError

END = b"\xff" * 600
"""A bound above every key that an engine takes."""
FORMAT_KEY = b"\xff" * 505
"""The key under which a database without any other mark records its format. It is longer than a key may be, so no scan
reaches it."""
COPY_BYTES = 8 << 20
"""The bytes in each commit of a copy."""


class BaseEngine(Engine):
    """Checks that an engine is usable, gives writers their turns, and refuses what no engine takes."""

    def __init__(self, location: str | None, *, read_only: bool, durability: Durability) -> None:
        if durability not in ("disk", "process"):
            raise ConfigError(f'durability is "disk" or "process", not {durability!r}')
        self.location = location
        self.read_only = read_only
        self.durability = durability
        self._closed = False
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._turn_owner = 0
        self._foreign = True
        self._files: OpenFiles | None = None
        """The files that must keep their names while the store is open, so that acknowledged data is found again."""
        self._lost = False
        """True when a file had lost its name at the last check."""

    @property
    def _name(self) -> str:
        return f"{self.scheme}:{self.location or ''}"

    def is_foreign_process(self) -> bool:
        """Returns True when this process was forked from the process that opened the store."""
        return os.getpid() != self._pid

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed(f"{self._name} is closed")
        if self.is_foreign_process():
            raise Closed(
                f"{self._name} was opened by process {self._pid} and this one was forked from it; "
                "open the store again in the child"
            )
        if self._lost:
            self._check_files()

    def _check_files(self) -> None:
        """Raises StorageError when the store is no longer where it was opened."""
        lost = self._lost_files()
        if lost is None:
            return
        if self._closed:  # by another thread: its last connection may remove files that it no longer needs
            raise Closed(f"{self._name} is closed")
        raise StorageError(f"{lost}; close it and open it again")

    def _acknowledge(self) -> None:
        """Ends every commit: raises OutcomeUnknown when the store is no longer where it was opened."""
        if self._files is None or self._files.missing() is None:
            return
        self._foreign = True  # the caller forgets the commit, and must read it again if the files come back
        raise OutcomeUnknown(
            f"{self._lost_files()}: this commit is in what had the name before, if that is anywhere; close it and open "
            "it again"
        )

    def _lost_files(self) -> str | None:
        missing = self._files.missing() if self._files is not None else None
        self._lost = missing is not None
        if missing is None:
            return None
        return f"{self._name} was deleted, moved or replaced while it was open ({missing} is not what was opened)"

    def usable(self) -> bool:
        return self._files is None or self._closed or self._files.missing() is None

    def flush(self) -> None:
        self._check_usable()
        if not self.read_only:
            self._flush()
            self._check_files()

    @abstractmethod
    def _flush(self) -> None:
        """Puts everything committed so far on disk."""

    def close(self) -> None:
        """Closes the store; raises StorageError when the store has lost its name and no call has reported it yet."""
        told = self._closed or self._lost or self.read_only or self.is_foreign_process()
        lost = None if told else self._lost_files()
        try:
            self._close()
        finally:
            if self._files is not None:
                self._files.close()
        if lost is not None:
            raise StorageError(f"{lost}; what it acknowledged may be gone with it: open it again and look")

    @abstractmethod
    def _close(self) -> None:
        """Closes the store; a second call does nothing. Writes nothing beside the store's files when `_lost`."""

    def _check_writable(self) -> None:
        self._check_usable()
        if self.read_only:
            raise ReadOnly(f"{self._name} was opened with read_only=True")

    def _take_turn(self) -> None:
        """Waits until no other thread of this process writes, and makes this thread the writer."""
        me = threading.get_ident()
        if not self._turn.acquire(blocking=False):
            if self._turn_owner == me:
                raise PenstockError(
                    f"a write block on {self._name} was opened inside another one of the same thread; "
                    "it would wait for itself: pass the open transaction on instead"
                )
            self._turn.acquire()
        self._turn_owner = me
        if self._closed:
            self._end_turn()
            raise Closed(f"{self._name} is closed")

    def _end_turn(self) -> None:
        self._turn_owner = 0
        self._turn.release()

    def _shut(self) -> bool:
        """Prevents further transactions; returns False when the store is closed already, or belongs to the parent
        process.
        """
        if self._closed or self.is_foreign_process():
            self._closed = True
            return False
        self._take_turn()
        self._closed = True
        self._end_turn()
        return True


def check_key(key: bytes) -> None:
    """Refuses keys that some engine could not store, so that a store can move between engines."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ConfigError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(key)}: {bytes(key[:40])!r}")


def is_made(view: EngineView, where: object, wanted: bytes, *, read_only: bool) -> bool:
    """Returns True when a database holds a store of this format. Raises ConfigError when it holds something else, or
    when a store may not be created."""
    found = view.get(FORMAT_KEY)
    if found is not None and found != wanted:
        raise ConfigError(
            f"{where} has the format {found.decode(errors='replace')!r}, this version of penstock reads "
            f"{wanted.decode()!r}; use the version that made it, or copy its events over"
        )
    if found is None and next(view.scan(b"", END), None) is not None:
        raise ConfigError(f"{where} is a database of another program; give the store a place of its own")
    if found is None and read_only:
        raise ConfigError(f"{where} is empty, not a store; open it for writing once to make it one")
    return found is not None


def check_folder(folder: Path, store: str, mark: str, is_own: Callable[[str], bool], *, read_only: bool) -> None:
    """Checks that a folder holds a store, which has a file `mark`, or may become a store: a store shares its folder
    with no other files.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a {store} store is a folder: give it a name of its own")
    if folder.is_symlink() and not folder.exists():
        raise ConfigError(f"{folder} is a link to {folder.readlink()}, which is not there: make that, or name another")
    if (folder / mark).exists():
        return
    if read_only:
        raise NoStore(f"there is no store at {folder}; open it for writing once to make it")
    others = sorted(entry.name for entry in folder.iterdir() if not is_own(entry.name)) if folder.is_dir() else []
    if others:
        raise ConfigError(
            f"{folder} holds other things ({', '.join(others[:3])}) and no {store} store; "
            "give the store a folder of its own"
        )


@contextmanager
def backup_at(destination: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields where to write a backup; syncs and renames it when the block ends well, removes it when it raises."""
    target = Path(destination).absolute()
    partial = target.with_name(target.name + ".partial")
    with as_storage_error(f"write the backup to {target}"):
        if target.exists() or target.is_symlink():
            raise ConfigError(f"{target} exists already; a backup never overwrites: give it a new name")
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        try:
            yield partial
            move_into_place(partial, target)
        finally:
            _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil  # shutil loads two compressors, which a program without backups should not wait for

        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def process_stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the program's name: the state is the first field, the start time
    the twentieth. Returns no fields for a missing process, or where the system has no such file.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def transaction_is_over() -> Closed:
    """Returns the error for a transaction that is used outside its block."""
    return Closed("this transaction is over (or never began): use it inside its `with` block, while its store is open")


def copy_rows(snapshot: EngineView, target: Engine) -> None:
    """Writes every row of a snapshot into an empty store, in commits of a few megabytes."""
    for rows in in_parts(snapshot.scan(b"", END), lambda row: len(row[0]) + len(row[1]), COPY_BYTES):
        with target.write(sync=False) as tx:
            for key, value in rows:
                tx.put(key, value)
    target.flush()


# ── What the transactions of memory, file, rocksdb and slatedb do the same way. SQLite has transactions of its own ──


class HeldRead(Held):
    """A read transaction over a view that does not change while `held` is held. A dropped transaction is closed."""

    __slots__ = ("__weakref__", "_engine", "_held", "_view", "begun")

    def __init__(self, engine: BaseEngine, begun: float, view: EngineView, held: Held | None = None) -> None:
        self._engine = engine
        self.begun = begun
        self._view: EngineView | None = view
        self._held = held

    def get(self, key: bytes) -> bytes | None:
        return self._usable().get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for row in self._usable().scan(start, stop, reverse=reverse):
            yield row
            self._usable()

    @property
    def is_open(self) -> bool:
        return self._view is not None

    def _usable(self) -> EngineView:
        if self._view is None or self._engine._closed:
            raise transaction_is_over()
        return self._view

    def close(self) -> None:
        self._view = None
        if self._held is not None:
            self._held.close()


# ── Write transactions of engines that commit by batch: uncommitted changes, laid over a snapshot ──
# A key is changed (put or deleted), or in a deleted range, or in the snapshot. Ranges are kept sorted and disjoint, so
# that a scan can jump over them instead of walking through deleted keys.


def laid_over(
    below: Iterator[tuple[bytes, bytes]], changed: Iterable[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows of a view with changes applied; a changed row without a value is deleted."""
    found = next(below, None)
    for key, value in changed:
        while found is not None and (found[0] > key if reverse else found[0] < key):
            yield found
            found = next(below, None)
        if found is not None and found[0] == key:
            found = next(below, None)
        if value is not None:
            yield key, value
    if found is not None:
        yield found
        yield from below


class BatchEngine(BaseEngine):
    """An engine that commits by batch: a write transaction collects its changes, and the engine writes them at the
    end.
    """

    def write(self, *, sync: bool = True) -> OverlayWrite:
        self._check_writable()
        return OverlayWrite(self, sync)

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes every row of a snapshot into a new store of this kind, with the permissions of this store."""
        with self.read() as snapshot, backup_at(destination) as partial:
            partial.mkdir(0o700)
            with closing(type(self)(str(partial), read_only=False, durability="process")) as copy:
                copy_rows(snapshot, copy)
            copy_permissions(self.location, partial)

    @abstractmethod
    def _begin(self) -> tuple[EngineView, bool]:
        """Waits for this thread's turn. Returns the newest committed state, and whether another writer changed it."""

    @abstractmethod
    def _commit(self, changes: OverlayWrite) -> None:
        """Makes the changes part of the store, all or none."""


class OverlayWrite:
    """A write transaction: its changes can be read like a store, and go to the engine at the end."""

    begun: float = math.inf
    __slots__ = ("_base", "_engine", "_order", "changes", "foreign", "kept", "ranges", "relaxed", "writes")

    def __init__(self, engine: BatchEngine | None, sync: bool, base: EngineView | None = None) -> None:
        self._engine = engine
        """The engine that gets the changes; None when the changes are only tried out over a snapshot."""
        self._base = base
        """The view below the changes; None before the transaction begins and after it ends."""
        self.changes: dict[bytes, bytes | None] = {}
        """The newest value of every changed key; None for a deleted one."""
        self.ranges: list[tuple[bytes, bytes]] = []
        """The deleted ranges; `changes` holds only later changes of their keys."""
        self._order: list[bytes] | None = None
        self.writes = 0
        self.foreign = False
        self.relaxed = not sync
        self.kept = False

    def sql(self, statement: str, parameters: SqlParameters) -> list[SqlRow]:
        scheme = "this" if self._engine is None else self._engine.scheme
        raise ConfigError(f"{scheme} stores have no tables for SQL: tx.sql needs a journal in a SQLite file")

    def keep(self) -> None:
        self.kept = True

    def __enter__(self) -> Self:
        assert self._engine is not None
        self._base, self.foreign = self._engine._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._base = None
        assert self._engine is not None
        try:
            if kind is None:
                self._engine._commit(self)
                self._engine._acknowledge()
        finally:
            self._engine._end_turn()

    def _usable(self) -> EngineView:
        if self._base is None:
            raise transaction_is_over()
        return self._base

    def put(self, key: bytes, value: bytes) -> None:
        check_key(key)
        self._change(key, value if type(value) is bytes else bytes(value))

    def delete(self, key: bytes) -> None:
        check_key(key)
        self._change(key, None)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._usable()
        self.writes += 1
        if self._order is not None and key not in self.changes:
            insort(self._order, key)
        self.changes[key] = value

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self._usable()
        self.writes += 1
        if start >= stop:
            return
        order = self._sorted()
        low, high = bisect_left(order, start), bisect_left(order, stop)
        for key in order[low:high]:
            del self.changes[key]
        del order[low:high]
        kept: list[tuple[bytes, bytes]] = []
        for low_end, high_end in self.ranges:
            if high_end < start or low_end > stop:
                kept.append((low_end, high_end))
            else:
                start, stop = min(start, low_end), max(stop, high_end)
        insort(kept, (start, stop))
        self.ranges = kept

    def get(self, key: bytes) -> bytes | None:
        base = self._usable()
        if key in self.changes:
            return self.changes[key]
        if self.ranges and self._in_range(key):
            return None
        return base.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows = self._below(self._usable(), start, stop, reverse)
        if self.changes:
            order = self._sorted()
            mine = order[bisect_left(order, start) : bisect_left(order, stop)]
            if reverse:
                mine.reverse()
            # The values at the beginning of the scan: the caller may change keys that the scan has passed, and these
            # keys must not appear again.
            values = [self.changes[key] for key in mine]
            rows = laid_over(rows, zip(mine, values, strict=True), reverse=reverse)
        for row in rows:
            yield row
            self._usable()

    def _below(self, base: EngineView, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yields the base's keys outside the deleted ranges."""
        for low, high in self._gaps(start, stop, reverse):
            yield from base.scan(low, high, reverse=reverse)

    def _gaps(self, start: bytes, stop: bytes, reverse: bool) -> list[tuple[bytes, bytes]]:
        gaps = []
        for low, high in self.ranges:
            if high <= start:
                continue
            if low >= stop:
                break
            if start < low:
                gaps.append((start, low))
            start = high
        if start < stop:
            gaps.append((start, stop))
        return gaps[::-1] if reverse else gaps

    def _in_range(self, key: bytes) -> bool:
        at = bisect_right(self.ranges, (key, END)) - 1
        return at >= 0 and self.ranges[at][0] <= key < self.ranges[at][1]

    def _sorted(self) -> list[bytes]:
        if self._order is None:
            self._order = sorted(self.changes)
        return self._order


# ── Whether the files of an open store still have the names they were opened under ──
# A file that is deleted, moved or replaced while it is open still accepts writes, and no reader finds them later. A
# lock on a file without its name excludes no process.


QUIET_NS, COARSE_QUIET_NS = 500_000_000, 3_000_000_000
"""The age at which a folder's last change can be told from the next change by its time. The clock of file times is at
most ten milliseconds behind, and somewhat more in a virtual machine that waits for a processor; some file systems count
seconds."""
COARSE_NS = 10_000_000
"""A time that is a multiple of this may have been cut to seconds."""


class OpenFiles:
    """The files of an open store that must keep their names. Files of one folder are checked through the folder.

    A folder's ctime changes with every name in it, and no program can set it: while the ctime stays, one check is
    enough.
    """

    def __init__(self, *paths: str) -> None:
        self.folder = os.path.dirname(paths[0])  # noqa: PTH120 - this is asked at every commit: no Path here
        self._known: dict[str, tuple[tuple[int, int] | None, ...]] = {
            path: (found,) for path in paths if (found := _identity(path)) is not None
        }
        self._folders: list[int] = []
        self.unchanged: tuple[int, int] | None = None
        """The folder and its ctime at the last successful check, if every later change will have another ctime."""
        # The target of a link may lose its name without a change of the link's folder.
        self._together = all(self.folder == os.path.dirname(path) and not os.path.islink(path) for path in paths)  # noqa: PTH114, PTH120
        for path in paths:
            if os.path.isdir(path):  # noqa: PTH112
                # Otherwise another folder could soon have the number of a removed folder. The engine holds the files
                # open.
                self._folders.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def missing(self) -> str | None:
        """Returns a path that leads to another file than the opened file. Returns None while every path is right."""
        try:
            folder = os.stat(self.folder)  # noqa: PTH116
        except OSError:
            return self.folder
        changed = folder.st_ctime_ns
        if (folder.st_ino, changed) == self.unchanged:
            return None
        quiet = COARSE_QUIET_NS if changed % COARSE_NS == 0 else QUIET_NS
        # The clock is read before the check: the check sees earlier changes, and later changes have a later time.
        is_quiet = self._together and time.time_ns() - changed > quiet
        self.unchanged = None
        missing = self._look()
        if missing is None and is_quiet:
            self.unchanged = (folder.st_ino, changed)
        return missing

    def _look(self) -> str | None:
        for path, known in self._known.items():
            if _identity(path) not in known:
                return path
        return None

    @contextmanager
    def replacing(self, path: str, source: str) -> Iterator[None]:
        """Accepts either file under `path` while the block renames `source` to it."""
        before = self._known[path]
        self._known[path] = either = (*before, _identity(source))
        try:
            yield
        finally:
            here = _identity(path)
            self._known[path] = (here,) if here in either else before

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ── CRC-32 that does not let go of the interpreter for a few kilobytes ──
# `zlib.crc32` releases Python's global lock above 5 KiB, for five microseconds of work. A thread that merges blocks
# beside a busy writer would then request the lock again at every block, wait up to the switch interval each time, and
# make the writer wake it in vain at every write. Below `SMALL_BYTES` the sum is computed in pieces that keep the lock.


PIECE_BYTES = 5 << 10
"""The size up to which zlib keeps the lock."""
SMALL_BYTES = 64 << 10
"""The size from which the sum takes long enough to release the lock."""


def crc32(data: bytes | memoryview, value: int = 0) -> int:
    """Returns the result of `zlib.crc32`."""
    size = len(data)
    if size <= PIECE_BYTES or size > SMALL_BYTES:
        return zlib.crc32(data, value)
    view = memoryview(data)
    for at in range(0, size, PIECE_BYTES):
        value = zlib.crc32(view[at : at + PIECE_BYTES], value)
    return value
