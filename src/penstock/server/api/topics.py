"""Topics over HTTP: append, look up, cursors, settings, compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.documents import cloudevents
from penstock.documents.events import DraftDocument, EventDocument, event_document, receipt_document, receipts_json
from penstock.entity.causality import ancestors, effects
from penstock.errors import Backpressure, ConfigError
from penstock.events import Draft, Event, Receipt
from penstock.journal.catalog import Settings
from penstock.journal.cursors import read_consumer
from penstock.journal.dropping import DropReport
from penstock.journal.reading import TopicView
from penstock.journal.upkeep import CompactReport
from penstock.names import check_consumer
from penstock.observe.workers import keep_newest
from penstock.protocol import journal as operations_of_journal
from penstock.protocol import topics as operations
from penstock.protocol.fields import SettingsFields, given
from penstock.protocol.journal import EventList, Receipts
from penstock.protocol.operation import JSON, PAGE_BYTES
from penstock.protocol.topics import (
    CompactRequest,
    CursorChange,
    CursorDocument,
    CursorList,
    DropTopicQuery,
    Forgotten,
    PositionDocument,
    PositionQuery,
    TopicDocument,
    TopicNames,
)
from penstock.server.access import REPORTS
from penstock.server.api import parameters
from penstock.server.api.binding import Call, answered, serves
from penstock.server.limits import MOST_EVENTS
from penstock.server.problems import Refused
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.local.topic import LocalTopic
    from penstock.ticket import Ticket


def topic_of(call: Call[object, object]) -> LocalTopic:
    return call.service.journal.topic(call.name("topic"))


def existing(request: Request, service: Service) -> LocalTopic:
    """The topic a page is about; Refused when nothing was ever appended to it."""
    topic = service.journal.topic(request.path_params["topic"])
    if topic.latest == 0 and topic.name not in service.journal.topics():
        raise Refused(404, "UnknownTopic", f"there is no topic {topic.name!r}")
    return topic


# ── the list, one topic ──────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.LIST_TOPICS)
def list_topics(call: Call[None, None]) -> TopicNames:
    return TopicNames(call.service.journal.topics())


@serves(operations.READ_TOPIC)
def read_topic(call: Call[None, None]) -> TopicDocument:
    # A topic that nothing was appended to is empty rather than missing: it exists from its first append.
    topic = topic_of(call)
    return TopicDocument(topic.name, len(topic), topic.oldest, topic.latest, topic.cursors(), topic.settings)


@serves(operations.CONFIGURE_TOPIC)
def configure_topic(call: Call[None, SettingsFields]) -> Settings:
    return topic_of(call).configure(**given(call.body))


@serves(operations.DROP_TOPIC)
def drop_topic(call: Call[DropTopicQuery, None]) -> DropReport:
    return call.service.journal.drop_topic(call.name("topic"), call.query.force)


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.APPEND_EVENTS, raw=True)
async def append_events(call: Call[None, bytes]) -> Response:
    topic = topic_of(call)
    call.service.access.check_append(topic.name)
    drafts, single = parameters.drafts(call.request, call.body)
    if not drafts:
        return answered(call.service, Receipts([]))
    _add_request_headers(call.request, drafts, single)
    if topic.name in REPORTS and not topic.latest:
        await run_in_threadpool(keep_newest, topic)
    receipts = await _patiently(call.service, lambda: topic.try_submit_many(drafts))
    if single:
        return answered(call.service, receipt_document(receipts[0]), 200 if receipts[0].duplicate else 201)
    return Response(receipts_json(receipts), 201, media_type=JSON)


@serves(operations_of_journal.APPEND_SEVERAL)
async def append_several(call: Call[None, list[DraftDocument]]) -> Response:
    """One atomic batch over several topics: every draft names its own."""
    outbox = call.service.journal.outbox()
    for number, document in enumerate(call.body):
        if document.topic is None:
            raise ConfigError(f"draft {number} names no topic")
        call.service.access.check_append(document.topic)
        draft = document.draft()
        fields = {
            name: getattr(draft, name) for name in draft.__struct_fields__ if name not in ("kind", "payload", "topic")
        }
        outbox.stage(document.topic, draft.kind, draft.payload, **fields)
    receipts = await outbox.submit()
    return Response(receipts_json(receipts), 201, media_type=JSON)


def _add_request_headers(request: Request, drafts: list[Draft], single: bool) -> None:
    """What the request itself says about its events: the trace they belong to, and how often it may be repeated."""
    trace = request.headers.get("traceparent")
    if trace is not None:
        state = request.headers.get("tracestate")
        carried = {"traceparent": trace} | ({"tracestate": state} if state else {})
        for draft in drafts:
            draft.headers = {**carried, **(draft.headers or {})}
    repeat = request.headers.get("idempotency-key")
    if repeat is not None and single and drafts[0].dedup is None:
        drafts[0].dedup = repeat


async def _patiently(service: Service, submit: Callable[[], Ticket[list[Receipt]]]) -> list[Receipt]:
    """Submits as soon as the writer has room; Backpressure when it has none for too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + service.limits.write_timeout
    while True:
        try:
            ticket = submit()
        except Backpressure as error:
            if loop.time() + error.retry_after > deadline:
                raise
            await asyncio.sleep(error.retry_after)
            continue
        return await ticket


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.READ_EVENT)
def read_event(call: Call[None, None]) -> EventDocument | Response:
    topic = topic_of(call)
    name = call.name("event")
    numeric = name.isascii() and name.isdigit() and len(name) <= 18
    event = topic.get(int(name)) if numeric else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    accepted = call.request.headers.get("accept", "")
    if cloudevents.STRUCTURED in accepted:
        return Response(cloudevents.to_json(event), media_type=cloudevents.STRUCTURED)
    if cloudevents.BINARY in accepted:
        headers, data = cloudevents.to_http(event)
        return Response(data, headers=headers)
    return event_document(event)


