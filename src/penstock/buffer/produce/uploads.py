"""The pipeline: what a producer's lanes share. A lock, a budget of bytes in flight, uploading threads, and a timer."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from penstock.buffer.counters import BufferCounters
from penstock.buffer.format.batch import FOOTER_SIZE, MAX_BATCH_BYTES, Compression
from penstock.buffer.produce.lane import Lane
from penstock.buffer.produce.outgoing import Filling, Outgoing, Produced
from penstock.buffer.produce.slabs import Slabs
from penstock.buffer.store import ObjectStore
from penstock.clock import Clock
from penstock.errors import Backpressure, Closed, StorageError

log = logging.getLogger("penstock.buffer")

_MOST_IN_FLIGHT = 64
_JOIN_SECONDS = 5.0

#: A lane, entries encoded for it, how many, and the call they are of.
Share = tuple[Lane, bytes, int, Produced]


class UploadPipeline:
    """Moves batches from `add` to their lane's manifest.

    A batch is *in flight* from the moment the budget has room for it until the manifest holds it. Calls whose batch is
    not in flight *wait*; only when there is no room and too many wait does `add` block.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        measures: BufferCounters,
        *,
        compression: Compression,
        flush_interval: float,
        flush_bytes: int,
        max_buffered: int,
        uploads: int,
        inflight_bytes: int,
        renew_after_ms: int,
    ) -> None:
        self.store = store
        self.clock = clock
        self.measures = measures
        self.compression: Compression = compression
        self.renew_after_ms = renew_after_ms
        self.slabs = Slabs(inflight_bytes)
        self.lock = threading.Lock()
        self.given_up = threading.Event()
        self.stopped = False
        self.closing = False
        self.last_error: Exception | None = None
        self.lanes: list[Lane] = []
        self._flush_interval = flush_interval
        self._flush_bytes = flush_bytes
        self._max_buffered = max_buffered
        self._uploads = uploads
        self._inflight_bytes = inflight_bytes
        self._room = threading.Condition(self.lock)
        self._work = threading.Condition(self.lock)
        self._tick = threading.Condition(self.lock)
        self._progress = threading.Condition(self.lock)
        self._waiting: deque[tuple[Lane, Outgoing]] = deque()
        self._waiting_calls = 0
        self._waiting_bytes = 0
        self._to_upload: deque[tuple[Lane, Outgoing]] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._idle = 0
        self._workers: list[threading.Thread] = []
        self._timer: threading.Thread | None = None
        self._next_tick = float("inf")
        self._pid = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that made it: its threads, and what they carry, are there."""
        return os.getpid() != self._pid

    def _check_process(self) -> None:
        if self.inherited:
            raise Closed(
                f"the producer was made by process {self._pid} and this one was forked from it; make one in the child"
            )

    # ── taking entries ──

    def add(self, shares: Sequence[Share], payload: bytes, timeout: float | None) -> None:
        """Puts entries into their lanes' batches, all or none; blocks while too many calls wait for room."""
        self._check_process()
        with self.lock:
            if self._waiting and self._full():
                self._wait_for_room(timeout)
            if self.closing:
                raise Closed("the producer is closed")
            if self._timer is None:
                self._start()
            for share in shares:  # where a thread cannot start, the call fails and nothing of it was taken
                share[0].start()
            for lane, encoded, count, call in shares:
                filling = lane.filling
                if filling.size + len(encoded) > MAX_BATCH_BYTES:
                    self._seal(lane)
                    filling = lane.filling
                first = not filling.calls
                filling.add(encoded, count, payload, call)
                if filling.size >= self._flush_bytes:
                    self._seal(lane)
                elif first:
                    filling.due_at = monotonic() + self._flush_interval
                    if filling.due_at < self._next_tick:
                        self._arm(filling.due_at)

    def _full(self) -> bool:
        if not self._waiting:
            return False
        calls, size = self._waiting_calls, self._waiting_bytes
        for lane in self.lanes:
            calls += len(lane.filling.calls)
            size += lane.filling.size
        return calls >= self._max_buffered or size >= self._inflight_bytes

    def _wait_for_room(self, timeout: float | None) -> None:
        deadline = None if timeout is None else monotonic() + timeout
        while self._full() and not self.closing:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise Backpressure(
                    f"{self._max_buffered} calls or {self._inflight_bytes} bytes already wait for the store",
                    retry_after=self._flush_interval,
                )
            self._room.wait(left)

    # ── sealing ──

    def _seal(self, lane: Lane) -> None:
        """Ends the lane's batch and sends it on its way, or lets it wait (the lock is held)."""
        if not lane.filling.calls:
            return
        batch = Outgoing(lane.filling, monotonic())
        # The next batch is probably as large, give or take a call: memory that need not grow is not copied.
        lane.filling = Filling(self.slabs, batch.size + batch.size // len(batch.calls) + FOOTER_SIZE)
        lane.queue.append(batch)
        lane.sealed += 1
        if not self._waiting and self._fits(batch):
            self._launch(lane, batch)
        else:
            self._waiting.append((lane, batch))
            self._waiting_calls += len(batch.calls)
            self._waiting_bytes += batch.size

    def _fits(self, batch: Outgoing) -> bool:
        if self._in_flight == 0:  # a batch larger than the whole budget must still get through
            return True
        return self._in_flight < _MOST_IN_FLIGHT and self._in_flight_bytes + batch.size <= self._inflight_bytes

    def _launch(self, lane: Lane, batch: Outgoing) -> None:
        self._in_flight += 1
        self._in_flight_bytes += batch.size
        self._to_upload.append((lane, batch))
        # Not `_idle == 0`: those that were notified just now, for the batches before this one, still count as idle.
        if len(self._to_upload) > self._idle and len(self._workers) < self._uploads:
            with suppress(RuntimeError):  # no more threads: those there are upload it in their turn
                self._start_worker()
        else:
            self._work.notify()

    def landed(self, batches: list[Outgoing]) -> None:
        """The manifest holds these batches: their room is free again (the lock is held)."""
        for batch in batches:
            self._in_flight -= 1
            self._in_flight_bytes -= batch.size
        while self._waiting and self._fits(self._waiting[0][1]):
            lane, batch = self._waiting.popleft()
            self._waiting_calls -= len(batch.calls)
            self._waiting_bytes -= batch.size
            self._launch(lane, batch)
        self._room.notify_all()
        self._progress.notify_all()

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
        """Starts the first uploading thread and the timer (the lock is held); after a failure it is called again."""
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
        """Notes a failure and waits; False when there is no point in trying again because the producer gave up."""
        self.last_error = error
        self.measures.retries.inc()
        log.warning("cannot %s; trying again in %.2f s: %s", doing, delay, error)
        if self.closing and isinstance(error, StorageError) and not error.retryable:
            self.give_up()
            return False
        return not self.given_up.wait(delay)

    # ── flushing and stopping ──

    def flush(self, timeout: float | None) -> bool:
        """Seals what is there and waits until the manifests hold it; False when it took too long or was given up."""
        self._check_process()
        deadline = None if timeout is None else monotonic() + timeout
        with self.lock:
            targets = []
            for lane in self.lanes:
                self._seal(lane)
                targets.append((lane, lane.sealed))
            while any(lane.done < target for lane, target in targets):
                left = None if deadline is None else deadline - monotonic()
                if self.given_up.is_set() or (left is not None and left <= 0):
                    return False
                self._progress.wait(left)
            return True

    def close_intake(self) -> None:
        """No more entries: callers that wait for room, or come later, get `Closed`."""
        with self.lock:
            self.closing = True
            self._room.notify_all()

    def give_up(self) -> None:
        """Ends every retry; what is not in the manifest by now stays out of it."""
        self.given_up.set()
        with self.lock:
            self._progress.notify_all()

    def stop(self) -> None:
        """Ends the threads, waiting for those that are in the middle of a request."""
        with self.lock:
            self.stopped = True
            for condition in (self._work, self._tick, self._room, self._progress, *(lane.wake for lane in self.lanes)):
                condition.notify_all()
        # A request that hangs is left to its daemon thread: the closing caller should not hang with it.
        deadline = monotonic() + _JOIN_SECONDS
        for thread in [*self._workers, *([self._timer] if self._timer else [])]:
            thread.join(max(0.0, deadline - monotonic()))
        for lane in self.lanes:
            lane.join(max(0.0, deadline - monotonic()))
