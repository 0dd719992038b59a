"""Requests to a server over connections that are kept, and problems turned back into the errors they were."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ClosedPoolError, ConnectTimeoutError, HTTPError, NewConnectionError, TimeoutError

from penstock.errors import Closed, ConfigError, PenstockError, StorageError
from penstock.names import shown_url, split_url
from penstock.protocol.operation import JSON, Operation
from penstock.protocol.problems import error_of_problem, read_problem

A = TypeVar("A")

IDLE_SECONDS = 20.0
"""A connection unused for longer is not trusted any more: the server may have closed it."""
KEPT = 64
"""Idle connections kept."""

_encode = msgspec.json.Encoder().encode

_ORIGIN = re.compile(r"^\w+\(host=[^)]*\): ")
"""What urllib3's messages begin with: its own object, with the address."""

_UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises when an answer is not of the expected shape."""


class _Waits:
    """The connections whose request waits for something to happen at the server; closing the journal ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[HTTPConnection] = set()
        self._ended = False

    def add(self, connection: HTTPConnection) -> None:
        with self._lock:
            if self._ended:
                raise Closed("the journal is closed")
            self._connections.add(connection)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for connection in self._connections:
                if (sock := connection.sock) is not None:
                    with suppress(OSError):  # it was answered just now
                        sock.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _CurrentRequest(threading.local):
    """The request that this thread makes: whether it waits, and the connection that urllib3 has chosen for it."""

    waits: _Waits | None = None
    connection: HTTPConnection | None = None


_request = _CurrentRequest()


class _Plain(HTTPConnection):
    """A connection that counts as dropped when it was idle for long."""

    used_at = 0.0

    @property
    def is_connected(self) -> bool:
        return time.monotonic() - self.used_at < IDLE_SECONDS and super().is_connected

    def request(self, *given: Any, **options: Any) -> None:
        self.used_at = time.monotonic()
        if _request.waits is not None:
            if self.sock is None:
                self.connect()
            _request.connection = self
            _request.waits.add(self)
        super().request(*given, **options)


class _Secure(_Plain, HTTPSConnection):
    """The same over TLS."""


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


