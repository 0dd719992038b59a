"""Ticket: a result under way that can be polled, waited for by threads, and awaited by event loops.

A `concurrent.futures.Future` costs 5 µs to make and resolve; a ticket without a waiter costs one object. A waiting
thread parks on its own lock. An event loop is woken once for all the tickets that one commit resolves.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.core.clock import Duration, seconds

if TYPE_CHECKING:  # a quarter of the time of `import penstock`, wasted for programs that await nothing
    import asyncio

    Waiter = threading.Lock | tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]
    """A thread parked on a lock of its own, or a future of an event loop."""

T = TypeVar("T")


class Ticket(Generic[T]):
    """A submission under way: ask `done()`, wait with `result()`, or `await` it."""

    __slots__ = ("_done", "_error", "_value", "_waiters")

    def __init__(self) -> None:
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[Waiter] = []

    def done(self) -> bool:
        """Returns True when the result or the failure is known."""
        return self._done

    def result(self, timeout: Duration | None = None) -> T:
        """Waits for the outcome and returns it, or raises what went wrong; TimeoutError after `timeout`."""
        if not self._done:
            limit = -1.0 if timeout is None else min(seconds(timeout, "timeout"), threading.TIMEOUT_MAX)
            parked = threading.Lock()
            parked.acquire()
            self._waiters.append(parked)
            # Checked again after enlisting: a resolver that missed this waiter has already set _done.
            if not self._done and not parked.acquire(timeout=limit):
                with suppress(ValueError):
                    self._waiters.remove(parked)
                if not self._done:
                    raise TimeoutError(f"not done after {timeout} s")
        return self._outcome()

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Waits for the outcome and returns the failure, or None."""
        try:
            self.result(timeout)
        except TimeoutError:
            if not self._done:
                raise
        except BaseException as error:
            if error is not self._error:
                raise
        return self._error

    def __await__(self) -> Generator[object, None, T]:
        if not self._done:
            import asyncio

            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()
            self._waiters.append((loop, woken))
            if not self._done:
                yield from woken.__await__()
        return self._outcome()

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def resolve(self, value: T) -> None:
        """Hands out the result; called by the issuer of the ticket."""
        self.set_outcome(value, None)
        wake((self,))

    def fail(self, error: BaseException) -> None:
        """Hands out a failure; called by the issuer of the ticket."""
        self.set_outcome(None, error)
        wake((self,))

    def set_outcome(self, value: T | None, error: BaseException | None) -> None:
        """Sets the outcome without waking anyone: set many, then `wake` them together."""
        self._value = value
        self._error = error
        self._done = True


def wake(tickets: Iterable[Ticket[Any]]) -> None:
    """Wakes all waiters of tickets that have their outcome; each event loop once."""
    wake_waiters([ticket._waiters for ticket in tickets])


def wake_waiters(waiting: Iterable[list[Waiter]]) -> None:
    """Wakes the waiters in some lists, and empties these: threads by their locks, each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiters in waiting:
        while waiters:
            try:
                waiter = waiters.pop()
            except IndexError:  # another waker has woken it
                break
            if isinstance(waiter, tuple):
                loops.setdefault(waiter[0], []).append(waiter[1])
            else:
                waiter.release()
    for loop, futures in loops.items():
        try:
            loop.call_soon_threadsafe(_wake_futures, futures)
        except RuntimeError:  # the loop was closed: no task waits there any more
            continue


def _wake_futures(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