@serves(operations.FIND_POSITION)
def find_position(call: Call[PositionQuery, None]) -> PositionDocument:
    time = parameters.moment(call.query.time)
    if time is None:
        raise ConfigError("time is missing: /position?time=2024-05-01T12:00:00Z")
    return PositionDocument(topic_of(call).position_at(time))


@serves(operations_of_journal.READ_CORRELATED)
def read_correlated(call: Call[None, None]) -> EventList[Event]:
    return _as_many_as_fit(call.service.journal.correlated(call.name("correlation")))


@serves(operations_of_journal.READ_ANCESTORS)
def read_ancestors(call: Call[None, None]) -> EventList[Event]:
    return _as_many_as_fit(ancestors(call.service.journal._core, call.name("event")))


@serves(operations_of_journal.READ_EFFECTS)
def read_effects(call: Call[None, None]) -> EventList[Event]:
    return _as_many_as_fit(effects(call.service.journal._core, call.name("event")))


def _as_many_as_fit(events: Iterator[Event]) -> EventList[Event]:
    found: list[Event] = []
    size = 0
    for event in islice(events, MOST_EVENTS):
        size += len(event.raw)
        if size > PAGE_BYTES and found:
            break
        found.append(event)
    return EventList(found)


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _cursor(topic: LocalTopic, consumer: str) -> CursorDocument:
    check_consumer(consumer)

    def found(view: TopicView) -> CursorDocument:
        latest = view.latest()
        one = read_consumer(view.snap, view.number, consumer, latest)
        if one is None:
            return CursorDocument(consumer, None, latest)
        return CursorDocument(consumer, one.position, one.lag, one.moved_at)

    return topic._log.ask(found, CursorDocument(consumer, None, 0))


@serves(operations.LIST_CURSORS)
def list_cursors(call: Call[None, None]) -> CursorList:
    topic = topic_of(call)
    latest = topic.latest
    rows = [CursorDocument(one.name, one.position, one.lag, one.moved_at) for one in topic.consumers()]
    return CursorList(rows, latest)


@serves(operations.READ_CURSOR)
def read_cursor(call: Call[None, None]) -> CursorDocument:
    return _cursor(topic_of(call), call.name("consumer"))


@serves(operations.MOVE_CURSOR)
def move_cursor(call: Call[None, CursorChange]) -> CursorDocument:
    topic, consumer, change = topic_of(call), call.name("consumer"), call.body
    if sum(value is not None for value in (change.position, change.time, change.to)) != 1:
        raise ConfigError('say where to: one of "position", "time", "to"')
    time = parameters.moment(change.time)
    position = change.position
    if position is None:
        position = topic.latest if change.to == "end" else 0 if time is None else topic.position_at(time)
    topic._move_cursor(consumer, position, back=change.seek)
    return _cursor(topic, consumer)


@serves(operations.FORGET_CURSOR)
def forget_cursor(call: Call[None, None]) -> Forgotten:
    return Forgotten(topic_of(call).forget(call.name("consumer")))


# ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.COMPACT_TOPIC)
def compact_topic(call: Call[None, CompactRequest]) -> CompactReport:
    topic, request = topic_of(call), call.body
    if request.keys:
        removed = topic.compact_keys()
        return CompactReport(removed, len(topic), topic.latest)
    if request.through is None:
        raise ConfigError('say what may go: "through" or "keys"')
    return topic.compact(request.through, force=request.force)
