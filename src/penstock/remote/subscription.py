"""Subscriptions to a served journal's topics: server-sent events, which continue after a broken connection.

A thread reads the stream into a bounded buffer. When the buffer is full, the thread stops reading, and the server
notices it. After a broken connection, a new connection begins after the last received event, so no event is lost and
none comes twice.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec
import urllib3
from msgspec.structs import replace
from urllib3.exceptions import HTTPError

from penstock.core.consuming.subscription import EventFollower, JournalSubscription, Subscription
from penstock.core.documents.events import EventDocument
from penstock.core.events import Event
from penstock.core.journal.waking import Signal
from penstock.core.model.query import EVERYTHING, EventQuery
from penstock.core.names import check_whole
from penstock.core.protocol.operation import PAGE_EVENTS, SSE
from penstock.core.protocol.problems import PROBLEM_EVENT, decode_problem, error_of_problem
from penstock.core.protocol.topics import FOLLOW_ACROSS, FOLLOW_TOPIC, AcrossFollow, LiveQuery
from penstock.errors import Closed, ConfigError, StorageError
from penstock.limits import SUBSCRIPTION_BUFFER
from penstock.remote.client import lines_of
from penstock.remote.events import event_of, wire_filter

if TYPE_CHECKING:
    from penstock.core.journal.across import AcrossQuery
    from penstock.remote.backend import RemoteBackend
    from penstock.remote.topic import RemoteTopic

_decode = msgspec.json.Decoder(EventDocument).decode
_decode_positions = msgspec.json.Decoder(dict[str, int]).decode
_decode_position = msgspec.json.Decoder(int).decode

SILENCE = 60.0
"""The number of seconds without data after which a connection counts as broken.

The server sends a sign of life every 15 seconds.
"""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""The maximum number of seconds between two attempts to connect again."""


