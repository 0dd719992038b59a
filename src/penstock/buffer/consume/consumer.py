"""Consumer: the one reader of a manifest."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from penstock.buffer.consume.batch import Batch
from penstock.buffer.consume.collector import Collector, collect
from penstock.buffer.consume.fetcher import Fetcher
from penstock.buffer.consume.ownership import OwnedManifest
from penstock.buffer.consume.running import ConsumerRun, RunReport
from penstock.buffer.counters import BufferCounters
from penstock.buffer.format.batch import MAX_BATCH_BYTES
from penstock.buffer.format.descriptor import Descriptor
from penstock.buffer.format.manifest import Manifest
from penstock.buffer.identity import buffer_id
from penstock.buffer.naming import place, shard_place
from penstock.buffer.store import ObjectStore, open_store, probe_conditional_puts
from penstock.clock import Clock, Seconds, SystemClock, seconds
from penstock.errors import Closed, ConfigError, Corrupt, OutOfOrder, StorageError
from penstock.limits import BUFFER_MANIFEST
from penstock.observe.metrics import REGISTRY, Registry

#: Acknowledgements between manifest writes.
ACKS_PER_WRITE = 100


class Consumer:
    """Reads a buffer's batches in order and removes them once they are acknowledged.

    >>> with Consumer("s3://bucket/events") as consumer:
    ...     while (batch := consumer.next_batch()) is not None:
    ...         handle(batch.entries)
    ...         consumer.ack(batch.sequence)

    Opening one fences the consumer before it: from then on its calls raise `Fenced`. What is not
    acknowledged when a consumer ends (or dies) is delivered again to the next one: at least once. For an exactly-once
    effect store `batch.sequence` with what you made of the batch, and open the next consumer with `after=` that number.

    Three cursors, None at first: *acked* (removed from the manifest by the hundredth `ack`, `ack_through`, `flush` or
    `close`), *fetched*, and *handed out* (where the next read goes on; ahead of the acknowledgements).
    """

    def __init__(
        self,
        url: str | ObjectStore,
        *,
        after: int | None = None,
        manifest: str = BUFFER_MANIFEST,
        prefix: str | None = None,
        gc_interval: Seconds | None = 300,
        gc_grace: Seconds = 600,
        clock: Clock | None = None,
        shards: int = 1,
        shard: int = 0,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        options: Mapping[str, object] | None = None,
        metrics: Registry = REGISTRY,
    ) -> None:
        if after is not None and after < 0:
            raise ConfigError(f"after must be a sequence (0 or more) or None, not {after}")
        self.place = shard_place(place(manifest, prefix), shard, shards)
        self._grace_ms = int(seconds(gc_grace, "gc_grace") * 1000)
        interval = None if gc_interval is None else seconds(gc_interval, "gc_interval")
        self._store = open_store(url, options)
        probe_conditional_puts(self._store, self.place.manifest)
        self._clock = clock or SystemClock()
        self._measures = BufferCounters(metrics)
        self._manifest_measures = self._measures.for_role("consumer")
        self._manifest = OwnedManifest(self._store, self.place.manifest, self._clock, self._manifest_measures)
        self._fetcher = Fetcher(self._store, self.place.manifest, max_batch_bytes, self._measures)
        self._reading = threading.Lock()  # one read at a time; taken before _lock
        self._lock = threading.RLock()  # the manifest and the cursors
        self._acked = self._fetched = self._handed_out = after
        self._unacked: deque[int] = deque()  # handed out, in order
        self._unwritten = 0
        self._closed = False
        self._run: ConsumerRun | None = None
        self._pid = os.getpid()
        if after is not None and self._manifest.load_owned().next_sequence > 0:
            self._manifest.dequeue(after)
        self._collector = Collector(self.collect_garbage, interval) if interval is not None else None
        if self._collector is not None:
            self._collector.start()

    # ── reading ──

    def next_batch(self) -> Batch | None:
        """The next batch, or None when there is none yet. A failure moves no cursor: the next call tries it again."""
        with self._reading:
            with self._lock:
                found = self._after_handed_out(1)
            if not found:
                return None
            batch = self.fetch(found[0])
            self._hand_out(found)
            return batch

    def next_descriptors(self, limit: int) -> list[Descriptor]:
        """Up to `limit` of the next entries, to be fetched elsewhere.

        The cursor moves now: one that is lost comes again only from a new consumer.
        """
        if limit < 0:
            raise ConfigError(f"limit must not be negative: {limit}")
        if limit == 0:
            return []
        with self._reading:
            with self._lock:
                found = self._after_handed_out(limit)
            self._hand_out(found)
            return found

    def read_manifest(self) -> Manifest:
        """The manifest now, for callers that read its batches elsewhere; moves no cursor."""
        with self._lock:
            self._check_open()
            return self._manifest.load_owned()

    def _after_handed_out(self, limit: int) -> list[Descriptor]:
        self._check_open()
        manifest = self._manifest.load_owned()
        try:
            return manifest.after(self._handed_out, limit)
        except Corrupt as error:
            raise Corrupt(str(error), file=self.place.manifest) from None

    def _hand_out(self, found: list[Descriptor]) -> None:
        with self._lock:
            for each in found:
                self._unacked.append(each.sequence)
                self._handed_out = each.sequence
        self._measures.descriptors.inc(len(found))

    def fetcher(self) -> Fetcher:
        """What turns descriptors into batches: picklable, thread-safe, and outliving this consumer."""
        return self._fetcher

    def fetch(self, descriptor: Descriptor) -> Batch:
        """Fetches a descriptor's batch, as the fetcher does, and keeps the lag measured."""
        try:
            batch = self._fetcher.fetch(descriptor)
        except StorageError as error:
            with self._lock:
                if not error.retryable and not self._closed:
                    self._manifest.load_owned()  # it may be gone because the consumer that took over is done with it
            raise
        with self._lock:
            self._fetched = max(descriptor.sequence, -1 if self._fetched is None else self._fetched)
        if batch.metadata:
            age_ms = self._clock.now_ms() - batch.metadata[-1].ingested_at_ms
            self._measures.consumer_lag.set(max(0, age_ms) / 1000)
        return batch

    # ── acknowledging ──

    def ack(self, sequence: int) -> None:
        """Acknowledges the oldest batch handed out; any other is `OutOfOrder`. Every hundredth rewrites the manifest.

        When that write fails, the acknowledgement did not happen: give it again.
        """
        with self._lock:
            self._check_open()
            if not self._unacked or sequence != self._unacked[0]:
                expected = f"{self._unacked[0]} is next" if self._unacked else "nothing handed out waits for one"
                raise OutOfOrder(f"out-of-order ack of {sequence}: {expected}")
            if self._unwritten + 1 >= ACKS_PER_WRITE:
                self._manifest.dequeue(sequence)
                self._unwritten = 0
            else:
                self._unwritten += 1
            self._unacked.popleft()
            self._acked = sequence
        self._measures.acks.inc()

    def ack_through(self, sequence: int) -> None:
        """Acknowledges everything up to `sequence` in one manifest write; it must advance, else `OutOfOrder`.

        On any failure nothing has changed here and the call may be repeated.
        """
        with self._lock:
            self._check_open()
            if self._acked is not None and sequence <= self._acked:
                raise OutOfOrder(f"non-monotonic ack_through of {sequence}: {self._acked} is acknowledged already")
            if sequence < 0:
                raise OutOfOrder(f"sequences begin at 0, not {sequence}")
            self._manifest.dequeue(sequence)
            while self._unacked and self._unacked[0] <= sequence:
                self._unacked.popleft()
            advanced = sequence + 1 if self._acked is None else sequence - self._acked
            self._acked = sequence
            self._handed_out = max(sequence, -1 if self._handed_out is None else self._handed_out)
            self._unwritten = 0
        self._measures.acks.inc(advanced)

    def flush(self) -> None:
        """Removes what was acknowledged from the manifest now."""
        with self._lock:
            self._check_open()
            self._flush()

    def _flush(self) -> None:
        if self._unwritten:
            assert self._acked is not None
            self._manifest.dequeue(self._acked)
            self._unwritten = 0

    # ── running ──

    def run(
        self,
        handler: Callable[[Batch], object],
        *,
        concurrency: int = 8,
        ahead: int = 8,
        ordered: bool = True,
        until_empty: bool = False,
        poll: Seconds = 0.1,
        ack_interval: Seconds = 0.2,
        on_corrupt: Callable[[Descriptor, Corrupt], object] | None = None,
    ) -> RunReport:
        """Hands every batch to `handler` (a function or a coroutine function) and acknowledges what it finished.

        Up to `ahead` batches are read ahead and fetched by `concurrency` threads. In order, `handler` is called here,
        one batch after the other; with `ordered=False` it is called by the fetching threads as batches come. Either
        way only the contiguous finished prefix is acknowledged, at most every `ack_interval`.

        Returns after `stop()`, when another consumer takes over (see the report's `fenced`), or, with `until_empty`,
        when nothing is left. An exception from `handler` ends the run and is raised here; unfinished batches come again
        with the next run. A damaged batch ends it too, unless `on_corrupt` says what to do with its descriptor.
        """
        with self._lock:
            self._check_open()
            if self._run is not None:
                raise ConfigError("this consumer is running already")
            self._hand_out_again()
            run = self._run = ConsumerRun(
                self,
                handler,
                concurrency=concurrency,
                ahead=ahead,
                ordered=ordered,
                until_empty=until_empty,
                poll=seconds(poll, "poll"),
                ack_interval=seconds(ack_interval, "ack_interval"),
                on_corrupt=on_corrupt,
            )
        try:
            return run.run()
        finally:
            with self._lock:
                self._run = None
                self._hand_out_again()

    def stop(self) -> None:
        """Ends a `run` in another thread (or in its handler) after the batches in hand."""
        run = self._run
        if run is not None:
            run.stop()

    def _hand_out_again(self) -> None:
        """What was handed out and not acknowledged is read again (the lock is held)."""
        self._unacked.clear()
        self._handed_out = self._acked

    # ── the rest ──

    def collect_garbage(self) -> int:
        """Deletes batch objects no consumer can need, and returns how many. Runs by itself every `gc_interval`."""
        with self._measures.gc_duration.time():
            done = collect(
                self._store,
                self.place,
                now_ms=self._clock.now_ms(),
                grace_ms=self._grace_ms,
                decide=self._decide,
            )
        self._measures.gc_files_deleted.inc(done.deleted)
        self._measures.gc_files_failed.inc(done.failed)
        return done.deleted

    def _decide(self, choose: Callable[[Manifest], list[str] | None]) -> list[str] | None:
        with self._lock:
            return self._manifest.decide(choose)

    def close(self) -> None:
        """Writes outstanding acknowledgements and ends; a second close does nothing."""
        if os.getpid() != self._pid:  # a forked child: the acknowledgements are the parent's to write
            return
        run = self._run
        if run is not None:
            run.stop()
            run.wait_unless_inside()
        try:
            with self._lock:
                if self._closed:
                    return
                try:
                    self._flush()
                finally:
                    self._closed = True
        finally:
            if self._collector is not None:
                self._collector.stop()  # without the lock, which it may be waiting for

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if os.getpid() != self._pid:  # no epoch would keep the two apart
            raise Closed(
                f"the consumer was opened by process {self._pid} and this one was forked from it; open one in the child"
            )

    def buffer_id(self) -> str:
        """What the buffer is known by, whatever url leads to it; stored beside the manifest."""
        return buffer_id(self._store, self.place.manifest)

    @property
    def epoch(self) -> int:
        """What the manifest carries while this consumer owns it."""
        return self._manifest.epoch

    @property
    def acked(self) -> int | None:
        """The last sequence acknowledged: what the next consumer's `after` should be."""
        return self._acked

    @property
    def conflict_rate(self) -> float:
        """Manifest writes that lost to another writer, per hundred that won."""
        return self._manifest_measures.conflict_rate

    def __len__(self) -> int:
        """Batches in the manifest when it was last read or written."""
        return self._manifest.length

    def __bool__(self) -> bool:
        return True  # a consumer with nothing to read is still a consumer

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
        return f"Consumer({self._store.url!r}, manifest={self.place.manifest!r}, epoch={self.epoch})"
