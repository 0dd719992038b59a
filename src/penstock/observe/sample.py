"""What is seen of a journal from outside, as values: how its topics and queues do, and what was given up and why."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.events import Event


class TopicSample(msgspec.Struct):
    """A topic at one time."""

    name: str
    latest: int
    events: int
    rate: float = 0.0
    lags: dict[str, int] = {}
    """How far each consumer is behind."""


class QueueSample(msgspec.Struct):
    """One group of a queue at one time."""

    name: str
    group: str
    ready: int
    in_flight: int
    delayed: int
    failed: int
    oldest_age: float | None
    rate: float = 0.0


class Sample(msgspec.Struct):
    """The journal at one time."""

    at: float
    topics: dict[str, TopicSample]
    queues: dict[str, list[QueueSample]]
    pressure: float
    queued: int
    commits: int
    operations: int
    rate: float = 0.0
    """Events a second, over all topics."""


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that was given up, and why."""

    event: Event
    queue: str
    attempts: int
    reason: str
    error: str | None
    at: datetime | None
