"""Topics over HTTP: bodies of several media types, appends that wait for the writer, pages and streams of events,
following a topic, and the description of the journal.

Every other operation on a topic runs its implementation directly (`penstock.core.local.topics`).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.documents import cloudevents
from penstock.core.documents import events as documents
from penstock.core.documents.decoding import decoded
from penstock.core.events import Draft, Event
from penstock.core.journal.across import AcrossReader, AcrossStep, across_query, topic_ends
from penstock.core.journal.core import JournalCore
from penstock.core.journal.keys import MAX_SEQ
from penstock.core.journal.log import TopicLog
from penstock.core.journal.reading import TopicView
from penstock.core.local.backend import LocalJournal
from penstock.core.local.topics import WantedEvents, dropped, requested_events
from penstock.core.model.query import EventQuery
from penstock.core.protocol import topics as wire
from penstock.core.protocol.operation import ARROW, JSON, LINES, READ_TOPICS
from penstock.core.protocol.problems import problem_frame, problem_of
from penstock.core.surface.topic import Topic
from penstock.errors import Closed, ConfigError, Corrupt, PenstockError
from penstock.limits import ARROW_BATCH_ROWS
from penstock.server import limits
from penstock.server.api.binding import Call, Performer, page_size
from penstock.server.service import EventStream, Refused, Service, StreamedResponse, sse, whole_answer

log = logging.getLogger("penstock.server")


def topic_of(call: Call[object, object]) -> Topic:
    return call.service.journal.topic(call.name("topic"))


# ── the journal as a whole ───────────────────────────────────────────────────────────────────────────────────────────
async def follow_stats(call: Call[None, None]) -> Response:
    return sse(call.service, lambda sample: sample)


# ── appending ─────────────────────────────────────────────────────────────────────────────────────────────────────────
_append, _read = Performer(wire.APPEND_EVENTS), Performer(wire.READ_EVENTS)


async def append_events(call: Call[wire.AppendQuery, bytes]) -> Response:
    """Appends the events of a body. The media type decides only how the body is decoded."""
    if len(call.body) <= limits.AT_ONCE_BYTES:
        found = read_drafts(call.request, call.body)
    else:
        found = await run_in_threadpool(read_drafts, call.request, call.body)
    return await _append.perform(call, found)


# ── looking up ────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_event(call: Call[None, None]) -> documents.EventDocument | Response:
    event = call.backend.call(wire.READ_EVENT, call.name("topic"), call.name("event"))
    if event is None:
        call.refuse(wire.READ_EVENT)
    accepted = call.request.headers.get("accept", "")
    if cloudevents.STRUCTURED in accepted:
        return Response(cloudevents.to_json(event), media_type=cloudevents.STRUCTURED)
    if cloudevents.BINARY in accepted:
        headers, data = cloudevents.to_http(event)
        return Response(data, headers=headers)
    return documents.event_document(event)


# ── what a body says ──────────────────────────────────────────────────────────────────────────────────────────────────
_decode_plain = msgspec.json.Decoder(list[documents.PlainDraft]).decode
_decode_draft = msgspec.json.Decoder(documents.DraftDocument).decode


def read_drafts(request: Request, data: bytes) -> Draft | list[Draft] | list[documents.PlainDraft]:
    """Returns the drafts in a body: a single object, an array, one object per line, or CloudEvents."""
    given = request.headers.get("content-type", "")
    if given == JSON and data.startswith(b"["):
        try:
            return _decode_plain(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # drafts with more fields than usual, or invalid drafts: the code below decides
    content = given.partition(";")[0].strip().lower()
    if content in (LINES, "application/jsonl", "application/ndjson"):
        found = [(f"line {number}", line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
        return [decoded(line, _decode_draft, documents.DraftDocument, where).draft() for where, line in found]
    if content in (cloudevents.STRUCTURED, cloudevents.BATCH):
        batch = content == cloudevents.BATCH
        read = cloudevents.from_json(data, batch=batch)
        return read if batch else read[0]
    if "ce-specversion" in request.headers:
        return cloudevents.from_http(request.headers.items(), given, data)
    if content not in (JSON, ""):
        known = ", ".join((JSON, LINES, cloudevents.STRUCTURED))
        raise Refused(415, "UnsupportedMediaType", f"send one of {known}, not {content[:60]!r}")
    body = decoded(data, wire.APPEND_EVENTS.body_decoder.decode, wire.APPEND_EVENTS.body)
    return [document.draft() for document in body] if isinstance(body, list) else body.draft()


# ── reading: pages of JSON, streams of lines, Arrow record batches; bounded in events and bytes ───────────────────────
T = TypeVar("T")

ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow IPC stream."""
Piece = tuple[bytes, int, int]
"""Bytes to send, the position that the bytes reach, and the number of events in them."""


