"""Requests to a server over connections that are kept, and problems turned back into the errors they were."""

from __future__ import annotations

import http.client
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock import errors
from penstock.document import PROBLEM_ATTRIBUTES
from penstock.errors import Backpressure, Closed, ConfigError, Denied, PenstockError, StorageError

IDLE_SECONDS = 20.0
"""A connection unused for longer is not trusted any more: the server may have closed it."""
MOST_IDLE = 16
"""Idle connections kept."""


class Problem(msgspec.Struct):
    """A problem+json answer."""

    error: str = ""
    detail: str = ""
    expected: int | None = None
    actual: int | None = None
    oldest: int | None = None
    retry_after: float | None = None
    last_seq: int | None = None
    token: str | None = None
    epoch: int | None = None
    retryable: bool | None = None
    topic: str | None = None
    seq: int | None = None
    reason: str | None = None


_decode_problem = msgspec.json.Decoder(Problem).decode


class Http:
    """A server, and the connections to it. Thread-safe: every request has a connection to itself."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no http url: write http://host:port")
        if parts.username or parts.password:
            raise ConfigError("a token does not belong into the url: give token=, or PENSTOCK_TOKEN")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._path = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"User-Agent": "penstock", "Accept": "application/json"}
        token = token or os.environ.get("PENSTOCK_TOKEN")
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()
        self.closed = False

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────
    def connection(self, timeout: float | None = None) -> http.client.HTTPConnection:
        """A new connection."""
        if self.closed:
            raise Closed("the journal is closed")
        timeout = self._timeout if timeout is None else timeout
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _borrow(self) -> http.client.HTTPConnection | None:
        """A kept connection that is still fresh, and that the server has not closed meanwhile."""
        if self.closed:
            raise Closed("the journal is closed")
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() - since < IDLE_SECONDS and not _ended(connection):
                    return connection
                connection.close()
        return None

    def _return(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self.closed and len(self._idle) < MOST_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, *path: str, **query: Any) -> bytes:
        """The answer to a question; asked once more when a kept connection turns out to be dead."""
        return self.request("GET", path, query=query)

    def send(self, method: str, *path: str, body: Any = None, wait: float = 0.0) -> bytes:
        """The answer to a change."""
        return self.request(method, path, body=msgspec.json.encode({} if body is None else body), wait=wait)

    def target(self, path: tuple[str, ...], query: Mapping[str, Any] | None = None) -> str:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        joined = f"{self._path}/v1" + "".join("/" + quote(part, safe="") for part in path)
        return joined + (f"?{urlencode(given, doseq=True)}" if given else "")

    def request(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        wait: float = 0.0,
    ) -> bytes:
        """The body of an answer; the error it stands for when it is a problem. `wait`: how long the server may."""
        target = self.target(path, query)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._borrow()
        kept = connection is not None
        if connection is None:
            connection = self.connection()
        try:
            status, data = self._exchange(connection, method, target, body, headers, wait)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if not (kept and method == "GET"):
                raise self._broken(method, error, kept or _was_sent(error)) from error
            connection = self.connection()
            try:
                status, data = self._exchange(connection, method, target, body, headers, wait)
            except (OSError, http.client.HTTPException) as again:
                connection.close()
                raise self._broken(method, again, False) from again
        self._return(connection)
        if status >= 400:
            raise error_of(status, data)
        return data

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: dict[str, str],
        wait: float,
    ) -> tuple[int, bytes]:
        connection.timeout = self._timeout + wait
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout + wait)
        connection.request(method, target, body, headers)
        if connection.sock is not None:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        response = connection.getresponse()
        return response.status, response.read()

    def stream(
        self, path: tuple[str, ...], query: Mapping[str, Any], headers: Mapping[str, str], timeout: float | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A connection of its own with an answer that is read piece by piece; the caller closes it."""
        connection = self.connection(timeout)
        try:
            connection.request("GET", self.target(path, query), headers={**self._headers, **headers})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._broken("GET", error, False) from error
        if response.status >= 400:
            data = response.read()
            connection.close()
            raise error_of(response.status, data)
        return connection, response

    def pieces(self, path: tuple[str, ...], query: Mapping[str, Any], accept: str) -> Iterator[bytes]:
        """The lines of a long answer."""
        connection, response = self.stream(path, query, {"Accept": accept})
        try:
            yield from response
        except (OSError, http.client.HTTPException) as error:
            raise self._broken("GET", error, False) from error
        finally:
            connection.close()

    def _broken(self, method: str, error: Exception, sent: bool) -> StorageError:
        what = f"{self.url} does not answer: {type(error).__name__}: {error}"
        if method != "GET" and sent:
            what += "; whether the request was done is not known (a dedup key makes it safe to repeat)"
        return StorageError(what, retryable=True)


def _ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed a connection that nothing is under way on: then there is something to read."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _was_sent(error: Exception) -> bool:
    """Whether a request may have reached the server before it failed."""
    return not isinstance(error, ConnectionRefusedError | socket.gaierror)


def error_of(status: int, data: bytes) -> PenstockError:
    """The error a problem stands for."""
    try:
        problem = _decode_problem(data)
    except msgspec.DecodeError:
        return StorageError(f"the server answered {status}: {data[:200]!r}", retryable=status in (502, 503, 504))
    known = getattr(errors, problem.error, None)
    if isinstance(known, type) and issubclass(known, PenstockError):
        error: PenstockError = known.__new__(known)
        Exception.__init__(error, problem.detail)
        for name in PROBLEM_ATTRIBUTES:
            value = getattr(problem, name)
            if value is not None:
                setattr(error, name, value)
        if isinstance(error, StorageError) and problem.retryable is None:
            error.retryable = False
        return error
    if status == 403:
        return Denied(problem.detail)
    if status == 503:
        return Backpressure(problem.detail, retry_after=problem.retry_after or 1.0)
    if status >= 500:
        return StorageError(f"{problem.error}: {problem.detail}", retryable=False)
    return ConfigError(f"{problem.error}: {problem.detail}")
