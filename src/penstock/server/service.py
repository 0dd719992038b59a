"""The service behind every handler: the journal, the access rules, the limits, and the bytes that requests hold."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.core.protocol.operation import SSE, Role
from penstock.server.limits import CHECKING, HEAPS, LARGE_BLOCK, PING_SECONDS, SEND_BYTES, Limits

if TYPE_CHECKING:
    from penstock.core.local.backend import LocalJournal
    from penstock.core.observe.sample import Sample
    from penstock.core.sampling.collect import Sampler
    from penstock.core.surface.queue import Queue
    from penstock.core.surface.topic import Topic
    from penstock.server.access import Access
    from penstock.server.api.topics import LiveTopics
    from penstock.server.pages.buffers import Buffers
    from penstock.transfer.objects import StagingArea


T = TypeVar("T")


# ── requests that the server refuses, and problems as answers ─────────────────────────────────────────────────────────
_encode = msgspec.json.Encoder().encode


class Refused(Exception):
    """A request that the server itself refuses: too large, not allowed, or for a missing thing."""

    def __init__(self, status: int, name: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.headers = headers


# ── bytes held for others: bodies that arrive and answers that are being sent, counted together ───────────────────────
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


class MemoryBudget:
    """The number of bytes that all requests together hold at this time. Only the event loop's thread uses it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def hold(self, size: int) -> None:
        """Counts bytes as held.

        Raises Refused when there is no room for them; a client that comes back later may find room.
        """
        self.check(size)
        self.held += size

    def check(self, size: int) -> None:
        """Raises Refused when there is no room for so many bytes."""
        if self.held + size > self.most and self.held:  # a single body or answer may be larger
            raise Refused(
                503, "TooBusy", "the server holds too many bytes of other requests: try again", {"Retry-After": "1"}
            )

    def release(self, size: int) -> None:
        self.held -= size


# ── how long tasks may wait ───────────────────────────────────────────────────────────────────────────────────────────
class Patience:
    """A time limit for parts of many tasks of one event loop, with one timer for all of them.

    A part that takes longer raises TimeoutError. `asyncio.timeout` would make a timer for each part, and would cost ten
    times as much.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[asyncio.Task[object], float] = {}
        """The time when each task's time is over, earliest time first."""
        self._over: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None and task not in self._until
        self._until[task] = loop.time() + self._seconds
        if self._timer is None or loop is not self._loop:
            self._timer, self._loop = loop.call_later(self._seconds, self._look, loop), loop

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._until.pop(task, None)
        if task in self._over:
            self._over.discard(task)
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task, until in list(self._until.items()):
            if until > loop.time():
                self._timer = loop.call_at(until, self._look, loop)
                return
            del self._until[task]
            self._over.add(task)
            task.cancel()


