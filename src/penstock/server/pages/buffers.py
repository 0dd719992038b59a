"""The page of the object-storage buffers that a server was told about: how many batches wait, since when, and in
which epoch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request

from penstock.core.observe import pipelines
from penstock.core.observe.sample import Sample
from penstock.errors import PenstockError
from penstock.limits import BUFFER_MANIFEST
from penstock.server.pages import parts
from penstock.server.pages.parts import Content, ListColumn, Row
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.objects.store import ObjectStore


FRESH: Final = 2.0
"""The number of seconds for which a manifest counts as fresh. Reading a manifest is a request to an object store."""


class BufferState(msgspec.Struct):
    """A buffer at one time."""

    name: str
    waiting: int = 0
    """Batches that no consumer and no pipeline has read."""
    read: int = 0
    """Batches that a pipeline has read, and removes when its next batch begins."""
    epoch: int = 0
    next_sequence: int = 0
    lag: float | None = None
    """Seconds since the oldest batch that waits was produced."""
    problem: str | None = None


class Buffers:
    """The buffers a server shows, by name."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.urls = dict(urls)
        self._stores: dict[str, ObjectStore] = {}
        self._seen: tuple[float, list[BufferState]] = (0.0, [])

    def states(self, flows: Sequence[pipelines.FlowStatus]) -> list[BufferState]:
        """Returns the state of every buffer, at most a moment old. `flows` say how far pipelines have read."""
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
        from penstock.buffer.manifest import lag_of
        from penstock.objects.store import open_store

        try:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = open_store(self.urls[name])
            stored = store.read(BUFFER_MANIFEST, None)
            if stored is None:
                return BufferState(name)
            manifest = parse_manifest(stored.data, BUFFER_MANIFEST)
            first = manifest.first_sequence()
            begin = manifest.next_sequence if first is None else first
            unread = max(begin, read_to.get(f"{self.urls[name].rstrip('/')}/{BUFFER_MANIFEST}", 0))
            read = min(manifest.count, unread - begin)
            oldest = manifest.after(unread - 1 if unread else None, 1)
        except PenstockError as error:
            return BufferState(name, problem=str(error))
        waits, lag = manifest.count - read, lag_of(oldest)
        return BufferState(name, waits, read, manifest.epoch, manifest.next_sequence, lag)


BUFFER_COLUMNS: Final[parts.Columns[BufferState]] = (
    ListColumn("Buffer", lambda one: one.name),
    ListColumn("Batches waiting", lambda one: one.waiting, parts.number),
    ListColumn("Read, not yet removed", lambda one: one.read, parts.number),
    ListColumn("Lag", lambda one: one.lag, parts.age),
    ListColumn("Epoch", lambda one: one.epoch, parts.number),
    ListColumn("Next sequence", lambda one: one.next_sequence, parts.number),
    ListColumn("Problem", lambda one: one.problem),
)


def buffers_page(request: Request, service: Service, sample: Sample) -> Content:
    def row(one: BufferState, cells: list[str]) -> Row:
        return Row(one.name, cells, None, "alert" if one.problem else "")

    empty = "this server was told of no buffer: penstock serve --buffer URL"
    found = parts.table("buffers", BUFFER_COLUMNS, service.buffers.states(sample.flows), row, empty)
    return Content("buffers.html", "Buffers", [], {"buffers": found})
