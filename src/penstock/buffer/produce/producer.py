"""Producer: writes entries from anywhere into a buffer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from penstock.buffer.counters import BufferCounters
from penstock.buffer.format.batch import MAX_BATCH_BYTES, Compression, encode_entries, load_zstandard
from penstock.buffer.manifest import ManifestObject
from penstock.buffer.naming import place, shard_of, shard_place
from penstock.buffer.produce.lane import Lane
from penstock.buffer.produce.outgoing import BatchPart, Produced, Split, UnflushedBatch
from penstock.buffer.produce.uploads import UploadPipeline
from penstock.buffer.store import ObjectStore, open_store, probe_conditional_puts
from penstock.clock import Clock, Seconds, SystemClock, seconds
from penstock.errors import ConfigError, StorageError, Unflushed
from penstock.limits import BUFFER_MANIFEST
from penstock.names import check_whole
from penstock.observe.metrics import REGISTRY, Registry
from penstock.ticket import wake

Key = Callable[[bytes], bytes | str | int]

#: An object that no manifest names is uploaded again after this share of the collector's grace.
_RENEW_SHARE = 0.4


class Producer:
    """Collects entries into batches and hands them to the buffer's consumer; any number may share one.

    >>> with Producer("s3://bucket/events") as producer:
    ...     ticket = producer.produce([b"one", b"two"])
    ...     ticket.result()                       # the manifest holds both: they will be consumed

    `produce` returns at once. A batch is sent `flush_interval` after its first entry, or when it has `flush_bytes`.
    Uploads overlap, within `inflight_bytes`; when there is no room left and `max_buffered` calls wait, `produce`
    blocks. Nothing is dropped: what the store refuses is tried again until it takes it or `close` gives up.

    `gc_grace` must be no more than the consumer's. `options` are the store's (region, endpoint, access_key_id, timeout
    …). With `shards`, `key` decides which of that many manifests an entry goes to; entries of one key stay in order.
    """

    def __init__(
        self,
        url: str | ObjectStore,
        *,
        manifest: str = BUFFER_MANIFEST,
        prefix: str | None = None,
        flush_interval: Seconds = 0.1,
        flush_bytes: int = 64 << 20,
        max_buffered: int = 1000,
        compression: Compression = "none",
        shards: int = 1,
        key: Key | None = None,
        uploads: int = 8,
        inflight_bytes: int = 256 << 20,
        gc_grace: Seconds = 600,
        options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        metrics: Registry = REGISTRY,
    ) -> None:
        if compression not in ("none", "zstd"):
            raise ConfigError(f"compression must be 'none' or 'zstd', not {compression!r}")
        if compression == "zstd":
            load_zstandard()  # else the first batch would find it missing, and be tried again
        whole = place(manifest, prefix)
        if shards > 1 and key is None:
            raise ConfigError("shards= needs key=: a function from an entry to what decides its shard")
        places = [shard_place(whole, shard, shards) for shard in range(check_whole(shards, "shards"))]
        store = open_store(url, options)
        probe_conditional_puts(store, whole.manifest)
        self.url = store.url
        self._clock = clock or SystemClock()
        self._key = key
        measures = BufferCounters(metrics)
        self._manifest_measures = measures.for_role("producer")
        self._pipeline = UploadPipeline(
            store,
            self._clock,
            measures,
            compression=compression,
            flush_interval=seconds(flush_interval, "flush_interval"),
            flush_bytes=min(check_whole(flush_bytes, "flush_bytes"), MAX_BATCH_BYTES),
            max_buffered=check_whole(max_buffered, "max_buffered"),
            uploads=check_whole(uploads, "uploads"),
            inflight_bytes=check_whole(inflight_bytes, "inflight_bytes"),
            renew_after_ms=int(seconds(gc_grace, "gc_grace") * 1000 * _RENEW_SHARE),
        )
        self._lanes = self._pipeline.lanes
        for each in places:
            shared = ManifestObject(store, each.manifest, self._clock, self._manifest_measures)
            self._lanes.append(Lane(self._pipeline, each, shared))
        self._closed = False
        self._close_lock = threading.Lock()

    def produce(self, entries: Sequence[bytes], metadata: bytes = b"", *, timeout: Seconds | None = None) -> Produced:
        """Takes entries and returns a ticket that resolves when a consumer can no longer miss them.

        The entries of one call stay together and in order (with shards: those of one shard). `metadata` travels with
        them, uninterpreted, with the time of this call. Blocks when `max_buffered` calls wait; after `timeout` seconds
        of that raises `Backpressure`, and nothing was taken.
        """
        wait = None if timeout is None else seconds(timeout, "timeout")
        now = self._clock.now_ms()
        if self._key is not None and len(self._lanes) > 1:
            return self._produce_sharded(_as_bytes(entries), _payload(metadata), now, wait)
        call = Produced(now)
        self._pipeline.add(((self._lanes[0], _encoded(entries), len(entries), call),), _payload(metadata), wait)
        return call

    def _produce_sharded(self, entries: Sequence[bytes], payload: bytes, now: int, wait: float | None) -> Produced:
        assert self._key is not None
        if not entries:
            raise ConfigError("produce needs at least one entry")
        by_lane: dict[int, list[bytes]] = {}
        for entry in entries:
            by_lane.setdefault(shard_of(self._key(entry), len(self._lanes)), []).append(entry)
        whole = Split(now, len(by_lane))
        shares = [
            (self._lanes[shard], _encoded(own), len(own), BatchPart(now, whole)) for shard, own in by_lane.items()
        ]
        self._pipeline.add(shares, payload, wait)
        return whole

    def flush(self, timeout: Seconds | None = None) -> None:
        """Sends what is there now and returns when the manifest holds it; TimeoutError after `timeout` seconds."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        if not self._pipeline.flush(limit):
            if self._pipeline.given_up.is_set():
                raise StorageError(f"the producer gave up: {self._pipeline.last_error}", retryable=True)
            raise TimeoutError(f"not flushed after {timeout} s; last failure: {self._pipeline.last_error}")

    def close(self, timeout: Seconds = 30) -> None:
        """Flushes and ends; a second close does nothing.

        What the store has not taken after `timeout` seconds is reported: `Unflushed` carries the entries, and their
        tickets fail with it. A failure that trying again cannot mend (a missing permission) ends the wait early.
        """
        limit = seconds(timeout, "timeout")
        if self._pipeline.inherited:  # a forked child: what waits to be sent is the parent's
            return
        with self._close_lock:
            if self._closed:
                return
            self._pipeline.close_intake()
            flushed = self._pipeline.flush(limit)
            if not flushed:
                self._pipeline.give_up()
            self._pipeline.stop()
            self._closed = True  # only now: after an interrupt the next close has all this to do
            if not flushed:
                self._report_unflushed()

    def _report_unflushed(self) -> None:
        with self._pipeline.lock:
            left = [(lane, batch) for lane in self._lanes for batch in lane.queue]
            for lane in self._lanes:
                lane.queue.clear()
        if not left:  # the last answer came while we were giving up
            return
        batches = [UnflushedBatch(lane.place.manifest, batch.entries(), batch.metadata) for lane, batch in left]
        entries = sum(batch.count for _, batch in left)
        error = Unflushed(
            f"closed with {entries} entries in {len(batches)} batches that {self.url} did not take: "
            f"{self._pipeline.last_error or 'it did not answer in time'}",
            batches=batches,
        )
        calls = [call for _, batch in left for call in batch.calls]
        for call in calls:
            call.set_outcome(None, error)
        wake(calls)
        raise error

    @property
    def conflict_rate(self) -> float:
        """Manifest writes that lost to another writer, per hundred that won."""
        return self._manifest_measures.conflict_rate

    @property
    def last_error(self) -> Exception | None:
        """The latest failure of an upload or a manifest write, all of which are tried again; None: none so far."""
        return self._pipeline.last_error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"Producer({self.url!r}, manifest={self._lanes[0].place.manifest!r}, shards={len(self._lanes)})"


