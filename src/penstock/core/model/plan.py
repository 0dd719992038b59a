"""The plan of a worker over a topic."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.clock import Duration
from penstock.core.model.query import EventQuery


class BatchPlan(msgspec.Struct, frozen=True):
    """The plan of a worker over a topic: the consumer, the wanted events, and the size of batches."""

    consumer: str
    handler: Callable[..., object]
    batch: int
    idle: Duration
    restarts: int
    wanted: EventQuery
