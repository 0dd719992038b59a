"""Producer: writes entries from anywhere into a buffer."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple, TypeAlias
from zlib import crc32

from penstock.buffer.format import (
    MAX_BATCH_BYTES,
    Compression,
    Mark,
    Metadata,
    batch_footer,
    compress_entries,
    decode_batch,
    encode_entries,
    seal_batch,
)
from penstock.buffer.manifest import (
    RENEW_SHARE,
    Backoff,
    BufferCounters,
    BufferHandle,
    BufferPaths,
    ManifestObject,
    batch_time_ms,
    shard_of,
)
from penstock.buffer.settings import ProducerSettings, takes
from penstock.core.clock import Clock, Duration, check_clock, seconds
from penstock.core.names import check_whole
from penstock.core.ticket import Ticket, wake
from penstock.errors import Backpressure, Closed, ConfigError, StorageError, Unflushed
from penstock.objects.store import ObjectStore, VersionConflict, probe_conditional_puts


class Producer(BufferHandle):
    """Collects entries into batches and hands them to the buffer's consumer.

    Any number of threads may share a producer.

    >>> with Producer("s3://bucket/events") as producer:
    ...     ticket = producer.produce([b"one", b"two"])
    ...     ticket.result()                       # the manifest holds both: they will be consumed

    `produce` returns at once. A batch is sent `flush_interval` after its first entry, or when it has `flush_bytes`.
    Uploads overlap, within `inflight_bytes`; when there is no room left and `max_buffered` calls wait, `produce`
    blocks. Nothing is dropped: a failed upload is repeated until the store accepts it or `close` gives up.

    `gc_grace` must not exceed the consumer's `gc_grace`. `options` are the store's options (region, endpoint,
    access_key_id, timeout …). With `shards`, `key` decides to which of the manifests an entry goes; entries of one key
    stay in order.
    """

    @takes(ProducerSettings)
    def __init__(self, settings: ProducerSettings) -> None:
        each_shard = [settings.paths(shard) for shard in range(settings.shards)]
        limits = UploadLimits.of(settings)
        store = settings.open_store()
        self.url = store.url
        self._clock = check_clock(settings.clock)
        self._key = settings.key
        measures = BufferCounters(settings.metrics)
        super().__init__(measures.for_role("producer"))
        self._pipeline = UploadPipeline(store, self._clock, measures, limits)
        self._lanes = self._pipeline.lanes
        for paths in each_shard:
            shared = ManifestObject(store, paths.manifest, self._clock, self._manifest_measures)
            self._lanes.append(Lane(self._pipeline, paths, shared))
        self._closed = False
        self._close_lock = threading.Lock()

    def produce(self, entries: Sequence[bytes], metadata: bytes = b"", *, timeout: Duration | None = None) -> Produced:
        """Takes entries and returns a ticket that resolves when a consumer can no longer miss them.

        The entries of one call stay together and in order (with shards: the entries of one shard). `metadata` is stored
        with the entries, uninterpreted, with the time of this call. Blocks when `max_buffered` calls wait; after
        `timeout` seconds it raises `Backpressure`, and no entry was taken.
        """
        self._check_process()
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
        call = Produced(now, len(by_lane))
        shares = [(self._lanes[shard], _encoded(own), len(own), call) for shard, own in by_lane.items()]
        self._pipeline.add(shares, payload, wait)
        return call

    def flush(self, timeout: Duration | None = None) -> None:
        """Sends the collected entries and returns when the manifest holds them; raises TimeoutError after `timeout`
        seconds.
        """
        self._check_process()
        limit = None if timeout is None else seconds(timeout, "timeout")
        if not self._pipeline.flush(limit):
            if self._pipeline.given_up.is_set():
                raise StorageError(f"the producer gave up: {self._pipeline.last_error}", retryable=True)
            raise TimeoutError(f"not flushed after {timeout} s; last failure: {self._pipeline.last_error}")

    def close(self, timeout: Duration = 30) -> None:
        """Flushes and ends; a second close does nothing.

        Entries that the store has not accepted after `timeout` seconds are reported: `Unflushed` carries the entries,
        and their tickets fail with it. A permanent failure (such as a missing permission) ends the wait early.
        """
        limit = seconds(timeout, "timeout")
        if self._inherited:  # a forked child: the waiting entries belong to the parent
            return
        with self._close_lock:
            if self._closed:
                return
            self._pipeline.close_intake()
            flushed = self._pipeline.flush(limit)
            if not flushed:
                self._pipeline.give_up()
            self._pipeline.stop()
            self._closed = True  # only now: after an interrupt the next close does all of this
            if not flushed:
                self._report_unflushed()

    def _report_unflushed(self) -> None:
        with self._pipeline.lock:
            left = [(lane, batch) for lane in self._lanes for batch in lane.queue]
            for lane in self._lanes:
                lane.queue.clear()
        if not left:  # the last answer came while we were giving up
            return
        batches = [UnflushedBatch(lane.paths.manifest, batch.entries(), tuple(batch.metadata)) for lane, batch in left]
        entries = sum(batch.count for _, batch in left)
        error = Unflushed(
            f"closed with {entries} entries in {len(batches)} batches that {self.url} did not take: "
            f"{self._pipeline.last_error or 'it did not answer in time'}",
            batches=batches,
        )
        for _, batch in left:
            batch.resolve(error)
        raise error

    @property
    def last_error(self) -> Exception | None:
        """The latest failure of an upload or a manifest write, which are all repeated; None without a failure so
        far.
        """
        return self._pipeline.last_error

    def __repr__(self) -> str:
        return f"Producer({self.url!r}, manifest={self._lanes[0].paths.manifest!r}, shards={len(self._lanes)})"


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
    """Returns copies of entries that were given as bytearray or memoryview; raises ConfigError for a value that is
    no entry.
    """
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


# ── The pipeline: what a producer's lanes share. A lock, a budget of bytes in flight, uploading threads, and a timer ──


log = logging.getLogger("penstock.buffer")

_MOST_IN_FLIGHT = 64
_JOIN_SECONDS = 5.0

#: A lane, the entries encoded for it, their number, and the call that produced them.
Share: TypeAlias = "tuple[Lane, bytes, int, Produced]"


class UploadLimits(NamedTuple):
    """The limits on gathering, sending and keeping entries; see `Producer`."""

    compression: Compression
    flush_interval: float
    flush_bytes: int
    max_buffered: int
    uploads: int
    inflight_bytes: int
    renew_after_ms: int
    """The milliseconds after which an unreferenced object is uploaded again."""

    @classmethod
    def of(cls, settings: ProducerSettings) -> UploadLimits:
        """Checks a producer's settings and returns its limits."""
        return cls(
            compression=settings.compression,
            flush_interval=seconds(settings.flush_interval, "flush_interval"),
            flush_bytes=min(check_whole(settings.flush_bytes, "flush_bytes"), MAX_BATCH_BYTES),
            max_buffered=check_whole(settings.max_buffered, "max_buffered"),
            uploads=check_whole(settings.uploads, "uploads"),
            inflight_bytes=check_whole(settings.inflight_bytes, "inflight_bytes"),
            renew_after_ms=int(settings.grace_ms() * RENEW_SHARE),
        )