async def read_events(call: Call[wire.ReadQuery, None]) -> Response:
    wanted = WantedEvents(call.backend.log(call.name("topic")), call.query)
    accepted = call.request.headers.get("accept", "")
    if ARROW in accepted:
        return await _arrow(wanted)
    if LINES in accepted or "application/jsonl" in accepted:
        return await _lines(wanted)
    if cloudevents.BATCH in accepted:
        return await _cloudevents(call, wanted)
    return await _read(call)


async def _cloudevents(call: Call[wire.ReadQuery, None], wanted: WantedEvents) -> Response:
    """Returns a page as a batch of CloudEvents. The header `Link` leads to the next page, if there is a next page."""

    def read() -> tuple[bytes, int | None]:
        page = wanted.page(page_size(call.query.limit))
        return b"[" + b",".join(map(cloudevents.to_json, page.events)) + b"]", page.next

    body, follows = await run_in_threadpool(read)
    answer = whole_answer(call.service, body, 200, cloudevents.BATCH)
    if follows is not None:
        here = call.request.url.include_query_params(**{"through" if call.query.reverse else "after": follows})
        answer.headers["Link"] = f'<{here.path}?{here.query}>; rel="next"'
    return answer


async def _lines(wanted: WantedEvents) -> Response:
    """Returns all requested events, one document per line.

    Events are read in pieces, so a slow reader keeps nothing of the store open.
    """
    if wanted.query.reverse:
        raise ConfigError("a stream runs forward; read pages for reverse")
    where = wanted.filter.condition
    after, end, _ = await run_in_threadpool(wanted.range)

    def piece(start: int, left: int | None) -> Piece:
        def read(events: Iterator[Event]) -> Piece:
            lines: list[bytes] = []
            after, size, scanned = start, 0, 0
            for event in islice(events, limits.STREAM_EVENTS):
                scanned += 1  # noqa: SIM113 - asked for after the loop
                after = event.seq
                if where is None or where.matches(event):
                    lines.append(documents.event_json(event) + b"\n")
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
    """Returns record batches as an Arrow IPC stream."""
    from penstock.core.journal.to_arrow import arrow_schema, read_batches

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
    """Yields pieces from `after` to `end`. Each piece is read when the piece before was sent.

    `failed` reports an error after the status was sent. Without `failed`, the stream breaks off.
    """

    async def stream(data: bytes, position: int, left: int | None) -> AsyncGenerator[bytes, None]:
        if first:
            yield first
        while True:
            if data:
                yield data
                data = b""  # released before the next piece is read
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

    # The first piece is read before the answer begins, so an error at the start becomes a status and not a broken
    # stream.
    nothing = after >= end or limit == 0
    data, position, count = (b"", end, 0) if nothing else await run_in_threadpool(piece, after, limit)
    left = None if limit is None else limit - count
    headers = {"X-Penstock-Latest": str(end)}
    return StreamedResponse(stream(data, position, left), media_type=media, headers=headers)


