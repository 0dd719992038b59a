"""Takes that wait: for a push, for a due time, for a lease that ends, in this process or another one.

No wake-up is lost: the topic's signal is noted before the try, and waiting returns at once when it has grown since.
Time in the store is the journal's own clock; a wait also ends when that much real time has gone by, so that a clock
that stands still (in a test) cannot hold it for ever.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from sys import modules
from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.errors import Closed, OutcomeUnknown, PenstockError
from penstock.journal.writer import WriteRequest
from penstock.observe.tracing import received
from penstock.queue import metrics
from penstock.queue.delivery import LeaseHandle, release_in
from penstock.queue.operations.groups import group_for
from penstock.queue.operations.take import Request, Taken, take
from penstock.surface.delivery import Delivery

if TYPE_CHECKING:
    from penstock.journal.commit import Commit
    from penstock.queue.queue import LocalQueue

LONGEST_NAP = 1.0
"""Seconds after which a waiting take looks again even if nothing was due: wall clocks can be set."""
SHORT_NAP = 0.05
"""The same under a clock of one's own, which may jump at any time."""
SHORTEST_NAP = 0.001


def take_in(commit: Commit, queue: LocalQueue, request: Request) -> Taken:
    """One try, and a lease if it finds something."""
    state = queue._cache.state(commit, queue.name)
    hold = LeaseHandle(queue, request.label, request.consumer)
    return take(commit, state, group_for(commit, state, request.label), request, hold)


class WaitBudget:
    """How long a take has waited, and how long it may sleep before its next try."""

    __slots__ = ("_clock", "_deadline", "_real_deadline", "_started", "exact")

    def __init__(self, queue: LocalQueue, wait: float) -> None:
        self._clock = queue._core.clock
        self.exact = isinstance(self._clock, SystemClock)
        self._started = time.perf_counter()
        self._deadline = self._clock.monotonic() + wait
        self._real_deadline = time.monotonic() + wait

    def nap(self, next_ms: int) -> float:
        """Seconds to sleep at the most; 0 when the time is up."""
        left = min(self._deadline - self._clock.monotonic(), self._real_deadline - time.monotonic())
        if left <= 0:
            return 0.0
        nap = min(left, LONGEST_NAP if self.exact else SHORT_NAP)
        if next_ms:
            nap = min(nap, max((next_ms - self._clock.now_ms()) / 1000, SHORTEST_NAP))
        return nap

    def waited(self) -> float:
        return time.perf_counter() - self._started


def take_waiting(
    queue: LocalQueue, request: Request, wait: float, stopping: threading.Event | None = None
) -> list[Delivery]:
    """Tries until there is something, or the time is up, or the journal is closed."""
    signal = queue._signal
    budget: WaitBudget | None = None
    began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
    while True:
        seen = signal.version
        operation = WriteRequest(take_in, 0, (queue, request), True)
        try:
            taken = queue._writer.run(operation)
        except BaseException:
            # A signal's, after the commit; or the commit may turn up later: its caller never hears what that took.
            if operation.error is None or isinstance(operation.error, OutcomeUnknown):
                _return_unheard(queue, operation)
            raise
        if taken.deliveries:
            if began_ns:
                received(queue.name, [delivery.event for delivery in taken.deliveries], began_ns)
            return taken.deliveries if budget is None else _woken(taken, budget)
        if taken.more:
            continue
        if not wait or (stopping is not None and stopping.is_set()):
            return []
        if budget is None:
            budget = WaitBudget(queue, wait)
            metrics.waits_started.inc()
        nap = budget.nap(taken.next_ms)
        if not nap:
            return _timed_out(budget)
        with queue._core.hub:
            signal.wait(seen, nap)
        _check_open(queue)


async def take_waiting_async(
    queue: LocalQueue, request: Request, wait: float, stopping: threading.Event | None = None
) -> list[Delivery]:
    """`take_waiting` for an event loop: the tries are committed by the writer's own thread."""
    signal = queue._signal
    budget: WaitBudget | None = None
    began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
    while True:
        seen = signal.version
        taken = await _take_once(queue, request)
        if taken.deliveries:
            if began_ns:
                received(queue.name, [delivery.event for delivery in taken.deliveries], began_ns)
            return taken.deliveries if budget is None else _woken(taken, budget)
        if taken.more:
            continue
        if not wait or (stopping is not None and stopping.is_set()):
            return []
        if budget is None:
            budget = WaitBudget(queue, wait)
            metrics.waits_started.inc()
        nap = budget.nap(taken.next_ms)
        if not nap:
            return _timed_out(budget)
        with queue._core.hub:
            await signal.wait_async(seen, nap)
        _check_open(queue)


async def _take_once(queue: LocalQueue, request: Request) -> Taken:
    import asyncio

    request_of_take = WriteRequest(take_in, 0, (queue, request), True)
    try:
        return await queue._writer.submit(request_of_take)
    except (asyncio.CancelledError, OutcomeUnknown):
        # The take may go on without us: what it finds is given back by the operation that comes after it.
        _return_unheard(queue, request_of_take)
        raise


def _return_unheard(queue: LocalQueue, operation: WriteRequest[Taken]) -> None:
    with suppress(PenstockError):  # what ended the caller's wait matters more
        queue._writer.submit(WriteRequest(lambda commit: _give_back(commit, queue, operation.value), relaxed=True))


def _give_back(commit: Commit, queue: LocalQueue, taken: Taken | None) -> None:
    state = queue._cache.find(commit, queue.name)
    if taken is not None and state is not None:
        release_in(commit, state, taken.deliveries)


def _check_open(queue: LocalQueue) -> None:
    if queue._core.closed:
        metrics.waits_cancelled.inc()
        raise Closed(f"the journal was closed while a take from queue {queue.name!r} waited")


def _woken(taken: Taken, budget: WaitBudget) -> list[Delivery]:
    metrics.waits_woken.inc()
    metrics.wait_seconds.observe(budget.waited())
    return taken.deliveries


def _timed_out(budget: WaitBudget) -> list[Delivery]:
    metrics.waits_timed_out.inc()
    metrics.wait_seconds.observe(budget.waited())
    return []
