"""Topics over HTTP: bodies of several media types, appends that wait for the writer, pages and streams of events; and
what the journal is as a whole.

Every other operation on a topic runs its implementation as it is (`penstock.local.topics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.clock import to_ms
from penstock.documents import cloudevents
from penstock.documents.decoding import decoded
from penstock.documents.events import (
    DraftDocument,
    EventDocument,
    PlainDraft,
    event_document,
    event_json,
    receipt_document,
    receipts_json,
)
from penstock.errors import Backpressure, ConfigError, PenstockError, PositionTrimmed
from penstock.events import Draft, Event, Receipt
from penstock.journal.commit import Commit
from penstock.journal.log import TopicLog, read_view
from penstock.journal.prepare import plain_columns, sized_batch
from penstock.journal.reading import TopicView
from penstock.journal.writer import WriteRequest
from penstock.limits import ARROW_BATCH_ROWS
from penstock.local.topics import requested_events
from penstock.observe.sample import Sample
from penstock.observe.tracing import trace_headers
from penstock.observe.workers import keep_newest
from penstock.protocol import openapi
from penstock.protocol import topics as wire
from penstock.protocol.operation import ARROW, JSON, LINES, PAGE_BYTES
from penstock.protocol.problems import problem_of
from penstock.server import limits
from penstock.server.access import REPORTS
from penstock.server.api.binding import Call, answered, page_size
from penstock.server.service import Refused, Service, StreamedResponse, sse, whole_answer
from penstock.surface.topic import Topic
from penstock.ticket import Ticket
from penstock.units import parse_moment


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


# ── the journal as a whole ───────────────────────────────────────────────────────────────────────────────────────────
def describe_journal(call: Call[None, None]) -> wire.JournalDocument:
    from penstock import __version__

    journal = call.service.journal
    return wire.JournalDocument(
        **msgspec.structs.asdict(journal.describe()),
        version=__version__,
        id=journal.id,
        pressure=journal.pressure(),
        staging=list(call.service.areas),
        lakes=list(call.service.lakes),
        role=call.request.state.role,
    )


def read_openapi(call: Call[None, None]) -> Response:
    """It is the same for every client and says nothing of the data, so it needs no token."""
    return Response(openapi.document(), media_type=JSON)


def read_stats(call: Call[None, None]) -> Sample:
    return call.service.sampler.newest


async def follow_stats(call: Call[None, None]) -> Response:
    return sse(call.service, lambda sample: sample)


# ── appending ─────────────────────────────────────────────────────────────────────────────────────────────────────────
async def append_events(call: Call[None, bytes]) -> Response:
    topic = topic_of(call)
    call.service.access.check_append(topic.name)
    if topic.name in REPORTS and not topic.latest:
        await run_in_threadpool(keep_newest, topic)
    core = call.service.journal._core
    traced = trace_headers() is not None
    plain = [] if core.guards or traced else plain_drafts(call.request, call.body)
    if plain:
        columns = plain_columns([one.kind for one in plain], [one.payload for one in plain], [one.key for one in plain])
        batch, single = sized_batch(columns), False

        def submit() -> Ticket[list[Receipt]]:
            return core.writer.submit(WriteRequest(Commit.append, batch.size, (topic.name, batch)), patient=False)

        receipts = await _patiently(call.service, submit)
    else:
        found, single = drafts(call.request, call.body)
        if not found:
            return answered(call.service, wire.Receipts([]))
        _add_request_headers(call.request, found, single)
        receipts = await _patiently(call.service, lambda: topic.try_submit_many(found))
    if single:
        return answered(call.service, receipt_document(receipts[0]), 200 if receipts[0].duplicate else 201)
    return Response(receipts_json(receipts), 201, media_type=JSON)


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


# ── looking up ────────────────────────────────────────────────────────────────────────────────────────────────────────
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


# ── what a body says ──────────────────────────────────────────────────────────────────────────────────────────────────
_decode_plain = msgspec.json.Decoder(list[PlainDraft]).decode
_decode_draft = msgspec.json.Decoder(DraftDocument).decode


def plain_drafts(request: Request, data: bytes) -> list[PlainDraft]:
    """The drafts of a body when they say nothing but a kind, a payload and perhaps a key, as most do; else none."""
    if not data.startswith(b"[") or request.headers.get("content-type") != JSON or "traceparent" in request.headers:
        return []
    try:
        return _decode_plain(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []  # they say more than that, or something is wrong with them, which `drafts` finds out


def drafts(request: Request, data: bytes) -> tuple[list[Draft], bool]:
    """The drafts of a body, and whether it was a single one: an object, an array of them, one a line, CloudEvents."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content in (LINES, "application/jsonl", "application/ndjson"):
        found = [(f"line {number}", line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
        return [decoded(line, _decode_draft, DraftDocument, where).draft() for where, line in found], False
    if content in (cloudevents.STRUCTURED, cloudevents.BATCH):
        batch = content == cloudevents.BATCH
        return cloudevents.from_json(data, batch=batch), not batch
    if "ce-specversion" in request.headers:
        given = request.headers.get("content-type", "")
        return [cloudevents.from_http(request.headers.items(), given, data)], True
    if content not in (JSON, ""):
        known = ", ".join((JSON, LINES, cloudevents.STRUCTURED))
        raise Refused(415, "UnsupportedMediaType", f"send one of {known}, not {content[:60]!r}")
    given = decoded(data, wire.APPEND_EVENTS.body_decoder.decode, wire.APPEND_EVENTS.body)
    if isinstance(given, list):
        return [document.draft() for document in given], False
    return [given.draft()], True


# ── reading: pages of JSON, streams of lines, Arrow record batches; bounded in events and bytes ───────────────────────
T = TypeVar("T")

ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow IPC stream."""
Piece = tuple[bytes, int, int]
"""Bytes to send, the position they go to, and how many events that is."""


async def read_events(call: Call[wire.ReadQuery, None]) -> Response:
    wanted = WantedEvents(log_of(call), call.query)
    accepted = call.request.headers.get("accept", "")
    if ARROW in accepted:
        return await _arrow(wanted)
    if LINES in accepted or "application/jsonl" in accepted:
        return await _lines(wanted)
    if cloudevents.BATCH in accepted:
        return await _cloudevents(call, wanted)
    return answered(call.service, await run_in_threadpool(wanted.page))


class ReadRange(NamedTuple):
    """The positions a request asks for: after (exclusive), through (inclusive); and where the topic ends."""

    after: int
    through: int
    latest: int


class WantedEvents:
    """What a request asks of a topic."""

    def __init__(self, log: TopicLog, query: wire.ReadQuery) -> None:
        self.log = log
        self.query = query
        self.filter = requested_events(query)
        self._since = _ms(query.since, "since")
        self._until = _ms(query.until, "until")

    def range(self) -> ReadRange:
        """The positions it asks for, as the topic is now."""
        return self.log.ask(self._range, ReadRange(self.query.after, 0, 0))

    def _range(self, view: TopicView) -> ReadRange:
        latest, after = view.latest(), self.query.after
        through = latest if self.query.through is None else min(self.query.through, latest)
        view.check_not_trimmed(after)
        if self._since is not None:
            after = max(after, view.position_before(self._since))
        if self._until is not None:
            through = min(through, view.position_before(self._until))
        return ReadRange(after, through, latest)

    def rows(self, start: int, end: int, read: Callable[[Iterator[Event]], T]) -> T | None:
        """What `read` makes of the events between two positions; a condition is still to be asked of them.

        None when there is no topic; PositionTrimmed when it was dropped since `start` was reached.
        """
        lookup = None if self.filter.key is None else self.log.core.index.lookup(self.log.name)
        query = replace(self.filter, where=None, after=start, through=end)
        found = self.log.ask(lambda view: read(read_view(view, query, lookup)), None)
        if found is None and start:
            raise dropped(self.log.name, start)
        return found

    def page(self) -> wire.EventPage[Event]:
        """A page of them, bounded in events and bytes, from one snapshot."""
        limit = page_size(self.query.limit)
        lookup = None if self.filter.key is None else self.log.core.index.lookup(self.log.name)

        def read(view: TopicView) -> wire.EventPage[Event]:
            after, through, latest = self._range(view)
            rows = replace(self.filter, where=None, after=after, through=through, reverse=self.query.reverse)
            if not limit or through <= after:
                return wire.EventPage([], None, latest)
            return wire.EventPage(*self._bounded(read_view(view, rows, lookup), limit), latest)

        return self.log.ask(read, wire.EventPage([], None, 0))

    def _bounded(self, rows: Iterator[Event], limit: int) -> tuple[list[Event], int | None]:
        """As many as fit, and the position after which there are more."""
        events: list[Event] = []
        size = scanned = 0
        last: Event | None = None
        where = self.filter.where
        for event in rows:
            if last is not None and (len(events) >= limit or size >= PAGE_BYTES or scanned >= limit + limits.SCANNED):
                return events, last.seq - 1 if self.query.reverse else last.seq
            last = event
            scanned += 1  # noqa: SIM113 - asked before it is counted
            if where is None or where.matches(event):
                events.append(event)
                size += len(event.raw)
        return events, None


def _ms(text: str | None, what: str) -> int | None:
    """A time (ISO, or how long ago) in milliseconds."""
    return to_ms(parse_moment(text, datetime.now(UTC)), what) if text else None


def dropped(topic: str, after: int) -> PositionTrimmed:
    return PositionTrimmed(f"topic {topic!r} was dropped while it was read", oldest=after + 1)


async def _cloudevents(call: Call[wire.ReadQuery, None], wanted: WantedEvents) -> Response:
    """A page as a batch of CloudEvents; the header `Link` leads to the next page, if there is one."""

    def read() -> tuple[bytes, int | None]:
        page = wanted.page()
        return b"[" + b",".join(map(cloudevents.to_json, page.events)) + b"]", page.next

    body, follows = await run_in_threadpool(read)
    answer = whole_answer(call.service, body, 200, cloudevents.BATCH)
    if follows is not None:
        here = call.request.url.include_query_params(**{"through" if call.query.reverse else "after": follows})
        answer.headers["Link"] = f'<{here.path}?{here.query}>; rel="next"'
    return answer


async def _lines(wanted: WantedEvents) -> Response:
    """Everything asked for, one document a line, read in pieces: a slow reader holds nothing of the store."""
    if wanted.query.reverse:
        raise ConfigError("a stream runs forward; read pages for reverse")
    where = wanted.filter.where
    after, end, _ = await run_in_threadpool(wanted.range)

    def piece(start: int, left: int | None) -> Piece:
        def read(events: Iterator[Event]) -> Piece:
            lines: list[bytes] = []
            after, size, scanned = start, 0, 0
            for event in islice(events, limits.STREAM_EVENTS):
                scanned += 1  # noqa: SIM113 - asked for after the loop
                after = event.seq
                if where is None or where.matches(event):
                    lines.append(event_json(event) + b"\n")
                    size += len(lines[-1])
                    if size >= limits.STREAM_BYTES or (left is not None and len(lines) >= left):
                        break
            else:
                if scanned < limits.STREAM_EVENTS:
                    after = max(after, end)
            return b"".join(lines), after, len(lines)

        return wanted.rows(start, end, read) or (b"", end, 0)

    def failed(error: PenstockError) -> bytes:
        return b'{"problem":%b}\n' % msgspec.json.encode(problem_of(error))

    return await _streamed(piece, failed, after, end, wanted.query.limit, LINES)


async def _arrow(wanted: WantedEvents) -> Response:
    """Record batches as an Arrow IPC stream."""
    from penstock.journal.to_arrow import arrow_schema, read_batches

    if not wanted.filter.everything:
        raise ConfigError("an Arrow stream takes positions and times only; filter where you read it")
    after, end, _ = await run_in_threadpool(wanted.range)
    core, name, payload = wanted.log.core, wanted.log.name, wanted.query.payload

    def piece(start: int, left: int | None) -> Piece:
        after = start
        rows = limits.STREAM_ROWS if left is None else min(left, limits.STREAM_ROWS)
        data: list[bytes] = []
        size = count = 0
        for batch in read_batches(core.engine, name, start, rows, end, ARROW_BATCH_ROWS, payload, core.clock.now_ms()):
            data.append(bytes(batch.serialize()))
            size += len(data[-1])
            count += batch.num_rows
            after = batch.column("seq")[-1].as_py()
            if size >= limits.ARROW_BYTES:
                break
        if start and not count and name not in core.topics():
            raise dropped(name, start)
        return b"".join(data), after if count else end, count

    first = bytes(arrow_schema(payload).serialize())
    return await _streamed(piece, None, after, end, wanted.query.limit, ARROW, first, ARROW_END)


async def _streamed(
    piece: Callable[[int, int | None], Piece],
    failed: Callable[[PenstockError], bytes] | None,
    after: int,
    end: int,
    limit: int | None,
    media: str,
    first: bytes = b"",
    last: bytes = b"",
) -> Response:
    """Pieces from `after` to `end`, each read when the one before was sent.

    `failed` says what went wrong once the status is sent already; without it the stream breaks off.
    """

    async def stream(data: bytes, position: int, left: int | None) -> AsyncGenerator[bytes, None]:
        if first:
            yield first
        while True:
            if data:
                yield data
                data = b""  # before the next piece is read
            if position >= end or left == 0:
                break
            try:
                data, position, count = await run_in_threadpool(piece, position, left)
            except PenstockError as error:
                if failed is None:
                    raise
                yield failed(error)
                return
            left = None if left is None else left - count
        if last:
            yield last

    # The first piece before the answer begins: what is wrong from the start is a status, not a broken stream.
    nothing = after >= end or limit == 0
    data, position, count = (b"", end, 0) if nothing else await run_in_threadpool(piece, after, limit)
    left = None if limit is None else limit - count
    headers = {"X-Penstock-Latest": str(end)}
    return StreamedResponse(stream(data, position, left), media_type=media, headers=headers)