class RemoteFollower(EventFollower):
    """The events of topics after positions, as they arrive over a connection."""

    def __init__(self, backend: RemoteBackend, after: Mapping[str, int], buffer: int, name: str) -> None:
        self._backend = backend
        self._name = name
        self._given = dict(after)
        self._received = dict(after)
        """The position that the connection has reached in each topic."""
        self._size = check_whole(buffer, "buffer")
        self._ahead: deque[Event] = deque()
        self._signal = Signal()
        self._room = threading.Condition()
        self._closed = False
        self._failure: Exception | None = None
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._thread: threading.Thread | None = None
        backend.subscriptions.add(self)

    @abstractmethod
    def _connect(self) -> urllib3.BaseHTTPResponse:
        """Returns the stream of the events after the received ones."""

    @abstractmethod
    def _asked(self, limit: int) -> Iterator[Event]:
        """Requests the events after the last event that was returned, without waiting for more."""

    def ready(self) -> Event | None:
        """Returns the next event if it has already arrived."""
        return None if self._closed else self._ready(ask=False)

    def close(self) -> None:
        """Ends the subscription. Threads that wait in it get no more events."""
        self._closed = True
        self._hang_up()
        with self._room:
            self._ahead.clear()
            self._room.notify_all()
        self._signal.notify()

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_closed(self) -> bool:
        if self._closed:
            self._check_ended()
        return self._closed

    def _version(self) -> int:
        return self._signal.version

    def _wait(self, seen: int, left: float | None) -> None:
        self._signal.wait(seen, left)

    async def _wait_async(self, seen: int, left: float | None) -> None:
        await self._signal.wait_async(seen, left)

    def _ready(self, *, ask: bool) -> Event | None:
        """Returns the next event that has arrived.

        With `ask`, it also asks the server at once when none has arrived.
        """
        self._start()
        with self._room:
            if not self._ahead and self._failure is not None:
                raise self._failure
            if not self._ahead and ask:
                self._ahead.extend(self._asked(min(self._size, PAGE_EVENTS)))
            while self._ahead:
                event = self._ahead.popleft()
                if event.seq > self._given.get(event.topic, 0):  # the stream repeats events that a read has found
                    self._given[event.topic] = event.seq
                    self._room.notify()
                    return event
            self._room.notify()
        return None

    def _check_ended(self) -> None:
        if self._backend.closed and self._failure is not None:
            raise self._failure

    def _journal_closed(self) -> None:
        if not self._closed:
            self._failure = Closed("the journal was closed under this subscription")
            self.close()

    # ── the reading thread ───────────────────────────────────────────────────────────────────────────────────────────
    def _start(self) -> None:
        if self._thread is None:
            with self._room:
                if self._thread is None and not self._closed:
                    name = f"penstock-follow-{self._name}"
                    thread = threading.Thread(target=self._run, name=name, daemon=True)
                    thread.start()
                    self._thread = thread  # only now: when a thread cannot start, the next call tries again

    def _hang_up(self) -> None:
        answer = self._answer
        if answer is not None:
            with suppress(OSError, ValueError, RuntimeError):
                answer.shutdown()  # wakes the thread that reads from it

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            before = self._received.copy()
            try:
                self._read()
            except (OSError, HTTPError):
                pass  # the connection broke
            except Exception as error:
                if not (isinstance(error, StorageError) and error.retryable):
                    self._fail(error)
                    return
            if self._received != before:
                pause = FIRST_PAUSE
            with self._room:
                self._room.wait_for(lambda: self._closed, pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _fail(self, error: Exception) -> None:
        if not self._closed:  # a connection that this end has closed fails with unpredictable errors
            self._failure = error
            self._signal.notify()

    def _read(self) -> None:
        """Reads one connection until it ends."""
        answer = self._answer = self._connect()
        read = self._backend.client.read_line
        passed = b""
        try:
            for line in lines_of(answer):
                if self._closed:
                    return
                if line.startswith(b"data: "):
                    if passed.startswith(PROBLEM_EVENT):
                        problem = read(decode_problem, line[6:])
                        raise error_of_problem(problem.status, problem)
                    if passed.startswith(b"event: "):
                        self._pass(read(_decode_positions, line[6:]))
                    else:
                        self._arrived(event_of(read(_decode, line[6:])))
                    passed = b""
                elif line.startswith((b"event: passed", PROBLEM_EVENT, b"id: ")):
                    passed = line
                elif line == b"\n":
                    if passed.startswith(b"id: "):  # an id without data: the events before it were not chosen
                        self._pass({self._name: read(_decode_position, passed[4:])})
                    passed = b""
        finally:
            self._answer = None
            answer.close()

    def _pass(self, positions: dict[str, int]) -> None:
        with self._room:
            for name, seq in positions.items():
                self._received[name] = max(self._received.get(name, 0), seq)
            if not self._ahead:
                self._given.update(self._received)

    def _arrived(self, event: Event) -> None:
        if event.seq <= self._received.get(event.topic, 0):
            return
        with self._room:
            self._room.wait_for(lambda: len(self._ahead) < self._size or self._closed)
            if self._closed:
                return
            self._received[event.topic] = event.seq
            self._ahead.append(event)
        self._signal.notify()


class RemoteSubscription(RemoteFollower, Subscription):
    """A subscription to a topic's events after a position."""

    def __init__(
        self,
        topic: RemoteTopic,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: str = "catch_up",
        wanted: EventQuery = EVERYTHING,
    ) -> None:
        if on_lag != "catch_up":
            raise ConfigError(f'over http a subscription catches up: on_lag is "catch_up", not {on_lag!r}')
        self._topic = topic
        self._wanted = wanted
        self.missed = 0
        """Always 0: over HTTP no event is skipped."""
        start = topic.latest if after == "latest" else after
        super().__init__(topic.backend, {topic.name: start}, buffer, topic.name)

    @property
    def position(self) -> int:
        return self._given[self._topic.name]

    def _connect(self) -> urllib3.BaseHTTPResponse:
        query = LiveQuery(after=self._received[self._name], **wire_filter(self._wanted))
        return self._backend.client.stream(FOLLOW_TOPIC, self._name, query=query, accept=SSE, timeout=SILENCE)

    def _asked(self, limit: int) -> Iterator[Event]:
        return self._topic.read(replace(self._wanted, after=self.position, limit=limit))


class RemoteJournalSubscription(RemoteFollower, JournalSubscription):
    """A subscription to the events of several topics after positions."""

    def __init__(self, backend: RemoteBackend, query: AcrossQuery, buffer: int) -> None:
        self._query = query
        super().__init__(backend, query.after, buffer, "topics")

    @property
    def positions(self) -> dict[str, int]:
        with self._room:
            return dict(self._given)

    def _connect(self) -> urllib3.BaseHTTPResponse:
        wanted = wire_filter(self._query.events)
        body = AcrossFollow(topics=list(self._query.topics), after=self._received, **wanted)
        return self._backend.client.stream(FOLLOW_ACROSS, body=body, accept=SSE, timeout=SILENCE)

    def _asked(self, limit: int) -> Iterator[Event]:
        wanted = replace(self._query.events, limit=limit)
        return self._backend.read(replace(self._query, events=wanted, after=self._given))