class Client:
    """A server, and the connections to it. Thread-safe: every request has a connection to itself."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = split_url(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{shown_url(url)!r} is no http url: write http://host:port")
        if parts.username or parts.password or parts.query:
            raise ConfigError("a user, a token or a query does not belong into the url: give token=, or PENSTOCK_TOKEN")
        self._base = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc}{self._base}"
        self._timeout = timeout
        self._headers = {"User-Agent": "penstock", "Accept": JSON}
        self.token = token or os.environ.get("PENSTOCK_TOKEN") or None
        if self.token:
            if not self.token.isascii() or not self.token.isprintable():  # http.client would refuse it, and show it
                raise ConfigError("the token has a character that no token has: perhaps a newline at its end")
            self._headers["Authorization"] = f"Bearer {self.token}"
        pool = _SecurePool if parts.scheme == "https" else _PlainPool
        try:
            self._pool = pool(parts.hostname, parts.port, maxsize=KEPT, block=False, retries=False)
        except (ValueError, HTTPError):
            raise ConfigError(f"{shown_url(url)!r} names no machine, or a port that is not 1 to 65535") from None
        self._waits = _Waits()
        self.closed = False
        self._pid = os.getpid()

    def close(self) -> None:
        self.closed = True
        if not self.inherited:  # in a forked child the connections are the parent's, which goes on with them
            self._waits.end()
            self._pool.close()

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Closed when it is, or when this process was forked: parent and child would read each other's answers."""
        if self.closed:
            raise Closed("the journal is closed")
        if self.inherited:
            raise Closed(
                f"the journal was opened by process {self._pid} and this one was forked from it; "
                "open it again in the child"
            )

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def call(
        self,
        operation: Operation[A],
        *names: str,
        query: msgspec.Struct | None = None,
        body: object = None,
        wait: float = 0.0,
    ) -> A:
        """An operation's answer; the error it stands for when it is a problem. `wait`: how long the server may take."""
        return self._decoded(operation, *self._exchange(operation, names, query, body, wait))

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """The answer to a look-up; None when the server says that there is no such thing."""
        status, data = self._exchange(operation, names, None, None, 0.0)
        problem = read_problem(status, data) if status >= 300 else None
        return None if problem and problem.error == operation.missing else self._decoded(operation, status, data)

    def _decoded(self, operation: Operation[A], status: int, data: bytes) -> A:
        if status >= 300:
            raise self._refusal(operation.method, status, data)
        try:
            return operation.read_answer(data)
        except _UNDECODED as error:
            raise self._foreign(operation.method, status, data, error) from error

    def _exchange(
        self, operation: Operation[Any], names: tuple[str, ...], query: msgspec.Struct | None, body: Any, wait: float
    ) -> tuple[int, bytes]:
        self.check_open()
        target = self._base + operation.target(names, query)
        headers = self._headers
        data = None
        if operation.body is not None:
            data = body if operation.takes != JSON else b"{}" if body is None else _encode(body)
            headers = {**headers, "Content-Type": operation.takes}
        timeout = urllib3.Timeout(connect=self._timeout, read=self._timeout + wait)
        if wait:
            _request.waits = self._waits
        try:
            try:
                answer = self._pool.urlopen(operation.method, target, data, headers, timeout=timeout, redirect=False)
            except HTTPError as error:
                # Asking twice is harmless, and a kept connection may have died just now. What was changed may not be
                # changed again, and what took too long would again.
                if operation.method != "GET" or isinstance(error, TimeoutError | NewConnectionError):
                    raise
                answer = self._pool.urlopen(operation.method, target, data, headers, timeout=timeout, redirect=False)
        except HTTPError as error:
            raise self.broken(operation.method, error) from error
        finally:
            if wait:
                if _request.connection is not None:
                    self._waits.remove(_request.connection)
                _request.waits = _request.connection = None
        return answer.status, answer.data

    def stream(
        self,
        operation: Operation[object],
        *names: str,
        query: msgspec.Struct | None = None,
        body: msgspec.Struct | None = None,
        accept: str,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """An answer that is read piece by piece; the caller closes it, and with it its connection."""
        self.check_open()
        target = self._base + operation.target(names, query)
        sent = {**self._headers, "Accept": accept, **(headers or {})}
        data = None
        if body is not None:
            data, sent["Content-Type"] = _encode(body), JSON
        patience = urllib3.Timeout(connect=self._timeout, read=self._timeout if timeout is None else timeout)
        try:
            answer = self._pool.urlopen(
                operation.method, target, data, sent, timeout=patience, redirect=False, preload_content=False
            )
            if answer.status >= 300:
                data = answer.read()
                answer.release_conn()
                raise self._refusal(operation.method, answer.status, data)
        except HTTPError as error:
            raise self.broken(operation.method, error) from error
        media = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media != accept:
            answer.close()
            raise self._foreign(operation.method, answer.status, b"", f"{media or 'no type'}, not {accept}")
        return answer

    def download(
        self,
        operation: Operation[object],
        *names: str,
        query: msgspec.Struct | None = None,
        accept: str,
        packed: bool = False,
    ) -> tuple[bytes, Mapping[str, str]]:
        """An answer's bytes, whatever they are, and its headers; `packed`: compressed on their way."""
        headers = {"Accept-Encoding": "gzip"} if packed else None
        answer = self.stream(operation, *names, query=query, accept=accept, headers=headers)
        try:
            data = answer.read()
            answer.release_conn()
        except HTTPError as error:
            raise self.broken(operation.method, error) from error
        finally:
            answer.close()
        return data, answer.headers

    def lines(
        self, operation: Operation[object], *names: str, query: msgspec.Struct | None = None, accept: str
    ) -> Iterator[bytes]:
        """The lines of a long answer."""
        answer = self.stream(operation, *names, query=query, accept=accept)
        try:
            yield from lines_of(answer)
            answer.release_conn()
        except HTTPError as error:
            raise self.broken(operation.method, error) from error
        finally:
            answer.close()

    def broken(self, method: str, error: HTTPError) -> StorageError | Closed:
        if self.closed or isinstance(error, ClosedPoolError):
            return Closed("the journal is closed")
        why = _ORIGIN.sub("", str(error))
        what = f"{self.url} does not answer ({why}): is `penstock serve` running there?"
        if method != "GET" and not isinstance(error, NewConnectionError | ConnectTimeoutError):
            what += "; whether the request was done is not known (a dedup key makes it safe to repeat)"
        return StorageError(what, retryable=True)

    def _refusal(self, method: str, status: int, data: bytes) -> PenstockError:
        """The error of an answer that is none: a problem's, or that of something between here and the server."""
        problem = read_problem(status, data)
        if problem is not None and problem.error:
            return error_of_problem(status, problem)
        if status < 400:
            return self._foreign(method, status, data, "a redirection: give the url it leads to")
        return StorageError(
            f"{self.url} answered {status}, and not as a penstock server does: {data[:200]!r}",
            retryable=status in (429, 502, 503, 504),
        )

    def _foreign(self, method: str, status: int, data: bytes, why: object) -> StorageError:
        """The error of an answer that no server of ours gave, such as a proxy's login page."""
        what = f"{self.url} answered {status}, and not as a penstock server does ({why})"
        if data:
            what += f": {data[:200]!r}"
        if method != "GET" and status < 300:
            what += "; whether the request was done is not known (a dedup key makes it safe to repeat)"
        return StorageError(what)


def lines_of(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The lines of an answer, as they arrive."""
    begun: list[bytes] = []
    for piece in answer.stream(1 << 16):
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield b"".join((*begun, line, b"\n"))
            begun.clear()
        if rest:
            begun.append(rest)
    if begun:
        yield b"".join(begun)
