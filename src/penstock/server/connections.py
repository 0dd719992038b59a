"""Connections that do not say anything, or not enough: they are closed, so that they cannot use up all descriptors."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def timed_protocol(limit: float) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, for connections whose requests must have arrived `limit` seconds after they began.

    uvicorn itself closes a connection that is idle between two requests, and waits for ever for the rest of a request's
    head, or for the first one.
    """

    class TimedProtocol(HttpToolsProtocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_request()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._expect_request()

        def on_headers_complete(self) -> None:
            self._arrived()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._arrived()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            self._arrived()
            self._patience = self.loop.call_later(limit, self._give_up)

        def _arrived(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _give_up(self) -> None:
            self._patience = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.abort()

    return TimedProtocol


def most_connections(wanted: int) -> int:
    """How many connections may be open: what is wanted, or what the process's limit of descriptors leaves room for."""
    try:
        import resource
    except ImportError:  # pragma: no cover - not on Windows
        return wanted
    soft: Any = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - 128))
