"""The journal as a whole: what it is, how it does, whether it is well, what Prometheus scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.collect import GAUGES, gauges
from penstock.observe.metrics import REGISTRY, Registry
from penstock.observe.sample import Sample
from penstock.protocol import topics as operations
from penstock.protocol.openapi import document
from penstock.protocol.operation import JSON
from penstock.protocol.topics import JournalDocument
from penstock.server.api.binding import Call, serves
from penstock.server.limits import PING_SECONDS
from penstock.server.service import EventStream, Service, guarded


@serves(operations.DESCRIBE_JOURNAL)
def describe_journal(call: Call[None, None]) -> JournalDocument:
    from penstock import __version__

    journal = call.service.journal
    return JournalDocument(
        **msgspec.structs.asdict(journal.describe()),
        version=__version__,
        id=journal.id,
        pressure=journal.pressure(),
        staging=list(call.service.areas),
        lakes=list(call.service.lakes),
        role=call.request.state.role,
    )


@serves(operations.READ_OPENAPI)
def read_openapi(call: Call[None, None]) -> Response:
    """It is the same for every client and says nothing of the data, so it needs no token."""
    return Response(document(), media_type=JSON)


@serves(operations.READ_STATS)
def read_stats(call: Call[None, None]) -> Sample:
    return call.service.sampler.newest


@serves(operations.FOLLOW_STATS)
async def follow_stats(call: Call[None, None]) -> Response:
    return sse(call.service, lambda sample: sample)


async def health(request: Request) -> Response:
    """Whether the journal is open, and neither another writer nor other files have replaced it; nothing else, so it
    needs no token."""
    journal = request.app.state.service.journal
    status = "closed" if journal.closed else "ok" if journal._engine.usable() else "replaced"
    return Response(b'{"status":"%s"}' % status.encode(), 200 if status == "ok" else 503, media_type=JSON)


@guarded("read")
def metrics(request: Request, service: Service) -> Response:
    return Response(exposition(service), media_type="text/plain; version=0.0.4; charset=utf-8")


@asynccontextmanager
async def sampled(service: Service) -> AsyncIterator[asyncio.Event]:
    """An event that is set at every sample while the block runs."""
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
    """What `render(sample)` says, as server-sent events: at once, and after every sample that changes it.

    `beat`: a sample that changes nothing is said too, as an empty object, so that a page knows that it is not old.
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
    """A stream of `render(sample)` as server-sent events, counted among the listeners."""
    return EventStream(service, stream_of(service, render, beat))


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def exposition(service: Service) -> str:
    """Everything in Prometheus's text format."""
    # The served journal's gauges stand for themselves, also when the program watches it (or another) in-process.
    counted = REGISTRY.prometheus_text(without={name for name, *_ in GAUGES})
    return counted + gauges(service.sampler.newest).prometheus_text() + own(service).prometheus_text()


def own(service: Service | None = None) -> Registry:
    """What the server itself is busy with."""
    registry = Registry()
    registry.gauge("server.listeners", "live streams that are open").set(service.listeners if service else 0)
    registry.gauge("server.waiting", "requests that wait for a message").set(service.waiting if service else 0)
    return registry