# ── following: one reader per topic, any number of listeners, nothing lost ───────────────────────────────────────────
# A *live topic* reads what is appended once, encodes it once, and keeps the newest few thousand events, bounded in
# bytes over all topics. Its listeners each have a position; a listener within what is kept is served from memory, one
# further behind reads the log until it has caught up. So a thousand listeners cost one read per commit, and a slow one
# costs only itself: a slice of a frame that all of them share.
#
# A topic that is dropped is waited for. When it is made anew, a listener that had read everything goes on; the stream
# of one that was behind ends with PositionTrimmed. An error is the last event of a stream: a client that only saw the
# stream end would ask for it again, for ever.
PASS_SECONDS = 1.0
"""The time without a chosen event after which a listener is told how far the topic was read for it."""


def event_frame(event: Event) -> bytes:
    """Returns an event as a server-sent event.

    Its id is its position; the client sends this id back as Last-Event-ID.
    """
    return b"id: %d\ndata: %b\n\n" % (event.seq, documents.event_json(event))


class LiveTopic:
    """The newest events of a topic in memory, and the followers that wait for the next event."""

    def __init__(self, log: TopicLog, owner: LiveTopics, buffer: int = limits.LIVE_BUFFER) -> None:
        self.log = log
        self._owner = owner
        self.floor = log.latest
        """Every event after this position, up to `position`, is in memory."""
        self.position = self.floor
        self._buffer = buffer
        self._seqs: list[int] = []
        self._events: list[Event] = []
        self._frames: list[bytes] = []
        self.size = 0
        """The bytes that are kept: frames, and their events, which listeners with a condition need."""
        self._news = asyncio.Event()
        self.listeners = 0
        self.task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    async def run(self) -> None:
        """Reads new events as long as a client listens."""
        core = self.log.core
        signal = core.hub.signal(self.log.name)
        try:
            with core.hub:
                while self.listeners:
                    seen = signal.version
                    if core.closed:
                        raise Closed("the journal was closed")
                    # The read runs in the loop and not in a thread: the newest block is in memory, and a thread would
                    # cost more.
                    if self._read():
                        await asyncio.sleep(0)
                    else:
                        await signal.wait_async(seen, limits.PING_SECONDS)
        except Exception as error:
            self.failure = error
            if not isinstance(error, PenstockError):  # listeners get a penstock error when they read on
                log.exception("following topic %r failed", self.log.name)
        finally:
            self._seqs, self._events, self._frames = [], [], []
            self._wake()

    def _read(self) -> bool:
        """Reads a bounded number of the next events. Returns False when there are none."""
        read = self.log.ask(self._read_batch, None)
        if read is None:
            self._forget(self.position)
        if not read:
            return False
        self._trim()
        self._wake()
        return True

    def _read_batch(self, view: TopicView) -> int:
        """Keeps the next events of a view and returns the number of their bytes."""
        began = view.began()
        if self.floor < began:
            self._forget(began)
        read = 0
        for event in _events(view, self.position):
            made = event_frame(event)
            self._seqs.append(event.seq)
            self._events.append(event)
            self._frames.append(made)
            self.position = event.seq
            self.size += 2 * len(made)
            read += len(made)
            if read >= limits.STREAM_BYTES:
                break
        return read

    def _forget(self, position: int) -> None:
        """Releases all events and continues after a position: the events were dropped with their topic."""
        self.floor = self.position = position
        self.size = 0
        for kept in (self._seqs, self._events, self._frames):
            kept.clear()

    def _trim(self) -> None:
        """Releases the oldest events beyond the limits."""
        excess = len(self._seqs) - self._buffer
        drop = excess if excess > self._buffer // 4 else 0  # not at each event: deleting the first ones moves the rest
        most = self._owner.share()
        if self.size > most:
            left = self.size
            for number, made in enumerate(self._frames):
                if left <= most // 2 and number >= drop:
                    break
                left -= 2 * len(made)
                drop = max(drop, number + 1)
        if drop > 0:
            self.floor = self._seqs[drop - 1]
            self.size -= 2 * sum(map(len, self._frames[:drop]))
            del self._seqs[:drop], self._events[:drop], self._frames[:drop]

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def after(self, position: int, wanted: EventQuery) -> tuple[bytes, int]:
        """Returns the next frames after a position in the kept range, and the position that they reach."""
        frames: list[bytes] = []
        size = 0
        for row in range(bisect_right(self._seqs, position), len(self._seqs)):
            position = self._seqs[row]
            if wanted.everything or wanted.matches(self._events[row]):
                frames.append(self._frames[row])
                size += len(frames[-1])
                if size >= limits.STREAM_BYTES:
                    return _joined(frames), position
        return _joined(frames), max(position, self.position)

    async def wait(self, timeout: float) -> None:
        """Waits until something new is there, or `timeout` seconds have passed."""
        news = self._news
        try:
            async with asyncio.timeout(timeout):
                await news.wait()
        except TimeoutError:
            return


