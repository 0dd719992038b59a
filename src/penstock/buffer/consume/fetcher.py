"""Fetcher: turns descriptors into batches, anywhere."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from penstock.buffer.consume.batch import Batch
from penstock.buffer.counters import BufferCounters
from penstock.buffer.format.batch import MAX_BATCH_BYTES, decode_arrow, open_batch
from penstock.buffer.format.descriptor import Descriptor
from penstock.buffer.store import ObjectStore, check_path
from penstock.buffer.store.contract import Buffer
from penstock.errors import ConfigError, Corrupt, StorageError

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


class Fetcher:
    """Fetches batches by descriptor. Stateless: share it between threads, pickle it to other machines.

    It does not know who owns the manifest, so it works on after its consumer was fenced, as long as the object exists.
    A pickled fetcher carries the store's options, credentials among them if they were given there.
    """

    __slots__ = ("_limit", "_measures", "_store", "manifest")

    def __init__(
        self, store: ObjectStore, manifest: str, limit: int = MAX_BATCH_BYTES, measures: BufferCounters | None = None
    ) -> None:
        self.manifest = manifest
        self._store = store
        self._limit = limit
        self._measures = measures or BufferCounters()

    def fetch(self, descriptor: Descriptor) -> Batch:
        """Gets and checks the batch. A missing object is a `StorageError`, a damaged one `Corrupt`."""
        block = self._fetch(descriptor, open_batch, lambda block: block.count)
        return Batch(descriptor.sequence, descriptor.location, descriptor.metadata, block)

    def fetch_arrow(self, descriptor: Descriptor) -> pyarrow.Array:
        """Gets the batch's entries as one Arrow binary array, without a Python object per entry."""
        return self._fetch(descriptor, decode_arrow, len)

    def _fetch(self, descriptor: Descriptor, decode: Callable[..., T], count: Callable[[T], int]) -> T:
        started = perf_counter()
        data = self.fetch_raw(descriptor)
        try:
            if descriptor.crc is not None and crc32(data) != descriptor.crc:
                raise Corrupt("a batch fails the checksum its manifest entry gives; fetch it again, or restore it")
            decoded = decode(data, limit=self._limit)
        except Corrupt as error:
            raise Corrupt(str(error), seq=descriptor.sequence, file=descriptor.location) from None
        measures = self._measures
        measures.fetch_duration.observe(perf_counter() - started)
        measures.batches_collected.inc()
        measures.entries_collected.inc(count(decoded))
        measures.bytes_collected.inc(len(data))
        return decoded

    def fetch_raw(self, descriptor: Descriptor) -> Buffer:
        """Gets the object's bytes as stored, without looking at them."""
        try:
            location = check_path(descriptor.location, "a location")
        except ConfigError as error:
            raise Corrupt(str(error), seq=descriptor.sequence, file=self.manifest) from None
        data = self._store.get(location)
        if data is None:
            raise StorageError(
                f"batch {descriptor.sequence} of {self.manifest} is gone: {self._store.url} has no {location}"
            )
        return data

    def __reduce__(self) -> tuple[object, ...]:
        return Fetcher, (self._store, self.manifest, self._limit)

    def __repr__(self) -> str:
        return f"Fetcher(manifest={self.manifest!r})"
