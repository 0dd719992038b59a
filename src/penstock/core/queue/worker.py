"""Workers: a handler over a queue, several messages at a time.

One thread takes (as many messages as there are free hands, and `ahead` more). The hands, a thread for each message that
is handled at the same time, run the handler, or wait for its coroutine, which an event loop runs. A keeper extends the
leases of everything in hand. Stopping finishes what has begun and gives back what has not.
"""

from __future__ import annotations

import queue as stdlib_queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from sys import modules
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.clock import Duration, SystemClock, seconds
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.worker import Worker
from penstock.core.journal.owners import this_process
from penstock.core.model.failure import check_nack, describe
from penstock.core.model.take import TakeRequest
from penstock.core.names import check_items, check_whole
from penstock.core.observe.logs import Log
from penstock.core.observe.tracing import ActiveSpan, handling
from penstock.core.queue import metrics
from penstock.core.queue.policy import Retry
from penstock.core.queue.results import ack_with
from penstock.errors import Closed, ConfigError, FenceActive, PenstockError, StaleDelivery, StorageError, UnknownTask

if TYPE_CHECKING:
    from penstock.core.surface.queue import Queue


# ── what surrounds a handler ─────────────────────────────────────────────────────────────────────────────────────────
log = Log("penstock.queue")


class Middleware:
    """Hooks around a worker's handler; override those you need."""

    def before(self, delivery: Delivery) -> None:
        """The handler is about to get a delivery. Raising counts as the handler's failure."""

    def after(self, delivery: Delivery, result: object) -> None:
        """The handler returned."""

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        """The handler raised. Settling the delivery here decides what becomes of it."""


class Retries(Middleware):
    """Acknowledges what was handled, and gives back what was not, by the queue's policy."""

    def after(self, delivery: Delivery, result: object) -> None:
        if not delivery._settled:
            ack_with(delivery, result)

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        if not delivery._settled:
            # After a while, unless the policy says when.
            delivery._nack(check_nack(error, default_delay=Retry.WORKER.delay(delivery.attempt)))


class Logging(Middleware):
    """Says what fails, and what becomes of it; successes only at debug level. Always the outermost."""

    def after(self, delivery: Delivery, result: object) -> None:
        log.debug("%r handled", delivery)

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        if not isinstance(error, UnknownTask):  # its messages wait, and that is logged once a minute
            log_failure(delivery, error)


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
    say("%r failed, %s: %s", delivery, becomes, describe(error), exc_info=error)