def _events(view: TopicView, after: int, through: int = MAX_SEQ) -> Iterator[Event]:
    """Returns the next events of a view after a position, as many as one read may have."""
    view.check_not_trimmed(after)
    return view.events(after, through, limits.STREAM_EVENTS)


def _joined(frames: list[bytes]) -> bytes:
    """Returns frames as one piece. A single frame is shared by its listeners and not copied."""
    return frames[0] if len(frames) == 1 else b"".join(frames)


class LiveTopics:
    """The live topics of one served journal."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal
        self._topics: dict[str, LiveTopic] = {}

    def share(self) -> int:
        """Returns the number of bytes that each live topic may keep."""
        return limits.LIVE_BYTES // max(1, len(self._topics))

    def join(self, name: str) -> LiveTopic:
        """Returns the live topic, which is read from now on for one more listener."""
        live = self._topics.get(name)
        if live is None or live.failure is not None:
            live = self._topics[name] = LiveTopic(self._journal.backend.log(name), self)
        live.listeners += 1
        if live.task is None or live.task.done():
            live.task = asyncio.get_running_loop().create_task(live.run())
        return live

    def wake(self) -> None:
        """Wakes every listener when the server stops."""
        for live in self._topics.values():
            live._wake()
        self._journal.backend.core.hub.tell_followers(())

    def leave(self, live: LiveTopic) -> None:
        live.listeners -= 1
        if live.listeners == 0:
            if self._topics.get(live.log.name) is live:  # not the live topic that replaces a failed one
                del self._topics[live.log.name]
            if live.task is not None:
                live.task.cancel()


async def follow_topic(call: Call[wire.LiveQuery, None]) -> Response:
    """Returns server-sent events: the events after a position (Last-Event-ID, after=…, or after=latest), and then
    new events.
    """
    service, topic = call.service, topic_of(call)
    after = _start_position(call.request, call.query)
    wanted = requested_events(call.query)
    if after is None:
        after = topic.latest
    elif after:
        # PositionTrimmed must be an answer and not a stream
        await run_in_threadpool(partial(next, topic.read(after, 1), None))
    return EventStream(service, follow(service, topic.name, after, wanted))


def _start_position(request: Request, query: wire.LiveQuery) -> int | None:
    """Returns the position to continue from; None means the end."""
    last = request.headers.get("last-event-id", "").strip()
    if last:
        if not (last.isascii() and last.isdigit() and len(last) <= 18):
            raise ConfigError(f"Last-Event-ID is an event's id in this stream, its position, not {last[:40]!r}")
        return int(last)
    return None if query.after == "latest" else query.after


async def follow(service: Service, name: str, position: int, wanted: EventQuery) -> AsyncGenerator[bytes, None]:
    """Yields the frames of a topic after a position, as long as the client reads."""
    try:
        live = service.live.join(name)
    except Closed:  # the journal closed while the request was on its way
        return
    try:
        yield b"retry: 1000\n: following\n\n"
        told = position
        while not service.closing.is_set():
            if live.failure is not None:
                return
            start, seen = position, live.position
            if position < live.floor:
                read = partial(_from_log, live, position, live.floor, wanted)
                data, position = await run_in_threadpool(read)
            else:
                data, position = live.after(position, wanted)
            if data:
                told = position
                yield data
                data = b""  # a waiting listener keeps no data
            elif position >= live.position or (position, live.position) == (start, seen):
                await live.wait(limits.PING_SECONDS if told == position else PASS_SECONDS)
                if live.position == seen and not service.closing.is_set():
                    # An id without data moves the client's position past events that it did not choose.
                    yield b": still here\n\n" if told == position else b"id: %d\n\n" % position
                    told = position
    except Closed:
        return  # the client asks again and gets the error
    except PenstockError as error:
        yield problem_frame(error)
    finally:
        service.live.leave(live)


async def follow_across(call: Call[None, wire.AcrossFollow]) -> Response:
    """Returns server-sent events of several topics.

    From time to time, positions tell the client which events were skipped.
    """
    service, core = call.service, call.service.journal.backend.core
    query = across_query(call.body.topics or None, call.body.after, None, requested_events(call.body), READ_TOPICS)
    if call.body.latest:
        query = replace(query, after=await run_in_threadpool(topic_ends, core, query))
    reader = AcrossReader(core, query)
    # an error here becomes an answer
    first = await run_in_threadpool(reader.step, limits.STREAM_EVENTS, limits.STREAM_BYTES)
    return EventStream(service, _follow_several(service, core, reader, first))


async def _follow_several(
    service: Service, core: JournalCore, reader: AcrossReader, step: AcrossStep
) -> AsyncGenerator[bytes, None]:
    """Yields the frames of several topics, as long as the client reads."""
    told: dict[str, int] = {}
    try:
        yield b"retry: 1000\n: following\n\n"
        with core.hub:
            while not service.closing.is_set() and not core.closed:
                done = step.done
                if step.events:
                    told |= {event.topic: event.seq for event in step.events}
                    yield b"".join(b"data: %b\n\n" % documents.event_json(event) for event in step.events)
                passed = {name: seq for name, seq in reader.reached.items() if told.get(name) != seq}
                step = AcrossStep([], {}, done)  # a waiting listener keeps no events
                patience = PASS_SECONDS if passed else limits.PING_SECONDS
                if done and not await reader.signal.wait_async(reader.seen, patience):
                    told |= passed
                    said = b"event: passed\ndata: %b\n\n" % msgspec.json.encode(passed)
                    yield said if passed else b": still here\n\n"
                    continue
                step = await run_in_threadpool(reader.step, limits.STREAM_EVENTS, limits.STREAM_BYTES)
    except Closed:
        return  # the client asks again and gets the error
    except PenstockError as error:
        yield problem_frame(error)


def _from_log(live: LiveTopic, position: int, through: int, wanted: EventQuery) -> tuple[bytes, int]:
    """Returns the next piece of history as frames, and the position that it reaches.

    While the topic is dropped, the position does not move.
    """

    def read(view: TopicView) -> tuple[bytes, int]:
        frames: list[bytes] = []
        size = count = 0
        last = position
        try:
            for event in _events(view, position, through):
                last = event.seq
                count += 1
                if wanted.everything or wanted.matches(event):
                    frames.append(event_frame(event))
                    size += len(frames[-1])
                    if size >= limits.STREAM_BYTES:
                        return _joined(frames), last
        except Corrupt:
            if not frames:
                raise
            return _joined(frames), last  # the events before the damage come first
        return _joined(frames), last if count == limits.STREAM_EVENTS else max(last, through)

    return live.log.ask(read, (b"", position))
