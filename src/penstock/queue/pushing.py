"""What a push does before and inside its commit: arguments to a batch of events, and how they are delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from sys import modules
from typing import TYPE_CHECKING, Any, Literal

from penstock.clock import Seconds
from penstock.documents.decoding import nearest
from penstock.errors import ConfigError
from penstock.events import Draft, Receipt
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import FindCause, PreparedBatch, prepare_one
from penstock.journal.commit.request import WriteRequest
from penstock.journal.log import TopicLog
from penstock.observe.spans import sending
from penstock.queue.batches import draft_fields, plain_batch
from penstock.queue.metrics import QueueCounters
from penstock.queue.operations.push import push
from penstock.queue.options import DeliveryOptions, read_delivery_options
from penstock.schema import DECLARED, brings_kind, schema_of_type
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.queue.registry import QueueRegistry


class Pushing:
    """How one queue is pushed to: the part of it that makes batches of payloads."""

    def __init__(self, registry: QueueRegistry, name: str, counters: QueueCounters) -> None:
        self._core = registry.core
        self._writer = registry.core.writer
        self._counters = counters
        self._cache = registry.cache
        self._name = name
        self._log = TopicLog(registry.core, name)

    def submit(self, payload: object, options: Mapping[str, object]) -> Ticket[Receipt]:
        """Hands a message over and returns a ticket at once."""
        batch, delivery = self.prepare_with(payload, options)
        self._counters.pushed.inc()
        return self._writer.submit(WriteRequest(lambda commit: self.push_in(commit, batch, delivery)[0], batch.size))

    def push_many(self, payloads: list[object], options: Mapping[str, object]) -> list[Receipt]:
        """Adds messages at consecutive positions and returns when they are durable."""
        span = sending(self._name, "push", len(payloads)) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self.prepare_many(payloads, options)
            receipts = self._writer.run(WriteRequest(self.push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._counters.pushed.inc(len(receipts))
        return receipts

    def push_in(self, commit: Commit, batch: PreparedBatch, delivery: DeliveryOptions | None) -> list[Receipt]:
        return push(commit, self._cache.state(commit, self._name), batch, delivery)

    def prepare_with(
        self, payload: object, options: Mapping[str, object], find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        return self.prepare(payload, **_push_options(options), find_cause=find_cause)

    def prepare(
        self,
        payload: object,
        kind: Any,
        key: str | None,
        priority: int | Literal["front"],
        delay: Seconds,
        not_before: datetime | None,
        dedup: str | None,
        max_attempts: int | None,
        headers: Mapping[str, str] | None,
        cause: object,
        find_cause: FindCause | None = None,
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        if payload.__class__ in DECLARED and brings_kind(payload, kind):
            kind, payload = payload, None
        delivery = None
        if (
            priority
            or priority.__class__ is not int
            or delay != 0
            or not_before is not None
            or max_attempts is not None
        ):
            delivery = read_delivery_options(self._core.clock, key, priority, delay, not_before, max_attempts)
        if key is None and dedup is None and headers is None and cause is None and not self._core.guards:
            return prepare_one(kind, payload), delivery
        fields = draft_fields(key, dedup, headers, cause)
        return self._log.prepare(kind, payload, fields, find_cause), delivery

    def prepare_many(
        self, payloads: Iterable[object], options: Mapping[str, object], find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        given = _push_options(options)
        if given["dedup"] is not None:
            raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
        kind = given["kind"]
        if options.keys() <= {"kind"} and not self._core.guards:
            items = list(payloads)
            kinds_of = set(map(type, items))
            if not any(issubclass(one, Draft) or schema_of_type(one) for one in kinds_of):
                return plain_batch(kind, items), None
            payloads = items
        fields = draft_fields(given["key"], None, given["headers"], given["cause"])
        drafts = [
            item
            if isinstance(item, Draft)
            else Draft(item, **fields)
            if brings_kind(item, kind)
            else Draft(kind, item, **fields)
            for item in payloads
        ]
        keyed = next((draft.key for draft in drafts if draft.key is not None), None)
        delivery = read_delivery_options(
            self._core.clock,
            keyed,
            given["priority"],
            given["delay"],
            given["not_before"],
            given["max_attempts"],
        )
        return self._log.prepare_many(drafts, find_cause), delivery


_PUSH_DEFAULTS: dict[str, object] = {
    "kind": "message",
    "key": None,
    "priority": 0,
    "delay": 0,
    "not_before": None,
    "dedup": None,
    "max_attempts": None,
    "headers": None,
    "cause": None,
}


def _push_options(given: Mapping[str, object]) -> dict[str, Any]:
    options = {**_PUSH_DEFAULTS, **given}
    if len(options) != len(_PUSH_DEFAULTS):
        unknown = sorted(set(options) - set(_PUSH_DEFAULTS))[0]
        raise ConfigError(f"a push has no option {unknown!r}{nearest(unknown, _PUSH_DEFAULTS)}")
    return options
