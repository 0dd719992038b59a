"""Following a topic from afar: server-sent events, resumed where they broke off.

A thread reads the stream into a bounded buffer; when the buffer is full it stops reading, and the server sees that. A
broken connection is opened again after the last event that arrived, so nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import http.client
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError, PenstockError, StorageError
from penstock.event import Event
from penstock.limits import SUBSCRIPTION_BUFFER
from penstock.remote.events import RawEvent, event_of

if TYPE_CHECKING:
    from penstock.remote.topic import RemoteTopic

_decode = msgspec.json.Decoder(RawEvent).decode

SILENCE = 60.0
"""Seconds without a sign of life (the server gives one every 15) after which a connection counts as broken."""
LONGEST_PAUSE = 5.0
"""Seconds between attempts to connect again, at the most."""
_END = object()


class RemoteSubscription:
    """Events after a position as they come: iterate it (also with `async for`), or ask for the `next` one."""

    def __init__(
        self,
        topic: RemoteTopic,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: str = "catch_up",
    ) -> None:
        if on_lag != "catch_up":
            raise ConfigError(f'over http a subscription catches up: on_lag is "catch_up", not {on_lag!r}')
        if not isinstance(buffer, int) or isinstance(buffer, bool) or buffer < 1:
            raise ConfigError(f"buffer must be a whole number of at least 1, not {buffer!r}")
        self._topic = topic
        self._position = topic.latest if after == "latest" else after
        self._received = self._position
        self._buffer: queue.Queue[Any] = queue.Queue(buffer)
        self._closed = threading.Event()
        self._failure: PenstockError | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.missed = 0
        """Always 0: over http nothing is skipped."""
        topic.journal._subscriptions.add(self)

    @property
    def position(self) -> int:
        """The position of the last event handed out: subscribe after it to go on elsewhere."""
        return self._position

    def next(self, timeout: Seconds | None = None) -> Event | None:
        """The next event; None after `timeout` seconds without one, or when the subscription is closed."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        self._start()
        while True:
            if self._closed.is_set() and self._failure is None:
                return None
            try:
                item = self._buffer.get(timeout=limit) if limit is None or limit > 0 else self._buffer.get_nowait()
            except queue.Empty:
                return None
            if item is _END:
                with suppress(queue.Full):
                    self._buffer.put_nowait(_END)  # for whoever else waits
                if self._failure is not None:
                    raise self._failure
                return None
            self._position = item.seq
            return item  # type: ignore[no-any-return]

    async def next_async(self, timeout: Seconds | None = None) -> Event | None:
        """`next` for an event loop."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while True:
            # In steps, so that a cancelled wait does not leave a thread behind for long.
            left = 0.5 if deadline is None else min(0.5, max(0.0, deadline - time.monotonic()))
            event = await asyncio.to_thread(self.next, left)
            if event is not None or self._closed.is_set():
                return event
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next_async()) is not None:
            yield event

    def close(self) -> None:
        """Ends the subscription; whoever waits in it, in whatever thread, gets nothing more."""
        self._closed.set()
        self._hang_up()
        self._clear()

    def _journal_closed(self) -> None:
        if not self._closed.is_set():
            self._failure = Closed("the journal was closed under this subscription")
            self.close()

    def __enter__(self) -> RemoteSubscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ── the reading thread ───────────────────────────────────────────────────────────────────────────────────────────
    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed.is_set():
                    name = f"penstock-follow-{self._topic.name}"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()

    def _hang_up(self) -> None:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            import socket

            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it

    def _clear(self) -> None:
        """Drops what was read ahead and leaves the end for those who wait."""
        while True:
            try:
                self._buffer.get_nowait()
            except queue.Empty:
                break
        with suppress(queue.Full):
            self._buffer.put_nowait(_END)

    def _run(self) -> None:
        pause = 0.05
        while not self._closed.is_set():
            try:
                self._read()
                pause = 0.05
            except StorageError as error:
                if not error.retryable:
                    self._fail(error)
                    return
            except PenstockError as error:
                self._fail(error)
                return
            except (OSError, http.client.HTTPException, ValueError, AttributeError):
                pass  # broken off, or closed by us while reading; the loop knows which
            self._closed.wait(pause)
            pause = min(LONGEST_PAUSE, pause * 2)
        self._clear()

    def _fail(self, error: PenstockError) -> None:
        if not self._closed.is_set():
            self._failure = error
            self._put(_END)

    def _read(self) -> None:
        """Reads one connection until it ends."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self._received)}
        connection, response = self._topic._http.stream(
            ("topics", self._topic.name, "live"), {"after": self._received}, headers, SILENCE
        )
        self._connection = connection
        try:
            if self._closed.is_set():
                return
            for line in response:
                if line.startswith(b"data: "):
                    event = event_of(_decode(line[6:]))
                    if event.seq > self._received:
                        self._received = event.seq
                        self._put(event)
                elif line.startswith(b"id: ") and line[4:].strip().isdigit():
                    pass  # the id of the data line that follows, or of events nobody asked for
                if self._closed.is_set():
                    return
        finally:
            self._connection = None
            connection.close()

    def _put(self, item: Any) -> None:
        while not self._closed.is_set():
            try:
                self._buffer.put(item, timeout=0.2)
                return
            except queue.Full:
                continue
