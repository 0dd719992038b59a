"""The messages of queues over HTTP: pushed, looked at, and what became of those that were given up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.document import (
    DraftDocument,
    EventDocument,
    ReceiptDocument,
    decode_binary,
    event_document,
    receipt_document,
)
from penstock.errors import ConfigError
from penstock.events import Draft
from penstock.observe.sample import FailedMessage
from penstock.server.api import parameters
from penstock.server.api.problems import Refused
from penstock.server.api.queues import queue_of
from penstock.server.api.topics import Receipts, json
from penstock.server.limits import MOST_EVENTS, USUAL_EVENTS
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message to push; several share everything but what their drafts say."""

    payload: Any = None
    kind: str = "message"
    key: str | None = None
    priority: int = 0
    delay: float = 0
    not_before: datetime | None = None
    dedup: str | None = None
    max_attempts: int | None = None
    headers: dict[str, str] | None = None
    cause: str | None = None
    binary: bool = False
    payloads: list[Any] | None = None
    """Several payloads that share everything else."""
    messages: list[DraftDocument] | None = None
    """Several messages, each with its own kind, key, dedup, headers and cause."""


@guarded("write")
async def push(request: Request, service: Service) -> Response:
    message = await parameters.struct(request, service.limits, Message)
    trace = request.headers.get("traceparent")
    if trace is not None:
        message.headers = {"traceparent": trace, **(message.headers or {})}
    receipts = await run_in_threadpool(_push, queue_of(request, service), message)
    if message.payloads is None and message.messages is None:
        return json(receipts[0], 200 if receipts[0].duplicate else 201)
    return json(Receipts(receipts), 201)


def _push(queue: LocalQueue, message: Message) -> list[ReceiptDocument]:
    shared: dict[str, Any] = {
        "kind": message.kind,
        "key": message.key,
        "priority": message.priority,
        "delay": message.delay,
        "not_before": message.not_before,
        "max_attempts": message.max_attempts,
        "headers": message.headers,
        "cause": message.cause,
    }
    if message.payloads is None and message.messages is None:
        payload = decode_binary(message.payload) if message.binary else message.payload
        return [receipt_document(queue.push(payload, dedup=message.dedup, **shared))]
    if message.payload is not None or (message.payloads is not None and message.messages is not None):
        raise ConfigError("give one of payload, payloads and messages")
    items: list[Any]
    if message.messages is not None:
        items = [_with_headers(document.draft(), message.headers) for document in message.messages]
    else:
        items = [decode_binary(one) if message.binary else one for one in message.payloads or []]
    return [receipt_document(receipt) for receipt in queue.push_many(items, dedup=message.dedup, **shared)]


def _with_headers(draft: Draft, headers: dict[str, str] | None) -> Draft:
    if headers:
        draft.headers = {**headers, **(draft.headers or {})}
    return draft


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _limit(request: Request) -> int:
    limit = parameters.number(request, "limit", USUAL_EVENTS, most=MOST_EVENTS)
    assert limit is not None
    return limit


@guarded("read")
def peek(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or "default"
    limit = parameters.number(request, "limit", 1, most=MOST_EVENTS)
    assert limit is not None
    events = queue_of(request, service).peek(limit, group=group)
    return json({"events": [event_document(event) for event in events]})


@guarded("read")
def list_messages(request: Request, service: Service) -> Response:
    """Everything not acknowledged, in order of position, a page at a time."""
    after = parameters.number(request, "after", 0) or 0
    limit = _limit(request)
    unsettled = (event for event in queue_of(request, service) if event.seq > after)
    events = list(islice(unsettled, limit + 1))
    follows = events[limit - 1].seq if len(events) > limit and limit else None
    return json({"events": [event_document(event) for event in events[:limit]], "next": follows})


@guarded("read")
def show_message(request: Request, service: Service) -> Response:
    name = request.path_params["seq"]
    event = queue_of(request, service).get(int(name)) if name.isdigit() and len(name) <= 18 else None
    if event is None:
        raise Refused(404, "UnknownEvent", f"no message {name[:40]!r} is waiting or in flight")
    return json(event_document(event))


@guarded("read")
def pending(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or None
    return json({"pending": queue_of(request, service).pending(group)[: _limit(request)]})


class FailureDocument(msgspec.Struct):
    queue: str
    attempts: int
    reason: str
    error: str | None
    at: datetime | None
    event: EventDocument


def failure_documents(found: Iterator[FailedMessage], limit: int) -> list[FailureDocument]:
    return [
        FailureDocument(one.queue, one.attempts, one.reason, one.error, one.at, event_document(one.event))
        for one in islice(found, limit)
    ]


@guarded("read")
def list_failed(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or "default"
    return json({"failed": failure_documents(queue_of(request, service).failures(group), _limit(request))})


@guarded("read")
def list_dead(request: Request, service: Service) -> Response:
    return json({"dead": failure_documents(queue_of(request, service).dead_letters(), _limit(request))})


@guarded("read")
def list_consumers(request: Request, service: Service) -> Response:
    return json({"consumers": queue_of(request, service).consumers()})
