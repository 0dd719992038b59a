"""Several processes of one command: started, started again when one ends or a source file changes, and ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 0.5
"""Seconds between two looks at the processes, and at the source files."""
BEGIN_SECONDS = 5.0
"""A process that fails within so many seconds would fail again: everything ends."""


class Supervisor:
    """Processes that run one command each, until they have ended or are told to."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        say: Callable[[str], None],
        watched: Path | None = None,
    ) -> None:
        self._commands = commands
        self._environment = dict(environment)
        self._say = say
        self._watched = watched
        self._begun: list[tuple[subprocess.Popen[bytes], float]] = []
        self._seen = self._sources()

    def run(self, wait: Callable[[float], bool]) -> int:
        """Runs until all processes have ended well, or `wait` says to stop; returns the code of one that failed."""
        self._begun = [self._begin(command) for command in self._commands]
        code = 0
        try:
            while not wait(LOOK_SECONDS):
                if self._watched is not None and self._has_changed():
                    self._say("a source file has changed: starting again")
                    self._end()
                    self._begun = [self._begin(command) for command in self._commands]
                codes = [process.poll() for process, _ in self._begun]
                if self._watched is None and all(one == 0 for one in codes):
                    break
                if code := self._mend(codes):
                    break
        finally:
            self._end()
        return code

    def _mend(self, codes: list[int | None]) -> int:
        """Starts again what has failed; returns the exit code of a process that fails at its beginning."""
        for number, code in enumerate(codes):
            if not code or self._watched is not None:
                continue
            process, at = self._begun[number]
            if code > 0 and time.monotonic() - at < BEGIN_SECONDS:
                return code
            how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
            self._say(f"process {process.pid} {how}: starting another one")
            self._begun[number] = self._begin(self._commands[number])
        return 0

    def _begin(self, command: Sequence[str]) -> tuple[subprocess.Popen[bytes], float]:
        # In a session of its own: a Ctrl-C is for this process, which passes it on once.
        process = subprocess.Popen(command, env=self._environment, start_new_session=True)
        return process, time.monotonic()

    def _end(self) -> None:
        """Lets the processes finish what they have in hand."""
        for process, _ in self._begun:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process, _ in self._begun:
            process.wait()
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


def this_program() -> list[str]:
    """The beginning of the command line of another process of this program."""
    return [sys.executable, "-m", "penstock.cli"]
