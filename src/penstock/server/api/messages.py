"""The messages of queues over HTTP: pushed, looked at, and what became of those that were given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from penstock.documents.events import (
    EventDocument,
    ReceiptDocument,
    decode_binary,
    event_document,
    receipt_document,
)
from penstock.errors import ConfigError
from penstock.events import Draft, Event
from penstock.names import check_consumer
from penstock.observe.sample import FailedMessage
from penstock.protocol import messages as operations
from penstock.protocol.journal import EventList, Receipts
from penstock.protocol.messages import (
    DeadLetterList,
    DeadLetterQuery,
    FailedList,
    FailedQuery,
    FailureDocument,
    MessageDocument,
    MessagePage,
    MessageQuery,
    PeekQuery,
    PushRequest,
)
from penstock.queue.inspect import QueueMessage, dead_letters, failures, messages
from penstock.queue.letters import DeadLetterCursor
from penstock.server.api.binding import Call, answered, serves
from penstock.server.api.parameters import page_size
from penstock.server.api.queues import called
from penstock.server.limits import PAGE_BYTES
from penstock.server.problems import Refused

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue

P = TypeVar("P")


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.PUSH_MESSAGES)
def push_messages(call: Call[None, PushRequest]) -> Response:
    message = call.body
    trace = call.request.headers.get("traceparent")
    if trace is not None:
        message.headers = {"traceparent": trace, **(message.headers or {})}
    receipts = _push(called(call), message)
    if message.payloads is None and message.messages is None:
        return answered(call.service, receipts[0], 200 if receipts[0].duplicate else 201)
    return answered(call.service, Receipts(receipts), 201)


def _push(queue: LocalQueue, message: PushRequest) -> list[ReceiptDocument]:
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
    items: list[object]
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
def _within(events: Iterable[Event], limit: int) -> tuple[list[EventDocument], bool]:
    """The documents of some events, bounded in number and bytes, and whether there are more."""
    documents: list[EventDocument] = []
    size = 0
    for event in events:
        if len(documents) >= limit or size >= PAGE_BYTES:
            return documents, True
        documents.append(event_document(event))
        size += len(event.raw)
    return documents, False


@serves(operations.PEEK_MESSAGES)
def peek_messages(call: Call[PeekQuery, None]) -> EventList:
    limit = page_size(call.query.limit)
    return EventList(_within(called(call).peek(limit, group=call.query.group), limit)[0])


@serves(operations.LIST_MESSAGES)
def list_messages(call: Call[MessageQuery, None]) -> MessagePage:
    query, limit, queue = call.query, page_size(call.query.limit), called(call)
    documents: list[MessageDocument] = []
    last, positions, size = 0, 0, 0
    for one in messages(queue, query.state, query.group, query.after):
        if one.seq != last:
            if positions >= limit or size >= PAGE_BYTES:
                return MessagePage(documents, last)
            last, positions = one.seq, positions + 1
        documents.append(_message(one))
        size += len(one.event.raw) + len(one.error or "") + len(one.traceback or "")
    return MessagePage(documents)


def _message(one: QueueMessage) -> MessageDocument:
    return MessageDocument(**(msgspec.structs.asdict(one) | {"event": event_document(one.event)}))


@serves(operations.READ_MESSAGE)
def read_message(call: Call[None, None]) -> EventDocument:
    name = call.name("seq")
    queue = called(call)
    event = queue.get(int(name)) if name.isascii() and name.isdigit() and len(name) <= 18 else None
    if event is None:
        raise Refused(404, "UnknownEvent", f"no message {name[:40]!r} is waiting or in flight")
    return event_document(event)


def _failures(found: Iterable[tuple[FailedMessage, P]], limit: int) -> tuple[list[FailureDocument], P | None]:
    """The documents of messages given up, bounded in number and bytes, and the place behind which there are more."""
    documents: list[FailureDocument] = []
    size, last = 0, None
    for one, place in found:
        if len(documents) >= limit or size >= PAGE_BYTES:
            return documents, last
        last = place
        documents.append(FailureDocument(**(msgspec.structs.asdict(one) | {"event": event_document(one.event)})))
        size += len(one.event.raw) + len(one.traceback or "")
    return documents, None


@serves(operations.LIST_FAILED)
def list_failed(call: Call[FailedQuery, None]) -> FailedList:
    query, queue = call.query, called(call)
    found = failures(queue, check_consumer(query.group, "group"), query.after)
    documents, follows = _failures(((one, one.event.seq) for one in found), page_size(query.limit))
    return FailedList(documents, follows)


@serves(operations.LIST_DEAD_LETTERS)
def list_dead_letters(call: Call[DeadLetterQuery, None]) -> DeadLetterList:
    after = DeadLetterCursor.read(call.query.after) if call.query.after else None
    if call.query.after and after is None:
        raise ConfigError(f"after must be the next of the page before, not {call.query.after[:40]!r}")
    found = ((one, DeadLetterCursor.of(one.event)) for one in dead_letters(called(call), after))
    documents, follows = _failures(found, page_size(call.query.limit))
    return DeadLetterList(documents, None if follows is None else str(follows))
