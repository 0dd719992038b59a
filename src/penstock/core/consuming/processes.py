"""A group of worker processes: starts them, restarts them when a process ends or a source file changes, and ends them.

The processes are spawned: each process imports the program anew. A process ends when its parent is gone. A process of a
group can be ended alone, because a new process replaces it: so a call ends that exceeds its time limit.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.limits import TASK_KILL_SECONDS

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

LOOK_SECONDS: Final = 0.5
"""The seconds between two checks of the processes and the source files."""
BEGIN_SECONDS: Final = 5.0
"""A process that fails within this many seconds would fail again, so all processes end."""
REPLACED: Final = 75
"""The exit code of a process that ended because a call exceeded its time limit."""


# ── in the process that starts the others ────────────────────────────────────────────────────────────────────────────
class Supervisor:
    """A group of processes that each call a function, until they have ended or are told to end."""

    def __init__(
        self,
        target: Callable[..., None],
        calls: Sequence[tuple[object, ...]],
        say: Callable[[str], None],
        watched: Path | None = None,
    ) -> None:
        self._target = target
        self._calls = calls
        self._say = say
        self._watched = watched
        self._begun: list[tuple[SpawnProcess, float]] = []
        self._seen = self._sources()

    def run(self, wait: Callable[[float], bool]) -> int:
        """Runs until all processes have succeeded, or `wait` returns True; returns the exit code of a failed
        process.
        """
        self._begun = [self._begin(call) for call in self._calls]
        code = 0
        try:
            while not wait(LOOK_SECONDS):
                if self._watched is not None and self._has_changed():
                    self._say("a source file has changed: starting again")
                    self._end()
                    self._begun = [self._begin(call) for call in self._calls]
                codes = [process.exitcode for process, _ in self._begun]
                if self._watched is None and all(one == 0 for one in codes):
                    break
                if code := self._mend(codes):
                    break
        finally:
            self._end()
        return code

    def _mend(self, codes: list[int | None]) -> int:
        """Restarts failed processes; returns the exit code of a process that fails at its beginning."""
        for number, code in enumerate(codes):
            process, at = self._begun[number]
            if not code or (self._watched is not None and code != REPLACED):
                continue
            if 0 < code != REPLACED and time.monotonic() - at < BEGIN_SECONDS:
                return code
            self._say(f"process {process.pid} {_ending(code)}: starting another one")
            self._begun[number] = self._begin(self._calls[number])
        return 0

    def _begin(self, call: tuple[object, ...]) -> tuple[SpawnProcess, float]:
        from multiprocessing import get_context

        process = get_context("spawn").Process(target=_work, args=(self._target, *call))
        try:
            process.start()
        except RuntimeError as error:  # this is a worker process, which imports the program's main module
            raise ConfigError(
                'processes import the module that starts them: start them below if __name__ == "__main__":'
            ) from error
        return process, time.monotonic()

    def _end(self) -> None:
        """Lets the processes finish their current work, and ends them."""
        for process, _ in self._begun:
            process.terminate()
        for process, _ in self._begun:
            process.join()
        self._begun = []

    # ── source files ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _has_changed(self) -> bool:
        before, self._seen = self._seen, self._sources()
        return before != self._seen

    def _sources(self) -> dict[Path, int]:
        """Returns the time when each Python file below the folder was changed, hidden folders and installed packages
        left out."""
        found: dict[Path, int] = {}
        for path in self._watched.rglob("*.py") if self._watched is not None else ():
            parts = path.relative_to(self._watched).parts if self._watched is not None else ()
            if not any(part.startswith(".") or part in ("site-packages", "node_modules") for part in parts):
                with suppress(OSError):
                    found[path] = path.stat().st_mtime_ns
        return found


def _ending(code: int) -> str:
    if code == REPLACED:
        return "ended, as a call in it took longer than it may"
    if code == -signal.SIGALRM:
        return "was killed, as a call in it took longer than it may and kept Python from running"
    return f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"


# ── in each of the processes ─────────────────────────────────────────────────────────────────────────────────────────
class OneOfSeveral:
    """This process as a part of a group: it may end at any time, because a new process replaces it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._deadlines: dict[object, float] = {}
        self.ending = False
        """True if the process is to end: a call exceeded its time limit, and its thread continues."""

    def replace(self) -> None:
        """Ends the process once it has finished its other work."""
        self.ending = True

    @contextmanager
    def limited(self, limit: float) -> Iterator[None]:
        """Lets the system end the process when the block has not ended a few seconds after its time limit: a
        function in C may keep every Python thread from running.
        """
        mark = object()
        self._set(mark, time.monotonic() + limit + TASK_KILL_SECONDS)
        try:
            yield
        finally:
            self._set(mark, None)

    def _set(self, mark: object, deadline: float | None) -> None:
        with self._guard:
            if deadline is None:
                del self._deadlines[mark]
            else:
                self._deadlines[mark] = deadline
            # The default action of SIGALRM needs no Python thread: it ends the process.
            left = min(self._deadlines.values(), default=None)
            signal.setitimer(signal.ITIMER_REAL, 0 if left is None else max(0.001, left - time.monotonic()))


_here: OneOfSeveral | None = None


def one_of_several() -> OneOfSeveral | None:
    """Returns this process as a part of a group; None for any other process."""
    return _here


def _work(target: Callable[..., None], *given: object) -> None:
    """The main function of a process that a `Supervisor` has started."""
    global _here
    os.setsid()  # a Ctrl-C at the terminal is for the parent, which passes it on once
    threading.Thread(target=_follow_parent, name="penstock-parent", daemon=True).start()
    _here = OneOfSeveral()
    try:
        target(*given)
    finally:
        if _here.ending:  # without waiting for threads that cannot be ended
            import logging

            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(REPLACED)


def _follow_parent() -> None:
    """Ends this process, like a signal, when its parent is gone."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
