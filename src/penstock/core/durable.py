"""Files that survive a power cut: they are written under another name, synced and renamed, and their folder is synced.

Every file penstock writes beside a store (backups, exports, sealed history, manifests) goes through here. A file
made from a store is as private as the store: `copy_permissions` gives it the store's permissions.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import StorageError

_LASTING = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS}
"""Errors of the system that another attempt does not solve."""


@contextmanager
def as_storage_error(doing: str) -> Iterator[None]:
    """Turns an error of the system into a StorageError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {doing}: {error}", retryable=error.errno not in _LASTING) from error


def lock_file(path: str | os.PathLike[str], how: int) -> int:
    """Opens a lock file, creating it if necessary, and locks it with flock. Raises BlockingIOError as flock does.

    The lock is on the file that has this name: a lock on a removed file would exclude no other process.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, how)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # noqa: PTH116 - as fast as can be
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def sync_file(descriptor: int) -> None:
    """Puts a file's bytes on disk; on macOS also out of the disk's own cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes files created, renamed or removed in a folder survive a power cut."""
    sync_path(folder)


def sync_path(path: str | os.PathLike[str]) -> None:
    """Puts a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(partial: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Syncs a finished file, or folder of files, and renames it to its final name."""
    source, final = Path(partial), Path(target)
    _sync_all(source)
    source.replace(final)
    sync_folder(final.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file as a whole: after a power cut the old or the new file is there."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        move_into_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder and its missing parents, and syncs them, because a lost folder loses its files."""
    folder = Path(path).absolute()
    missing = [folder, *folder.parents]
    missing = missing[: next(at for at, one in enumerate(missing) if one.is_dir())]
    for one in reversed(missing):
        with suppress(FileExistsError):
            one.mkdir()
        sync_folder(one.parent)


def copy_permissions(store: str | os.PathLike[str] | None, made: str | os.PathLike[str]) -> None:
    """Gives a file or folder made from a store the store's permissions; does nothing when the store has no files."""
    if store is None or not Path(store).exists():
        return
    kept = _readable(Path(store))
    target = Path(made)
    for folder, _, files in os.walk(target):
        for name in files:
            _limit(Path(folder) / name, kept)
        _limit(Path(folder), kept | (kept & 0o444) >> 2)
    if target.is_file():
        _limit(target, kept)


def _readable(store: Path) -> int:
    """Returns the permissions of a store: those of its files, unless its folder's are narrower."""
    mode = stat.S_IMODE(store.stat().st_mode) & 0o666
    if store.is_dir():
        for name in ("data", "CURRENT"):
            with suppress(FileNotFoundError):
                mode &= stat.S_IMODE((store / name).stat().st_mode)
    return mode


def _limit(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)


def _sync_all(path: Path) -> None:
    for folder, _, files in os.walk(path):
        for name in files:
            sync_path(Path(folder) / name)
        sync_folder(folder)
    if path.is_file():
        sync_path(path)
