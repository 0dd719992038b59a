"""Following topics: one reader per topic, any number of listeners, nothing lost.

A *live topic* reads what is appended once, encodes it once, and keeps the newest few thousand events, bounded in bytes
over all topics. Its listeners each have a position; a listener within what is kept is served from memory, one further
behind reads the log until it has caught up. So a thousand listeners cost one read per commit, and a slow one costs only
itself: a slice of a frame that all of them share.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.documents.events import event_json
from penstock.errors import Closed, ConfigError, TopicDropped
from penstock.events import Event
from penstock.journal.log import read_view
from penstock.journal.reading import EVERYTHING, TopicView
from penstock.journal.storage.keys import MAX_SEQ
from penstock.protocol.operation import SSE
from penstock.protocol.problems import problem_of
from penstock.protocol.topics import FOLLOW_TOPIC, TOPIC_NUMBER, LiveQuery
from penstock.server.api.binding import Call, serves
from penstock.server.api.parameters import ReadFilter
from penstock.server.api.topics import topic_of
from penstock.server.limits import LIVE_BUFFER, LIVE_BYTES, PING_SECONDS, STREAM_BYTES, STREAM_EVENTS
from penstock.server.memory import StreamedResponse
from penstock.server.problems import Refused
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.local.journal import LocalJournal
    from penstock.local.topic import LocalTopic

PASS_SECONDS = 1.0
"""After how long without an event that it chose a listener is told how far the topic was read for it."""
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(event: Event, number: int) -> bytes:
    """An event as a server-sent event; its id, which a client sends back as Last-Event-ID, is its topic's number and
    its position: those of a topic that is made anew mean other events."""
    return b"id: %d-%d\ndata: %b\n\n" % (number, event.seq, event_json(event))


class LiveTopic:
    """One topic's newest events in memory, and those who wait for the next."""

    def __init__(self, topic: LocalTopic, owner: LiveTopics, buffer: int = LIVE_BUFFER) -> None:
        self.topic = topic
        self._owner = owner
        self.number, self.floor = topic._log.number_and_latest()
        """Which topic this is (one of the same name that is made after a drop is another), and its floor: everything
        after this position, up to `position`, is in memory."""
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
        journal = self.topic.journal
        signal = journal._core.hub.signal(self.topic.name)
        try:
            with journal._core.hub:
                while self.listeners:
                    seen = signal.version
                    if journal.closed:
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
        read = self.topic._log.ask(self._take_in, None)
        if read is None and self.number is not None:
            raise _dropped(self.topic.name)
        if not read:
            return False
        self._trim()
        self._wake()
        return True

    def _take_in(self, view: TopicView) -> int:
        """Keeps the next events of a view and returns their bytes. The view also tells which topic they are of: it may
        be dropped and made anew between two looks."""
        if self.number is None:
            self.number = view.number
        _check_same(view, self.number)
        read = 0
        for event in _events(view, self.position):
            made = frame(event, view.number)
            self._seqs.append(event.seq)
            self._events.append(event)
            self._frames.append(made)
            self.position = event.seq
            self.size += 2 * len(made)
            read += len(made)
            if read >= STREAM_BYTES:
                break
        return read

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

    def after(self, position: int, selection: ReadFilter | None) -> tuple[bytes, int]:
        """The next frames after a position that lies within what is kept, and how far they go."""
        frames: list[bytes] = []
        size = 0
        for row in range(bisect_right(self._seqs, position), len(self._seqs)):
            position = self._seqs[row]
            if selection is None or selection.matches(self._events[row]):
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


def _dropped(name: str) -> TopicDropped:
    return TopicDropped(f"topic {name!r} was dropped while it was followed")


def _check_same(view: TopicView, number: int | None) -> None:
    if number not in (None, view.number):
        raise _dropped(view.name)


def _events(view: TopicView, after: int, through: int = MAX_SEQ) -> Iterator[Event]:
    """The next events of a view after a position, no more than are sent at once."""
    return read_view(view, after, STREAM_EVENTS, through, EVERYTHING, None, reverse=False)


def _joined(frames: list[bytes]) -> bytes:
    """Frames as one piece; a single one is shared by its listeners, not copied."""
    return frames[0] if len(frames) == 1 else b"".join(frames)


