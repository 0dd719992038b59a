"""Consumer: the one reader of a manifest."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from zlib import crc32

from penstock.buffer.format import (
    MAX_BATCH_BYTES,
    DecodedBatch,
    Descriptor,
    Manifest,
    Metadata,
    decode_arrow,
    dequeue,
    next_epoch,
    parse_manifest,
    set_epoch,
    unwrap,
)
from penstock.buffer.manifest import (
    Backoff,
    BufferCounters,
    BufferHandle,
    BufferPaths,
    ManifestCounters,
    ManifestObject,
    ManifestVersion,
    batch_time_ms,
    buffer_id,
)
from penstock.buffer.settings import ConsumerSettings, takes
from penstock.core.clock import Clock, Duration, check_clock, seconds
from penstock.errors import Closed, ConfigError, Corrupt, Fenced, OutOfOrder, StorageError
from penstock.objects.store import Buffer, ObjectStore, VersionConflict, check_path

if TYPE_CHECKING:
    import pyarrow


#: Acknowledgements between manifest writes.
ACKS_PER_WRITE = 100


class Consumer(BufferHandle):
    """Reads a buffer's batches in order and removes them once they are acknowledged.

    >>> with Consumer("s3://bucket/events") as consumer:
    ...     while (batch := consumer.next_batch()) is not None:
    ...         handle(batch.entries)
    ...         consumer.ack(batch.sequence)

    Opening a consumer fences the consumer before it, whose calls then raise `Fenced`. Batches that are not acknowledged
    when a consumer ends or dies are delivered again to the next consumer: at least once. For an exactly-once effect,
    store `batch.sequence` together with your result, and open the next consumer with `after=` that number.

    A consumer has three cursors, which begin as None. *acked*: the last acknowledged batch; every hundredth `ack`,
    `ack_through`, `flush` and `close` remove acknowledged batches from the manifest. *fetched*: the last fetched batch.
    *handed out*: where the next read continues, ahead of the acknowledgements.
    """

    @takes(ConsumerSettings)
    def __init__(self, settings: ConsumerSettings) -> None:
        after, interval = settings.after, settings.gc_interval
        self.paths = settings.paths(settings.shard)
        self._grace_ms = settings.grace_ms()
        period = None if interval is None else seconds(interval, "gc_interval")
        self._store = settings.open_store()
        self._clock = check_clock(settings.clock)
        self._measures = BufferCounters(settings.metrics)
        super().__init__(self._measures.for_role("consumer"))
        self._manifest = OwnedManifest(self._store, self.paths.manifest, self._clock, self._manifest_measures)
        self._fetcher = Fetcher(self._store, self.paths.manifest, settings.max_batch_bytes, self._measures)
        self._reading = threading.Lock()  # one read at a time; taken before _lock
        self._lock = threading.RLock()  # the manifest and the cursors
        self._acked = self._fetched = self._handed_out = after
        self._unacked: deque[int] = deque()  # handed out, in order
        self._unwritten = 0
        self._closed = False
        self._run: ConsumerRun | None = None
        if after is not None and self._manifest.load_owned().next_sequence > 0:
            self._manifest.dequeue(after)
        self._collector = Collector(self.collect_garbage, period) if period is not None else None
        if self._collector is not None:
            self._collector.start()

    # ── reading ──

    def next_batch(self) -> Batch | None:
        """Returns the next batch, or None when there is no batch yet.

        A failure moves no cursor: the next call tries the same batch again.
        """
        with self._reading:
            with self._lock:
                found = self._after_handed_out(1)
            if not found:
                return None
            batch = self.fetch(found[0])
            self._hand_out(found)
            return batch

    def next_descriptors(self, limit: int) -> list[Descriptor]:
        """Returns up to `limit` of the next manifest entries, to be fetched elsewhere.

        The cursor moves at once: an entry that the caller loses is delivered again only to a new consumer.
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
        """Returns the current manifest, for callers that read its batches elsewhere; moves no cursor."""
        with self._lock:
            self._check_open()
            return self._manifest.load_owned()

    def _after_handed_out(self, limit: int) -> list[Descriptor]:
        self._check_open()
        return self._manifest.load_owned().after(self._handed_out, limit)

    def _hand_out(self, found: list[Descriptor]) -> None:
        with self._lock:
            for each in found:
                self._unacked.append(each.sequence)
                self._handed_out = each.sequence
        self._measures.descriptors.inc(len(found))

    def fetcher(self) -> Fetcher:
        """Returns the fetcher that turns descriptors into batches: picklable, thread-safe, and outliving this
        consumer.
        """
        return self._fetcher

    def fetch(self, descriptor: Descriptor) -> Batch:
        """Fetches a descriptor's batch, as the fetcher does, and keeps the lag measured."""
        try:
            batch = self._fetcher.fetch(descriptor)
        except StorageError as error:
            with self._lock:
                if not error.retryable and not self._closed:
                    self._manifest.load_owned()  # the object may be gone because a newer consumer has acknowledged it
            raise
        with self._lock:
            self._fetched = max(descriptor.sequence, -1 if self._fetched is None else self._fetched)
        if batch.metadata:
            age_ms = self._clock.now_ms() - batch.metadata[-1].ingested_at_ms
            self._measures.consumer_lag.set(max(0, age_ms) / 1000)
        return batch

    # ── acknowledging ──

    def ack(self, sequence: int) -> None:
        """Acknowledges the oldest batch handed out; any other batch raises `OutOfOrder`.

        Every hundredth call rewrites the manifest.

        When this write fails, the batch is not acknowledged: call `ack` again.
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
        """Acknowledges every batch up to `sequence` in one manifest write.

        A sequence that does not advance raises `OutOfOrder`.

        A failed call changes nothing and may be repeated.
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
        """Removes the acknowledged batches from the manifest now."""
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
        poll: Duration = 0.1,
        ack_interval: Duration = 0.2,
        on_corrupt: Callable[[Descriptor, Corrupt], object] | None = None,
    ) -> RunReport:
        """Hands every batch to `handler` (a function or a coroutine function) and acknowledges the batches that it
        finished.

        Up to `ahead` batches are read ahead and fetched by `concurrency` threads. The calling thread calls `handler` in
        order, one batch after the other; with `ordered=False` the fetching threads call it as batches arrive. Either
        way, only the contiguous finished prefix is acknowledged, at most every `ack_interval`.

        Returns after `stop()`, when another consumer takes over (see the report's `fenced`), or, with `until_empty`,
        when the buffer is empty. An exception from `handler` ends the run and is raised here; the next run delivers
        unfinished batches again. A damaged batch also ends the run, unless `on_corrupt` handles its descriptor.
        """
        with self._lock:
            self._check_open()
            if self._run is not None:
                raise ConfigError("this consumer is running already")
            self._hand_out_again()
            pauses = seconds(poll, "poll"), seconds(ack_interval, "ack_interval")
            options = RunOptions(concurrency, ahead, ordered, until_empty, *pauses, on_corrupt)
            run = self._run = ConsumerRun(self, handler, options)
        try:
            return run.run()
        finally:
            with self._lock:
                self._run = None
                self._hand_out_again()

    def stop(self) -> None:
        """Ends a `run` in another thread (or in its handler) after the batches under way."""
        run = self._run
        if run is not None:
            run.stop()

    def _hand_out_again(self) -> None:
        """Makes the unacknowledged batches readable again. The caller holds the lock."""
        self._unacked.clear()
        self._handed_out = self._acked

    # ── the rest ──

    def collect_garbage(self) -> int:
        """Deletes batch objects no consumer can need, and returns how many. Runs by itself every `gc_interval`."""
        with self._measures.gc_duration.time():
            done = collect(
                self._store, self.paths, now_ms=self._clock.now_ms(), grace_ms=self._grace_ms, decide=self._decide
            )
        self._measures.gc_files_deleted.inc(done.deleted)
        self._measures.gc_files_failed.inc(done.failed)
        return done.deleted

    def _decide(self, choose: Callable[[Manifest], list[str] | None]) -> list[str] | None:
        with self._lock:
            return self._manifest.decide(choose)

    def close(self) -> None:
        """Writes outstanding acknowledgements and ends; a second close does nothing."""
        if self._inherited:  # a forked child: the acknowledgements are the parent's to write
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
                self._collector.stop()  # without the lock, because the collector may be waiting for it

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        self._check_process()  # no epoch would distinguish parent and child

    def buffer_id(self) -> str:
        """Returns the buffer's identity, the same behind every url; stored beside the manifest."""
        return buffer_id(self._store, self.paths.manifest)

    @property
    def epoch(self) -> int:
        """The epoch that the manifest has while this consumer owns it."""
        return self._manifest.epoch

    @property
    def acked(self) -> int | None:
        """The last acknowledged sequence, which the next consumer takes as `after`."""
        return self._acked

    def __len__(self) -> int:
        """Returns the number of batches in the manifest when it was last read or written."""
        return self._manifest.length

    def __bool__(self) -> bool:
        return True  # a consumer with nothing to read is still a consumer

    def __repr__(self) -> str:
        return f"Consumer({self._store.url!r}, manifest={self.paths.manifest!r}, epoch={self.epoch})"