class UploadPipeline:
    """Moves batches from `add` to their lane's manifest.

    A batch is *in flight* from the moment the budget has room for it until the manifest holds it. Calls whose batch is
    not in flight *wait*; only when there is no room and too many wait does `add` block.
    """

    def __init__(self, store: ObjectStore, clock: Clock, measures: BufferCounters, limits: UploadLimits) -> None:
        self.store = store
        self.clock = clock
        self.measures = measures
        self.limits = limits
        self.lock = threading.Lock()
        self.given_up = threading.Event()
        self.stopped = False
        self.closing = False
        self.last_error: Exception | None = None
        self.lanes: list[Lane] = []
        self._landed = threading.Condition(self.lock)
        self._work = threading.Condition(self.lock)
        self._tick = threading.Condition(self.lock)
        self._waiting: deque[tuple[Lane, OutgoingBatch]] = deque()
        self._waiting_calls = 0
        self._waiting_bytes = 0
        self._to_upload: deque[tuple[Lane, OutgoingBatch]] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._idle = 0
        self._workers: list[threading.Thread] = []
        self._timer: threading.Thread | None = None
        self._next_tick = float("inf")

    # ── taking entries ──

    def add(self, shares: Sequence[Share], payload: bytes, timeout: float | None) -> None:
        """Puts entries into the batches of their lanes, all or none; blocks while too many calls wait for room."""
        with self.lock:
            if self._waiting and self._full():
                self._wait_for_room(timeout)
            if self.closing:
                raise Closed("the producer is closed")
            if self._timer is None:
                self._start()
            for share in shares:  # when a thread cannot start, the call fails and takes no entry
                share[0].start()
            for lane, encoded, count, call in shares:
                filling = lane.filling
                if filling.size + len(encoded) > MAX_BATCH_BYTES:
                    self._seal(lane)
                    filling = lane.filling
                first = not filling.calls
                filling.add(encoded, count, payload, call)
                if filling.size >= self.limits.flush_bytes:
                    self._seal(lane)
                elif first:
                    filling.due_at = monotonic() + self.limits.flush_interval
                    if filling.due_at < self._next_tick:
                        self._arm(filling.due_at)

    def _full(self) -> bool:
        if not self._waiting:
            return False
        calls, size = self._waiting_calls, self._waiting_bytes
        for lane in self.lanes:
            calls += len(lane.filling.calls)
            size += lane.filling.size
        return calls >= self.limits.max_buffered or size >= self.limits.inflight_bytes

    def _wait_for_room(self, timeout: float | None) -> None:
        if not self._landed.wait_for(lambda: self.closing or not self._full(), timeout):
            raise Backpressure(
                f"{self.limits.max_buffered} calls or {self.limits.inflight_bytes} bytes already wait for the store",
                retry_after=self.limits.flush_interval,
            )

    # ── sealing ──

    def _seal(self, lane: Lane) -> None:
        """Ends the lane's batch, and uploads it or lets it wait. The caller holds the lock."""
        if not lane.filling.calls:
            return
        batch, lane.filling = lane.filling, OutgoingBatch()
        batch.due_at = monotonic()
        lane.queue.append(batch)
        lane.sealed += 1
        if not self._waiting and self._fits(batch):
            self._launch(lane, batch)
        else:
            self._waiting.append((lane, batch))
            self._waiting_calls += len(batch.calls)
            self._waiting_bytes += batch.size

    def _fits(self, batch: OutgoingBatch) -> bool:
        if self._in_flight == 0:  # a batch larger than the whole budget must still get through
            return True
        return self._in_flight < _MOST_IN_FLIGHT and self._in_flight_bytes + batch.size <= self.limits.inflight_bytes

    def _launch(self, lane: Lane, batch: OutgoingBatch) -> None:
        self._in_flight += 1
        self._in_flight_bytes += batch.size
        self._to_upload.append((lane, batch))
        # Not `_idle == 0`: threads that were just notified for earlier batches still count as idle.
        if len(self._to_upload) > self._idle and len(self._workers) < self.limits.uploads:
            with suppress(RuntimeError):  # no more threads: the existing threads upload it in turn
                self._start_worker()
        else:
            self._work.notify()

    def landed(self, batches: list[OutgoingBatch]) -> None:
        """Frees the room of batches that the manifest holds. The caller holds the lock."""
        for batch in batches:
            self._in_flight -= 1
            self._in_flight_bytes -= batch.size
        while self._waiting and self._fits(self._waiting[0][1]):
            lane, batch = self._waiting.popleft()
            self._waiting_calls -= len(batch.calls)
            self._waiting_bytes -= batch.size
            self._launch(lane, batch)
        self._landed.notify_all()

    # ── threads ──

    def _upload_loop(self) -> None:
        while True:
            with self.lock:
                while not self._to_upload:
                    if self.stopped:
                        return
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if self.given_up.is_set():
                    return
                lane, batch = self._to_upload.popleft()
            lane.upload(batch)

    def _start(self) -> None:
        """Starts the first uploading thread and the timer; after a failure it is called again.

        The caller holds the lock.
        """
        if not self._workers:
            self._start_worker()
        timer = threading.Thread(target=self._timer_loop, name="penstock-flush", daemon=True)
        timer.start()
        self._timer = timer

    def _start_worker(self) -> None:
        name = f"penstock-upload-{len(self._workers)}"
        worker = threading.Thread(target=self._upload_loop, name=name, daemon=True)
        worker.start()
        self._workers.append(worker)

    def _arm(self, due_at: float) -> None:
        self._next_tick = due_at
        self._tick.notify()

    def _timer_loop(self) -> None:
        with self.lock:
            while not self.stopped:
                now = monotonic()
                if now < self._next_tick:
                    self._tick.wait(None if self._next_tick == float("inf") else self._next_tick - now)
                    continue
                self._next_tick = float("inf")
                for lane in self.lanes:
                    if lane.filling.calls:
                        if lane.filling.due_at <= now:
                            self._seal(lane)
                        else:
                            self._next_tick = min(self._next_tick, lane.filling.due_at)

    def pause(self, error: Exception, delay: float, doing: str) -> bool:
        """Notes a failure and waits; returns False when the producer gave up and no further attempt follows."""
        self.last_error = error
        self.measures.retries.inc()
        log.warning("cannot %s; trying again in %.2f s: %s", doing, delay, error)
        if self.closing and isinstance(error, StorageError) and not error.retryable:
            self.give_up()
            return False
        return not self.given_up.wait(delay)

    # ── flushing and stopping ──

    def flush(self, timeout: float | None) -> bool:
        """Seals the collected entries and waits until the manifests hold them; returns False when this took too long
        or was given up.
        """
        with self.lock:
            targets = []
            for lane in self.lanes:
                self._seal(lane)
                targets.append((lane, lane.sealed))

            def done() -> bool:
                return all(lane.done >= target for lane, target in targets)

            self._landed.wait_for(lambda: self.given_up.is_set() or done(), timeout)
            return done()

    def close_intake(self) -> None:
        """Refuses further entries: callers that wait for room, or come later, get `Closed`."""
        with self.lock:
            self.closing = True
            self._landed.notify_all()

    def give_up(self) -> None:
        """Ends every retry; entries that are not in the manifest by now stay out of it."""
        self.given_up.set()
        with self.lock:
            self._landed.notify_all()

    def stop(self) -> None:
        """Ends the threads, and waits for threads in the middle of a request."""
        with self.lock:
            self.stopped = True
            for condition in (self._work, self._tick, self._landed, *(lane.wake for lane in self.lanes)):
                condition.notify_all()
        # A request that hangs is left to its daemon thread, so that the closing caller does not hang too.
        deadline = monotonic() + _JOIN_SECONDS
        for thread in [*self._workers, *([self._timer] if self._timer else [])]:
            thread.join(max(0.0, deadline - monotonic()))
        for lane in self.lanes:
            lane.join(max(0.0, deadline - monotonic()))


