"""Reading a topic over HTTP: pages of JSON, streams of lines, Arrow record batches; bounded in events and bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from penstock.documents.cloudevents import BATCH, to_json
from penstock.documents.events import event_json
from penstock.errors import ConfigError, PenstockError, PositionTrimmed
from penstock.events import Event
from penstock.journal.keys import MAX_SEQ
from penstock.journal.reading import TopicView
from penstock.protocol.operation import ARROW, LINES, PAGE_BYTES
from penstock.protocol.topics import READ_EVENTS, EventPage, ReadQuery
from penstock.server.api import parameters
from penstock.server.api.binding import Call, answered, serves
from penstock.server.api.parameters import ReadFilter
from penstock.server.api.topics import topic_of
from penstock.server.limits import (
    ARROW_BYTES,
    SCANNED,
    SEND_BYTES,
    STREAM_BYTES,
    STREAM_EVENTS,
    STREAM_ROWS,
)
from penstock.server.memory import HeldResponse, StreamedResponse
from penstock.server.problems import error_answer

if TYPE_CHECKING:
    from penstock.local.topic import LocalTopic

Piece = tuple[bytes, int, int]
"""Bytes to send, the position they go to, and how many events that is."""


@serves(READ_EVENTS)
async def read_events(call: Call[ReadQuery, None]) -> Response:
    topic = topic_of(call)
    accepted = call.request.headers.get("accept", "")
    if ARROW in accepted:
        return await _arrow(topic, call.query)
    if LINES in accepted or "application/jsonl" in accepted:
        return await _lines(topic, call.query)
    if BATCH in accepted:
        return await _cloudevents(call, topic)
    return answered(call.service, await run_in_threadpool(_page, topic, call.query))


class ReadRange(NamedTuple):
    """The positions a request asks for: after (exclusive), through (inclusive); and where the topic ends."""

    after: int
    through: int
    latest: int


def _range(topic: LocalTopic, query: ReadQuery) -> ReadRange:
    """What a request asks for, its times taken into account."""
    latest = topic.latest
    after, through = query.after, latest if query.through is None else min(query.through, latest)
    since, until = parameters.moment(query.since), parameters.moment(query.until)
    if after:
        next(topic.read(after, 1), None)  # PositionTrimmed when it must
    if since is not None:
        after = max(after, topic.position_at(since))
    if until is not None:
        through = min(topic.position_at(until), through)
    return ReadRange(after, through, latest)


def _check_not_dropped(topic: LocalTopic, after: int) -> None:
    """PositionTrimmed when the topic was dropped while it was read on after a position: what was read is not all."""
    began = topic._log.ask(TopicView.began, MAX_SEQ)
    if 0 < after < began:
        raise PositionTrimmed(f"topic {topic.name!r} was dropped while it was read", oldest=topic.oldest or after + 1)


def _page(topic: LocalTopic, query: ReadQuery) -> EventPage[Event]:
    found, follows, latest = _selected(topic, query)
    return EventPage(found, follows, latest)


def _selected(topic: LocalTopic, query: ReadQuery) -> tuple[list[Event], int | None, int]:
    """The events of a page, where the next one begins, and the topic's latest position."""
    limit = parameters.page_size(query.limit)
    selection = ReadFilter(query)
    after, through, latest = _range(topic, query)
    events: list[Event] = []
    size = 0
    last: Event | None = None
    scanned = 0
    more = False
    if limit and through > after:
        for event in topic.read(after, through=through, reverse=query.reverse, **selection.read()):
            if len(events) >= limit or size >= PAGE_BYTES or scanned >= limit + SCANNED:
                more = True
                break
            last = event
            scanned += 1
            if selection.where is None or selection.where.matches(event):
                events.append(event)
                size += len(event.raw)
        _check_not_dropped(topic, after)
    follows = None
    if more and last is not None:
        follows = last.seq - 1 if query.reverse else last.seq
    return events, follows, latest


async def _cloudevents(call: Call[ReadQuery, None], topic: LocalTopic) -> Response:
    """A page as a batch of CloudEvents; the header `Link` leads to the next page, if there is one."""

    def read() -> tuple[bytes, int | None]:
        found, follows, _ = _selected(topic, call.query)
        return b"[" + b",".join(map(to_json, found)) + b"]", follows

    body, follows = await run_in_threadpool(read)
    large = len(body) > SEND_BYTES
    answer = HeldResponse(call.service.budget, body, 200, BATCH) if large else Response(body, media_type=BATCH)
    if follows is not None:
        here = call.request.url.include_query_params(**{"through" if call.query.reverse else "after": follows})
        answer.headers["Link"] = f'<{here.path}?{here.query}>; rel="next"'
    return answer


async def _lines(topic: LocalTopic, query: ReadQuery) -> Response:
    """Everything asked for, one document a line, read in pieces: a slow reader holds nothing of the store."""
    selection = ReadFilter(query)
    if query.reverse:
        raise ConfigError("a stream runs forward; read pages for reverse")
    after, end, _ = await run_in_threadpool(_range, topic, query)

    def piece(start: int, left: int | None) -> Piece:
        after = start
        lines: list[bytes] = []
        size = scanned = 0
        for event in topic.read(after, STREAM_EVENTS, through=end, **selection.read()):
            scanned += 1  # noqa: SIM113 - asked for after the loop
            after = event.seq
            if selection.where is None or selection.where.matches(event):
                lines.append(event_json(event) + b"\n")
                size += len(lines[-1])
                if size >= STREAM_BYTES or (left is not None and len(lines) >= left):
                    break
        else:
            if scanned < STREAM_EVENTS:
                after = max(after, end)
        _check_not_dropped(topic, start)
        return b"".join(lines), after, len(lines)

    def failed(error: PenstockError) -> bytes:
        return b'{"problem":%b}\n' % bytes(error_answer(error).body)

    return await _streamed(piece, failed, after, end, query.limit, LINES)


async def _arrow(topic: LocalTopic, query: ReadQuery) -> Response:
    """Record batches as an Arrow IPC stream."""
    from penstock.server.api.arrow import batch_bytes, end_bytes, schema_bytes

    if not ReadFilter(query).everything:
        raise ConfigError("an Arrow stream takes positions and times only; filter where you read it")
    after, end, _ = await run_in_threadpool(_range, topic, query)

    def piece(start: int, left: int | None) -> Piece:
        after = start
        rows = STREAM_ROWS if left is None else min(left, STREAM_ROWS)
        data: list[bytes] = []
        size = count = 0
        for batch in topic.read_arrow(after, rows, through=end, payload=query.payload):
            data.append(batch_bytes(batch))
            size += len(data[-1])
            count += batch.num_rows
            after = batch.column("seq")[-1].as_py()
            if size >= ARROW_BYTES:
                break
        _check_not_dropped(topic, start)
        return b"".join(data), after if count else end, count

    first, last = schema_bytes(query.payload), end_bytes()
    return await _streamed(piece, None, after, end, query.limit, ARROW, first, last)


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
