"""The keyword arguments that several calls share, each with its type: a misspelt one fails the type checker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from penstock.clock import Clock, Seconds
    from penstock.consuming.delivery import Delivery
    from penstock.engine.contract import Durability
    from penstock.events import Event, Receipt
    from penstock.queue.policy import Retry
    from penstock.surface.queue import Queue


class OpenArguments(TypedDict, total=False):
    """What a journal may be opened with; see `penstock.open`."""

    read_only: bool
    durability: Durability | None
    writer_capacity: int | None
    pressure: float
    clock: Clock | None
    token: str | None
    linger: float | None
    timeout: float | None
    lease: float | None
    takeover: bool
    standby: bool
    store_options: Mapping[str, object] | None


class DraftArguments(TypedDict, total=False):
    """What an event may be appended with; see `Draft`."""

    key: str | None
    scope: str | None
    headers: Mapping[str, str] | None
    occurred_at: datetime | None
    dedup: str | None
    cause: Event | Receipt | str | int | None
    correlation: str | None
    expect: int | None


class SettingsArguments(TypedDict, total=False):
    """What a topic may be configured with; see `Settings`."""

    max_age: Seconds | None
    max_events: int | None
    max_bytes: int | None
    by_key: bool
    dedup_window: Seconds | None
    verified: bool
    indexed: bool


class PushArguments(TypedDict, total=False):
    """What a message may be pushed with; see `Queue.push`."""

    kind: str
    key: str | None
    priority: int | Literal["front"]
    delay: Seconds
    not_before: datetime | None
    dedup: str | None
    max_attempts: int | None
    headers: Mapping[str, str] | None
    cause: Event | Receipt | Delivery | str | int | None


class TakeManyArguments(TypedDict, total=False):
    """For whom messages are taken, and for how long; see `Queue.take_many`."""

    group: str
    consumer: str | None
    lease: Seconds | None
    newest: bool


class TakeArguments(TakeManyArguments, total=False):
    """The same for one message, which may be named; see `Queue.take`."""

    seq: int | None
    key: str | None


class PolicyArguments(TypedDict, total=False):
    """What a queue may be made or configured with; see `QueuePolicy`."""

    mode: Literal["work", "fanout"]
    lease: Seconds
    max_attempts: int
    dead_letter: str | Queue | None
    retry: Retry | Seconds | None
    max_size: int | None
    max_in_flight: int | None
    max_in_flight_per_key: int
    rate: str | None
    rate_per_key: str | None
    fair_by: str | None
    throttle: Seconds | None
    debounce: Seconds | None
    debounce_limit: Seconds | None
    breaker: str | None
    breaker_pause: Seconds
    ttl: Seconds | None
    retention: Literal["hold", "dead_letter"]
    priority: bool
    feed: bool
    dedup_window: Seconds | None
