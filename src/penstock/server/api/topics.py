"""Topics over HTTP: append, read in pages or as a stream, cursors, settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.document import (
    EventDocument,
    ReceiptDocument,
    event_document,
    event_json,
    receipt_document,
    receipts_json,
)
from penstock.errors import Backpressure, ConfigError, PenstockError
from penstock.events import Draft, Event, Receipt
from penstock.server.api import parameters
from penstock.server.api.parameters import ARROW, NDJSON, Wanted
from penstock.server.api.problems import Refused, of_error
from penstock.server.limits import MOST_EVENTS, PAGE_BYTES, STREAM_EVENTS, STREAM_ROWS
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.api import LocalTopic
    from penstock.ticket import Ticket

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


def json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(_encode(value), status, headers, media_type="application/json")


def topic_of(request: Request, service: Service) -> LocalTopic:
    return service.journal.topic(request.path_params["topic"])


def existing(request: Request, service: Service) -> LocalTopic:
    """The topic a request names; Refused when nobody ever appended to it."""
    topic = topic_of(request, service)
    if topic.latest == 0 and topic.name not in service.journal.topics():
        raise Refused(404, "UnknownTopic", f"there is no topic {topic.name!r}")
    return topic


# ── the list, one topic ──────────────────────────────────────────────────────────────────────────────────────────────
class TopicDocument(msgspec.Struct):
    name: str
    events: int
    oldest: int
    latest: int
    cursors: dict[str, int]
    settings: Any


@guarded("read")
def list_topics(request: Request, service: Service) -> Response:
    return json({"topics": service.journal.topics()})


@guarded("read")
def show_topic(request: Request, service: Service) -> Response:
    # A topic nobody has appended to is empty rather than missing: it exists from its first append.
    topic = topic_of(request, service)
    return json(
        TopicDocument(topic.name, len(topic), topic.oldest, topic.latest, topic.cursors(), topic.settings),
    )


@guarded("admin")
async def configure_topic(request: Request, service: Service) -> Response:
    changes = await parameters.struct(request, service.limits, dict[str, Any])
    topic = topic_of(request, service)
    return json(await run_in_threadpool(lambda: topic.configure(**changes)))


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
class Receipts(msgspec.Struct):
    receipts: list[ReceiptDocument]


@guarded("write")
async def append(request: Request, service: Service) -> Response:
    topic = topic_of(request, service)
    drafts, single = await parameters.drafts(request, service.limits)
    if not drafts:
        return json(Receipts([]), 200)
    _add_request_headers(request, drafts, single)
    receipts = await _patiently(service, lambda: topic.try_submit_many(drafts))
    if single:
        return json(receipt_document(receipts[0]), 200 if receipts[0].duplicate else 201)
    return Response(receipts_json(receipts), 201, media_type="application/json")


class Elsewhere(msgspec.Struct):
    """Drafts for one topic, among those of several."""

    topic: str
    events: list[Any]


_decode_several = msgspec.json.Decoder(list[dict[str, Any]]).decode


@guarded("write")
async def append_several(request: Request, service: Service) -> Response:
    """One atomic batch over several topics: every draft names its own."""
    from penstock.document import DraftDocument

    data = parameters.decoded(await parameters.body(request, service.limits), _decode_several)
    staged: list[tuple[str, Draft]] = []
    for number, document in enumerate(data):
        topic = document.pop("topic", None)
        if not isinstance(topic, str):
            raise ConfigError(f"draft {number} names no topic")
        try:
            staged.append((topic, msgspec.convert(document, DraftDocument).draft()))
        except msgspec.ValidationError as error:
            raise ConfigError(f"draft {number} cannot be used: {error}") from error
    outbox = service.journal.outbox()
    for topic, draft in staged:
        fields = {
            name: getattr(draft, name) for name in draft.__struct_fields__ if name not in ("kind", "payload", "topic")
        }
        outbox.stage(topic, draft.kind, draft.payload, **fields)
    receipts = await outbox.submit()
    return Response(receipts_json(receipts), 201, media_type="application/json")


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


async def _patiently(service: Service, submit: Any) -> list[Receipt]:
    """Submits as soon as the writer has room; Backpressure when it has none for too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + service.limits.write_timeout
    while True:
        try:
            ticket: Ticket[list[Receipt]] = submit()
        except Backpressure as error:
            if loop.time() + error.retry_after > deadline:
                raise
            await asyncio.sleep(error.retry_after)
            continue
        return await ticket


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class Page(msgspec.Struct):
    events: list[EventDocument]
    next: int | None
    """Ask again with after=… (reading backwards: through=…) for what follows; null at the end."""
    latest: int


