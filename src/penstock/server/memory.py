"""How many bytes the server holds for others: bodies that arrive and answers that are being sent, counted together."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.server.limits import HEAPS, LARGE_BLOCK, SEND_BYTES
from penstock.server.problems import Refused

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


class MemoryBudget:
    """Bytes held at this time, all requests together. Only the event loop's thread uses it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def hold(self, size: int) -> None:
        """Counts bytes as held; Refused when there is no room for them: a client that comes back later finds some."""
        if self.held + size > self.most and self.held:  # what is alone may be larger
            raise Refused(
                503, "TooBusy", "the server holds too many bytes of other requests: try again", {"Retry-After": "1"}
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


class StreamedResponse(StreamingResponse):
    """An answer that is sent in slices as the client takes them: none so large that a slow reader's connection would
    hold much of it.

    A piece is let go when it is sent, and all of them when the client leaves: the exception that ends the stream stays
    in a cycle with its frames for as long as Python's collector likes.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(pieces, status, headers, media_type)
        self._pieces = pieces

    async def stream_response(self, send: Send) -> None:
        piece = b""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in self._pieces:
                for start in range(0, len(piece), SEND_BYTES):
                    part = piece[start : start + SEND_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                piece = b""
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            piece = b""
            await self._pieces.aclose()


class HeldResponse(StreamedResponse):
    """A large answer, counted until it is sent."""

    def __init__(self, budget: MemoryBudget, data: bytes, status: int, media: str) -> None:
        budget.hold(len(data))
        self._budget: MemoryBudget | None = budget
        self._size = len(data)
        super().__init__(_whole(data), status, {"Content-Length": str(len(data))}, media)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._budget is not None:
                self._budget.release(self._size)
                self._budget = None


async def _whole(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


def return_large_blocks() -> None:
    """Tells glibc's `malloc` to give large blocks back to the system when they are freed, for this whole process.

    By itself it keeps what is freed up to 32 MiB after the first such block, in as many heaps as eight times the cores:
    a server whose threads have each met a large body holds all of them for good. Arrow, which brings an allocator that
    keeps as much again, is told to use `malloc`, unless the environment says otherwise. Other libraries than glibc are
    left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # not glibc, or not POSIX
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
    mallopt(_M_ARENA_MAX, HEAPS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
