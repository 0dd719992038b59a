"""A ticket for the outcome of a message."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError, ReplyFailed
from penstock.events import Event, Receipt
from penstock.queue.results.awaiting import follower_of
from penstock.queue.results.reply import RESULT, SUFFIX, read_reply
from penstock.ticket import Ticket

if TYPE_CHECKING:
    import asyncio

    from penstock.surface.queue import Queue


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
        self._follower = follower_of(queue.journal, queue.name + SUFFIX)
        self._found: Event | None = None

    def __repr__(self) -> str:
        return f"<ticket for message {self.receipt.seq} of queue {self.queue.name!r}>"

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self._poll() is not None

    def result(self, timeout: Seconds | None = None) -> Any:
        """Waits for the outcome: what the handler returned. ReplyFailed when the message was given up, TimeoutError
        when there is no outcome after `timeout`: it may still come."""
        deadline = _deadline(timeout)
        while True:
            waiting = self._enlist()
            try:
                found = self._poll() or (waiting.result(self._left(deadline)) if waiting else None)
            except TimeoutError:
                raise self._late() from None
            finally:
                self._leave(waiting)
            if found is not None:
                return self._outcome(found)

    async def result_async(self, timeout: Seconds | None = None) -> Any:
        """`result` for an event loop."""
        import asyncio

        deadline = _deadline(timeout)
        while True:
            enlisting = asyncio.ensure_future(asyncio.to_thread(self._enlist))
            try:
                waiting = await asyncio.shield(enlisting)
            except asyncio.CancelledError:
                enlisting.add_done_callback(self._leave_late)
                raise
            try:
                found = await asyncio.to_thread(self._poll)
                if found is None and waiting is not None:
                    async with asyncio.timeout(self._left(deadline)):
                        found = await waiting
            except TimeoutError:
                raise self._late() from None
            finally:
                self._leave(waiting)
            if found is not None:
                return self._outcome(found)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result_async().__await__()

    def _poll(self) -> Event | None:
        if self._found is None:
            if self.queue.journal.closed:
                raise Closed(f"the journal was closed while {self!r} waited")
            self._found = next(iter(self._topic.read(key=self._token, reverse=True, limit=1)), None)
        return self._found

    def _enlist(self) -> Ticket[Event | None] | None:
        """Waits for the outcome from here on; None where it is known."""
        if self._found is not None:
            return None
        if self.queue.journal.closed:
            raise Closed(f"the journal was closed while {self!r} waited")
        return self._follower.enlist(self._topic, self._token)

    def _leave(self, waiting: Ticket[Event | None] | None) -> None:
        if waiting is not None:
            self._follower.leave(self._token, waiting)

    def _leave_late(self, enlisting: asyncio.Task[Ticket[Event | None] | None]) -> None:
        """The caller was cancelled while it enlisted, and cannot leave itself."""
        if not enlisting.cancelled() and enlisting.exception() is None:
            self._leave(enlisting.result())

    def _left(self, deadline: float | None) -> float | None:
        """How long to wait still; None for ever."""
        if deadline is None:
            return None
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        return left

    def _late(self) -> TimeoutError:
        return TimeoutError(f"message {self.receipt.seq} of queue {self.queue.name!r} has no outcome yet")

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


def _deadline(timeout: Seconds | None) -> float | None:
    return None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