@guarded("read")
async def read(request: Request, service: Service) -> Response:
    topic = topic_of(request, service)
    accepted = request.headers.get("accept", "")
    if ARROW in accepted:
        return await _arrow(request, topic)
    if NDJSON in accepted or "application/jsonl" in accepted:
        return await _lines(request, topic)
    return json(await run_in_threadpool(_page, request, topic))


def _range(request: Request, topic: LocalTopic) -> tuple[int, int | None]:
    """The positions a request asks for, its times taken into account: after (exclusive), through (inclusive)."""
    after = parameters.number(request, "after", 0) or 0
    through = parameters.number(request, "through")
    since, until = parameters.moment(request, "since"), parameters.moment(request, "until")
    if after:
        next(topic.read(after, 1), None)  # PositionTrimmed when it must
    if since is not None:
        after = max(after, topic.position_at(since))
    if until is not None:
        last = topic.position_at(until)
        through = last if through is None else min(last, through)
    return after, through


def _page(request: Request, topic: LocalTopic) -> Page:
    limit = parameters.page_size(request)
    wanted = Wanted(request)
    reverse = parameters.yes(request, "reverse")
    after, through = _range(request, topic)
    latest = topic.latest
    events: list[EventDocument] = []
    size = 0
    last: Event | None = None
    scanned = 0
    more = False
    if limit and (through is None or through > after):
        for event in topic.read(after, through=through, reverse=reverse, **wanted.read()):
            if len(events) >= limit or size >= PAGE_BYTES or scanned >= limit + SCANNED:
                more = True
                break
            last = event
            scanned += 1
            if wanted.where is None or wanted.where.matches(event):
                events.append(event_document(event))
                size += len(event.raw)
    follows = None
    if more and last is not None:
        follows = last.seq - 1 if reverse else last.seq
    return Page(events, follows, latest)


SCANNED = 200_000
"""Events a page looks at for a condition that few fulfil, before it says how far it came."""


async def _lines(request: Request, topic: LocalTopic) -> Response:
    """Everything asked for, one document a line, read in pieces: a slow reader holds nothing of the store."""
    wanted = Wanted(request)
    limit = parameters.number(request, "limit")
    if parameters.yes(request, "reverse"):
        raise ConfigError("a stream runs forward; read pages for reverse")
    after, through = await run_in_threadpool(_range, request, topic)
    end = topic.latest if through is None else min(through, topic.latest)

    def piece(after: int, left: int | None) -> tuple[bytes, int, int]:
        lines: list[bytes] = []
        scanned = 0
        if left == 0:
            return b"", end, 0
        for event in topic.read(after, STREAM_EVENTS, through=end, **wanted.read()):
            scanned += 1
            after = event.seq
            if wanted.where is None or wanted.where.matches(event):
                lines.append(event_json(event))
                if left is not None and len(lines) >= left:
                    break
        if scanned < STREAM_EVENTS:
            after = max(after, end) if left is None or len(lines) < left else after
        return b"".join([line + b"\n" for line in lines]), after, len(lines)

    async def stream(data: bytes, position: int, left: int | None) -> AsyncIterator[bytes]:
        while True:
            if data:
                yield data
            if position >= end or left == 0:
                return
            try:
                data, position, count = await run_in_threadpool(piece, position, left)
            except PenstockError as error:  # the status is sent already: the last line says what went wrong
                yield b'{"problem":%b}\n' % bytes(of_error(error).body)
                return
            left = None if left is None else left - count

    # The first piece before the answer begins: what is wrong from the start is a status, not a broken stream.
    data, position, count = await run_in_threadpool(piece, after, limit) if after < end else (b"", end, 0)
    left = None if limit is None else limit - count
    headers = {"X-Penstock-Latest": str(end)}
    return StreamingResponse(stream(data, position, left), media_type=NDJSON, headers=headers)


async def _arrow(request: Request, topic: LocalTopic) -> Response:
    """Record batches as an Arrow IPC stream."""
    from penstock.server.api.arrow import batch_bytes, end_bytes, schema_bytes

    wanted = Wanted(request)
    if not wanted.everything:
        raise ConfigError("an Arrow stream takes positions and times only; filter where you read it")
    payload: Any = request.query_params.get("payload") or "string"
    if payload not in ("string", "binary"):
        raise ConfigError(f'payload is "string" or "binary", not {payload[:40]!r}')
    limit = parameters.number(request, "limit")
    after, through = await run_in_threadpool(_range, request, topic)
    end = topic.latest if through is None else min(through, topic.latest)

    def piece(after: int, left: int | None) -> tuple[bytes, int, int]:
        rows = STREAM_ROWS if left is None else min(left, STREAM_ROWS)
        data, count = [], 0
        for batch in topic.read_arrow(after, rows, through=end, payload=payload):
            data.append(batch_bytes(batch))
            count += batch.num_rows
            after = batch.column("seq")[-1].as_py()
        return b"".join(data), after if count else end, count

    async def stream(data: bytes, position: int, left: int | None) -> AsyncIterator[bytes]:
        yield schema_bytes(payload)
        while True:
            yield data
            if position >= end or left == 0:
                break
            data, position, count = await run_in_threadpool(piece, position, left)
            left = None if left is None else left - count
        yield end_bytes()

    data, position, count = await run_in_threadpool(piece, after, limit) if after < end else (b"", end, 0)
    left = None if limit is None else limit - count
    headers = {"X-Penstock-Latest": str(end)}
    return StreamingResponse(stream(data, position, left), media_type=ARROW, headers=headers)


