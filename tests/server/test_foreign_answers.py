"""Answers that no penstock server gave (a proxy's login page, a redirection, something cut off), and odd tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import msgspec
import pytest

from penstock.core.journal.description import Pressure
from penstock.core.protocol.topics import APPEND_EVENTS, READ_ACROSS, AcrossRequest, JournalDocument
from penstock.errors import ConfigError, OutcomeUnknown, PenstockError, StorageError
from penstock.remote.backend import RemoteJournal
from penstock.remote.client import Client

LOGIN_PAGE = b"<!doctype html><title>Log in</title>"
PRESSURE = Pressure(0, 1)
ABOUT = msgspec.json.encode(
    JournalDocument("memory", None, 0, "disk", False, [], [], 1, version="1", id="id", pressure=PRESSURE)
)
SOON = 60.0


class Proxy(BaseHTTPRequestHandler):
    """Answers every request but the first the same way."""

    status: ClassVar[int] = 200
    media: ClassVar[str] = "text/html"
    body: ClassVar[bytes] = LOGIN_PAGE
    described: ClassVar[bool] = False
    """Whether the journal has been described, as a server does: from then on the proxy answers."""
    url: ClassVar[str]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, media, body = self.status, self.media, self.body
        if not self.described and self.path == "/v1":
            status, media, body = 200, "application/json", ABOUT
            type(self).described = True
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "https://login.example/?next=penstock")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def proxy() -> Iterator[type[Proxy]]:
    class Answering(Proxy):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    Answering.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    yield Answering
    server.shutdown()
    server.server_close()
    thread.join()


def opened(proxy: type[Proxy]) -> RemoteJournal:
    return RemoteJournal(proxy.url)


@pytest.mark.parametrize(
    ("status", "media", "body"),
    [
        (200, "text/html", LOGIN_PAGE),
        (200, "application/json", b'{"topics": ["a", '),
        (200, "application/json", b"[" * 5_000),
        (200, "application/json", b'{"topics": 1}'),
        (200, "application/json", b'{"topics": ["\xff"]}'),
        (204, "text/plain", b""),
        (302, "text/html", LOGIN_PAGE),
    ],
)
def test_an_answer_that_is_not_penstocks_is_said_to_be(
    proxy: type[Proxy], status: int, media: str, body: bytes
) -> None:
    proxy.status, proxy.media, proxy.body = status, media, body
    with opened(proxy) as journal:
        with pytest.raises(StorageError, match=f"answered {status}, and not as a penstock server does") as raised:
            journal.topics()
        assert not raised.value.retryable and "not known" not in str(raised.value)
        with pytest.raises(StorageError, match="not as a penstock server does") as raised:
            journal.topic("t").append("k")
        assert isinstance(raised.value, OutcomeUnknown) == (status < 300)
        assert ("whether the request was done is not known" in str(raised.value)) == (status < 300)
        with pytest.raises(StorageError, match="not as a penstock server does"):
            journal.queue("q", create=False)


def test_a_login_page_is_no_stream_of_events(proxy: type[Proxy]) -> None:
    with opened(proxy) as journal:
        topic = journal.topic("t")
        with pytest.raises(StorageError, match="text/html, not application/x-ndjson"):
            list(topic.read())
        with topic.subscribe(after=0) as events, pytest.raises(StorageError, match="text/html, not text/event-stream"):
            events.next(timeout=SOON)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 502, 503, 504])
def test_the_json_of_a_gateway_is_shown_and_is_no_problem_of_ours(proxy: type[Proxy], status: int) -> None:
    """It may have passed an append on before it failed, so that the append is not tried again; a read is."""
    proxy.status, proxy.media, proxy.body = status, "application/json", b'{"message": "no upstream"}'
    client = Client(proxy.url, None, SOON)
    with pytest.raises(StorageError, match=f"answered {status}.*no upstream") as appended:
        client.call(APPEND_EVENTS, "t", body=[])
    with pytest.raises(StorageError, match=f"answered {status}.*no upstream") as read:
        client.call(READ_ACROSS, body=AcrossRequest())
    client.close()
    assert isinstance(appended.value, OutcomeUnknown) == (status >= 500)
    assert appended.value.retryable == (status == 429)
    assert type(read.value) is StorageError and read.value.retryable == (status in (429, 502, 503, 504))


@pytest.mark.parametrize("token", ["secret-0123456789ab\n", "secret\r\nX-Evil: 1", "secret-\u20ac-0123456789"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="a character that no token has") as raised:
        Client("http://127.0.0.1:1", token, 1.0)
    assert "secret" not in str(raised.value)


def test_a_refusal_of_an_append_behind_a_gateway_is_an_error_of_ours(proxy: type[Proxy]) -> None:
    proxy.status, proxy.body = 413, b"<h1>413 Request Entity Too Large</h1>"
    client = Client(proxy.url, None, SOON)
    with pytest.raises(PenstockError, match="413 Request Entity Too Large"):
        client.call(APPEND_EVENTS, "t", body=[])
    client.close()
