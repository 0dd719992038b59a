"""Signals that end a program which works: the first lets it finish what it has in hand, one more ends it at once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType

POLL_SECONDS = 0.2
"""The system may give a signal to another thread, which does not end the main thread's wait: Python calls the handler
when that thread next runs."""
AGAIN_SECONDS = 1.0
"""A signal within so many seconds of the first is the same one: a parent passes on what the terminal sent to both."""


class StopSignals:
    """Within its block, the first SIGINT or SIGTERM is noted and does nothing else; one more ends the process at once.

    A `threading.Event` would not do: its `set` takes a lock that the interrupted thread may hold at that moment.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self.asked = False
        """True if one came."""
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
        """Waits for so long, or until a signal comes; whether one came."""
        deadline = time.monotonic() + seconds
        while not self.asked and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._came.get(timeout=min(left, POLL_SECONDS))
        return self.asked
