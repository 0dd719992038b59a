"""Workers: a handler over a queue, several messages at a time.

The hands are threads, as many as there are messages that are handled at the same time. A hand that has handled a
message acknowledges it and takes the next one in the same commit. When there is no next one, a single hand waits for
messages, and the others wait for that hand. The worker's own thread renews the leases of everything in hand. Stopping
finishes what has begun and gives back what has not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import UTC, datetime
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.clock import Duration, SystemClock, seconds
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.worker import Worker
from penstock.core.journal.owners import this_process
from penstock.core.model.failure import check_nack, describe, trim_traceback
from penstock.core.model.take import TakeRequest
from penstock.core.names import check_items, check_whole
from penstock.core.observe.logs import Log
from penstock.core.observe.tracing import ActiveSpan, handling
from penstock.core.queue import metrics
from penstock.core.queue.policy import Retry
from penstock.core.queue.results import ack_with, wants_result
from penstock.core.units import show_duration
from penstock.errors import (
    Closed,
    ConfigError,
    FenceActive,
    OutcomeUnknown,
    PenstockError,
    StaleDelivery,
    StorageError,
    UnknownTask,
)

if TYPE_CHECKING:
    from penstock.core.surface.queue import Queue


# ── what surrounds a handler ─────────────────────────────────────────────────────────────────────────────────────────
log = Log("penstock.queue")


class Middleware:
    """Hooks around a worker's handler; override those you need."""

    def before(self, delivery: Delivery) -> None:
        """Runs before the handler gets a delivery. An exception counts as the handler's failure."""

    def after(self, delivery: Delivery, result: object) -> None:
        """Runs after the handler returned."""

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        """Runs after the handler raised. Settling the delivery here decides its outcome."""


INFO = 20
"""The level of `logging.INFO`, which need not be imported for that."""

_BECOMES = {
    "requeued": "it will be tried again",
    "dead": "given up: it is a dead letter now",
    "failed": "given up: it stays in its queue, failed",
    "dropped": "given up",
}


def log_failure(delivery: Delivery, error: BaseException) -> None:
    """Logs a handler's failure with its traceback: an error once the message is given up, a warning before."""
    if delivery._outcome is None:
        becomes = "settled by its handler" if delivery._settled else "it comes again when its lease ends"
    else:
        becomes = _BECOMES[delivery._outcome]
    say = log.warning if delivery._outcome in (None, "requeued") else log.error
    trim_traceback(error)
    say("%r failed, %s: %s", delivery, becomes, describe(error), exc_info=error)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

IDLE = 3600.0
"""The longest wait of one take; stopping ends it at once."""
RENEW_SHARE = 3
"""A lease is renewed when this fraction of it has passed."""
GLANCE = 0.01
"""Seconds between two looks at a clock that is not the system's."""


