"""What surrounds a worker's handler: settling with retries, logging, metrics, and whatever a user adds.

`before` runs outermost first; `after` and `failure` run innermost first, so that a middleware of the user's own sees an
outcome, and may settle the delivery itself, before the worker's own does.
"""

from __future__ import annotations

import time

from penstock.observe.logs import Log
from penstock.queue import metrics
from penstock.queue.results.reply import ack_with
from penstock.queue.retry import Retry
from penstock.surface.delivery import Delivery
from penstock.surface.failure import NackOptions, describe, failure_text

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
            delivery._nack(worker_nack(delivery, error))


class Logging(Middleware):
    """Says what fails, and what becomes of it; successes only at debug level. Always the outermost."""

    def after(self, delivery: Delivery, result: object) -> None:
        log.debug("%r handled", delivery)

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        log_failure(delivery, error)


def worker_nack(delivery: Delivery, error: BaseException) -> NackOptions:
    """How a worker gives back a message that its handler failed with: after a while, unless the policy says when."""
    return NackOptions(failure_text(error), otherwise=Retry.WORKER.delay(delivery.attempt))


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
