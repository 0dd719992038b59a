"""Following topics: one reader per topic, any number of listeners, nothing lost.

A *live topic* reads what is appended once, encodes it once, and keeps the newest few thousand events, bounded in bytes
over all topics. Its listeners each have a position; a listener within what is kept is served from memory, one further
behind reads the log until it has caught up. So a thousand listeners cost one read per commit, and a slow one costs only
itself: a slice of a frame that all of them share.

A topic that is dropped is waited for. When it is made anew, a listener that had read everything goes on; the stream of
one that was behind ends, and is refused with PositionTrimmed when it is asked for again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator
from functools import partial

from msgspec.json import encode
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.documents.events import event_json
from penstock.errors import Closed, ConfigError, PositionTrimmed
from penstock.events import Event
from penstock.journal.across import AcrossReader, AcrossStep, across_query, read_step
from penstock.journal.core import JournalCore
from penstock.journal.keys import MAX_SEQ
from penstock.journal.log import TopicLog, read_view
from penstock.journal.reading import EventQuery, TopicView
from penstock.local.backend import LocalJournal
from penstock.local.topics import requested_events
from penstock.protocol.topics import AcrossFollow, LiveQuery
from penstock.server.api.binding import Call
from penstock.server.api.topics import topic_of
from penstock.server.limits import LIVE_BUFFER, LIVE_BYTES, PING_SECONDS, STREAM_BYTES, STREAM_EVENTS
from penstock.server.service import EventStream, Service

PASS_SECONDS = 1.0
"""After how long without an event that it chose a listener is told how far the topic was read for it."""


def frame(event: Event) -> bytes:
    """An event as a server-sent event; its id, which a client sends back as Last-Event-ID, is its position."""
    return b"id: %d\ndata: %b\n\n" % (event.seq, event_json(event))


class LiveTopic:
    """One topic's newest events in memory, and those who wait for the next."""

    def __init__(self, log: TopicLog, owner: LiveTopics, buffer: int = LIVE_BUFFER) -> None:
        self.log = log
        self._owner = owner
        self.floor = log.latest
        """Everything after this position, up to `position`, is in memory."""
        self.position = self.floor
        self._buffer = buffer
        self._seqs: list[int] = []
        self._events: list[Event] = []
        self._frames: list[bytes] = []
        self.size = 0
        """Bytes kept: frames, and the events behind them, which listeners with a condition need."""
        self._news = asyncio.Event()
        self.listeners = 0
        self.task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    async def run(self) -> None:
        """Reads what comes, for as long as a client listens."""
        core = self.log.core
        signal = core.hub.signal(self.log.name)
        try:
            with core.hub:
                while self.listeners:
                    seen = signal.version
                    if core.closed:
                        raise Closed("the journal was closed")
                    # In the loop, not in a thread: the newest block is in memory, and a thread would cost more.
                    if self._read():
                        await asyncio.sleep(0)
                    else:
                        await signal.wait_async(seen, PING_SECONDS)
        except Exception as error:
            self.failure = error
        finally:
            self._seqs, self._events, self._frames = [], [], []
            self._wake()

    def _read(self) -> bool:
        """Takes in what follows, a bounded piece of it; False when there is nothing."""
        read = self.log.ask(self._take_in, None)
        if read is None:
            self._forget(self.position)
        if not read:
            return False
        self._trim()
        self._wake()
        return True

    def _take_in(self, view: TopicView) -> int:
        """Keeps the next events of a view and returns their bytes."""
        began = view.began()
        if self.floor < began:
            self._forget(began)
        read = 0
        for event in _events(view, self.position):
            made = frame(event)
            self._seqs.append(event.seq)
            self._events.append(event)
            self._frames.append(made)
            self.position = event.seq
            self.size += 2 * len(made)
            read += len(made)
            if read >= STREAM_BYTES:
                break
        return read

    def _forget(self, position: int) -> None:
        """Lets go of everything, and goes on after a position: the events were dropped with their topic."""
        self.floor = self.position = position
        self.size = 0
        for kept in (self._seqs, self._events, self._frames):
            kept.clear()

    def _trim(self) -> None:
        """Lets go of the oldest events beyond what may be kept."""
        excess = len(self._seqs) - self._buffer
        drop = excess if excess > self._buffer // 4 else 0  # not at every event: deleting from the front moves the rest
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
        """The next frames after a position that lies within what is kept, and how far they go."""
        frames: list[bytes] = []
        size = 0
        for row in range(bisect_right(self._seqs, position), len(self._seqs)):
            position = self._seqs[row]
            if wanted.everything or wanted.matches(self._events[row]):
                frames.append(self._frames[row])
                size += len(frames[-1])
                if size >= STREAM_BYTES:
                    return _joined(frames), position
        return _joined(frames), max(position, self.position)

    async def wait(self, timeout: float) -> None:
        """Returns when something new is there, or after `timeout` seconds."""
        news = self._news
        try:
            async with asyncio.timeout(timeout):
                await news.wait()
        except TimeoutError:
            return


def _events(view: TopicView, after: int, through: int = MAX_SEQ) -> Iterator[Event]:
    """The next events of a view after a position, no more than are sent at once."""
    return read_view(view, EventQuery(after=after, through=through, limit=STREAM_EVENTS))


def _joined(frames: list[bytes]) -> bytes:
    """Frames as one piece; a single one is shared by its listeners, not copied."""
    return frames[0] if len(frames) == 1 else b"".join(frames)


