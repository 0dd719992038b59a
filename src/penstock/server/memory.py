"""How many bytes the server holds for others: bodies that arrive and answers that are being sent, counted together."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from penstock.server.limits import SEND_BYTES
from penstock.server.problems import Refused


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


class HeldResponse(StreamingResponse):
    """A large answer, sent in slices as the client takes them, and counted until it is sent."""

    def __init__(self, budget: MemoryBudget, data: bytes, status: int, media: str) -> None:
        budget.hold(len(data))
        self._budget: MemoryBudget | None = budget
        self._size = len(data)
        super().__init__(_slices(data), status, {"Content-Length": str(len(data))}, media)

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._budget is not None:
                self._budget.release(self._size)
                self._budget = None


async def _slices(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), SEND_BYTES):
        yield data[start : start + SEND_BYTES]


async def sliced(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream's pieces, none of them so large that a slow reader's connection would hold much of it."""
    async for piece in pieces:
        if len(piece) <= SEND_BYTES:
            yield piece
        else:
            async for part in _slices(piece):
                yield part
