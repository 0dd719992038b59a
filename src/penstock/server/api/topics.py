"""What is special about topics over HTTP: bodies of several media types, appends that wait for the writer.

Every other operation on a topic runs its implementation as it is (`penstock.local.topics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.documents import cloudevents
from penstock.documents.events import DraftDocument, EventDocument, event_document, receipt_document, receipts_json
from penstock.errors import Backpressure, ConfigError
from penstock.events import Draft, Receipt
from penstock.journal.commit import Commit
from penstock.journal.prepare import plain_columns, sized_batch
from penstock.journal.writer import WriteRequest
from penstock.observe.tracing import trace_headers
from penstock.observe.workers import keep_newest
from penstock.protocol import journal as operations_of_journal
from penstock.protocol import topics as operations
from penstock.protocol.journal import Receipts
from penstock.protocol.operation import JSON
from penstock.server.access import REPORTS
from penstock.server.api import parameters
from penstock.server.api.binding import Call, answered, serves
from penstock.server.problems import Refused
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog
    from penstock.surface.topic import Topic
    from penstock.ticket import Ticket


def topic_of(call: Call[object, object]) -> Topic:
    return call.service.journal.topic(call.name("topic"))


def log_of(call: Call[object, object]) -> TopicLog:
    return call.service.journal._backend.log(call.name("topic"))


def existing(request: Request, service: Service) -> Topic:
    """The topic a page is about; Refused when nothing was ever appended to it."""
    topic = service.journal.topic(request.path_params["topic"])
    if topic.latest == 0 and topic.name not in service.journal.topics():
        raise Refused(404, "UnknownTopic", f"there is no topic {topic.name!r}")
    return topic


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.APPEND_EVENTS, raw=True)
async def append_events(call: Call[None, bytes]) -> Response:
    topic = topic_of(call)
    call.service.access.check_append(topic.name)
    if topic.name in REPORTS and not topic.latest:
        await run_in_threadpool(keep_newest, topic)
    core = call.service.journal._core
    traced = trace_headers() is not None
    plain = [] if core.guards or traced else parameters.plain_drafts(call.request, call.body)
    if plain:
        columns = plain_columns([one.kind for one in plain], [one.payload for one in plain], [one.key for one in plain])
        batch, single = sized_batch(columns), False

        def submit() -> Ticket[list[Receipt]]:
            return core.writer.submit(WriteRequest(Commit.append, batch.size, (topic.name, batch)), patient=False)

        receipts = await _patiently(call.service, submit)
    else:
        drafts, single = parameters.drafts(call.request, call.body)
        if not drafts:
            return answered(call.service, Receipts([]))
        _add_request_headers(call.request, drafts, single)
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