@guarded("read")
def show_event(request: Request, service: Service) -> Response:
    topic = topic_of(request, service)
    name = request.path_params["event"]
    event = topic.get(int(name)) if name.isdigit() and len(name) <= 18 else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    return json(event_document(event))


@guarded("read")
def position_at(request: Request, service: Service) -> Response:
    time = parameters.moment(request, "time")
    if time is None:
        raise ConfigError("time is missing: /position?time=2024-05-01T12:00:00Z")
    return json({"position": topic_of(request, service).position_at(time)})


@guarded("read")
def correlated(request: Request, service: Service) -> Response:
    """Every event of one correlation, whatever its topic, oldest first."""
    events = islice(service.journal.correlated(request.path_params["correlation"]), MOST_EVENTS)
    return json({"events": [event_document(event) for event in events]})


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class CursorDocument(msgspec.Struct):
    consumer: str
    position: int | None
    lag: int


class CursorChange(msgspec.Struct, forbid_unknown_fields=True):
    """Where to: a position, a time, or one of the ends. `seek` may go back; a commit never does."""

    position: int | None = None
    time: str | None = None
    to: str | None = None
    seek: bool = False


def _cursor(topic: LocalTopic, consumer: str) -> CursorDocument:
    return CursorDocument(consumer, topic.cursor(consumer), topic.lag(consumer))


@guarded("read")
def list_cursors(request: Request, service: Service) -> Response:
    topic = topic_of(request, service)
    latest = topic.latest
    rows = [CursorDocument(name, seq, latest - seq) for name, seq in sorted(topic.cursors().items())]
    return json({"cursors": rows, "latest": latest})


@guarded("read")
def show_cursor(request: Request, service: Service) -> Response:
    return json(_cursor(topic_of(request, service), request.path_params["consumer"]))


@guarded("write")
async def move_cursor(request: Request, service: Service) -> Response:
    change = await parameters.struct(request, service.limits, CursorChange)
    topic, consumer = topic_of(request, service), request.path_params["consumer"]
    return json(await run_in_threadpool(_move, topic, consumer, change))


def _move(topic: LocalTopic, consumer: str, change: CursorChange) -> CursorDocument:
    from datetime import UTC, datetime

    from penstock.units import parse_moment

    if sum(value is not None for value in (change.position, change.time, change.to)) != 1:
        raise ConfigError('say where to: one of "position", "time", "to"')
    if change.position is not None:
        position = change.position
    elif change.time is not None:
        position = topic.position_at(parse_moment(change.time, datetime.now(UTC)))
    elif change.to in ("start", "end"):
        position = topic.latest if change.to == "end" else 0
    else:
        raise ConfigError(f'"to" is "start" or "end", not {change.to!r}')
    if change.seek:
        topic.seek(consumer, position)
    else:
        topic.commit(consumer, position)
    return _cursor(topic, consumer)


@guarded("write")
def forget_cursor(request: Request, service: Service) -> Response:
    return json({"forgotten": topic_of(request, service).forget(request.path_params["consumer"])})


# ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class Compaction(msgspec.Struct, forbid_unknown_fields=True):
    through: int | None = None
    keys: bool = False
    force: bool = False


@guarded("admin")
async def compact(request: Request, service: Service) -> Response:
    wish = await parameters.struct(request, service.limits, Compaction)
    topic = topic_of(request, service)
    if wish.keys:
        removed = await run_in_threadpool(topic.compact_keys)
        return json({"removed": removed, "remaining": len(topic), "latest": topic.latest, "stopped_at": None})
    if wish.through is None:
        raise ConfigError('say what may go: "through" or "keys"')
    through = wish.through
    return json(await run_in_threadpool(lambda: topic.compact(through, force=wish.force)))


def events_of(pages: Iterator[Event]) -> list[EventDocument]:
    return [event_document(event) for event in pages]
