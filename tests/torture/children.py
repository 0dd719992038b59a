"""Children that may be killed, die or hang: forked from a process that has opened no store and has no threads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from waiting import DEADLINE


def forked(body: Callable[[], None]) -> int:
    """Runs something in a child, which ends with 0, or 1 and a traceback; returns its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """Waits for a child, with a limit; its code, or minus the signal it died of."""
    deadline = time.monotonic() + DEADLINE
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -1000
        time.sleep(0.002)


def import_ahead(work: Callable[[Path], None]) -> None:
    """Imports what children will import, before the forks, so that each begins at once: a child does `work` to see."""
    folder = Path(tempfile.mkdtemp())

    def look() -> None:
        work(folder)
        (folder / "modules").write_text(json.dumps(sorted(sys.modules)))

    if code := ended(forked(look)):
        raise SystemExit(f"a child that nobody harmed ended with {code}")
    for name in json.loads((folder / "modules").read_text()):
        with suppress(ImportError):
            import_module(name)
    shutil.rmtree(folder)
