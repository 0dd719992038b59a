"""The journal as a whole: what it is, how it does, whether it is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.observe.sample import Sample
from penstock.server.api.live import SSE, STREAM_HEADERS
from penstock.server.api.problems import Refused
from penstock.server.api.topics import json
from penstock.server.limits import PING_SECONDS
from penstock.server.service import Service, guarded


@guarded("read")
def describe(request: Request, service: Service) -> Response:
    from penstock import __version__

    described = service.journal.describe()
    pressure = service.journal.pressure()
    return json(
        {
            "version": __version__,
            **{name: getattr(described, name) for name in described.__struct_fields__},
            "pressure": {"queued": pressure.queued, "capacity": pressure.capacity},
        }
    )


@guarded("read")
def show_stats(request: Request, service: Service) -> Response:
    service.sampler.start()
    return json(service.sampler.newest)


@guarded("write")
def flush(request: Request, service: Service) -> Response:
    service.journal.flush()
    return json({"flushed": True})


@guarded("admin")
def maintain(request: Request, service: Service) -> Response:
    service.journal.maintain()
    return json({"maintained": True})


async def health(request: Request) -> Response:
    """Whether the journal is open; says nothing else, so it needs no token."""
    service: Service = request.app.state.service
    well = not service.journal.closed
    return json({"status": "ok" if well else "closed"}, 200 if well else 503)


@guarded("read")
def metrics(request: Request, service: Service) -> Response:
    from penstock.server.api.metrics import exposition

    return Response(exposition(service), media_type="text/plain; version=0.0.4; charset=utf-8")


@asynccontextmanager
async def sampled(service: Service) -> AsyncIterator[asyncio.Event]:
    """An event that is set at every sample while the block runs."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(news.set)
        except RuntimeError:  # the loop is closed: nobody listens any more
            return

    end = service.sampler.listen(tell)
    service.wakers.add(news)
    try:
        yield news
    finally:
        service.wakers.discard(news)
        end()


async def stream_of(service: Service, render: Any) -> AsyncIterator[bytes]:
    """What `render(sample)` says, as server-sent events: at once, and after every sample that changes it."""
    await asyncio.to_thread(service.sampler.start)
    said: bytes | None = None
    async with sampled(service) as news:
        while not service.closing.is_set():
            news.clear()
            now = msgspec.json.encode(await asyncio.to_thread(render, service.sampler.newest))
            if now != said:
                said = now
                yield b"data: %b\n\n" % now
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield b": still here\n\n"


def sse(service: Service, render: Any) -> Response:
    """A stream of `render(sample)`, counted among the listeners."""
    if service.lives.listeners >= service.limits.max_listeners:
        raise Refused(503, "TooManyListeners", "too many live streams are open", {"Retry-After": "5"})

    async def counted() -> AsyncIterator[bytes]:
        service.lives.listeners += 1
        try:
            async for frame in stream_of(service, render):
                yield frame
        finally:
            service.lives.listeners -= 1

    return StreamingResponse(counted(), media_type=SSE, headers=STREAM_HEADERS)


@guarded("read")
async def live_stats(request: Request, service: Service) -> Response:
    def whole(sample: Sample) -> Sample:
        return sample

    return sse(service, whole)
