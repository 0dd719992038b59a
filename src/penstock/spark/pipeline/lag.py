"""How far a flow is behind: asked of the journal and of the buffer, since Spark tells it after batches only.

Topics are counted in events, buffers in manifest entries: what an entry holds is known only after it is fetched.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import penstock
from penstock.buffer.format import parse_manifest
from penstock.errors import PenstockError
from penstock.spark.buffer.options import read_options, resolved
from penstock.spark.pipeline.graph import BoundFlow
from penstock.spark.pipeline.places import Endpoint
from penstock.spark.source.place import is_served
from penstock.spark.source.stores import reading
from penstock.surface.journal import Journal

Offsets = Mapping[int, Mapping[str, int]]
"""How far each source has been read: for each of its topics a position, for each manifest the next sequence."""

_BUFFER_INTERVAL = 1.0
"""Seconds between looks at the manifests of a buffer, each of which is a request to the object store."""


class Lag:
    """How much of a flow's sources waits to be read."""

    def __init__(self, flow: BoundFlow) -> None:
        self.flow = flow
        self._served: dict[str, Journal] = {}
        self._read_bounds: dict[int, tuple[float, dict[str, tuple[int, int]]]] = {}
        """When each buffer's manifests were last looked at, and where they began and ended."""

    def total(self, offsets: Offsets) -> int | None:
        """What waits in all sources; None when one of them cannot say."""
        total = 0
        for at, source in enumerate(self.flow.sources):
            if source.in_journal:
                found: int | None = self._in_topics(source, offsets.get(at))
            elif source.kind == "buffer":
                found = self._in_buffer(at, source, offsets.get(at))
            else:
                found = None
            if found is None:
                return None
            total += found
        return total

    def read_to(self, offsets: Offsets) -> dict[str, int]:
        """The first sequence that was not read of every manifest, by the buffer's url and the manifest's path."""
        found: dict[str, int] = {}
        for at, source in enumerate(self.flow.sources):
            if source.kind == "buffer":
                url = read_options(resolved(source.options)).url.rstrip("/")
                found |= {f"{url}/{path}": sequence for path, sequence in offsets.get(at, {}).items()}
        return found

    def _in_topics(self, source: Endpoint, offsets: Mapping[str, int] | None) -> int:
        assert source.url is not None
        journal = self._journal(source.url)
        total = 0
        for name in source.names if source.kind != "pattern" else tuple(offsets or ()):
            topic = journal.topic(name)
            consumer = source.options.get("consumer", self.flow.consumer)
            done = offsets.get(name) if offsets else topic.cursor(consumer)
            total += max(0, topic.latest - (done or 0))
        return total

    def _journal(self, url: str) -> Journal:
        if not is_served(url):
            return reading(url)
        if url not in self._served:
            self._served[url] = penstock.open(url, read_only=True)
        return self._served[url]

    def _in_buffer(self, at: int, source: Endpoint, offsets: Mapping[str, int] | None) -> int | None:
        """The manifest's entries beyond what was read; those that were read and not acknowledged yet do not count."""
        known = self._read_bounds.get(at)
        if known is None or time.monotonic() >= known[0] + _BUFFER_INTERVAL:
            try:
                known = self._read_bounds[at] = time.monotonic(), _bounds(source)
            except PenstockError:  # a lag that is not known for a moment is nothing to stop a flow for
                return None
        return sum(max(0, end - (offsets or {}).get(path, begin)) for path, (begin, end) in known[1].items())


def _bounds(source: Endpoint) -> dict[str, tuple[int, int]]:
    """Where each manifest of a buffer begins and ends, in sequences."""
    options = read_options(resolved(source.options))
    store = options.open()
    found = {}
    for place in options.places:
        manifest = parse_manifest(store.get(place.manifest))
        first = manifest.first_sequence()
        found[place.manifest] = (manifest.next_sequence if first is None else first, manifest.next_sequence)
    return found