# ── Run: reads ahead, fetches in parallel, hands over, and acknowledges the contiguous finished prefix ──
#     reader ──► to fetch ──► fetching threads ──► handler ──► finished ──► acknowledger
#
# The reader, the caller of handlers and the acknowledger wait on one condition, the fetching threads on a queue. The
# first thing that goes wrong (`trouble`) or `stop` ends all of them; handlers that run are waited for, and what they
# finished is still acknowledged.


class RunReport(NamedTuple):
    """The counts of a run."""

    batches: int  # handled
    entries: int
    acked: int | None  # the frontier at the end
    fenced: Fenced | None  # set when another consumer took over


class RunOptions(NamedTuple):
    """The options of reading, handling and acknowledging batches; see `Consumer.run`."""

    concurrency: int
    ahead: int
    ordered: bool
    until_empty: bool
    poll: float
    ack_interval: float
    on_corrupt: Callable[[Descriptor, Corrupt], object] | None


class _ReadAhead:
    """A batch that was read from the manifest, until this batch and all earlier batches are handled."""

    __slots__ = ("descriptor", "fetched", "finished", "outcome")

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.fetched = False
        self.outcome: Batch | Exception | None = None  # None: the batch is damaged, and `on_corrupt` was called
        self.finished = False


class ConsumerRun:
    """A call of `Consumer.run`."""

    def __init__(self, consumer: Consumer, handler: Callable[[Batch], object], options: RunOptions) -> None:
        if options.concurrency < 1 or options.ahead < 1:
            raise ConfigError(
                f"concurrency and ahead must be at least 1, not {options.concurrency} and {options.ahead}"
            )
        self._consumer = consumer
        self._handler = handler
        self._options = options
        self._backoff = Backoff(first=0.05, most=2.0)
        self._changed = threading.Condition()
        self._to_fetch: SimpleQueue[_ReadAhead | None] = SimpleQueue()
        self._ahead: deque[_ReadAhead] = deque()
        self._unhandled = 0  # the number that `ahead` bounds
        self._frontier: int | None = None  # the end of the finished prefix
        self._acked: int | None = None
        self._stopping = threading.Event()
        self._handled = False  # no handler will run any more
        self._trouble: BaseException | None = None
        self._fenced: Fenced | None = None
        self._batches = 0
        self._entries = 0
        self._threads = {threading.current_thread()}
        self._ended = threading.Event()

    def run(self) -> RunReport:
        try:
            self._run()
        finally:
            self._ended.set()
        if self._trouble is not None:
            raise self._trouble
        return RunReport(self._batches, self._entries, self._consumer.acked, self._fenced)

    def wait_unless_inside(self) -> None:
        """Waits for the end of the run. A call from a handler returns at once, because it would wait for itself."""
        if threading.current_thread() not in self._threads:
            self._ended.wait()

    def _run(self) -> None:
        fetchers = [self._thread(f"fetch-{number}", self._fetch_loop) for number in range(self._options.concurrency)]
        reader, acker = self._thread("read", self._read_loop), self._thread("ack", self._ack_loop)
        try:
            for thread in (acker, *fetchers, reader):
                thread.start()
            self._hand_over()
        except BaseException as error:
            self._fail(error)
        self.stop()
        _join((reader, *fetchers))
        with self._changed:
            self._handled = True
            self._changed.notify_all()
        _join((acker,))

    def _thread(self, name: str, loop: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(loop,), name=f"penstock-{name}", daemon=True)

    def _guarded(self, loop: Callable[[], None]) -> None:
        self._threads.add(threading.current_thread())
        try:
            loop()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if isinstance(error, Fenced):
                self._fenced = self._fenced or error
            elif self._trouble is None:
                self._trouble = error
        self.stop()

    def stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        for _ in range(self._options.concurrency):
            self._to_fetch.put(None)

    def _wait_until(self, condition: Callable[[], object]) -> bool:
        """Waits for a condition; returns False when the run is stopped first."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or condition())
        return not self._stopping.is_set()

    # ── reading ──

    def _read_loop(self) -> None:
        failures, most = 0, self._options.ahead
        # The manifest is read again when half of the room is free: a read for every batch would cost more than it
        # saves.
        while self._wait_until(lambda: self._unhandled <= most // 2):
            try:
                found = self._consumer.next_descriptors(most - self._unhandled)
                failures = 0
            except StorageError as error:
                if not error.retryable:
                    raise
                self._stopping.wait(self._backoff.delay(failures))
                failures += 1
                continue
            batches = [_ReadAhead(descriptor) for descriptor in found]
            with self._changed:
                self._ahead.extend(batches)
                self._unhandled += len(batches)
                last = not self._unhandled
            for batch in batches:
                self._to_fetch.put(batch)
            if not found and not self._options.until_empty:
                self._stopping.wait(self._options.poll)
            elif not found and last:
                self.stop()
            # handling may add batches; only a read after the last handler can tell that nothing is left
            elif not found:
                self._wait_until(lambda: not self._unhandled)

    # ── fetching ──

    def _fetch_loop(self) -> None:
        with nullcontext() if self._options.ordered else _calling(self._handler) as call:
            while (batch := self._to_fetch.get()) is not None and not self._stopping.is_set():
                try:
                    batch.outcome = self._fetch(batch.descriptor)
                except Exception as error:
                    if call is not None:
                        raise
                    batch.outcome = error  # raised when its turn comes, after everything before it was handled
                if call is not None:
                    if not self._stopping.is_set():
                        self._handle(batch, call)
                    continue
                with self._changed:
                    batch.fetched = True
                    self._changed.notify_all()

    def _fetch(self, descriptor: Descriptor) -> Batch | None:
        failures = 0
        while True:
            try:
                return self._consumer.fetch(descriptor)
            except Corrupt as error:
                if self._options.on_corrupt is None:
                    raise
                self._options.on_corrupt(descriptor, error)
                return None
            except StorageError as error:
                if not error.retryable or self._stopping.wait(self._backoff.delay(failures)):
                    raise
                failures += 1

    # ── handing over ──

    def _hand_over(self) -> None:
        """Handles the fetched batches in order; with `ordered=False` the fetching threads handle them, and this
        waits for the end.
        """
        if not self._options.ordered:
            self._stopping.wait()
            return
        with _calling(self._handler) as call:
            while self._wait_until(lambda: self._ahead and self._ahead[0].fetched):
                self._handle(self._ahead[0], call)

    def _handle(self, batch: _ReadAhead, call: Callable[[Batch], object]) -> None:
        if isinstance(batch.outcome, Exception):
            raise batch.outcome
        if batch.outcome is not None:
            call(batch.outcome)
        with self._changed:
            batch.finished = True
            while self._ahead and self._ahead[0].finished:
                self._frontier = self._ahead.popleft().descriptor.sequence
            self._unhandled -= 1
            if batch.outcome is not None:
                self._batches += 1
                self._entries += len(batch.outcome)
            self._changed.notify_all()

    # ── acknowledging ──

    def _ack_loop(self) -> None:
        failures = 0
        not_before = 0.0
        while (frontier := self._frontier_to_ack(not_before, refused=failures > 0)) is not None:
            try:
                self._ack_through(frontier)
            except StorageError as error:
                failures += 1
                if not error.retryable or (self._handled and failures > _LAST_ACK_TRIES):
                    raise
                not_before = monotonic() + self._backoff.delay(failures)
            else:
                failures = 0
                self._acked = frontier
                not_before = monotonic() + self._options.ack_interval

    def _ack_through(self, frontier: int) -> None:
        try:
            self._consumer.ack_through(frontier)
        except OutOfOrder:
            # else a handler did it, perhaps just now
            if self._consumer.acked is None or self._consumer.acked < frontier:
                raise

    def _frontier_to_ack(self, not_before: float, *, refused: bool) -> int | None:
        """Waits until there is a batch to acknowledge; returns None when there will be no batch.

        The last finished batches do not wait for the interval, only for a store that refused them.
        """
        with self._changed:
            while self._fenced is None:
                left = not_before - monotonic()
                if self._frontier == self._acked:
                    if self._handled:
                        return None
                    self._changed.wait()
                elif left <= 0 or (self._handled and not refused):
                    return self._frontier
                else:
                    self._changed.wait(left)
        return None


#: After the last handler, a store that refuses the last acknowledgement is asked this often; then the run fails.
_LAST_ACK_TRIES = 5


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        if thread.ident is not None:  # a thread that could not be started needs no wait
            thread.join()


@contextmanager
def _calling(handler: Callable[[Batch], object]) -> Iterator[Callable[[Batch], object]]:
    """Yields the handler as a function; a coroutine function runs on an event loop of the calling thread's own."""
    if not inspect.iscoroutinefunction(handler):
        yield handler
        return
    with asyncio.Runner() as runner:
        yield lambda batch: runner.run(handler(batch))