class LiveTopics:
    """The live topics of one served journal."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal
        self._topics: dict[str, LiveTopic] = {}

    def share(self) -> int:
        """Bytes that each live topic may keep."""
        return LIVE_BYTES // max(1, len(self._topics))

    def join(self, name: str) -> LiveTopic:
        """The live topic, read from now on for one more listener."""
        live = self._topics.get(name)
        if live is None or live.failure is not None:
            live = self._topics[name] = LiveTopic(self._journal._backend.log(name), self)
        live.listeners += 1
        if live.task is None or live.task.done():
            live.task = asyncio.get_running_loop().create_task(live.run())
        return live

    def wake(self) -> None:
        """Wakes every listener, to see that the server stops."""
        for live in self._topics.values():
            live._wake()
        self._journal._core.hub.tell_followers(())

    def leave(self, live: LiveTopic) -> None:
        live.listeners -= 1
        if live.listeners == 0:
            if self._topics.get(live.log.name) is live:  # not the one that follows a failed one
                del self._topics[live.log.name]
            if live.task is not None:
                live.task.cancel()


async def follow_topic(call: Call[LiveQuery, None]) -> Response:
    """Server-sent events: what follows a position (Last-Event-ID, after=…, or after=latest), then what comes."""
    service, topic = call.service, topic_of(call)
    after = _start(call.request, call.query)
    wanted = requested_events(call.query)
    if after is None:
        after = topic.latest
    elif after:
        await run_in_threadpool(partial(next, topic.read(after, 1), None))  # PositionTrimmed must be an answer
    return EventStream(service, follow(service, topic.name, after, wanted))


def _start(request: Request, query: LiveQuery) -> int | None:
    """The position to go on from (None: the end)."""
    last = request.headers.get("last-event-id", "").strip()
    if last:
        if not (last.isascii() and last.isdigit() and len(last) <= 18):
            raise ConfigError(f"Last-Event-ID is an event's id in this stream, its position, not {last[:40]!r}")
        return int(last)
    return None if query.after == "latest" else query.after


async def follow(service: Service, name: str, position: int, wanted: EventQuery) -> AsyncGenerator[bytes, None]:
    """The frames of a topic after a position, for as long as they are read."""
    try:
        live = service.live.join(name)
    except Closed:  # the journal was, while the request was on its way
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
                data = b""  # a listener that waits holds nothing
            elif position >= live.position or (position, live.position) == (start, seen):
                await live.wait(PING_SECONDS if told == position else PASS_SECONDS)
                if live.position == seen and not service.closing.is_set():
                    # An id without data moves the client's place past what it did not want to see.
                    yield b": still here\n\n" if told == position else b"id: %d\n\n" % position
                    told = position
    except PositionTrimmed:
        return  # the client asks again, and is told
    finally:
        service.live.leave(live)


async def follow_across(call: Call[None, AcrossFollow]) -> Response:
    """Server-sent events of several topics; what was passed by is said by positions now and then."""
    service, core = call.service, call.service.journal._core
    query = across_query(call.body.topics or None, call.body.after, None, requested_events(call.body))
    if call.body.latest:
        now = await run_in_threadpool(read_step, core, query, 0, 0)
        query = replace(query, after=now.ends)
    reader = AcrossReader(core, query)
    first = await run_in_threadpool(reader.step, STREAM_EVENTS, STREAM_BYTES)  # its error is an answer
    return EventStream(service, _across(service, core, reader, first))


async def _across(
    service: Service, core: JournalCore, reader: AcrossReader, step: AcrossStep
) -> AsyncGenerator[bytes, None]:
    """The frames of several topics, for as long as they are read."""
    told: dict[str, int] = {}
    try:
        yield b"retry: 1000\n: following\n\n"
        with core.hub:
            while not service.closing.is_set() and not core.closed:
                done = step.done
                if step.events:
                    told |= {event.topic: event.seq for event in step.events}
                    yield b"".join(b"data: %b\n\n" % event_json(event) for event in step.events)
                passed = {name: seq for name, seq in reader.reached.items() if told.get(name) != seq}
                step = AcrossStep([], {}, {}, done)  # a listener that waits holds no events
                if done and not await reader.signal.wait_async(reader.seen, PASS_SECONDS if passed else PING_SECONDS):
                    told |= passed
                    yield b"event: passed\ndata: %b\n\n" % encode(passed) if passed else b": still here\n\n"
                    continue
                step = await run_in_threadpool(reader.step, STREAM_EVENTS, STREAM_BYTES)
    except (PositionTrimmed, Closed):
        return  # the client asks again, and is told


def _from_log(live: LiveTopic, position: int, through: int, wanted: EventQuery) -> tuple[bytes, int]:
    """The next piece of history as frames, and how far it goes: nowhere while the topic is dropped."""

    def read(view: TopicView) -> tuple[bytes, int]:
        frames: list[bytes] = []
        size = count = 0
        last = position
        for event in _events(view, position, through):
            last = event.seq
            count += 1
            if wanted.everything or wanted.matches(event):
                frames.append(frame(event))
                size += len(frames[-1])
                if size >= STREAM_BYTES:
                    return _joined(frames), last
        return _joined(frames), last if count == STREAM_EVENTS else max(last, through)

    return live.log.ask(read, (b"", position))
