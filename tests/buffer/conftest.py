"""Every store the suite runs over, and short ways to fill a buffer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import Consumer, Descriptor, Metadata
from penstock.buffer.format import encode_batch, parse_manifest
from penstock.buffer.manifest import BufferCounters, ManifestObject
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.observe.metrics import Registry
from penstock.objects.store import ObjectStore, VersionConflict, open_store

from .azure_emulator import AzureEmulator, azurite
from .emulator import Emulator

MANIFEST = "ingest/manifest"
_names = itertools.count()


@pytest.fixture(params=["memory", "file", "s3", *(["azure"] if azurite() else [])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "memory":
        return open_store(f"memory://test-{next(_names)}")
    if request.param == "file":
        return open_store(f"file://{tmp_path}/store")
    if request.param == "azure":
        azure: AzureEmulator = request.getfixturevalue("azure")
        return open_store(azure.container(), azure.options)
    emulator: Emulator = request.getfixturevalue("emulator")
    return open_store(emulator.bucket(), emulator.options)


@pytest.fixture
def memory() -> ObjectStore:
    return open_store(f"memory://test-{next(_names)}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Buffer:
    """A buffer under test: enqueues batches directly, opens consumers, looks into the manifest."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.registry = Registry()
        self._writer = ManifestObject(store, MANIFEST, SystemClock(), BufferCounters(Registry()).for_role("producer"))
        self._consumers: list[Consumer] = []

    def enqueue(self, location: str, entries: Sequence[bytes], metadata: Sequence[Metadata] = ()) -> None:
        self.store.put(location, encode_batch(entries))
        self.enqueue_entry(location, metadata)

    def enqueue_entry(self, location: str, metadata: Sequence[Metadata] = ()) -> None:
        while True:  # a consumer that runs beside it writes the manifest too
            self._writer.load()
            try:
                self._writer.append([(location, metadata)])
            except VersionConflict:
                continue
            return

    def fill(self, count: int) -> list[str]:
        """Batches of two entries each: `data{n}-a`, `data{n}-b`."""
        locations = [f"ingest/{n}.batch" for n in range(count)]
        for n, location in enumerate(locations):
            self.store.put(location, encode_batch([f"data{n}-a".encode(), f"data{n}-b".encode()]))
        self._writer.load()
        self._writer.append([(location, (Metadata(0, 1000 + n, b""),)) for n, location in enumerate(locations)])
        return locations

    def consumer(self, after: int | None = None, **options: Any) -> Consumer:
        options.setdefault("gc_interval", None)
        options.setdefault("metrics", self.registry)
        consumer = Consumer(self.store, after=after, **options)
        self._consumers.append(consumer)
        return consumer

    def length(self) -> int:
        return parse_manifest(self.store.get(MANIFEST)).count

    def entries(self) -> list[Descriptor]:
        return list(parse_manifest(self.store.get(MANIFEST)))


@pytest.fixture
def buffer(store: ObjectStore) -> Buffer:
    return Buffer(store)


@pytest.fixture
def memory_buffer(memory: ObjectStore) -> Buffer:
    return Buffer(memory)
