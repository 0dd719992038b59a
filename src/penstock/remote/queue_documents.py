"""What a server says of queues, as values, and what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.clock import SystemClock
from penstock.conditions import Where
from penstock.document import RawEvent, ReceiptDocument
from penstock.errors import ConfigError
from penstock.events import Event, Receipt
from penstock.observe.sample import FailedMessage
from penstock.observe.tracing import trace_headers, with_trace
from penstock.queue.inspect import PendingDelivery, QueueConsumer, QueueStats
from penstock.queue.operations.push import read_delivery_options
from penstock.queue.policy import QueuePolicy, checked
from penstock.queue.run.schedule import Schedule
from penstock.remote.events import event_of


class HeldDocument(msgspec.Struct):
    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: RawEvent


class _Deliveries(msgspec.Struct):
    deliveries: list[HeldDocument]


class QueueDocument(msgspec.Struct):
    name: str
    length: int
    policy: QueuePolicy
    groups: list[str]


class _Receipts(msgspec.Struct):
    receipts: list[ReceiptDocument]


class _Events(msgspec.Struct):
    events: list[RawEvent]
    next: int | None = None


class _Pending(msgspec.Struct):
    pending: list[PendingDelivery]


class _Consumers(msgspec.Struct):
    consumers: list[QueueConsumer]


class _Schedules(msgspec.Struct):
    schedules: list[Schedule]


class _Failure(msgspec.Struct):
    queue: str
    attempts: int
    reason: str
    error: str | None
    at: datetime | None
    event: RawEvent


class _Failures(msgspec.Struct):
    failed: list[_Failure] = []
    dead: list[_Failure] = []


decode_queue = msgspec.json.Decoder(QueueDocument).decode
decode_stats = msgspec.json.Decoder(QueueStats).decode
decode_deliveries = msgspec.json.Decoder(_Deliveries).decode
decode_delivery = msgspec.json.Decoder(HeldDocument).decode
decode_receipt = msgspec.json.Decoder(ReceiptDocument).decode
decode_receipts = msgspec.json.Decoder(_Receipts).decode
decode_events = msgspec.json.Decoder(_Events).decode
decode_event = msgspec.json.Decoder(RawEvent).decode
decode_pending = msgspec.json.Decoder(_Pending).decode
decode_consumers = msgspec.json.Decoder(_Consumers).decode
decode_schedule = msgspec.json.Decoder(Schedule).decode
decode_policy = msgspec.json.Decoder(QueuePolicy).decode
decode_schedules = msgspec.json.Decoder(_Schedules).decode
decode_failures = msgspec.json.Decoder(_Failures).decode

_PUSH_FIELDS = ("kind", "key", "priority", "delay", "not_before", "dedup", "max_attempts", "headers", "cause")


def push_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a push as a body says them."""
    unknown = sorted(set(options) - set(_PUSH_FIELDS))
    if unknown:
        raise ConfigError(f"a push has no option {unknown[0]!r}; there are {', '.join(sorted(_PUSH_FIELDS))}")
    read_delivery_options(
        SystemClock(),
        options.get("key"),
        options.get("priority", 0),
        options.get("delay", 0),
        options.get("not_before"),
        options.get("max_attempts"),
    )
    fields = {name: value for name, value in options.items() if value is not None}
    if isinstance(fields.get("delay"), timedelta):
        fields["delay"] = fields["delay"].total_seconds()
    cause = fields.get("cause")
    if isinstance(cause, Event | Receipt):
        fields["cause"] = cause.id
    trace = trace_headers()
    if trace is not None:
        fields["headers"] = with_trace(fields.get("headers"), trace)
    return fields


def policy_body(policy: dict[str, Any], queue: str) -> dict[str, Any]:
    """A policy, checked here as a local queue would, as a body says it."""
    fields = checked(policy, queue)
    if "retry" in fields:
        fields["retry"] = msgspec.structs.asdict(fields["retry"])
    return fields


def condition(where: Any) -> str | None:
    if where is None or isinstance(where, str):
        return where
    if isinstance(where, Where):
        return where.text
    raise ConfigError(f'a condition is a function or text, like "payload.total > 10", not {where!r:.80}')


def failures_of(found: list[_Failure]) -> Iterator[FailedMessage]:
    for one in found:
        yield FailedMessage(event_of(one.event), one.queue, one.attempts, one.reason, one.error, one.at)
