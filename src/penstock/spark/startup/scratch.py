"""The folder where one process keeps Spark's temporary files: removed at exit, or by the next start after a kill.

Spark writes shuffle files, spilled blocks and sockets under `spark.local.dir` and `java.io.tmpdir`. Both point here.
A process that is killed cannot clean up, so each folder is held by a lock that the kernel lets go of when its
owner is gone; every start removes the folders that no process holds. (A lock, not the pid alone: pids are reused, and
mean nothing to another container that shares the temporary folder.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "penstock-"
_LOCK = "owner.lock"
_SHALLOW = Path("/tmp")

# sockaddr_un holds 104 bytes on macOS and 108 on Linux; Spark's sockets are named ".<uuid>.sock".
_SOCKET_PATH_LIMIT = 103
_SOCKET_NAME = 1 + 1 + 36 + 5


class Scratch:
    """A private temporary folder, kept until `remove` or the end of the process."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._shallow: Scratch | None = None

    def sockets(self) -> Path | None:
        """A folder whose path leaves room for a socket's name: this one, or one in /tmp; None when there is neither."""
        if _fits(self.path):
            return self.path
        if self._shallow is None and os.access(_SHALLOW, os.W_OK | os.X_OK) and self.path.parent != _SHALLOW:
            self._shallow = Scratch(_SHALLOW)
        return None if self._shallow is None else self._shallow.path

    def remove(self) -> None:
        """Deletes the folder with everything in it; calling it again changes nothing."""
        if self._shallow is not None:
            self._shallow.remove()
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_PATH_LIMIT


def sweep(parent: Path) -> list[Path]:
    """Removes the folders whose owner is gone, and returns them."""
    removed = []
    for path in parent.glob(f"{_PREFIX}[0-9]*-*"):
        if path.is_symlink() or not _abandoned(path):
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


def _abandoned(path: Path) -> bool:
    try:
        if path.stat().st_uid != os.getuid():
            return False
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return not _alive(path)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return not _alive(path)
    finally:
        os.close(lock)


def _alive(path: Path) -> bool:
    """Whether a process has the pid in the folder's name: its owner may be between making folder and lock."""
    try:
        os.kill(int(path.name.removeprefix(_PREFIX).partition("-")[0]), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
