"""The object-storage buffers a server was told about: how much waits, since when, and under which epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request

from penstock.errors import PenstockError
from penstock.observe.pipelines import FlowStatus
from penstock.observe.sample import Sample
from penstock.server.pages import parts
from penstock.server.pages.parts import Row, Table
from penstock.server.pages.rendering import Content
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.buffer.store import ObjectStore

FRESH = 2.0
"""Seconds for which a look at a manifest is good: it is a request to an object store."""


class BufferState(msgspec.Struct):
    """A buffer at one time."""

    name: str
    waiting: int = 0
    """Batches that no consumer and no pipeline has read."""
    read: int = 0
    """Batches that a pipeline has read and removes when its next batch begins."""
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

    def states(self, flows: Sequence[FlowStatus]) -> list[BufferState]:
        """Every buffer now, or as it was a moment ago; `flows` say how far pipelines have read."""
        at, found = self._seen
        if self.urls and time.monotonic() - at > FRESH:
            read_to: dict[str, int] = {}
            for flow in flows:
                for manifest, sequence in flow.read_to.items():
                    read_to[manifest] = max(sequence, read_to.get(manifest, 0))
            with ThreadPoolExecutor(min(8, len(self.urls))) as pool:
                found = list(pool.map(lambda name: self._inspect(name, read_to), self.urls))
            self._seen = (time.monotonic(), found)
        return found

    def _inspect(self, name: str, read_to: Mapping[str, int]) -> BufferState:
        from penstock.buffer.format import parse_manifest
        from penstock.buffer.manifest import batch_time_ms
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
            first = manifest.first_sequence()
            begin = manifest.next_sequence if first is None else first
            unread = max(begin, read_to.get(f"{self.urls[name].rstrip('/')}/{BUFFER_MANIFEST}", 0))
            read = min(manifest.count, unread - begin)
            oldest = manifest.after(unread - 1 if unread else None, 1)
        except PenstockError as error:
            return BufferState(name, problem=str(error))
        lag = None
        if oldest:
            batch = oldest[0]
            born = batch.metadata[0].ingested_at_ms if batch.metadata else batch_time_ms(batch.location)
            lag = None if born is None else max(0.0, time.time() - born / 1000)
        return BufferState(name, manifest.count - read, read, manifest.epoch, manifest.next_sequence, lag)


def table(states: list[BufferState]) -> Table:
    rows = []
    for state in states:
        cells = [state.name, parts.number(state.waiting), parts.number(state.read), parts.age(state.lag)]
        cells += [parts.number(state.epoch), parts.number(state.next_sequence), state.problem or "–"]
        rows.append(Row(state.name, cells, None, "alert" if state.problem else ""))
    columns = ["Buffer", "Batches waiting", "Read, not yet removed", "Lag", "Epoch", "Next sequence", "Problem"]
    return Table(
        "buffers", columns, rows, [1, 2, 3, 4, 5], "this server was told of no buffer: penstock serve --buffer URL"
    )


def buffers_page(request: Request, service: Service, sample: Sample) -> Content:
    return Content("buffers.html", "Buffers", [], {"buffers": table(service.buffers.states(sample.flows))})
