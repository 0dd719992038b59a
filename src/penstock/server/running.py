"""Serving a journal from this process, as `penstock serve` does."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.core.protocol.operation import ROLES, Role
from penstock.core.surface.journal import Journal
from penstock.errors import ConfigError
from penstock.server.application import make_app
from penstock.server.limits import Limits

HOST = "127.0.0.1"
PORT = 7367


def is_local(host: str) -> bool:
    """Returns True if an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_server(
    journal: Journal,
    *,
    host: str = HOST,
    port: int = PORT,
    proxies: Iterable[str] = (),
    tokens: Mapping[str, Role] | None = None,
    limits: Limits | None = None,
    **served: Any,
) -> uvicorn.Server:
    """Returns a server for a journal; its `run()` starts it. An address that other machines can reach needs tokens.

    `tokens`, `limits` and the other arguments are options of the application (`make_app`). A request's address is the
    address of its connection. `proxies` are trusted addresses and networks: their headers say where a request came from
    (X-Forwarded-For) and how (X-Forwarded-Proto).
    """
    if not is_local(host) and not tokens:
        raise ConfigError(
            f"{host} can be reached from other machines, so requests must bring a token: "
            "give --token-file (or PENSTOCK_SERVE_TOKENS), or serve on 127.0.0.1"
        )
    limits, trusted = limits or Limits(), [_network(proxy) for proxy in proxies]
    app = make_app(journal, tokens=tokens, limits=limits, **served)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        # Paths and query strings may contain names and conditions that must not appear in a log. The application logs
        # errors.
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted),
        forwarded_allow_ips=trusted,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        lifespan="on",
        ws="none",
        http=timed_protocol(limits.header_timeout),
        limit_concurrency=most_connections(limits.max_connections),
    )
    server = uvicorn.Server(config)
    stop = server.handle_exit

    def handle_exit(sig: int, frame: Any) -> None:
        # Streams end when the server stops them. Without this, uvicorn would wait for the streams first.
        app.state.service.stop()
        stop(sig, frame)

    server.handle_exit = handle_exit  # type: ignore[method-assign]
    return server


def _network(proxy: str) -> str:
    try:
        return str(ipaddress.ip_network(proxy))
    except ValueError as error:
        raise ConfigError(f"a proxy is an address or a network, like 10.0.0.7 or 10.0.0.0/8: {error}") from None


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket. So the caller knows the port (0: any) before the server serves a client."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because asyncio switches Nagle's algorithm off only then. Otherwise answers would wait 40
    # ms each.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        # From here on no client is refused: a client that connects before the server runs waits a moment.
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot serve on {host}:{port}: {error.strerror}") from error
    return listening


def read_tokens(text: str) -> dict[str, Role]:
    """Returns tokens from lines of the form `role token`. Empty lines and lines that begin with # are skipped."""
    tokens: dict[str, Role] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ROLES:
            raise ConfigError(f"line {number} of the tokens is not `read|write|admin TOKEN`")
        tokens[words[1]] = words[0]
    return tokens


# ── connections that say nothing, or not enough, are closed: they cannot use up all descriptors ───────────────────────
def timed_protocol(limit: float) -> type[HttpToolsProtocol]:
    """Returns uvicorn's protocol with a time limit: each request must arrive within `limit` seconds of its beginning.

    uvicorn itself closes a connection that is idle between two requests. But it waits without limit for a connection's
    first request and for the rest of a request's head.
    """

    class TimedProtocol(HttpToolsProtocol):
        _patience: asyncio.TimerHandle | None = None
        """The timer that checks the connection again.

        A timer for each request would cost as much as reading the request's head.
        """
        _since: float | None = None
        """The time when the expected request began; None while no request is expected."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_request()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._expect_request()

        def on_headers_complete(self) -> None:
            self._since = None
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._since = None
            if self._patience is not None:
                self._patience.cancel()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            self._since = self.loop.time()
            if self._patience is None:
                self._patience = self.loop.call_later(limit, self._look)

        def _look(self) -> None:
            self._patience = None
            if self._since is None:
                return
            left = self._since + limit - self.loop.time()
            if left > 0:
                self._patience = self.loop.call_later(left, self._look)
            elif self.transport is not None and not self.transport.is_closing():
                self.transport.abort()

    return TimedProtocol


def most_connections(wanted: int) -> int:
    """Returns the number of connections that may be open: the wanted number, limited by the process's file
    descriptors.
    """
    try:
        import resource
    except ImportError:  # pragma: no cover - not on Windows
        return wanted
    soft: Any = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - 128))
