"""Following topics: one reader per topic, any number of listeners, nothing lost.

A *live topic* reads what is appended once, encodes it once, and keeps the newest few thousand events. Its listeners
each have a position; a listener within what is kept is served from memory, one further behind reads the log until it
has caught up. So a thousand listeners cost one read per commit, and a slow one costs only itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.document import event_json
from penstock.errors import Closed, ConfigError
from penstock.events import Event
from penstock.server.api import parameters
from penstock.server.api.parameters import Wanted
from penstock.server.api.problems import Refused
from penstock.server.limits import LIVE_BUFFER, PING_SECONDS, STREAM_EVENTS
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.api import LocalJournal, LocalTopic

STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
SSE = "text/event-stream"


def frame(event: Event) -> bytes:
    """An event as a server-sent event; its id is its position, which a client sends back as Last-Event-ID."""
    return b"id: %d\ndata: %b\n\n" % (event.seq, event_json(event))


class LiveTopic:
    """One topic's newest events in memory, and those who wait for the next."""

    def __init__(self, topic: LocalTopic, buffer: int = LIVE_BUFFER) -> None:
        self.topic = topic
        self.floor = topic.latest
        """Everything after this position, up to `position`, is in memory."""
        self.position = self.floor
        self._buffer = buffer
        self._seqs: list[int] = []
        self._events: list[Event] = []
        self._frames: list[bytes] = []
        self._news = asyncio.Event()
        self.listeners = 0
        self.task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    async def run(self) -> None:
        """Reads what comes, for as long as anybody listens."""
        journal = self.topic.journal
        signal = journal._hub.signal(self.topic.name)
        try:
            with journal._hub:
                while self.listeners:
                    seen = signal.version
                    if journal.closed:
                        raise Closed("the journal was closed")
                    # In the loop, not in a thread: the newest block is in memory, and a thread would cost more.
                    events = list(self.topic.read(self.position, STREAM_EVENTS))
                    if events:
                        self._take(events)
                        await asyncio.sleep(0)
                    else:
                        await signal.wait_async(seen, PING_SECONDS)
        except Exception as error:
            self.failure = error
        finally:
            self._wake()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._seqs.append(event.seq)
            self._events.append(event)
            self._frames.append(frame(event))
        self.position = events[-1].seq
        excess = len(self._seqs) - self._buffer
        if excess > self._buffer // 4:  # not at every event: deleting from the front moves the rest
            self.floor = self._seqs[excess - 1]
            del self._seqs[:excess], self._events[:excess], self._frames[:excess]
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def after(self, position: int, wanted: Wanted | None) -> bytes:
        """The frames after a position that lies within what is kept."""
        start = bisect_right(self._seqs, position)
        if wanted is None:
            return b"".join(self._frames[start:])
        rows = range(start, len(self._seqs))
        return b"".join([self._frames[row] for row in rows if wanted.matches(self._events[row])])

    async def wait(self, timeout: float) -> None:
        """Returns when something new is there, or after `timeout` seconds."""
        news = self._news
        try:
            async with asyncio.timeout(timeout):
                await news.wait()
        except TimeoutError:
            return


class Lives:
    """The live topics of one served journal."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal
        self._topics: dict[str, LiveTopic] = {}
        self.listeners = 0

    def join(self, name: str) -> LiveTopic:
        """The live topic, read from now on for one more listener."""
        live = self._topics.get(name)
        if live is None or live.failure is not None:
            live = self._topics[name] = LiveTopic(self._journal.topic(name))
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
            self._topics.pop(live.topic.name, None)
            if live.task is not None:
                live.task.cancel()


@guarded("read")
async def listen(request: Request, service: Service) -> Response:
    """Server-sent events: what follows a position (Last-Event-ID, after=…, or after=latest), then what comes."""
    topic = service.journal.topic(request.path_params["topic"])
    after = _start(request)
    wanted = Wanted(request)
    if service.lives.listeners >= service.limits.max_listeners:
        raise Refused(503, "TooManyListeners", "too many live streams are open", {"Retry-After": "5"})
    if after is None:
        after = topic.latest
    elif after:
        await run_in_threadpool(lambda: next(topic.read(after, 1), None))  # PositionTrimmed must be an answer
    position = after
    return StreamingResponse(
        follow(service, topic.name, position, None if wanted.everything else wanted),
        media_type=SSE,
        headers=STREAM_HEADERS,
    )


def _start(request: Request) -> int | None:
    """The position to go on from; None for the end."""
    last = request.headers.get("last-event-id", "").strip()
    if last:
        if not last.isdigit() or len(last) > 18:
            raise ConfigError(f"Last-Event-ID is a position, not {last[:40]!r}")
        return int(last)
    if request.query_params.get("after") == "latest":
        return None
    return parameters.number(request, "after", 0)


async def follow(service: Service, name: str, position: int, wanted: Wanted | None) -> AsyncIterator[bytes]:
    """The frames of a topic after a position, for as long as somebody reads them."""
    live = service.lives.join(name)
    try:
        yield b"retry: 1000\n: following\n\n"
        told = position
        while not service.closing.is_set():
            if live.failure is not None:
                return
            if position < live.floor:
                data, position = await run_in_threadpool(_from_log, live.topic, position, live.floor, wanted)
            else:
                data, position = live.after(position, wanted), max(position, live.position)
            if data:
                told = position
                yield data
            elif position >= live.position:
                await live.wait(PING_SECONDS)
                if position >= live.position and not service.closing.is_set():
                    # An id without data moves the client's place past what it did not want to see.
                    yield b": still here\n\n" if told == position else b"id: %d\n\n" % position
                    told = position
    finally:
        service.lives.leave(live)


def _from_log(topic: LocalTopic, position: int, through: int, wanted: Wanted | None) -> tuple[bytes, int]:
    """The next piece of history as frames, and how far it goes."""
    frames: list[bytes] = []
    last = position
    count = 0
    for event in topic.read(position, STREAM_EVENTS, through=through):
        last = event.seq
        count += 1
        if wanted is None or wanted.matches(event):
            frames.append(frame(event))
    return b"".join(frames), last if count == STREAM_EVENTS else max(last, through)