# ── The manifest as its one consumer sees it: owned by epoch, and lost to the consumer that takes a newer one ──
# Every change is a conditional put on a manifest that was read with one of our epochs in it. So a fenced consumer can
# change nothing, however late its request arrives.


T = TypeVar("T")
S = TypeVar("S", bound=Sized)


class OwnedManifest(ManifestObject):
    """A manifest whose constructor fences the earlier consumer. Not thread-safe, like its base."""

    def __init__(self, store: ObjectStore, path: str, clock: Clock, measures: ManifestCounters) -> None:
        super().__init__(store, path, clock, measures)
        self._backoff = Backoff(most=0.25)
        # Several epochs, because a new epoch whose answer was lost may or may not have been written.
        self._epochs: set[int] = set()
        self.epoch = self._take_over()

    def _take_over(self) -> int:
        for _ in self._backoff.attempts():
            snapshot = self._load()
            epoch = next_epoch(snapshot.manifest.epoch)
            try:
                self._replace(snapshot, set_epoch(snapshot.manifest, epoch))
            except VersionConflict:
                continue
            self._epochs = {epoch}
            return epoch
        raise AssertionError("unreachable")

    def load_owned(self) -> Manifest:
        """Returns the current manifest; raises `Fenced` when another consumer has taken it."""
        return self._load_owned().manifest

    def _load_owned(self) -> ManifestVersion:
        snapshot = self._load()
        epoch = snapshot.manifest.epoch
        if epoch not in self._epochs:
            raise Fenced(
                f"another consumer took over {self.path}: it has epoch {epoch}, this one {self.epoch}", epoch=epoch
            )
        self.epoch = epoch
        return snapshot

    def dequeue(self, through: int) -> None:
        """Removes every entry up to `through`."""
        for _ in self._backoff.attempts():
            snapshot = self._load_owned()
            manifest = snapshot.manifest
            if through >= manifest.next_sequence:
                raise OutOfOrder(f"{self.path} has no entry {through} yet: {manifest.next_sequence} is next")
            removed = list(takewhile(lambda entry: entry[0] <= through, manifest.locations()))
            if not removed:
                return
            marks = list(manifest.marks(through))
            try:
                self._trail.extend(removed)
                if marks:
                    self._marks.keep(marks)
                self._replace(snapshot, dequeue(manifest, through))
            except VersionConflict:
                continue
            return

    def decide(self, choose: Callable[[Manifest], T | None]) -> T | None:
        """Chooses by the manifest and makes the choice final: no append that has not seen the choice can succeed
        afterwards.

        The epoch, and with it the manifest, changes to a value that no other consumer would choose. A writer that read
        the manifest earlier must read it again. A choice of None changes nothing.
        """
        for _ in self._backoff.attempts():
            snapshot = self._load_owned()
            chosen = choose(snapshot.manifest)
            if chosen is None:
                return None
            epoch = next_epoch(snapshot.manifest.epoch + 1 + secrets.randbelow(1 << 32))
            self._epochs.add(epoch)
            try:
                self._replace(snapshot, set_epoch(snapshot.manifest, epoch))
            except VersionConflict:
                continue
            self._epochs = {epoch}
            self.epoch = epoch
            return chosen
        raise AssertionError("unreachable")


