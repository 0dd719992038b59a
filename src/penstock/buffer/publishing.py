"""Publisher: objects uploaded by many, put into the queue by one, at once and once.

A `Producer` uploads and appends in one process. Where many processes work on one result (the tasks of a Spark job),
each of them uploads its share with `stage`, and one of them then publishes all shares with one conditional put. With a
mark, work that is done again finds itself done: see `format.mark`. Shares that are never published are garbage that the
consumer's collector deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import NamedTuple
from zlib import crc32

from penstock.buffer.backoff import Backoff, Contention
from penstock.buffer.counters import BufferCounters
from penstock.buffer.format import Compression, Mark, Metadata, seal_batch
from penstock.buffer.manifest import RENEW_SHARE, BufferPaths, ManifestObject, batch_time_ms
from penstock.buffer.store import ObjectStore, VersionConflict, probe_conditional_puts
from penstock.clock import Clock, SystemClock
from penstock.errors import StorageError

log = logging.getLogger("penstock.buffer")

_COPIES = 8
_PATIENCE = 60.0


class StagedObject(NamedTuple):
    """An object that is stored and that no manifest names yet."""

    location: str
    metadata: tuple[Metadata, ...]
    entries: int
    size: int
    crc: int


class Publisher:
    """Uploads objects, and appends them to one manifest. Made anew wherever it is needed; it holds nothing."""

    def __init__(
        self,
        store: ObjectStore,
        place: BufferPaths,
        *,
        gc_grace: float = 600,
        clock: Clock | None = None,
        patience: float = _PATIENCE,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._store = store
        self._place = place
        self._clock = clock or SystemClock()
        self._renew_after_ms = int(gc_grace * 1000 * RENEW_SHARE)
        self._patience = patience
        self._pause = pause
        self._measures = BufferCounters()

    def stage(
        self, block: memoryview, metadata: Sequence[Metadata], count: int, compression: Compression
    ) -> StagedObject:
        """Stores encoded entries as an object, to be published later."""
        data = seal_batch((block,), count, compression)
        location = self._place.new_batch(self._clock.now_ms())
        self._store.put(location, data)
        self._measures.bytes_written.inc(len(data))
        return StagedObject(location, tuple(metadata), count, len(block), crc32(data))

    def publish(self, staged: Sequence[StagedObject], mark: Mark | None = None) -> bool:
        """Appends all of it in one conditional put; False when the mark says that it was done before.

        Fails without having changed anything, or, when the store stops answering, with an error that says so: then the
        same call, with a mark, finds out what became of it.
        """
        if not staged:
            return False
        probe_conditional_puts(self._store, self._place.manifest)
        manifest = ManifestObject(self._store, self._place.manifest, self._clock, self._measures.for_role("producer"))
        contention, errors = Contention(), Backoff(first=0.05, most=5.0)
        deadline = monotonic() + self._patience
        tried: list[set[str]] = [set() for _ in staged]
        shares = list(staged)
        for attempt in range(1 << 62):
            try:
                if mark is None and manifest.find_appended(tried):
                    break
                if mark is not None and self._is_done(manifest, mark):
                    return False
                manifest.latest_known()  # before the names are looked at, as in `Lane`
                shares = self._renewed(shares)
                for share, names in zip(shares, tried, strict=True):
                    names.add(share.location)
                started = monotonic()
                try:
                    manifest.append(
                        [(share.location, share.metadata) for share in shares],
                        mark,
                        {share.location: share.crc for share in shares},
                    )
                finally:
                    contention.took(monotonic() - started)
                break
            except VersionConflict:
                self._pause(contention.delay(attempt + 1))
            except StorageError as error:
                if not error.retryable or monotonic() > deadline:
                    raise
                log.warning("cannot write %s; trying again: %s", self._place.manifest, error)
                self._pause(errors.delay(attempt))
        self._measures.batches_flushed.inc(len(shares))
        self._measures.entries_flushed.inc(sum(share.entries for share in shares))
        self._measures.bytes_flushed.inc(sum(share.size for share in shares))
        return True

    def _is_done(self, manifest: ManifestObject, mark: Mark) -> bool:
        latest = manifest.latest_mark(mark.name)
        return latest is not None and latest >= mark.number

    def _renewed(self, shares: list[StagedObject]) -> list[StagedObject]:
        """The shares, those so old that a collector may soon take them stored again under new names."""
        oldest = self._clock.now_ms() - self._renew_after_ms
        stale = [share for share in shares if (batch_time_ms(share.location) or 0) <= oldest]
        if not stale:
            return shares
        with ThreadPoolExecutor(min(_COPIES, len(stale))) as pool:
            fresh = dict(zip((share.location for share in stale), pool.map(self._copied, stale), strict=True))
        return [fresh.get(share.location, share) for share in shares]

    def _copied(self, share: StagedObject) -> StagedObject:
        data = self._store.get(share.location)
        if data is None:
            raise StorageError(
                f"{share.location} was collected as garbage before it was published: the work took longer than the "
                "consumer's gc_grace. Nothing was published; raise gc_grace there and here, and run it again"
            )
        location = self._place.new_batch(self._clock.now_ms())
        self._store.put(location, bytes(data))
        return share._replace(location=location)
