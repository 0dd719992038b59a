"""Ending when SIGINT or SIGTERM asks for it, with what is in hand finished first."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType

POLL_SECONDS = 0.2
"""The system may give a signal to another thread, which does not end the main thread's wait: Python calls the handler
when that thread next runs."""


class StopSignals:
    """Within its block, SIGINT and SIGTERM are noted and do nothing else.

    A `threading.Event` would not do: its `set` takes a lock that the interrupted thread may hold at that moment.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self.asked = False
        """Whether one came."""

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._came.put(number)

    def wait(self, seconds: float) -> bool:
        """Waits for so long, or until a signal comes; whether one came."""
        deadline = time.monotonic() + seconds
        while not self.asked and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._came.get(timeout=min(left, POLL_SECONDS))
        return self.asked
