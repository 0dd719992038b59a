"""The object-storage buffers a server was told about: how much waits, since when, and under which epoch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.observe.sample import Sample
from penstock.server.pages import parts, rendering
from penstock.server.pages.parts import Row, Table, Update
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.buffer.store import ObjectStore

FRESH = 2.0
"""Seconds for which a look at a manifest is good: it is a request to an object store."""


class BufferState(msgspec.Struct):
    """A buffer at one time."""

    name: str
    length: int = 0
    epoch: int = 0
    next_sequence: int = 0
    lag: float | None = None
    """Seconds since the oldest batch that waits was produced."""
    problem: str | None = None


class Buffers:
    """The buffers a server shows, by name."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = dict(urls)
        self._stores: dict[str, ObjectStore] = {}
        self._seen: tuple[float, list[BufferState]] = (0.0, [])

    def states(self) -> list[BufferState]:
        """Every buffer now, or as it was a moment ago."""
        at, found = self._seen
        if self.urls and time.monotonic() - at > FRESH:
            with ThreadPoolExecutor(min(8, len(self.urls))) as pool:
                found = list(pool.map(self._look, self.urls))
            self._seen = (time.monotonic(), found)
        return found

    def _look(self, name: str) -> BufferState:
        from penstock.buffer.format import parse_manifest
        from penstock.buffer.naming import batch_time_ms
        from penstock.buffer.store import open_store
        from penstock.limits import BUFFER_MANIFEST

        try:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = open_store(self.urls[name])
            stored = store.read(BUFFER_MANIFEST, None)
            if stored is None:
                return BufferState(name)
            manifest = parse_manifest(stored.data)
            oldest = manifest.after(None, 1)
        except PenstockError as error:
            return BufferState(name, problem=str(error))
        lag = None
        if oldest:
            first = oldest[0]
            born = first.metadata[0].ingested_at_ms if first.metadata else batch_time_ms(first.location)
            lag = None if born is None else max(0.0, time.time() - born / 1000)
        return BufferState(name, manifest.count, manifest.epoch, manifest.next_sequence, lag)


def table(states: list[BufferState]) -> Table:
    rows = []
    for state in states:
        cells = [state.name, parts.number(state.length), parts.age(state.lag)]
        cells += [parts.number(state.epoch), parts.number(state.next_sequence), state.problem or "–"]
        rows.append(Row(state.name, cells, None, state.problem is not None))
    columns = ["Buffer", "Batches waiting", "Lag", "Epoch", "Next sequence", "Problem"]
    return Table(
        "buffers", columns, rows, [1, 2, 3, 4], "this server was told of no buffer: penstock serve --buffer URL"
    )


@guarded("read")
def buffers_page(request: Request, service: Service) -> Response:
    states = table(service.buffers.states())
    return rendering.page(request, service, "buffers.html", "Buffers", live="/live/buffers", buffers=states)


@guarded("read")
async def live_buffers(request: Request, service: Service) -> Response:
    def render(sample: Sample) -> Update:
        return parts.update((), table(service.buffers.states()))

    return rendering.stream(request, service, render)
