"""Requests to a server over kept connections. Problem documents become the errors again that the server raised."""

from __future__ import annotations

import io
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPResponse, RemoteDisconnected
from typing import Any, TypeVar

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ClosedPoolError, HTTPError, NewConnectionError, ProtocolError, TimeoutError

from penstock.core.names import check_unicode, shown_url, split_url
from penstock.core.protocol.operation import JSON, Operation
from penstock.core.protocol.problems import UNEXPECTED, error_of_problem, read_problem
from penstock.errors import Closed, ConfigError, OutcomeUnknown, PenstockError, StorageError

A = TypeVar("A")
T = TypeVar("T")

IDLE_SECONDS = 20.0
"""The number of seconds after which an idle connection is not used any more: the server may have closed it."""
KEPT = 64
"""The maximum number of idle connections that are kept."""


_ORIGIN = re.compile(r"^\w+\(host=[^)]*\): ")
"""The beginning of urllib3's messages: an object of urllib3 with the address."""

_DOUBT = (
    "whether the request was done is not known: repeat it when a repeat is harmless, as that of an event with dedup= "
    "or expect= is; else look first"
)

_UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of decoding an answer that does not have the expected shape."""


class _Waits:
    """The connections whose requests wait for an event at the server.

    When the journal is closed, these connections end.
    """

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
                    with suppress(OSError):  # its answer came at this moment
                        sock.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _CurrentRequest(threading.local):
    """The present request of this thread: whether it waits, and the connection that urllib3 has chosen for it."""

    waits: _Waits | None = None
    connection: HTTPConnection | None = None
    sent = False
    """True if the whole request was given to a connection. A server ignores an incomplete request."""


_request = _CurrentRequest()


class _Lines(io.BufferedReader):
    """The bytes of a connection, read by line: the head of an answer, and the sizes of its chunks."""

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        # otherwise http.client would accept an incomplete head, and take an answer without a length for an empty answer
        if not line:
            raise RemoteDisconnected("the connection ended in the middle of the answer")
        return line


class _WholeResponse(HTTPResponse):
    """An answer with a complete head."""

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        self.fp = _Lines(self.fp.detach())


class _Plain(HTTPConnection):
    """A connection that counts as dropped when it was idle for a long time."""

    response_class = _WholeResponse
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
        _request.sent = True


class _Secure(_Plain, HTTPSConnection):
    """A connection over TLS."""


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


class Client:
    """A server, and the connections to it. It is thread-safe: every request has a connection to itself."""

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
        given = "" if token is None else check_unicode(token, "a token")
        self.token = given or os.environ.get("PENSTOCK_TOKEN") or None
        if self.token:
            # http.client would refuse the token, and show it in the error
            if not self.token.isascii() or not self.token.isprintable():
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
        if not self.inherited:  # in a forked child, the connections belong to the parent, which still uses them
            self._waits.end()
            self._pool.close()

    @property
    def inherited(self) -> bool:
        """True if this process was forked from the process that created the client."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Raises Closed when the client is closed, or when this process was forked: parent and child would read each
        other's answers.
        """
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
        """Returns an operation's answer. Raises the error that a problem document describes.

        `wait` is the time that the server may take.
        """
        changes = operation.changes(body if query is None else query)
        return self._decoded(operation, changes, *self._exchange(operation, names, query, body, wait, changes))

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """Returns the answer to a look-up; None when the server says that the thing does not exist."""
        changes = operation.changes()
        status, data = self._exchange(operation, names, None, None, 0.0, changes)
        problem = read_problem(status, data) if status >= 300 else None
        if problem is not None and problem.error == operation.missing:
            return None
        return self._decoded(operation, changes, status, data)

    def _decoded(self, operation: Operation[A], changes: bool, status: int, data: bytes) -> A:
        if status >= 300:
            raise self._refusal(status, data, changes=changes)
        try:
            return operation.read_answer(data)
        except _UNDECODED as error:
            raise self._foreign(status, data, error, changes=changes) from error

    def _exchange(
        self,
        operation: Operation[Any],
        names: tuple[str, ...],
        query: msgspec.Struct | None,
        body: Any,
        wait: float,
        changes: bool,
    ) -> tuple[int, bytes]:
        self.check_open()
        target = self._base + operation.target(names, query)
        headers = self._headers
        data = None
        if operation.body is not None:
            data = body if operation.takes != JSON else b"{}" if body is None else operation.write_body(body)
            headers = {**headers, "Content-Type": operation.takes}
        timeout = urllib3.Timeout(connect=self._timeout, read=self._timeout + wait)
        _request.sent = False
        if wait:
            _request.waits = self._waits
        try:
            try:
                answer = self._pool.urlopen(operation.method, target, data, headers, timeout=timeout, redirect=False)
            except HTTPError as error:
                # A failed request is repeated once, because a kept connection may have ended just now. A change that
                # was sent is not repeated, because it may have been performed. A request that took too long is not
                # repeated, because it would take too long again.
                if (changes and _request.sent) or isinstance(error, TimeoutError | NewConnectionError):
                    raise
                answer = self._pool.urlopen(operation.method, target, data, headers, timeout=timeout, redirect=False)
        except HTTPError as error:
            ended_here = self.closed and wait > 0
            raise self.broken(error, doubtful=changes and _request.sent and not ended_here) from error
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
        """Returns an answer that is read piece by piece. The caller closes the answer, which closes its connection."""
        self.check_open()
        target = self._base + operation.target(names, query)
        sent = {**self._headers, "Accept": accept, **(headers or {})}
        data = None
        if body is not None:
            data, sent["Content-Type"] = operation.write_body(body), JSON
        patience = urllib3.Timeout(connect=self._timeout, read=self._timeout if timeout is None else timeout)
        try:
            answer = self._pool.urlopen(
                operation.method, target, data, sent, timeout=patience, redirect=False, preload_content=False
            )
            if answer.status >= 300:
                data = answer.read()
                answer.release_conn()
                raise self._refusal(answer.status, data)
        except HTTPError as error:
            raise self.broken(error) from error
        media = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media != accept:
            answer.close()
            raise self._foreign(answer.status, b"", f"{media or 'no type'}, not {accept}")
        return answer

    def download(
        self,
        operation: Operation[object],
        *names: str,
        query: msgspec.Struct | None = None,
        accept: str,
        packed: bool = False,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Returns the bytes of an answer, and its headers. With `packed`, the bytes are compressed on their way."""
        headers = {"Accept-Encoding": "gzip"} if packed else None
        answer = self.stream(operation, *names, query=query, accept=accept, headers=headers)
        try:
            data = answer.read()
            answer.release_conn()
        except HTTPError as error:
            raise self.broken(error) from error
        finally:
            answer.close()
        return data, answer.headers

    def lines(
        self, operation: Operation[object], *names: str, query: msgspec.Struct | None = None, accept: str
    ) -> Iterator[bytes]:
        """Yields the lines of a long answer."""
        answer = self.stream(operation, *names, query=query, accept=accept)
        try:
            yield from lines_of(answer)
            answer.release_conn()
        except HTTPError as error:
            raise self.broken(error) from error
        finally:
            answer.close()

    def broken(self, error: HTTPError, *, doubtful: bool = False) -> StorageError | Closed:
        """Returns the error of a connection that broke.

        `doubtful` means that the request may have changed something.
        """
        why = _ORIGIN.sub("", str(error))
        if doubtful:
            return OutcomeUnknown(f"{self.url} did not answer ({why}); {_DOUBT}")
        if self.closed or isinstance(error, ClosedPoolError):
            return Closed("the journal is closed")
        return StorageError(f"{self.url} does not answer ({why}): is `penstock serve` running there?", retryable=True)

    def _refusal(self, status: int, data: bytes, *, changes: bool = False) -> PenstockError:
        """Returns the error that an answer reports: the error of a problem document, or the error of a machine
        between here and the server.
        """
        problem = read_problem(status, data)
        if problem is not None and problem.error:
            if changes and problem.error == UNEXPECTED:
                return OutcomeUnknown(f"{self.url} failed ({problem.detail}); {_DOUBT}")
            return error_of_problem(status, problem)
        if status < 400:
            return self._foreign(status, data, "a redirection: give the url it leads to", changes=changes)
        what = f"{self.url} answered {status}, and not as a penstock server does: {data[:200]!r}"
        if changes and status >= 500:  # a gateway may have forwarded the request and lost the answer
            return OutcomeUnknown(f"{what}; {_DOUBT}")
        return StorageError(what, retryable=status in (429, 502, 503, 504))

    def _foreign(self, status: int, data: bytes, why: object, *, changes: bool = False) -> StorageError:
        """Returns the error of an answer that no penstock server gave, such as a proxy's login page."""
        what = f"{self.url} answered {status}, and not as a penstock server does ({why})"
        if data:
            what += f": {data[:200]!r}"
        return OutcomeUnknown(f"{what}; {_DOUBT}") if changes and status < 300 else StorageError(what)

    def read_line(self, decode: Callable[[bytes], T], line: bytes) -> T:
        """Returns the decoded line of an answer. Raises StorageError when no penstock server wrote the line."""
        try:
            return decode(line)
        except _UNDECODED as error:
            raise self._foreign(200, line, error) from error


def lines_of(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yields the lines of an answer as they arrive."""
    begun: list[bytes] = []
    for piece in answer.stream(1 << 16):
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield b"".join((*begun, line, b"\n"))
            begun.clear()
        if rest:
            begun.append(rest)
    if begun:
        raise ProtocolError("the answer ended in the middle of a line")