# ── A lane: one manifest's batches on their way, in the order they were produced ──
#     filling ── due by time or size ──► waiting ── room ──► uploading ──► uploaded ── manifest write ──► done
#
# Uploads overlap and finish in any order; the manifest takes the uploaded prefix, so one producer's batches stay in
# order. One manifest write carries every batch that is ready. Whatever fails is tried again until it succeeds or the
# producer is closed; what a write without an answer did is found out before the next one (`find_appended`).


#: Batches in one manifest write.
_MOST_PER_WRITE = 64


class Lane:
    """The batches of one manifest. The pipeline's lock guards `filling`, `queue` and the counters."""

    def __init__(self, pipeline: UploadPipeline, paths: BufferPaths, manifest: ManifestObject) -> None:
        self.paths = paths
        self.filling = OutgoingBatch()
        self.queue: deque[OutgoingBatch] = deque()
        self.sealed = 0
        self.done = 0
        self.wake = threading.Condition(pipeline.lock)
        self._pipeline = pipeline
        self._manifest = manifest
        self._errors = Backoff(first=0.05, most=5.0)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread that writes the manifest, unless it is running. The caller holds the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"penstock-manifest {self.paths.manifest}", daemon=True)
            thread.start()
            self._thread = thread  # only now: when a thread cannot start, the next call tries again

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def upload(self, batch: OutgoingBatch) -> None:
        """Uploads the batch's object, and repeats this until it succeeds or the producer gives up."""
        pipeline = self._pipeline
        for failures in range(1 << 62):
            try:
                self._put(batch)
                break
            except Exception as error:  # after any error: the batch must not be lost
                if not pipeline.pause(error, self._errors.delay(failures), f"upload a batch under {self.paths.prefix}"):
                    return
        with pipeline.lock:
            batch.uploaded = True
            self.wake.notify()

    def _put(self, batch: OutgoingBatch) -> None:
        if self._stale(batch.name):
            batch.name = self.paths.new_batch(self._pipeline.clock.now_ms())
        data = batch.data(self._pipeline.limits.compression)
        self._pipeline.store.put(batch.name, data)
        batch.location = batch.name
        self._pipeline.measures.bytes_written.inc(len(data))

    def _stale(self, name: str) -> bool:
        """Returns True when a batch has no name yet, or a name so old that a collector may soon delete the object.

        Such a batch is uploaded again under a new name, so that an appended object cannot have been collected.
        """
        named_at = batch_time_ms(name)
        return named_at is None or self._pipeline.clock.now_ms() - named_at >= self._pipeline.limits.renew_after_ms

    # ── the manifest's thread ──

    def _run(self) -> None:
        pipeline = self._pipeline
        failures = 0
        while True:
            with pipeline.lock:
                while not (ready := self._uploaded()):
                    if pipeline.stopped:
                        return
                    self.wake.wait()
            try:
                self._write(ready)
                failures = 0
            except VersionConflict:
                failures += 1
                if pipeline.given_up.wait(self._manifest.contention.delay(failures)):
                    return
            except Exception as error:  # as above: kept and tried again
                failures += 1
                if not pipeline.pause(error, self._errors.delay(failures), f"write {self.paths.manifest}"):
                    return

    def _uploaded(self) -> list[OutgoingBatch]:
        """Returns the batches that the next manifest write can carry: the uploaded batches at the head."""
        ready: list[OutgoingBatch] = []
        for batch in self.queue:
            if not batch.uploaded or len(ready) == _MOST_PER_WRITE:
                break
            ready.append(batch)
        return ready

    def _write(self, ready: list[OutgoingBatch]) -> None:
        found = self._manifest.find_appended([batch.locations for batch in ready])
        if found:
            self._complete(ready[:found])
            return
        # The manifest is known before the names are checked: any later decision of a collector makes the append
        # conflict.
        self._manifest.latest_known()
        for batch in ready:
            if self._stale(batch.location):
                self._put(batch)
            batch.locations.add(batch.location)
        self._manifest.append(
            [(batch.location, batch.metadata) for batch in ready],
            checksums={batch.location: batch.crc for batch in ready if batch.crc is not None},
        )
        self._complete(ready)

    def _complete(self, batches: list[OutgoingBatch]) -> None:
        pipeline = self._pipeline
        with pipeline.lock:
            if pipeline.given_up.is_set() and not self.queue:
                return  # close has reported them already, so this late answer changes nothing
            for _ in batches:
                self.queue.popleft()
            self.done += len(batches)
            pipeline.landed(batches)
        measures = pipeline.measures
        now = monotonic()
        for batch in batches:
            measures.batches_flushed.inc()
            measures.entries_flushed.inc(batch.count)
            measures.bytes_flushed.inc(batch.size)
            measures.flush_duration.observe(now - batch.due_at)
            batch.resolve(None)


