"""The lock that keeps a store to one writing process: a file beside the data, locked with flock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.durable import lock_file
from penstock.errors import Locked

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
