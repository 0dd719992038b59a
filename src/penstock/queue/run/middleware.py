"""What surrounds a worker's handler: settling with retries, logging, metrics, and whatever a user adds.

`before` runs outermost first; `after` and `failure` run innermost first, so that a middleware of the user's own sees an
outcome, and may settle the delivery itself, before the worker's own does.
"""

from __future__ import annotations

import time
from typing import Any

from penstock.errors import StaleDelivery
from penstock.observe.logs import Log
from penstock.queue import metrics
from penstock.queue.delivery import LocalDelivery
from penstock.surface.delivery import describe

log = Log("penstock.queue")


class Middleware:
    """Hooks around a worker's handler; override those you need."""

    def before(self, delivery: LocalDelivery) -> None:
        """The handler is about to get a delivery. Raising counts as the handler's failure."""

    def after(self, delivery: LocalDelivery, result: Any) -> None:
        """The handler returned."""

    def failure(self, delivery: LocalDelivery, error: BaseException) -> None:
        """The handler raised. Settling the delivery here decides what becomes of it."""


class Retries(Middleware):
    """Acknowledges what was handled, and gives back what was not, by the queue's policy; always the outermost."""

    def after(self, delivery: LocalDelivery, result: Any) -> None:
        if not delivery._settled:
            delivery.ack()

    def failure(self, delivery: LocalDelivery, error: BaseException) -> None:
        if not delivery._settled:
            delivery.nack(error=describe(error))


class Logging(Middleware):
    """Says what fails; successes only at debug level."""

    def after(self, delivery: LocalDelivery, result: Any) -> None:
        log.debug("%r handled", delivery)

    def failure(self, delivery: LocalDelivery, error: BaseException) -> None:
        if isinstance(error, StaleDelivery):
            log.warning("%r was handled too late: %s", delivery, error)
        else:
            log.warning("%r failed: %s", delivery, describe(error), exc_info=error)


class Metrics(Middleware):
    """Counts outcomes and times handlers."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}

    def before(self, delivery: LocalDelivery) -> None:
        self._started[id(delivery)] = time.perf_counter()

    def after(self, delivery: LocalDelivery, result: Any) -> None:
        self._count(delivery, "done")

    def failure(self, delivery: LocalDelivery, error: BaseException) -> None:
        self._count(delivery, "failed")

    def _count(self, delivery: LocalDelivery, outcome: str) -> None:
        started = self._started.pop(id(delivery), None)
        queue = delivery.queue.name
        metrics.handled.labels(queue=queue, outcome=outcome).inc()
        if started is not None:
            metrics.handling_seconds.labels(queue=queue).observe(time.perf_counter() - started)
