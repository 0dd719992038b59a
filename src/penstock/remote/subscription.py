"""Following a topic from afar: server-sent events, resumed where they broke off.

A thread reads the stream into a bounded buffer; when the buffer is full it stops reading, and the server sees that. A
broken connection is opened again after the last event that arrived, so nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec
import urllib3
from msgspec.structs import replace
from urllib3.exceptions import HTTPError

from penstock.documents.events import EventDocument
from penstock.errors import Closed, ConfigError, PenstockError, StorageError
from penstock.events import Event
from penstock.journal.reading import EVERYTHING, EventQuery
from penstock.journal.waking import Signal
from penstock.limits import SUBSCRIPTION_BUFFER
from penstock.names import check_whole
from penstock.protocol.operation import SSE
from penstock.protocol.topics import FOLLOW_TOPIC, LiveQuery
from penstock.remote.client import lines_of
from penstock.remote.events import event_of
from penstock.remote.reading import wire_filter
from penstock.surface.subscription import Subscription

if TYPE_CHECKING:
    from penstock.remote.topic import RemoteTopic

_decode = msgspec.json.Decoder(EventDocument).decode

SILENCE = 60.0
"""Seconds without a sign of life (the server gives one every 15) after which a connection counts as broken."""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds between attempts to connect again, at the most."""


class RemoteSubscription(Subscription):
    """Events after a position as they come: iterate it (also with `async for`), or ask for the `next` one."""

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
        check_whole(buffer, "buffer")
        self._topic = topic
        self._position = topic.latest() if after == "latest" else after
        self._received = self._position
        self._size = buffer
        self._wanted = wanted
        self._ahead: deque[Event] = deque()
        self._signal = Signal()
        self._room = threading.Condition()
        self._closed = False
        self._failure: PenstockError | None = None
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._thread: threading.Thread | None = None
        self.missed = 0
        """Always 0: over http nothing is skipped."""
        topic.backend.subscriptions.add(self)

    @property
    def position(self) -> int:
        """The position of the last event handed out: subscribe after it to go on elsewhere."""
        return self._position

    def ready(self) -> Event | None:
        """The next event if it has arrived already."""
        return None if self._closed else self._ready(ask=False)

    def close(self) -> None:
        """Ends the subscription; threads that wait in it get nothing more."""
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
        """The next event that has arrived; `ask`: also asks the server at once when none has."""
        self._start()
        with self._room:
            if not self._ahead and self._failure is not None:
                raise self._failure
            if not self._ahead and ask:
                wanted = replace(self._wanted, after=self._position, limit=min(self._size, 1000))
                self._ahead.extend(self._topic.read(wanted))
            while self._ahead:
                event = self._ahead.popleft()
                if event.seq > self._position:  # what a read found, the stream brings again
                    self._position = event.seq
                    self._room.notify()
                    return event
            self._room.notify()
        return None

    def _check_ended(self) -> None:
        if self._topic.backend.closed and self._failure is not None:
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
                    name = f"penstock-follow-{self._topic.name}"
                    thread = threading.Thread(target=self._run, name=name, daemon=True)
                    thread.start()
                    self._thread = thread  # only now: where one cannot start, the next call tries again

    def _hang_up(self) -> None:
        answer = self._answer
        if answer is not None:
            with suppress(OSError, ValueError, RuntimeError):
                answer.shutdown()  # wakes the thread that reads from it

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            before = self._received
            try:
                self._read()
            except StorageError as error:
                if not error.retryable:
                    self._fail(error)
                    return
            except PenstockError as error:
                self._fail(error)
                return
            except (OSError, HTTPError, ValueError, AttributeError):
                pass  # broken off, or hung up by us while reading; the loop knows which
            if self._received > before:
                pause = FIRST_PAUSE
            with self._room:
                self._room.wait_for(lambda: self._closed, pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _fail(self, error: PenstockError) -> None:
        if not self._closed:
            self._failure = error
            self._signal.notify()

    def _read(self) -> None:
        """Reads one connection until it ends."""
        answer = self._topic.backend.client.stream(
            FOLLOW_TOPIC,
            self._topic.name,
            query=LiveQuery(after=self._received, **wire_filter(self._wanted)),
            accept=SSE,
            timeout=SILENCE,
        )
        self._answer = answer
        passed = 0
        try:
            for line in lines_of(answer):
                if self._closed:
                    return
                if line.startswith(b"data: "):
                    passed = 0
                    self._arrived(event_of(_decode(line[6:])))
                elif line.startswith(b"id: "):
                    passed = int(line[4:])
                elif passed and line == b"\n":  # an id without data: what lies before it was not chosen
                    self._pass(passed)
        finally:
            self._answer = None
            answer.close()

    def _pass(self, seq: int) -> None:
        with self._room:
            self._received = max(self._received, seq)
            if not self._ahead:
                self._position = max(self._position, self._received)

    def _arrived(self, event: Event) -> None:
        if event.seq <= self._received:
            return
        with self._room:
            self._room.wait_for(lambda: len(self._ahead) < self._size or self._closed)
            if self._closed:
                return
            self._received = event.seq
            self._ahead.append(event)
        self._signal.notify()
