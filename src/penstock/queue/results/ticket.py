"""Waiting for outcomes: tickets, and one thread that follows a queue's results for all of a journal, while any waits.

No outcome is missed: a ticket enlists, and only then reads what is there already; what comes later, the thread sees.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError, PenstockError, PositionTrimmed, ReplyFailed
from penstock.events import Event, Receipt
from penstock.queue.results.reply import RESULT, SUFFIX, read_reply
from penstock.ticket import Ticket, wake

if TYPE_CHECKING:
    import asyncio

    from penstock.surface.journal import Journal
    from penstock.surface.queue import Queue
    from penstock.surface.subscription import Subscription
    from penstock.surface.topic import Topic

IDLE = 5.0
"""Seconds without a waiter after which the thread ends."""


class ResultsFollower:
    """Those who wait for outcomes in one topic of results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Ticket[Event | None]]] = {}
        self._following: Subscription | None = None

    def enlist(self, topic: Topic, token: str) -> Ticket[Event | None]:
        """A ticket that is resolved when the outcome comes; with None when the caller has to read the topic again."""
        ticket: Ticket[Event | None] = Ticket()
        with self._lock:
            self._waiting.setdefault(token, []).append(ticket)
            if self._following is None:
                try:
                    following = topic.subscribe("latest")
                    name = f"penstock-results-{topic.name}"
                    threading.Thread(target=self._run, args=(following,), name=name, daemon=True).start()
                except BaseException:
                    del self._waiting[token]
                    raise
                self._following = following  # only now: without a thread the next to wait begins anew
        return ticket

    def leave(self, token: str, ticket: Ticket[Event | None]) -> None:
        """No caller waits with this ticket any more."""
        with self._lock:
            tickets = self._waiting.get(token, [])
            if ticket in tickets:
                tickets.remove(ticket)
            if not tickets:
                self._waiting.pop(token, None)

    def _run(self, following: Subscription) -> None:
        outcome: BaseException | None = None
        try:
            while (event := following.next(IDLE)) is not None or not self._is_idle():
                if event is not None and event.key is not None:
                    self._tell(event.key, event)
        except PositionTrimmed:
            pass  # those who wait read the topic again, and enlist anew
        except PenstockError as error:
            outcome = error
        finally:
            following.close()
            with self._lock:
                if self._following is following:
                    self._following = None
                rest = [ticket for tickets in self._waiting.values() for ticket in tickets]
                self._waiting.clear()
            for ticket in rest:
                ticket.set_outcome(None, outcome)
            wake(rest)

    def _is_idle(self) -> bool:
        """Whether no caller waits; then the next one to come begins anew."""
        with self._lock:
            if self._waiting:
                return False
            self._following = None
            return True

    def _tell(self, token: str, event: Event) -> None:
        with self._lock:
            tickets = self._waiting.pop(token, [])
        for ticket in tickets:
            ticket.set_outcome(event, None)
        wake(tickets)


# A follower knows no journal but while its thread runs: it would keep the journal, which is its key, alive.
_followers: WeakKeyDictionary[Journal, dict[str, ResultsFollower]] = WeakKeyDictionary()
_making = threading.Lock()


def follower_of(journal: Journal, topic: str) -> ResultsFollower:
    """The one follower that a journal has of a topic of results."""
    with _making:
        return _followers.setdefault(journal, {}).setdefault(topic, ResultsFollower())


# ── tickets ───────────────────────────────────────────────────────────────────────────────────────────────────────────
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
