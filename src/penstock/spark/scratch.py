"""The folder where one process keeps Spark's temporary files: removed at exit, or by the next start after a kill.

Spark writes shuffle files, spilled blocks and sockets under `spark.local.dir` and `java.io.tmpdir`. Both point here.
A process that is killed cannot clean up, so each folder is held by a lock that the kernel lets go of when its
owner is gone; every start removes the folders nobody holds. (A lock, not the pid alone: pids are reused, and mean
nothing to another container that shares the temporary folder.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "penstock-"
_LOCK = "owner.lock"

# sockaddr_un holds 104 bytes on macOS and 108 on Linux; Spark's sockets are named ".<uuid>.sock".
_SOCKET_PATH_LIMIT = 103
_SOCKET_NAME = 1 + 1 + 36 + 5


class Scratch:
    """A private temporary folder, kept until `remove` or the end of the process."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = _parent() if parent is None else parent
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def fits_sockets(self) -> bool:
        """Whether a Unix socket made in here has a path short enough for the system."""
        return len(os.fsencode(self.path)) + _SOCKET_NAME <= _SOCKET_PATH_LIMIT

    def folder(self, name: str) -> Path:
        """A folder inside this one."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def remove(self) -> None:
        """Deletes the folder with everything in it; calling it again changes nothing."""
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


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


def _parent() -> Path:
    """The system's temporary folder, or /tmp where that is so deep (macOS) that no socket path would fit."""
    parent = Path(tempfile.gettempdir())
    longest = len(os.fsencode(parent)) + len(f"/{_PREFIX}4194304-xxxxxxxx") + _SOCKET_NAME
    shallow = Path("/tmp")
    if longest > _SOCKET_PATH_LIMIT and os.access(shallow, os.W_OK | os.X_OK):
        return shallow
    return parent
