"""A real server on a port of its own, in a thread of this process."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import penstock
from penstock.server.running import bind, make_server

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


@contextmanager
def serving(
    journal: penstock.Journal, *, token: str | None = None, reuse: int = 0, app: Any = None, **options: Any
) -> Iterator[Served]:
    """Serves a journal while the block runs; `reuse` names the port, `app` an application it is mounted in."""
    listening: socket.socket = bind("127.0.0.1", reuse)
    server = make_server(journal, **options)
    if app is None:
        server.config.app.penstock = server.config.app.state.service  # type: ignore[union-attr]
    else:
        server.config.app = app
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive()
        time.sleep(0.005)
    try:
        yield Served(journal, listening.getsockname()[1], token)
    finally:
        (app or server.config.app).penstock.stop()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        listening.close()


def wait_until(condition: Any, seconds: float = 600.0) -> Any:
    """Waits for something to become true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found
