"""A ticket for the outcome of a message."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError, ReplyFailed
from penstock.events import Event, Receipt
from penstock.queue.results.reply import RESULT, SUFFIX, read_reply

if TYPE_CHECKING:
    from penstock.surface.queue import Queue

LONGEST_NAP = 0.5
SHORTEST_NAP = 0.01


class ResultTicket:
    """Stands for the outcome of a message that was pushed with `reply=True`: wait with `result()`, or `await` it."""

    def __init__(self, queue: Queue, receipt: Receipt, token: str) -> None:
        self.queue = queue
        self.receipt = receipt
        """Where the message is."""
        if receipt.duplicate:
            original = queue.journal.topic(queue.name).get(receipt.seq)
            wanted = None if original is None else read_reply(original.headers)
            if wanted is None:
                raise ConfigError(
                    f"this push repeats message {receipt.seq} of queue {queue.name!r}, which wants no reply or is gone"
                )
            token = wanted[1]
        self._token = token
        self._topic = queue.journal.topic(queue.name + SUFFIX)
        self._found: Event | None = None

    def __repr__(self) -> str:
        return f"<ticket for message {self.receipt.seq} of queue {self.queue.name!r}>"

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self._look() is not None

    def result(self, timeout: Seconds | None = None) -> Any:
        """Waits for the outcome: what the handler returned. ReplyFailed when the message was given up, TimeoutError
        when there is no outcome after `timeout`: it may still come."""
        deadline = _deadline(timeout)
        nap = SHORTEST_NAP
        while (found := self._look()) is None:
            nap = self._nap(deadline, nap)
            time.sleep(nap)
        return self._outcome(found)

    async def result_async(self, timeout: Seconds | None = None) -> Any:
        """`result` for an event loop."""
        import asyncio

        deadline = _deadline(timeout)
        nap = SHORTEST_NAP
        while (found := await asyncio.to_thread(self._look)) is None:
            nap = self._nap(deadline, nap)
            await asyncio.sleep(nap)
        return self._outcome(found)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result_async().__await__()

    def _look(self) -> Event | None:
        if self._found is None:
            if self.queue.journal.closed:
                raise Closed(f"the journal was closed while {self!r} waited")
            self._found = next(iter(self._topic.read(key=self._token, reverse=True, limit=1)), None)
        return self._found

    def _nap(self, deadline: float, nap: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"message {self.receipt.seq} of queue {self.queue.name!r} has no outcome yet")
        return min(left, nap * 1.5, LONGEST_NAP)

    def _outcome(self, found: Event) -> Any:
        if found.kind == RESULT:
            return found.payload
        why = found.payload
        raise ReplyFailed(
            f"message {self.receipt.seq} of queue {self.queue.name!r} was given up ({why['reason']}): "
            f"{why.get('error') or 'no error was given'}",
            reason=why["reason"],
            error=why.get("error"),
            traceback=why.get("traceback"),
        )


def _deadline(timeout: Seconds | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + seconds(timeout, "timeout")
