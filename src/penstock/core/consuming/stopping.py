"""Signals that end a working program: the first signal lets it finish its current work, a second signal ends it at
once.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType

POLL_SECONDS = 0.2
"""The seconds between two checks for a signal.

The system may deliver a signal to another thread, which does not end the main thread's wait.
"""
AGAIN_SECONDS = 1.0
"""A signal within this many seconds of the first signal is the same signal: a parent passes on a signal that the
terminal sent to both processes.
"""


class StopSignals:
    """A block in which the first SIGINT or SIGTERM is only noted; a second signal ends the process at once.

    A `threading.Event` does not work here: `set` takes a lock, which the interrupted thread may hold.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self.asked = False
        """True if a signal arrived."""
        self._first = 0.0

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._first = True, time.monotonic()
            self._came.put(number)
        elif time.monotonic() - self._first > AGAIN_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def wait(self, seconds: float) -> bool:
        """Waits for this time, or until a signal arrives; returns whether a signal arrived."""
        deadline = time.monotonic() + seconds
        while not self.asked and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._came.get(timeout=min(left, POLL_SECONDS))
        return self.asked
