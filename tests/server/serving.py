"""A real server on a port of its own, in this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

import uvicorn
import uvloop

import penstock
from penstock.server.running import bind, make_server
from waiting import DEADLINE

T = TypeVar("T")

ADMIN = "admin-token-0123456789"
WRITE = "write-token-0123456789"
READ = "read-token-0123456789"
TOKENS: dict[str, Any] = {ADMIN: "admin", WRITE: "write", READ: "read"}


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.data = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.data.splitlines()]


class Served:
    """Where a journal is served, and a way to ask it things."""

    def __init__(self, journal: penstock.Journal, port: int, token: str | None) -> None:
        self.journal = journal
        self.port = port
        self.token = token
        self.url = f"http://127.0.0.1:{port}"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        token: str | None = None,
        **query: Any,
    ) -> Answer:
        sent = {"Connection": "close"}
        token = token or self.token
        if token:
            sent["Authorization"] = f"Bearer {token}"
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        connection = self.connect()
        try:
            target = path + (f"?{urlencode(query, doseq=True)}" if query else "")
            connection.request(method, target, data, {**sent, **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Answer:
        return self.ask("GET", path, **query)

    def post(self, path: str, body: Any = None, **query: Any) -> Answer:
        return self.ask("POST", path, body, **query)


class EventLoop:
    """The one event loop of this process's servers: a thread and a loop for each would cost most of a small test."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something in the loop, from another thread, and waits for what it comes to."""
        if self._loop is None:
            self._loop = uvloop.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="servers").start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)


LOOP = EventLoop()


async def _start(server: uvicorn.Server, listening: socket.socket) -> None:
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup([listening])
    await server.on_tick(0)


async def _stop(server: uvicorn.Server) -> None:
    """Ends a server as uvicorn does, without the 0.1 s that it waits between two looks."""
    for one in server.servers:
        one.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    patience = time.monotonic() + server.config.timeout_graceful_shutdown  # type: ignore[operator]
    while server.server_state.connections or server.server_state.tasks:
        if time.monotonic() > patience:
            for task in server.server_state.tasks:
                task.cancel()
            break
        await asyncio.sleep(0.001)
    await server.lifespan.shutdown()


@contextmanager
def serving(
    journal: penstock.Journal, *, token: str | None = None, reuse: int = 0, app: Any = None, **options: Any
) -> Iterator[Served]:
    """Serves a journal while the block runs; `reuse` names the port, `app` an application it is mounted in."""
    listening = bind("127.0.0.1", reuse)
    server = make_server(journal, **options)
    if app is None:
        server.config.app.penstock = server.config.app.state.service  # type: ignore[union-attr]
    else:
        server.config.app = app
    LOOP.run(_start(server, listening))
    try:
        yield Served(journal, listening.getsockname()[1], token)
    finally:
        (app or server.config.app).penstock.stop()
        LOOP.run(_stop(server))
        listening.close()
