"""The system calls the file engine makes, in one object, so that a test can make the N-th of them fail."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.durable import sync_file, sync_folder


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
