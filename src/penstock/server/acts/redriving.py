"""Sending messages back a few at a time, so that what failed once is not overrun when it has just been mended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.observe.logs import Log

if TYPE_CHECKING:
    from penstock.events import Event
    from penstock.surface.queue import Queue

_log = Log("penstock.server")
STEP: Final = 0.2
"""Seconds between two portions."""


def redrive_slowly(
    queue: Queue,
    choice: Callable[[Event], bool] | None,
    count: int,
    rate: int,
    stopping: Callable[[], bool],
) -> threading.Thread:
    """Sends `count` messages back, `rate` a second, in a thread that ends with the server.

    What is sent back first and fails again lies behind those that still wait, and `count` ends it: no message is sent
    back for ever.
    """

    def work() -> None:
        left, begun, sent = count, time.monotonic(), 0
        while left > 0 and not stopping():
            due = min(left, int((time.monotonic() - begun) * rate) + 1 - sent)
            if due > 0:
                try:
                    done = queue.redrive(where=choice, limit=due)
                except PenstockError as error:
                    _log.warning("sending messages of %s back ended: %s", queue.name, error)
                    return
                if not done:
                    return
                left, sent = left - done, sent + done
            time.sleep(STEP)

    thread = threading.Thread(target=work, name=f"penstock-redrive-{queue.name}", daemon=True)
    thread.start()
    return thread
