"""The plan of a worker over a topic."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.clock import Duration
from penstock.core.model.query import EventQuery


class BatchPlan(msgspec.Struct, frozen=True):
    """The plan of a worker over a topic: for whom, with which events, how many at a time."""

    consumer: str
    handler: Callable[..., object]
    batch: int
    idle: Duration
    restarts: int
    wanted: EventQuery