class StreamedResponse(StreamingResponse):
    """An answer that is sent in small slices as the client reads them.

    So a slow reader's connection holds little of the answer.

    A piece is released when it was sent. When the client disconnects, all pieces are released here, because the
    exception that ends the stream stays in a cycle with its frames until Python's collector runs.
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
    """A large answer. Its bytes count as held until the answer is sent. Its maker checks first that there is room."""

    def __init__(self, budget: MemoryBudget, data: bytes, status: int, media: str) -> None:
        budget.held += len(data)
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


class EventStream(StreamedResponse):
    """Server-sent events.

    The stream counts as a listener while it is open. Raises Refused when too many streams are open.
    """

    def __init__(self, service: Service, frames: AsyncGenerator[bytes, None]) -> None:
        if service.listeners >= service.limits.max_listeners:
            raise Refused(503, "TooManyListeners", "too many live streams are open", {"Retry-After": "5"})
        self._service = service
        super().__init__(frames, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, SSE)

    async def stream_response(self, send: Send) -> None:
        self._service.listeners += 1
        try:
            await super().stream_response(send)
        finally:
            self._service.listeners -= 1


def whole_answer(service: Service, data: bytes, status: int, media: str, *, changed: bool = False) -> Response:
    """Returns an answer. A large answer is sent as the client reads it, and its bytes count as held meanwhile.

    Raises Refused when there is no room for a large answer, except when the request `changed` something: a refused
    client would repeat its change.
    """
    if len(data) > SEND_BYTES:
        if not changed:
            service.budget.check(len(data))
        return HeldResponse(service.budget, data, status, media)
    return Response(data, status, media_type=media)


async def _whole(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


def return_large_blocks() -> None:
    """Tells glibc's `malloc` to give large freed blocks back to the system, for this whole process.

    By default, `malloc` keeps freed memory of up to 32 MiB after the first such block, in up to eight heaps per core. A
    server whose threads have each handled a large body would keep all these heaps permanently. Arrow has its own
    allocator, which would keep as much again; this function makes Arrow use `malloc`, unless the environment says
    otherwise. Other C libraries than glibc are not changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # not glibc, or not POSIX
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
    mallopt(_M_ARENA_MAX, HEAPS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


# ── one served journal ────────────────────────────────────────────────────────────────────────────────────────────────
class Service:
    """A served journal."""

    def __init__(
        self,
        journal: LocalJournal,
        access: Access,
        limits: Limits,
        *,
        live: LiveTopics,
        sampler: Sampler,
        buffers: Buffers,
        areas: Mapping[str, StagingArea],
        lakes: Mapping[str, str],
    ) -> None:
        self.journal = journal
        self.access = access
        self.limits = limits
        self.budget = MemoryBudget(limits.max_held)
        self.live = live
        self.sampler = sampler
        self.buffers = buffers
        self.areas = areas
        """The places in object stores from which the server fetches staged blocks, by url."""
        self.lakes = lakes
        """The places to which history may be sealed: by a lake's public url, its url with the secret options."""
        self.sealing = asyncio.Lock()
        """The lock for sealing. The steps run one after the other, because a step takes memory and disk time."""
        self.listeners = 0
        """The number of open live streams."""
        self.waiting = 0
        """The number of requests that wait for a message."""
        self.closing = asyncio.Event()
        """Set when the server stops, so that streams and long polls end. `stop` sets it."""
        self.wakers: set[asyncio.Event] = set()
        """The events that streams wait for. The server sets them once more when it stops."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._checking = CapacityLimiter(CHECKING)
        self.patience = Patience(limits.body_timeout)
        """The time limit for arriving bodies."""

    async def check(self, work: Callable[[], T]) -> T:
        """Runs work that may call a program's own checks.

        The threads for it are separate from the threads of all other requests.
        """
        return await to_thread.run_sync(work, limiter=self._checking)

    def stop(self) -> None:
        """Ends streams and long polls. Any thread may call it."""
        if self.loop is None or self.loop.is_closed():
            self.closing.set()
        else:
            self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.closing.set()
        self.live.wake()
        for waker in list(self.wakers):
            waker.set()


Handler = Callable[..., Any]
Endpoint = Callable[[Request], Awaitable[Response]]


def service_of(request: Request, role: Role | None) -> Service:
    """Returns the service that a request is for, after a check of its sender's role. With None every sender passes."""
    service: Service = request.app.state.service
    if service.loop is None:
        service.loop = asyncio.get_running_loop()
    if role is not None:
        service.access.check_origin(request, request.method)
        request.state.role = service.access.require(request, role)
    return service


def awaitable(handler: Handler) -> Callable[..., Awaitable[Any]]:
    """Returns a handler for an event loop. A plain function runs in a thread, because it may wait for the disk."""
    return handler if inspect.iscoroutinefunction(handler) else partial(run_in_threadpool, handler)


def guarded(role: Role) -> Callable[[Handler], Endpoint]:
    """Returns a decorator that makes a handler an endpoint, which needs a role."""

    def wrap(handler: Handler) -> Endpoint:
        run = awaitable(handler)

        async def endpoint(request: Request) -> Response:
            answer: Response = await run(request, service_of(request, role))
            return answer

        endpoint.__name__ = handler.__name__
        endpoint.__doc__ = handler.__doc__
        endpoint.needs = role  # type: ignore[attr-defined]
        return endpoint

    return wrap


def existing_topic(request: Request, service: Service) -> Topic:
    """Returns the topic that a page is about. Raises Refused when the topic never had an event."""
    topic = service.journal.topic(request.path_params["topic"])
    if topic.latest == 0 and topic.name not in service.journal.topics():
        raise Refused(404, "UnknownTopic", f"there is no topic {topic.name!r}")
    return topic


def existing_queue(request: Request, service: Service) -> Queue:
    """Returns the queue that a page is about. The queue must exist: a mistyped name must not create a queue."""
    return service.journal.queue(request.path_params["queue"], create=False)


# ── what requests bring ───────────────────────────────────────────────────────────────────────────────────────────────
async def read_body(request: Request, service: Service) -> bytes:
    """Returns the request's body.

    Raises Refused when the body is too large or too slow. Its bytes count as held until they are released.
    """
    limits = service.limits
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:19]) > limits.max_body:
        raise _too_large(limits.max_body)
    chunks: list[bytes] = []
    size, more = 0, True
    try:
        with service.patience:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "Disconnected", "the body ended early")
                chunk, more = message.get("body", b""), message.get("more_body", False)
                if chunk:
                    size += len(chunk)
                    if size > limits.max_body:
                        raise _too_large(limits.max_body)
                    service.budget.hold(len(chunk))
                    request.state.held = size
                    chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "RequestTimeout", f"the body did not arrive within {limits.body_timeout:g} s") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_form(request: Request, service: Service) -> bytes:
    """Returns the body of a page's form. The body is small and is used immediately."""
    request.state.held = 0
    try:
        return await read_body(request, service)
    finally:
        service.budget.release(request.state.held)


def _too_large(most: int) -> Refused:
    return Refused(413, "TooLarge", f"a body may have {most:,} bytes at the most: send several requests")


# ── samples of the journal as server-sent events ─────────────────────────────────────────────────────────────────────
@asynccontextmanager
async def sampled(service: Service) -> AsyncIterator[asyncio.Event]:
    """Yields an event that is set at every sample while the block runs."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(news.set)
        except RuntimeError:  # the loop is closed: no task listens any more
            return

    end = service.sampler.listen(tell)
    service.wakers.add(news)
    try:
        yield news
    finally:
        service.wakers.discard(news)
        end()


async def stream_of(
    service: Service, render: Callable[[Sample], object], beat: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yields the results of `render(sample)` as server-sent events: at the start, and after every sample that changes
    the result.

    With `beat`, a sample that changes nothing sends an empty object, so that the page knows that its data is fresh.
    """
    await asyncio.to_thread(service.sampler.start)
    said: bytes | None = None
    is_new = True
    async with sampled(service) as news:
        while not service.closing.is_set():
            news.clear()
            now = msgspec.json.encode(await asyncio.to_thread(render, service.sampler.newest))
            if now != said:
                said = now
                yield b"data: %b\n\n" % now
            elif beat and is_new:
                yield b"data: {}\n\n"
            try:
                async with asyncio.timeout(PING_SECONDS):
                    is_new = await news.wait()
            except TimeoutError:
                is_new = False
                yield b": still here\n\n"


def sse(service: Service, render: Callable[[Sample], object], beat: bool = False) -> Response:
    """Returns a stream of `render(sample)` as server-sent events. The stream counts as a listener."""
    return EventStream(service, stream_of(service, render, beat))