# ── What a producer holds until the manifest does: the batch being filled, and batches on their way ──


class Produced(Ticket[None]):
    """A `produce` call under way; resolves when the manifest of each of its shards holds its part of the entries."""

    __slots__ = ("_failure", "_parts", "ingested_at_ms")

    def __init__(self, ingested_at_ms: int, parts: int = 1) -> None:
        super().__init__()
        self.ingested_at_ms = ingested_at_ms
        self._parts = [None] * parts  # popped: taking the last part is an atomic decision
        self._failure: BaseException | None = None

    def set_outcome(self, value: None, error: BaseException | None) -> None:
        """Sets the outcome of one part; the outcome of the last part resolves the call."""
        if error is not None:
            self._failure = error
        self._parts.pop()
        if not self._parts:
            super().set_outcome(None, self._failure)


class OutgoingBatch:
    """A batch: it takes entries until it is sealed, and keeps its bytes until the manifest holds it."""

    __slots__ = (
        "_data", "_entries", "calls", "count", "crc", "due_at", "location", "locations", "metadata", "name", "size",
        "uploaded",
    )  # fmt: skip

    def __init__(self) -> None:
        self._entries = bytearray()
        self._data: bytes | memoryview | None = None
        self.metadata: list[Metadata] = []
        self.calls: list[Produced] = []
        self.count = 0
        self.size = 0
        self.due_at = 0.0
        self.name = ""  # the name of the upload
        self.location = ""  # the location: the name, once the upload succeeded
        self.locations: set[str] = set()  # every name that a manifest write may have carried
        self.uploaded = False
        self.crc: int | None = None  # of the object's bytes

    def add(self, encoded: bytes, count: int, payload: bytes, call: Produced) -> None:
        self._entries += encoded
        self.size += len(encoded)
        self.metadata.append(Metadata(self.count, call.ingested_at_ms, payload))
        self.calls.append(call)
        self.count += count

    def data(self, compression: Compression) -> bytes | memoryview:
        """Returns the whole object; from then on the batch takes no more entries."""
        if self._data is None:
            footer = batch_footer(self.count, compression)
            if compression == "none":
                self._entries += footer
                self._data = memoryview(self._entries)
            else:
                self._data = compress_entries(self._entries) + footer
            self.crc = crc32(self._data)
        return self._data

    def resolve(self, error: BaseException | None) -> None:
        """Resolves the calls with the outcome of their entries."""
        for call in self.calls:
            call.set_outcome(None, error)
        wake(call for call in self.calls if call.done())

    def entries(self) -> list[bytes]:
        """Returns the entries, for a caller that must save entries that could not be written."""
        return decode_batch(self.data("none"))