class LiveTopics:
    """The live topics of one served journal."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal
        self._topics: dict[str, LiveTopic] = {}
        self.listeners = 0

    def share(self) -> int:
        """Bytes that each live topic may keep."""
        return LIVE_BYTES // max(1, len(self._topics))

    def join(self, name: str) -> LiveTopic:
        """The live topic, read from now on for one more listener."""
        live = self._topics.get(name)
        if live is None or live.failure is not None:
            live = self._topics[name] = LiveTopic(self._journal.topic(name), self)
        live.listeners += 1
        self.listeners += 1
        if live.task is None or live.task.done():
            live.task = asyncio.get_running_loop().create_task(live.run())
        return live

    def wake(self) -> None:
        """Wakes every listener, to see that the server stops."""
        for live in self._topics.values():
            live._wake()

    def leave(self, live: LiveTopic) -> None:
        live.listeners -= 1
        self.listeners -= 1
        if live.listeners == 0:
            if self._topics.get(live.topic.name) is live:  # not the one that follows a failed one
                del self._topics[live.topic.name]
            if live.task is not None:
                live.task.cancel()


@serves(FOLLOW_TOPIC)
async def follow_topic(call: Call[LiveQuery, None]) -> Response:
    """Server-sent events: what follows a position (Last-Event-ID, after=…, or after=latest), then what comes."""
    service, topic = call.service, topic_of(call)
    asked, after = _start(call.request, call.query)
    selection = ReadFilter(call.query)
    if service.live.listeners >= service.limits.max_listeners:
        raise Refused(503, "TooManyListeners", "too many live streams are open", {"Retry-After": "5"})
    if after:
        await run_in_threadpool(partial(next, topic.read(after, 1), None))  # PositionTrimmed must be an answer
    number, latest = topic._log.number_and_latest()
    if asked not in (None, number):
        raise TopicDropped(f"topic {topic.name!r} is not the one that was followed: that one was dropped meanwhile")
    if after is None:
        after = latest
    elif after > latest and "last-event-id" in call.request.headers:
        raise TopicDropped(
            f"topic {topic.name!r} ends at {latest}, before the position {after} that was followed last: it was "
            "dropped meanwhile; follow it from the beginning"
        )
    frames = follow(service, topic.name, after, None if selection.everything else selection, number)
    named = {} if number is None else {TOPIC_NUMBER: str(number)}
    return StreamedResponse(frames, media_type=SSE, headers=STREAM_HEADERS | named)


def _start(request: Request, query: LiveQuery) -> tuple[int | None, int | None]:
    """Which topic is meant (None: the one that has the name), and the position to go on from (None: the end)."""
    last = request.headers.get("last-event-id", "").strip()
    if last:
        number, _, position = last.rpartition("-")
        if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (number or "0", position)):
            raise ConfigError(f"Last-Event-ID is an event's id in this stream, or a position, not {last[:40]!r}")
        return int(number) if number else query.number, int(position)
    return query.number, None if query.after == "latest" else query.after


async def follow(
    service: Service, name: str, position: int, selection: ReadFilter | None, number: int | None
) -> AsyncGenerator[bytes, None]:
    """The frames of a topic after a position, for as long as they are read and it is the topic with that number."""
    try:
        live = service.live.join(name)
    except Closed:  # the journal was, while the request was on its way
        return
    try:
        yield b"retry: 1000\n: following\n\n"
        told = position
        while not service.closing.is_set():
            if number is not None and live.number not in (None, number):
                raise _dropped(name)
            if isinstance(live.failure, TopicDropped):
                raise live.failure
            if live.failure is not None:
                return
            if position < live.floor:
                read = partial(_from_log, live, position, live.floor, selection)
                data, position = await run_in_threadpool(read)
            else:
                data, position = live.after(position, selection)
            if data:
                told = position
                yield data
                data = b""  # a listener that waits holds nothing
            elif position >= live.position:
                await live.wait(PING_SECONDS if told == position else PASS_SECONDS)
                if position >= live.position and not service.closing.is_set():
                    # An id without data moves the client's place past what it did not want to see.
                    yield b": still here\n\n" if told == position else b"id: %d-%d\n\n" % (live.number or 0, position)
                    told = position
    except TopicDropped as dropped:
        yield b"event: problem\ndata: %b\n\n" % msgspec.json.encode(problem_of(dropped))
    finally:
        service.live.leave(live)


def _from_log(live: LiveTopic, position: int, through: int, selection: ReadFilter | None) -> tuple[bytes, int]:
    """The next piece of history as frames, and how far it goes."""

    def read(view: TopicView) -> tuple[bytes, int]:
        _check_same(view, live.number)
        frames: list[bytes] = []
        size = count = 0
        last = position
        for event in _events(view, position, through):
            last = event.seq
            count += 1
            if selection is None or selection.matches(event):
                frames.append(frame(event, view.number))
                size += len(frames[-1])
                if size >= STREAM_BYTES:
                    return _joined(frames), last
        return _joined(frames), last if count == STREAM_EVENTS else max(last, through)

    found = live.topic._log.ask(read, None)
    if found is None:
        raise _dropped(live.topic.name)
    return found
