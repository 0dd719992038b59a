"""The owners of leases and fences that last "until the process ends", and whether their process still runs.

An owner is one open journal, or one fence, of one process: `token:pid:start`, with the process's start time, because
pids are reused.
"""

from __future__ import annotations

import os
from functools import cache

from penstock.core.engine.base import process_stat

_open: set[str] = set()
# A child inherits its parent's journals, which may be gone while the child still runs.
os.register_at_fork(after_in_child=_open.clear)


def new_owner() -> str:
    """Returns a new owner's name."""
    pid = os.getpid()
    owner = f"{os.urandom(6).hex()}:{pid}:{_started(pid)}"
    _open.add(owner)
    return owner


@cache
def this_host() -> str:
    """Returns the name of this machine."""
    return os.uname().nodename


def this_process() -> str:
    """Returns the default name of a worker: machine and process."""
    return f"{this_host()}:{os.getpid()}"


def retire_owner(owner: str) -> None:
    """Notes that an owner is closed; its endless leases are free."""
    _open.discard(owner)


def is_alive(owner: str) -> bool:
    """Returns True if the owner of this name is still open, as far as this machine can tell."""
    if owner in _open:
        return True
    try:
        _, pid_text, started = owner.split(":")
        pid = int(pid_text)
    except ValueError:
        return False
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) == started


def _started(pid: int) -> str:
    """Returns the time when a process started, in the kernel's own ticks; empty where the system does not say, or when
    it has ended.

    An ended process is listed until its parent asks for its result.
    """
    found = process_stat(pid)
    return "" if not found or found[0] in "ZX" else found[19]