# ── Fetcher: turns descriptors into batches, anywhere ──


class Fetcher:
    """Fetches batches by descriptor. Stateless: share it between threads, pickle it to other machines.

    A fetcher does not know who owns the manifest, so it continues to work after its consumer was fenced, as long as the
    object exists. A pickled fetcher carries the store's options, which may include credentials.
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
        """Gets and checks the batch. A missing object raises `StorageError`, a damaged object raises `Corrupt`."""
        return self._fetch(descriptor, lambda data, limit: Batch(descriptor, *unwrap(data, limit)))

    def fetch_arrow(self, descriptor: Descriptor) -> pyarrow.Array:
        """Gets the batch's entries as one Arrow binary array, without a Python object per entry."""
        return self._fetch(descriptor, decode_arrow)

    def _fetch(self, descriptor: Descriptor, decode: Callable[[Buffer, int], S]) -> S:
        started = perf_counter()
        data = self.fetch_raw(descriptor)
        try:
            if descriptor.crc is not None and crc32(data) != descriptor.crc:
                raise Corrupt("a batch fails the checksum its manifest entry gives; fetch it again, or restore it")
            decoded = decode(data, self._limit)
        except Corrupt as error:
            raise Corrupt(str(error), seq=descriptor.sequence, file=descriptor.location) from None
        measures = self._measures
        measures.fetch_duration.observe(perf_counter() - started)
        measures.batches_collected.inc()
        measures.entries_collected.inc(len(decoded))
        measures.bytes_collected.inc(len(data))
        return decoded

    def fetch_raw(self, descriptor: Descriptor) -> Buffer:
        """Gets the object's stored bytes without checking them."""
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


