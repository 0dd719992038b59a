"""What a push and a schedule over HTTP send: checked here as a queue in this process would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec

from penstock.clock import Seconds, SystemClock, seconds
from penstock.documents.decoding import nearest
from penstock.errors import ConfigError
from penstock.events import Draft
from penstock.names import check_consumer
from penstock.observe.tracing import trace_headers, with_trace
from penstock.protocol.messages import PushRequest
from penstock.protocol.queues import NewSchedule
from penstock.queue.options import read_delivery_options
from penstock.remote.events import draft_documents, payload_fields
from penstock.schema import brings_kind, encode_event

_OPTIONS = ("kind", "key", "priority", "delay", "not_before", "dedup", "max_attempts", "headers", "cause")
_SHARED = ("priority", "delay", "not_before", "max_attempts")
"""What all messages of a request have in common; the rest is each draft's own."""


def push_request(queue: str, items: Iterable[Any], options: Mapping[str, Any], *, many: bool) -> PushRequest | None:
    """The request that pushes some payloads or drafts; None when there is nothing to push."""
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"a push has no option {unknown[0]!r}{nearest(unknown[0], _OPTIONS)}")
    given = {name: value for name, value in options.items() if value is not None}
    if many and "dedup" in given:
        raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
    trace = trace_headers()
    own = {name: given.get(name) for name in ("key", "headers", "cause", "dedup")}
    kind = given.get("kind", "message")
    drafts = [
        item if isinstance(item, Draft) else Draft(item, **own) if brings_kind(item, kind) else Draft(kind, item, **own)
        for item in items
    ]
    keyed = next((draft.key for draft in drafts if draft.key is not None), given.get("key"))
    read_delivery_options(
        SystemClock(),
        keyed,
        options.get("priority", 0),
        options.get("delay", 0),
        given.get("not_before"),
        given.get("max_attempts"),
    )
    if not drafts:
        return None
    if trace is not None:
        drafts = [msgspec.structs.replace(draft, headers=with_trace(draft.headers, trace)) for draft in drafts]
    shared = {name: given[name] for name in _SHARED if name in given}
    if isinstance(shared.get("delay"), timedelta):
        shared["delay"] = shared["delay"].total_seconds()
    return PushRequest(messages=draft_documents(drafts, queue), **shared)


def schedule_request(
    interval: Seconds | str,
    payload: object,
    name: str,
    timezone: str,
    missed: Literal["all", "last", "none"],
    kind: str,
    headers: Mapping[str, str] | None,
    key: str | None,
    priority: int,
) -> NewSchedule:
    """The request that stores a periodic message."""
    if brings_kind(payload, kind):
        kind, payload, own = encode_event(payload)
        headers = {**own, **(headers or {})}
    return NewSchedule(
        name=check_consumer(name, "schedule"),
        interval=None if isinstance(interval, str) else seconds(interval, "interval"),
        cron=interval if isinstance(interval, str) else None,
        timezone=timezone,
        missed=missed,
        kind=kind,
        headers=None if headers is None else dict(headers),
        key=key,
        priority=priority,
        **payload_fields(payload),
    )