def _encoded(entries: Sequence[bytes]) -> bytes:
    try:
        encoded = encode_entries(entries)
    except TypeError:  # rarely: other kinds of bytes, or no bytes at all
        encoded = encode_entries(_as_bytes(entries))
    if len(encoded) > MAX_BATCH_BYTES:
        raise ConfigError(f"one call may produce {MAX_BATCH_BYTES} bytes, not {len(encoded)}: split it")
    if not encoded:
        raise ConfigError("produce needs at least one entry")
    return encoded


def _as_bytes(entries: Sequence[object]) -> list[bytes]:
    """Entries given as bytearray or memoryview, copied; ConfigError for what is no entry."""
    if isinstance(entries, str | bytes | bytearray | memoryview):
        raise ConfigError(f"produce takes a sequence of entries, not one {type(entries).__name__}: put it into a list")
    copied: list[bytes] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, bytes | bytearray | memoryview):
            raise ConfigError(f"entry {index} must be bytes, not {type(entry).__name__}: encode it first")
        copied.append(bytes(entry))
    return copied


def _payload(metadata: bytes) -> bytes:
    if type(metadata) is bytes:
        return metadata
    if not isinstance(metadata, bytes | bytearray | memoryview):
        raise ConfigError(f"metadata must be bytes, not {type(metadata).__name__}")
    return bytes(metadata)