# ── Batch: the entries of one object, as the consumer hands them over ──


class Batch(DecodedBatch):
    """The entries of one object. `entries` is a list made on first use; iterating a batch makes no list at all.

    `size` is the number of bytes of the entries with their lengths, before compression.
    """

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: Descriptor, data: Buffer, end: int, count: int) -> None:
        super().__init__(data, end, count)
        self.descriptor = descriptor

    @property
    def sequence(self) -> int:
        """The number of its manifest entry, for `Consumer.ack`."""
        return self.descriptor.sequence

    @property
    def location(self) -> str:
        """The path of its object."""
        return self.descriptor.location

    @property
    def metadata(self) -> tuple[Metadata, ...]:
        """The metadata of each `produce` call in the batch."""
        return self.descriptor.metadata

    def metadata_of(self, index: int) -> Metadata | None:
        """Returns the metadata range that covers the entry at `index`, or None when no range does."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {self.sequence} has {len(self)} entries, not an entry {index}")
        covering = None
        for each in self.metadata:
            if each.start_index > index:
                break
            covering = each
        return covering

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return self.descriptor == other.descriptor and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch(sequence={self.sequence}, location={self.location!r}, entries={len(self)}, size={self.size})"

    def __reduce__(self) -> tuple[object, ...]:
        return Batch, (self.descriptor, *self._stored())


# ── The collector: deletes batch objects that no consumer can need any more ──
# An object goes only if all of this holds: it stands directly under the prefix and its name is a ULID's; the manifest
# does not name it; it is older than every batch the manifest names; and its age has reached the grace. The objects are
# listed *before* the manifest is read, so a batch appended in between is seen as named.
#
# What if a producer appends an object just as it is being deleted? It looks at the age of its objects after it has read
# the manifest it will replace, and uploads those that are no longer young again, under a new name. A consumer's
# collector changes the manifest (its own epoch) before it deletes: an append prepared before that cannot succeed, and
# one prepared after it no longer names what is doomed.


log = logging.getLogger("penstock.buffer")


class Collection(NamedTuple):
    """The counts of a collection."""

    deleted: int
    failed: int
    kept: int


def collect(
    store: ObjectStore,
    paths: BufferPaths,
    *,
    now_ms: int,
    grace_ms: int,
    decide: Callable[[Callable[[Manifest], list[str] | None]], list[str] | None] | None = None,
    dry_run: bool = False,
) -> Collection:
    """Deletes the objects that no consumer can need; `dry_run` only counts them.

    `decide` is the consumer's way to make a choice final (`OwnedManifest.decide`). Without `decide`, as from the
    command line beside a running consumer, a producer is safe that pauses for no longer than the grace.
    """
    batches = {path: time for path in store.list(paths.prefix) if (time := batch_time_ms(path)) is not None}

    def doomed_by(manifest: Manifest) -> list[str] | None:
        named = {location for _, location in manifest.locations()}
        horizon = _deletable_before(named, now_ms - grace_ms)
        return sorted(path for path, time in batches.items() if path not in named and time < horizon) or None

    if decide is None or dry_run:
        found = store.get(paths.manifest)
        # A missing manifest may be a mistyped name, and then the objects belong to another manifest.
        doomed = None if found is None else doomed_by(parse_manifest(found, paths.manifest))
    else:
        doomed = decide(doomed_by)
    if dry_run:
        return Collection(len(doomed or ()), 0, len(batches) - len(doomed or ()))
    failed = store.delete(doomed) if doomed else 0
    deleted = len(doomed or ()) - failed
    store.sweep(paths.prefix, now_ms - grace_ms)
    return Collection(deleted, failed, len(batches) - deleted)


def _deletable_before(named: set[str], newest_old_ms: int) -> int:
    """Returns the time before which objects may be deleted: past their grace, and older than every object that the
    manifest names.
    """
    horizon = newest_old_ms + 1
    for location in named:
        time = batch_time_ms(location)
        if time is None:  # the name holds no time, so no object is known to be older than this batch
            return 0
        horizon = min(horizon, time)
    return horizon


class Collector:
    """A thread that collects every so often, until it is stopped or its consumer is fenced."""

    def __init__(self, collect: Callable[[], int], interval: float) -> None:
        self._collect = collect
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-collector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._collect()
            except Fenced:
                return
            except Exception as error:  # any error: the thread must not end unseen
                log.warning("garbage collection failed; trying again in %g s: %s", self._interval, error)