class Metrics(Middleware):
    """Counts outcomes and times handlers."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}

    def before(self, delivery: Delivery) -> None:
        self._started[id(delivery)] = time.perf_counter()

    def after(self, delivery: Delivery, result: object) -> None:
        self._count(delivery, "done")

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        self._count(delivery, "failed")

    def _count(self, delivery: Delivery, outcome: str) -> None:
        started = self._started.pop(id(delivery), None)
        queue = delivery.queue.name
        metrics.handled.labels(queue=queue, outcome=outcome).inc()
        if started is not None:
            metrics.handling_seconds.labels(queue=queue).observe(time.perf_counter() - started)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

IDLE = 3600.0
"""How long one take waits; stopping ends it at once."""
RENEW_SHARE = 3
"""A lease is renewed when this fraction of it has passed."""


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
        own = check_items(middleware, "middleware")
        for one in own:
            if not isinstance(one, Middleware):
                raise ConfigError(f"middleware must be Middleware objects, not {one!r:.80}")
        self._chain = [Logging(), Retries(), Metrics(), *own]
        self._in_hand: set[Delivery] = set()
        self._change = threading.Condition()

    def _work(self) -> None:
        with self._keeping_leases():
            self._work_until_stopped()
        with suppress(PenstockError):  # one that cannot say that it has ended is listed as gone
            self.queue._leave(self._wanted.group, self._taker)

    def _nudge(self) -> None:
        self._backend.nudge()
        with self._change:
            self._change.notify_all()

    def _check_may_wait(self) -> None:
        self._backend.check_may_wait()

    def _work_until_stopped(self) -> None:
        jobs: stdlib_queue.SimpleQueue[Delivery | None] = stdlib_queue.SimpleQueue()
        hands: list[threading.Thread] = []
        try:
            while self._has_room():
                for delivery in self._take():
                    jobs.put(delivery)
                while len(hands) < min(self._concurrency, len(self._in_hand)):
                    name = f"penstock-{self.name}-{len(hands)}"
                    run = copy_context().run
                    hand = threading.Thread(target=run, args=(self._hand, jobs), name=name, daemon=True)
                    hand.start()
                    hands.append(hand)
        finally:
            self._give_back(jobs)
            for _ in hands:
                jobs.put(None)
            for hand in hands:
                hand.join()
        if self._failure is not None:
            raise self._failure

    def _has_room(self) -> bool:
        """Waits until another message may be taken; False when the worker is to stop."""
        with self._change:
            self._change.wait_for(lambda: self._stopping.is_set() or len(self._in_hand) < self._capacity)
        return not self._stopping.is_set()

    def _take(self, wait: float = IDLE) -> list[Delivery]:
        limit = max(1, self._capacity - len(self._in_hand))
        found = self._backend.take(replace(self._wanted, limit=limit, wait=wait), self._stopping)
        with self._change:
            self._in_hand.update(found)
        return found

    def _hand(self, jobs: stdlib_queue.SimpleQueue[Delivery | None]) -> None:
        while (delivery := jobs.get()) is not None:
            try:
                self._handle(delivery)
            except BaseException as error:
                self._fail(error)
            finally:
                with self._change:
                    self._in_hand.discard(delivery)
                    self._change.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Ends the worker, which then raises this."""
        self._failure = self._failure or error
        self._stopping.set()
        self._nudge()

    def _handle(self, delivery: Delivery) -> None:
        try:
            self._enter(delivery)
            result = self._call_handler(delivery, self._span(delivery))
        except Exception as error:
            self._failed(delivery, error)
        except BaseException:  # the process is ending, which is not the message's fault
            delivery.release()
            raise
        else:
            self._handled(delivery, result)

    def _give_back(self, jobs: stdlib_queue.SimpleQueue[Delivery | None]) -> None:
        """Messages taken ahead that no hand has begun with."""
        waiting: list[Delivery] = []
        with suppress(stdlib_queue.Empty):
            while (job := jobs.get_nowait()) is not None:
                waiting.append(job)
        if waiting:
            self._backend.release(waiting)
            with self._change:
                self._in_hand.difference_update(waiting)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _lease_seconds(self) -> float:
        return self.queue.policy.lease if self._lease is None else self._lease

    @contextmanager
    def _keeping_leases(self) -> Iterator[None]:
        """Has a thread renew the leases of what is in hand."""
        # Not in the thread: it may start late, and a failure there would end it, and with it every renewal.
        done, begun, lease = threading.Event(), self.queue.journal.clock.now_ms(), self._lease_seconds()
        name = f"penstock-{self.name}-leases"
        keeper = threading.Thread(target=self._keep_leases, args=(done, begun, lease), name=name, daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()

    def _keep_leases(self, done: threading.Event, renewed: int, lease: float) -> None:
        """Renews what is in hand until `done`; `renewed`: when that was last done, or had nothing to do yet."""
        clock = self.queue.journal.clock
        exact = isinstance(clock, SystemClock)
        try:
            while lease and not done.wait(lease / RENEW_SHARE if exact else 0.01):
                if exact or clock.now_ms() - renewed >= lease * 1000 / RENEW_SHARE:
                    renewed = clock.now_ms()
                    lease = self._renew() or lease
        except Closed:
            return

    def _renew(self) -> float:
        """Extends everything in hand; returns the lease that applies now."""
        with self._change:
            held = [delivery for delivery in self._in_hand if not delivery._settled]
        try:
            if held:
                self._backend.extend(held, self._lease, patient=True)
            return self._lease_seconds()
        except Closed:
            raise
        except PenstockError as error:
            log.warning("the leases of %r could not be renewed: %s", self.name, error)
            return 0.0

    # ── around the handler ───────────────────────────────────────────────────────────────────────────────────────────
    def _span(self, delivery: Delivery) -> ActiveSpan | None:
        traced = "opentelemetry.trace" in modules
        return handling(self.queue.name, delivery.event, delivery.attempt) if traced else None

    def _enter(self, delivery: Delivery) -> None:
        for middleware in self._chain:
            middleware.before(delivery)

    def _handled(self, delivery: Delivery, result: Any) -> None:
        for middleware in reversed(self._chain):
            self._tell(partial(middleware.after, delivery, result), delivery)

    def _failed(self, delivery: Delivery, error: Exception) -> None:
        for middleware in reversed(self._chain):
            self._tell(partial(middleware.failure, delivery, error), delivery)

    def _tell(self, hook: Callable[[], None], delivery: Delivery) -> None:
        """A hook that fails must not take the message's fate, or the worker, with it."""
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

    def _work_until_stopped(self) -> None:
        try:
            while not self._stopping.is_set():
                self._gather()
                if self._in_hand:
                    self._handle_batch(sorted(self._in_hand, key=lambda delivery: delivery.seq))
        finally:
            self._backend.release([delivery for delivery in self._in_hand if not delivery._settled])
            self._in_hand.clear()

    def _gather(self) -> None:
        """Takes the next messages, and waits a while for more of them when they are fewer than a batch."""
        self._take()
        until = time.monotonic() + self._wait
        while 0 < len(self._in_hand) < self._capacity and not self._stopping.is_set():
            left = until - time.monotonic()
            if left <= 0:
                break
            self._take(left)

    def _handle_batch(self, deliveries: list[Delivery]) -> None:
        if self._stopping.is_set():
            return  # what has not begun is given back
        begun: list[Delivery] = []
        for delivery in deliveries:
            try:
                self._enter(delivery)
                begun.append(delivery)
            except Exception as error:
                self._failed(delivery, error)
        if begun:
            self._handle_begun(begun)
        with self._change:
            self._in_hand.difference_update(deliveries)

    def _handle_begun(self, deliveries: list[Delivery]) -> None:
        try:
            self._call_handler(deliveries, self._span(deliveries[0]))
        except Exception as error:
            for delivery in deliveries:
                if not delivery._settled:
                    self._failed(delivery, error)
            return
        open_ones = [delivery for delivery in deliveries if not delivery._settled]
        self._tell(lambda: self._ack_together(open_ones), deliveries[0])
        for delivery in deliveries:
            self._handled(delivery, None)

    def _ack_together(self, deliveries: list[Delivery]) -> None:
        held = self.queue.ack_many(deliveries)
        if held < len(deliveries):
            lost = len(deliveries) - held
            log.warning("%d messages of %r were handled too late: other consumers may have them now", lost, self.name)
