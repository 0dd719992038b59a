"""A store in a directory: what is acknowledged is on disk, and any number of processes may share it.

An object is written to a temporary file beside its place, fsynced, and renamed over it; then the directory is fsynced.
Conditional puts hold a lock (flock) on a lock file of the object's own while they compare, write, rename and sync, so
two processes cannot both win. Reading such an object shares the lock and syncs the directory too (which costs nothing
when it is synced already), so no process acts on a version that a power cut could take back. The kernel drops the lock
of a process that dies. Names that begin with a dot are ours.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.buffer.produce.slabs import Slabs
from penstock.buffer.store.contract import Buffer, Stored, Version, VersionConflict, check_path, too_large
from penstock.durable import lock_file
from penstock.errors import StorageError

_TEMPORARY = ".tmp"
_TAIL = 64
#: Linux writes and reads at most 2 GiB minus a page per call.
_MOST = 1 << 30
#: Objects of this size are read into memory that is used again once no reader looks at them.
_LARGE = 1 << 20
_slabs = Slabs(128 << 20)


class FileStore:
    """A directory as an object store."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).resolve()
        self.url = f"file://{self._root}"
        self.identity = self.url
        with _errors("open", self.url, ""):
            _make_directories(self._root)

    def __reduce__(self) -> tuple[object, ...]:
        return FileStore, (str(self._root),)

    def __repr__(self) -> str:
        return f"FileStore({str(self._root)!r})"

    def get(self, path: str, *, most: int | None = None) -> Buffer | None:
        found = self._load(self._place(path), most)
        return None if found is None else found.data

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        place = self._place(path)
        with _errors("get", self.url, path):
            version = self._version(place)
            if version is None:
                return None
            if known is not None and version == known.version:
                return known
            with _locked(place, fcntl.LOCK_SH):
                found = self._load(place)
                _sync_directory(place.parent)
                return found

    def put(self, path: str, data: bytes | memoryview) -> None:
        place = self._place(path)
        with _errors("put", self.url, path):
            temporary = self._write_temporary(place, data)
            temporary.rename(place)
            _sync_directory(place.parent)

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        place = self._place(path)
        with _errors("put", self.url, path):
            if self._version(place) != version:  # the lock would only tell us later
                raise VersionConflict(path)
            # Written under the lock: only one of those who race can win, and the others would sync for nothing.
            with _locked(place, fcntl.LOCK_EX):
                if self._version(place) != version:
                    raise VersionConflict(path)
                self._write_temporary(place, data).rename(place)
                _sync_directory(place.parent)
                return self._version(place)

    def list(self, prefix: str) -> Iterator[str]:
        with _errors("list", self.url, prefix):
            try:
                found = list(os.scandir(self._place(prefix)))
            except FileNotFoundError:
                return
        for entry in found:
            if not entry.name.startswith(".") and entry.is_file():
                yield f"{prefix}/{entry.name}"

    def delete(self, paths: Sequence[str]) -> int:
        failed = 0
        for path in paths:
            try:
                self._place(path).unlink()
            except FileNotFoundError:
                continue
            except OSError:
                failed += 1
        return failed

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        with _errors("sweep", self.url, prefix), suppress(FileNotFoundError):
            for entry in os.scandir(self._place(prefix)):
                if entry.name.startswith(".") and entry.name.endswith(_TEMPORARY):
                    with suppress(FileNotFoundError):  # renamed or swept by another meanwhile
                        if entry.stat().st_mtime_ns < older_than_ms * 1_000_000:
                            Path(entry.path).unlink()

    def _place(self, path: str) -> Path:
        return self._root / check_path(path, "an object's path")

    def _load(self, place: Path, most: int | None = None) -> Stored | None:
        with _errors("get", self.url, place.name):
            try:
                file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                status = os.fstat(file)
                if most is not None and status.st_size > most:
                    raise too_large(self.url, place.name, status.st_size, most)
                data = _read(file, status.st_size)
            finally:
                os.close(file)
        return Stored(data, _tag(status, bytes(data[-_TAIL:])))

    def _version(self, place: Path) -> Version | None:
        """The version now, from the file's identity and its last bytes: a manifest's footer differs in every write.

        The inode and the time alone would not do: both can come round again within one tick of the clock.
        """
        with _errors("get", self.url, place.name):
            try:
                file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                status = os.fstat(file)
                return _tag(status, os.pread(file, _TAIL, max(0, status.st_size - _TAIL)))
            finally:
                os.close(file)

    def _write_temporary(self, place: Path, data: bytes | memoryview) -> Path:
        temporary = place.parent / f".{place.name}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            _make_directories(place.parent)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest[:_MOST]) :]
                os.fsync(file)
            finally:
                os.close(file)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary


def _tag(status: os.stat_result, tail: bytes) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}-{zlib.crc32(tail):x}"


def _read(file: int, size: int) -> Buffer:
    if size < _LARGE or not _slabs.can_lend:
        return _read_fresh(file, size)
    slab = _slabs.allocate(size)
    done = 0
    while done < size and (got := os.readv(file, [slab[done : min(size, done + _MOST)]])):
        done += got
    return _slabs.lend(slab, done)


def _read_fresh(file: int, size: int) -> bytes:
    parts: list[bytes] = []
    left = size
    while left > 0 and (part := os.read(file, min(left, _MOST))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _locked(place: Path, how: int) -> Iterator[None]:
    name = place.parent / f".{place.name}.lock"
    try:
        file = lock_file(name, how)
    except FileNotFoundError:
        _make_directories(place.parent)
        file = lock_file(name, how)
    try:
        yield
    finally:
        os.close(file)


def _make_directories(directory: Path) -> None:
    """Creates the directory and makes every new name on the way to it durable."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _sync_directory(each.parent)


class _DirectorySync:
    """Makes the names in a directory durable, once for all threads that wait for it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = threading.Lock()
        self._begun = 0
        self._done = 0

    def sync(self) -> None:
        # What was renamed before this line is covered by every sync that begins after it.
        wanted = self._begun + 1
        with self._turn:
            if self._done >= wanted:
                return
            self._begun += 1
            handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            self._done = self._begun


_syncs: dict[Path, _DirectorySync] = {}
os.register_at_fork(after_in_child=_syncs.clear)  # a thread that is not there any more may hold a turn


def _sync_directory(directory: Path) -> None:
    _syncs.setdefault(directory, _DirectorySync(directory)).sync()


@contextmanager
def _errors(verb: str, url: str, path: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise StorageError(f"cannot {verb} {path} in {url}: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot {verb} {path} in {url}: {error}", retryable=True) from error