class QueueWorker(Worker):
    """Hands messages to a handler until stopped."""

    def __init__(
        self,
        queue: Queue,
        handler: Callable[..., Any],
        group: str,
        consumer: str | None,
        lease: Duration | None,
        middleware: Iterable[Middleware],
        concurrency: int,
        ahead: int | None,
    ) -> None:
        super().__init__(f"{queue.name}:{consumer or group}", queue.journal, handler)
        check_whole(concurrency, "concurrency")
        if ahead is not None:
            check_whole(ahead, "ahead", 0)
        self.queue = queue
        self._backend = queue._backend
        self._concurrency = concurrency
        self._capacity = concurrency + (ahead or 0)
        self._lease = None if lease is None else seconds(lease, "lease")
        self._taker = consumer or this_process()
        self._wanted = TakeRequest(1, group, self._taker, IDLE, self._lease, since=datetime.now(UTC))
        self._chain = check_items(middleware, "middleware")
        for one in self._chain:
            if not isinstance(one, Middleware):
                raise ConfigError(f"middleware must be Middleware objects, not {one!r:.80}")
        self._done = metrics.handled.labels(queue=queue.name, outcome="done")
        self._failed_ones = metrics.handled.labels(queue=queue.name, outcome="failed")
        self._durations = metrics.handling_seconds.labels(queue=queue.name)
        self._change = threading.Condition()
        """Guards what follows; the hands that have nothing to do wait for it."""
        self._in_hand: set[Delivery] = set()
        self._ahead: deque[Delivery] = deque()
        """Those in hand that no hand has begun with, the next one first."""
        self._promised = 0
        """The number of messages that the acknowledgements under way may find beyond the place that each makes free."""
        self._taking = False
        """True if a hand waits for messages."""
        self._hands: list[threading.Thread] = []
        self._waiting = 0
        """The number of hands that have nothing to do."""
        self._ending = threading.Event()
        """Set when the run under way is to end: the worker was stopped, or has failed."""
        self._error: BaseException | None = None
        """The error of the run under way."""

    def _work(self) -> None:
        """Runs until the worker is stopped, or fails."""
        self._ending = threading.Event()  # before the look at `_stopping`: who stops the worker sets both
        if self._stopping.is_set():
            self._ending.set()
        self._error = None
        renewals = _Renewals(self)
        try:
            with self._change:
                self._add_hand(copy_context())
            renewals.keep(self._ending.wait)
        finally:
            self._end()
            self._give_back_rest()
            for hand in self._hands:  # those that the last of them start are among them
                renewals.keep(partial(_is_over, hand))
            self._hands = []
            self._give_back([delivery for delivery in self._in_hand if not delivery._settled])
            self._in_hand.clear()
            self._ahead.clear()
        if self._failure is not None:
            raise self._failure
        if self._error is not None:
            raise self._error
        with suppress(PenstockError):  # one that cannot say that it has ended is listed as gone
            self.queue._leave(self._wanted.group, self._taker)

    def _end(self) -> None:
        """Lets the hands end, each after what it has begun."""
        self._ending.set()
        self._backend.nudge()
        with self._change:
            self._change.notify_all()

    def _nudge(self) -> None:
        self._end()

    def _fail(self, error: BaseException) -> None:
        """Ends the worker, which then raises this."""
        self._failure = self._failure or error
        self._stopping.set()
        self._end()

    def _check_may_wait(self) -> None:
        self._backend.check_may_wait()

    def _give_back_rest(self) -> None:
        """Gives back what no hand has begun with."""
        with self._change:
            rest = list(self._ahead)
            self._ahead.clear()
        self._give_back(rest)

    def _give_back(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._backend.release(deliveries)
            with self._change:
                self._in_hand.difference_update(deliveries)

    # ── the hands ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _add_hand(self, context: Context) -> None:
        """Starts a hand, which runs in a copy of the worker's context."""
        name = f"penstock-{self.name}-{len(self._hands)}"
        run = context.copy().run
        hand = threading.Thread(target=run, args=(self._run_hand, context), name=name, daemon=True)
        hand.start()
        self._hands.append(hand)

    def _run_hand(self, context: Context) -> None:
        """Works until the run ends; an error of a take ends it, an error of a message the worker."""
        try:
            self._handle_all(context)
        except BaseException as error:
            self._error = self._error or error
            self._end()

    def _handle_all(self, context: Context) -> None:
        while (delivery := self._next(context)) is not None:
            try:
                while delivery is not None:
                    delivery = self._handle(delivery)
            except BaseException as error:
                self._fail(error)

    def _next(self, context: Context) -> Delivery | None:
        """Waits for a message to begin with; None when the run ends. One hand takes, the others wait for it."""
        while True:
            with self._change:
                self._waiting += 1
                self._change.wait_for(lambda: self._ahead or not self._taking or self._ending.is_set())
                self._waiting -= 1
                if (delivery := self._begin()) is not None:
                    return delivery
                if self._ending.is_set():
                    break
                self._taking = True
                room = self._capacity - len(self._in_hand) - self._promised
            try:
                self._take(room, IDLE)
            finally:
                self._taking = False
            with self._change:
                if (delivery := self._begin()) is not None:
                    self._engage(context)
                    return delivery
        self._give_back_rest()
        return None

    def _take(self, limit: int, wait: float) -> None:
        """Takes messages, which then wait for a hand."""
        found = self._backend.take(replace(self._wanted, limit=limit, wait=wait), self._ending)
        with self._change:
            self._in_hand.update(found)
            self._ahead.extend(found)

    def _begin(self) -> Delivery | None:
        """Returns the next of the messages in hand, if there is one and the run does not end."""
        return self._ahead.popleft() if self._ahead and not self._ending.is_set() else None

    def _engage(self, context: Context) -> None:
        """Wakes hands for what is left, and one to wait for more; starts hands where there are not enough."""
        wanted = len(self._ahead) + (len(self._in_hand) + self._promised < self._capacity)
        if wanted:
            self._change.notify(wanted)
            for _ in range(min(wanted - self._waiting, self._concurrency - len(self._hands))):
                self._add_hand(context)

    # ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _handle(self, delivery: Delivery) -> Delivery | None:
        """Gives a message to the handler and settles it; returns the next one, if there is one."""
        found: list[Delivery] = []
        begun = time.perf_counter()
        try:
            self._enter(delivery)
            result = self._call_handler(delivery, self._span(delivery))
        except Exception as error:
            self._failed(delivery, error, begun)
        except BaseException:  # the process is ending, which is not the message's fault
            delivery.release()
            raise
        else:
            found = self._handled(delivery, result, begun)
        finally:
            with self._change:
                self._in_hand.discard(delivery)
                self._in_hand.update(found)
                self._ahead.extend(found)
                following = self._begin()
        return following

    def _enter(self, delivery: Delivery) -> None:
        for middleware in self._chain:
            middleware.before(delivery)

    def _handled(self, delivery: Delivery, result: object, begun: float) -> list[Delivery]:
        """Settles what the handler is done with, and returns what comes next."""
        self._note_handled(delivery, result, begun)
        found: list[Delivery] = []
        if not delivery._settled:
            if self._ending.is_set():
                self._tell(partial(ack_with, delivery, result), delivery)
            else:
                self._tell(lambda: found.extend(self._ack_and_take(delivery, result)), delivery)
        return found

    def _note_handled(self, delivery: Delivery, result: object, begun: float) -> None:
        for middleware in reversed(self._chain):
            self._tell(partial(middleware.after, delivery, result), delivery)
        took = time.perf_counter() - begun
        self._done.inc()
        self._durations.observe(took)
        if log.isEnabledFor(INFO):
            name, kind, shown = self.queue.name, delivery.kind, show_duration(took)
            log.info("%s#%d %s done in %s, attempt %d", name, delivery.seq, kind, shown, delivery.attempt)

    def _ack_and_take(self, delivery: Delivery, result: object) -> list[Delivery]:
        """Settles what was handled and takes what comes next, in one commit."""
        with self._change:
            free = self._capacity - self._concurrency - len(self._ahead) - self._promised
            more = 0 if self._taking else max(0, free)
            self._promised += more
        try:
            answer = result if wants_result(delivery) else None
            found = self._backend.ack_and_take(delivery, answer, replace(self._wanted, limit=1 + more, wait=0.0))
        except (Closed, StaleDelivery, OutcomeUnknown):
            raise
        except Exception:  # what keeps the take from its message must not keep the acknowledgement
            ack_with(delivery, result)
            return []
        finally:
            with self._change:
                self._promised -= more
        delivery._settled = True
        return found

    def _failed(self, delivery: Delivery, error: Exception, begun: float) -> None:
        """Tells the middleware of a failure; if that has not settled the message, gives it back, by the policy."""
        for middleware in reversed(self._chain):
            self._tell(partial(middleware.failure, delivery, error), delivery)
        self._failed_ones.inc()
        self._durations.observe(time.perf_counter() - begun)
        if not delivery._settled:
            # After a while, unless the policy says when.
            nack = check_nack(error, default_delay=Retry.WORKER.delay(delivery.attempt))
            self._tell(partial(delivery._nack, nack), delivery)
        if not isinstance(error, UnknownTask):  # its messages wait, and that is logged once a minute
            log_failure(delivery, error)

    def _span(self, delivery: Delivery) -> ActiveSpan | None:
        traced = "opentelemetry.trace" in modules
        return handling(self.queue.name, delivery.event, delivery.attempt) if traced else None

    def _tell(self, hook: Callable[[], object], delivery: Delivery) -> None:
        """Calls a hook; a failing hook must not change the message's outcome or end the worker."""
        try:
            hook()
        except StaleDelivery as error:
            log.warning("%r was handled too late, and another consumer may have it now: %s", delivery, error)
        except FenceActive:
            log.warning("%r is given up when its lease ends: an exclusive fence is open", delivery)
        except Closed:
            raise
        except StorageError as error:
            log.warning("%r was not settled, and may come again when its lease ends: %s", delivery, error)
        except Exception:
            log.exception("a hook around %r failed", delivery)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def lease_seconds(self) -> float:
        """Returns the lease that the worker's messages have now; 0: as long as the process lasts."""
        return self.queue.policy.lease if self._lease is None else self._lease

    def renew(self) -> float:
        """Extends everything in hand; returns the lease that applies now."""
        with self._change:
            held = [delivery for delivery in self._in_hand if not delivery._settled]
        try:
            if held:
                self._backend.extend(held, self._lease, patient=True)
            return self.lease_seconds()
        except Closed:
            raise
        except PenstockError as error:
            log.warning("the leases of %r could not be renewed: %s", self.name, error)
            return 0.0


class _Renewals:
    """The renewals of a worker's leases. Made before the first take: a failure here ends the run."""

    def __init__(self, worker: QueueWorker) -> None:
        self._worker = worker
        self._clock = worker.queue.journal.clock
        self._exact = isinstance(self._clock, SystemClock)
        self._lease = worker.lease_seconds()
        self._renewed = self._now()

    def _now(self) -> float:
        """Returns the seconds that pass for leases, by a clock that is never set, where the machine has one."""
        return time.monotonic() if self._exact else self._clock.now_ms() / 1000

    def keep(self, over: Callable[[float | None], bool]) -> None:
        """Renews leases until `over`, which waits for up to so many seconds, says so."""
        while not over(self._pause()):
            if self._lease and self._now() - self._renewed >= self._lease / RENEW_SHARE:
                self._renewed = self._now()
                try:
                    self._lease = self._worker.renew() or self._lease
                except Closed:
                    self._lease = 0.0

    def _pause(self) -> float | None:
        if not self._lease:
            return None
        return max(0.0, self._renewed + self._lease / RENEW_SHARE - self._now()) if self._exact else GLANCE


def _is_over(hand: threading.Thread, wait: float | None) -> bool:
    hand.join(wait)
    return not hand.is_alive()


class QueueBatchWorker(QueueWorker):
    """Hands messages to a handler, a batch at a time, until stopped: one call, one renewal of leases, one commit."""

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[list[Delivery]], Any],
        group: str,
        consumer: str | None,
        lease: Duration | None,
        middleware: Iterable[Middleware],
        batch: int,
        wait: Duration,
    ) -> None:
        super().__init__(queue, handler, group, consumer, lease, middleware, 1, check_whole(batch, "batch") - 1)
        self._wait = seconds(wait, "wait")

    def _handle_all(self, context: Context) -> None:
        while not self._ending.is_set():
            if batch := self._gather():
                try:
                    self._handle_batch(batch)
                except BaseException as error:
                    self._fail(error)

    def _gather(self) -> list[Delivery]:
        """Takes the next messages, and waits a while for more of them when they are fewer than a batch."""
        self._take(self._capacity, IDLE)
        until = time.monotonic() + self._wait
        while 0 < len(self._ahead) < self._capacity and not self._ending.is_set():
            left = until - time.monotonic()
            if left <= 0:
                break
            self._take(self._capacity - len(self._ahead), left)
        with self._change:
            if self._ending.is_set():
                return []  # what has not begun is given back
            batch = sorted(self._ahead, key=lambda delivery: delivery.seq)
            self._ahead.clear()
        return batch

    def _handle_batch(self, deliveries: list[Delivery]) -> None:
        begun: list[Delivery] = []
        at = time.perf_counter()
        for delivery in deliveries:
            try:
                self._enter(delivery)
                begun.append(delivery)
            except Exception as error:
                self._failed(delivery, error, at)
        if begun:
            self._handle_begun(begun, at)
        with self._change:
            self._in_hand.difference_update(deliveries)

    def _handle_begun(self, deliveries: list[Delivery], at: float) -> None:
        try:
            self._call_handler(deliveries, self._span(deliveries[0]))
        except Exception as error:
            for delivery in deliveries:
                if not delivery._settled:
                    self._failed(delivery, error, at)
            return
        open_ones = [delivery for delivery in deliveries if not delivery._settled]
        self._tell(lambda: self._ack_together(open_ones), deliveries[0])
        for delivery in deliveries:
            self._note_handled(delivery, None, at)

    def _ack_together(self, deliveries: list[Delivery]) -> None:
        held = self.queue.ack_many(deliveries)
        if held < len(deliveries):
            lost = len(deliveries) - held
            log.warning("%d messages of %r were handled too late: other consumers may have them now", lost, self.name)
