"""Reading a topic over HTTP: pages of JSON, streams of lines, Arrow record batches; bounded in events and bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from penstock.clock import to_ms
from penstock.documents.cloudevents import BATCH, to_json
from penstock.documents.events import event_json
from penstock.errors import ConfigError, PenstockError, PositionTrimmed
from penstock.events import Event
from penstock.journal.log import TopicLog, read_view
from penstock.journal.reading import TopicView
from penstock.limits import ARROW_BATCH_ROWS
from penstock.local.topics import requested_events
from penstock.protocol.operation import ARROW, LINES, PAGE_BYTES
from penstock.protocol.topics import READ_EVENTS, EventPage, ReadQuery
from penstock.server.api import parameters
from penstock.server.api.binding import Call, answered, serves
from penstock.server.api.topics import log_of
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

T = TypeVar("T")

Piece = tuple[bytes, int, int]
"""Bytes to send, the position they go to, and how many events that is."""


@serves(READ_EVENTS)
async def read_events(call: Call[ReadQuery, None]) -> Response:
    wanted = WantedEvents(log_of(call), call.query)
    accepted = call.request.headers.get("accept", "")
    if ARROW in accepted:
        return await _arrow(wanted)
    if LINES in accepted or "application/jsonl" in accepted:
        return await _lines(wanted)
    if BATCH in accepted:
        return await _cloudevents(call, wanted)
    return answered(call.service, await run_in_threadpool(wanted.page))


class ReadRange(NamedTuple):
    """The positions a request asks for: after (exclusive), through (inclusive); and where the topic ends."""

    after: int
    through: int
    latest: int


class WantedEvents:
    """What a request asks of a topic."""

    def __init__(self, log: TopicLog, query: ReadQuery) -> None:
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

    def page(self) -> EventPage[Event]:
        """A page of them, bounded in events and bytes, from one snapshot."""
        limit = parameters.page_size(self.query.limit)
        lookup = None if self.filter.key is None else self.log.core.index.lookup(self.log.name)

        def read(view: TopicView) -> EventPage[Event]:
            after, through, latest = self._range(view)
            rows = replace(self.filter, where=None, after=after, through=through, reverse=self.query.reverse)
            if not limit or through <= after:
                return EventPage([], None, latest)
            return EventPage(*self._bounded(read_view(view, rows, lookup), limit), latest)

        return self.log.ask(read, EventPage([], None, 0))

    def _bounded(self, rows: Iterator[Event], limit: int) -> tuple[list[Event], int | None]:
        """As many as fit, and the position after which there are more."""
        events: list[Event] = []
        size = scanned = 0
        last: Event | None = None
        where = self.filter.where
        for event in rows:
            if last is not None and (len(events) >= limit or size >= PAGE_BYTES or scanned >= limit + SCANNED):
                return events, last.seq - 1 if self.query.reverse else last.seq
            last = event
            scanned += 1  # noqa: SIM113 - asked before it is counted
            if where is None or where.matches(event):
                events.append(event)
                size += len(event.raw)
        return events, None


def _ms(text: str | None, what: str) -> int | None:
    moment = parameters.moment(text)
    return None if moment is None else to_ms(moment, what)


def dropped(topic: str, after: int) -> PositionTrimmed:
    return PositionTrimmed(f"topic {topic!r} was dropped while it was read", oldest=after + 1)


async def _cloudevents(call: Call[ReadQuery, None], wanted: WantedEvents) -> Response:
    """A page as a batch of CloudEvents; the header `Link` leads to the next page, if there is one."""

    def read() -> tuple[bytes, int | None]:
        page = wanted.page()
        return b"[" + b",".join(map(to_json, page.events)) + b"]", page.next

    body, follows = await run_in_threadpool(read)
    large = len(body) > SEND_BYTES
    answer = HeldResponse(call.service.budget, body, 200, BATCH) if large else Response(body, media_type=BATCH)
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
            for event in islice(events, STREAM_EVENTS):
                scanned += 1  # noqa: SIM113 - asked for after the loop
                after = event.seq
                if where is None or where.matches(event):
                    lines.append(event_json(event) + b"\n")
                    size += len(lines[-1])
                    if size >= STREAM_BYTES or (left is not None and len(lines) >= left):
                        break
            else:
                if scanned < STREAM_EVENTS:
                    after = max(after, end)
            return b"".join(lines), after, len(lines)

        return wanted.rows(start, end, read) or (b"", end, 0)

    def failed(error: PenstockError) -> bytes:
        return b'{"problem":%b}\n' % bytes(error_answer(error).body)

    return await _streamed(piece, failed, after, end, wanted.query.limit, LINES)


async def _arrow(wanted: WantedEvents) -> Response:
    """Record batches as an Arrow IPC stream."""
    from penstock.journal.to_arrow import read_batches
    from penstock.server.api.arrow import batch_bytes, end_bytes, schema_bytes

    if not wanted.filter.everything:
        raise ConfigError("an Arrow stream takes positions and times only; filter where you read it")
    after, end, _ = await run_in_threadpool(wanted.range)
    core, name, payload = wanted.log.core, wanted.log.name, wanted.query.payload

    def piece(start: int, left: int | None) -> Piece:
        after = start
        rows = STREAM_ROWS if left is None else min(left, STREAM_ROWS)
        data: list[bytes] = []
        size = count = 0
        for batch in read_batches(core.engine, name, start, rows, end, ARROW_BATCH_ROWS, payload, core.clock.now_ms()):
            data.append(batch_bytes(batch))
            size += len(data[-1])
            count += batch.num_rows
            after = batch.column("seq")[-1].as_py()
            if size >= ARROW_BYTES:
                break
        if start and not count and name not in core.topics():
            raise dropped(name, start)
        return b"".join(data), after if count else end, count

    first, last = schema_bytes(payload), end_bytes()
    return await _streamed(piece, None, after, end, wanted.query.limit, ARROW, first, last)


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
