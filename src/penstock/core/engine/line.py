"""The line of processes that wait to write one store.

SQLite's write lock has no order: the process that tries at the right moment gets the lock, and another process may wait
for half a second. So a process that has waited for a moment takes a place in the line, and a process that has written
for a while lets the line go first. A place is a lock on one byte of a file beside the store: the byte whose number is
the time in microseconds. So earlier places are lower bytes, and the places of a process that dies are free at once.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows
    fcntl = None  # type: ignore[assignment]

from penstock.core.durable import copy_permissions

TURN_SECONDS = 0.005
"""The seconds for which a process writes before it checks whether others wait."""
PAUSE = 0.0005
"""The seconds between two checks of a waiting process."""
SUFFIX = "-line"
"""The suffix of the file's name, after the store's name."""
_UNKNOWN = -1
PATIENCE = 0.1
"""The seconds after which a process ignores the line, because a suspended process may be at its head."""


class Line:
    """The place of a process among the processes that wait to write a store."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._file = _UNKNOWN
        self.place = 0
        """The number of the locked byte; 0 when this process is not in the line."""

    def is_empty(self) -> bool:
        """Returns True when no other process waits."""
        return not self._opened() or self._free_before(0)

    def is_first(self) -> bool:
        """Returns True when no other process has waited for longer."""
        return self.place <= 1 or self._free_before(self.place)

    def stand(self) -> None:
        """Takes a place at the end of the line."""
        while not self.place and self._opened():
            place = time.monotonic_ns() // 1000
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            # another process is checking, or has waited since the same microsecond
            except (BlockingIOError, PermissionError):
                continue
            except OSError:
                return
            self.place = place

    def let_others_go(self) -> None:
        """Waits until this process is the first in the line, or its patience ends."""
        self.stand()
        until = time.monotonic() + PATIENCE
        while not self.is_first() and time.monotonic() < until:
            time.sleep(PAUSE)

    def leave(self) -> None:
        """Gives the place up."""
        if self.place:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self.place)
            self.place = 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self.place = _UNKNOWN, 0

    def _free_before(self, place: int) -> bool:
        """Returns True when no other process has an earlier place; 0 stands for any place."""
        length = max(0, place - 1)  # 0: to the end
        try:
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, length, 1)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # this file system has no locks, and so no line
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, length, 1)
        return True

    def _opened(self) -> bool:
        """Opens the file beside the store; returns False where this is not possible, and there is no line."""
        if self._file == _UNKNOWN and fcntl is not None:
            path = self._store + SUFFIX
            with suppress(OSError):
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                copy_permissions(self._store, path)
        return self._file >= 0