class UnflushedBatch(NamedTuple):
    """Entries that `close` could not hand to the store, and where they would have gone."""

    manifest: str
    entries: list[bytes]
    metadata: tuple[Metadata, ...]


# ── Publisher: objects uploaded by many, put into the queue by one, at once and once ──
# A `Producer` uploads and appends in one process. Where many processes work on one result (the tasks of a Spark job),
# each process uploads its share with `stage`, and one process then publishes all shares with one conditional put. With
# a mark, repeated work is recognised as done: see `format.Mark`. Shares that are never published are garbage, which the
# consumer's collector deletes.


_COPIES = 8
_PATIENCE = 60.0


class StagedObject(NamedTuple):
    """A stored object that no manifest names yet."""

    location: str
    metadata: tuple[Metadata, ...]
    entries: int
    size: int
    crc: int


class Publisher:
    """Uploads objects, and appends them to one manifest.

    A publisher holds no state and is made wherever it is needed.
    """

    def __init__(
        self,
        store: ObjectStore,
        paths: BufferPaths,
        *,
        gc_grace: float = 600,
        clock: Clock | None = None,
        patience: float = _PATIENCE,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = check_clock(clock)
        self._renew_after_ms = int(gc_grace * 1000 * RENEW_SHARE)
        self._patience = patience
        self._pause = pause
        self._measures = BufferCounters()

    def stage(
        self, block: memoryview, metadata: Sequence[Metadata], count: int, compression: Compression
    ) -> StagedObject:
        """Stores encoded entries as an object, to be published later."""
        data = seal_batch((block,), count, compression)
        location = self._paths.new_batch(self._clock.now_ms())
        self._store.put(location, data)
        self._measures.bytes_written.inc(len(data))
        return StagedObject(location, tuple(metadata), count, len(block), crc32(data))

    def publish(self, staged: Sequence[StagedObject], mark: Mark | None = None) -> bool:
        """Appends all staged objects in one conditional put; returns False when the mark shows that this was done
        before.

        A failed call changes nothing. When the store stops answering, the error says so; the same call, with a mark,
        then finds out the outcome.
        """
        if not staged:
            return False
        probe_conditional_puts(self._store, self._paths.manifest)
        manifest = ManifestObject(self._store, self._paths.manifest, self._clock, self._measures.for_role("producer"))
        errors = Backoff(first=0.05, most=5.0)
        deadline = monotonic() + self._patience
        tried: list[set[str]] = [set() for _ in staged]
        shares = list(staged)
        for attempt in range(1 << 62):
            try:
                if mark is None and manifest.find_appended(tried):
                    break
                if mark is not None:
                    done = manifest.latest_mark(mark.name)
                    if done is not None and done >= mark.number:
                        return False
                manifest.latest_known()  # before the names are looked at, as in `Lane`
                shares = self._renewed(shares)
                for share, names in zip(shares, tried, strict=True):
                    names.add(share.location)
                checksums = {share.location: share.crc for share in shares}
                manifest.append([(share.location, share.metadata) for share in shares], mark, checksums)
                break
            except VersionConflict:
                self._pause(manifest.contention.delay(attempt + 1))
            except StorageError as error:
                if not error.retryable or monotonic() > deadline:
                    raise
                log.warning("cannot write %s; trying again: %s", self._paths.manifest, error)
                self._pause(errors.delay(attempt))
        self._measures.batches_flushed.inc(len(shares))
        self._measures.entries_flushed.inc(sum(share.entries for share in shares))
        self._measures.bytes_flushed.inc(sum(share.size for share in shares))
        return True

    def _renewed(self, shares: list[StagedObject]) -> list[StagedObject]:
        """Returns the shares; shares so old that a collector may soon delete them are stored again under new names."""
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
        location = self._paths.new_batch(self._clock.now_ms())
        self._store.put(location, bytes(data))
        return share._replace(location=location)
