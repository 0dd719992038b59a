"""A lane: one manifest's batches on their way, in the order they were produced.

    filling ── due by time or size ──► waiting ── room ──► uploading ──► uploaded ── manifest write ──► done

Uploads overlap and finish in any order; the manifest takes the uploaded prefix, so one producer's batches stay in
order. One manifest write carries every batch that is ready. Whatever fails is tried again until it succeeds or the
producer is closed; what a write without an answer did is found out before the next one (`ManifestObject.find`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from penstock.buffer.backoff import Backoff, Contention
from penstock.buffer.manifest import ManifestObject
from penstock.buffer.naming import BufferPaths, batch_time_ms
from penstock.buffer.produce.outgoing import Filling, Outgoing
from penstock.buffer.store import VersionConflict
from penstock.ticket import wake

if TYPE_CHECKING:
    from penstock.buffer.produce.uploads import UploadPipeline

log = logging.getLogger("penstock.buffer")

#: Batches in one manifest write.
_MOST_PER_WRITE = 64


class Lane:
    """The batches of one manifest. The pipeline's lock guards `filling`, `queue` and the counters."""

    def __init__(self, pipeline: UploadPipeline, place: BufferPaths, manifest: ManifestObject) -> None:
        self.place = place
        self.filling = Filling(pipeline.slabs)
        self.queue: deque[Outgoing] = deque()
        self.sealed = 0
        self.done = 0
        self.wake = threading.Condition(pipeline.lock)
        self._pipeline = pipeline
        self._manifest = manifest
        self._contention = Contention()
        self._errors = Backoff(first=0.05, most=5.0)
        self._uncertain: int | None = None  # where a write whose outcome is unknown would have put its first batch
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread that writes the manifest, if it is not running (the lock is held)."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"penstock-manifest {self.place.manifest}", daemon=True)
            thread.start()
            self._thread = thread  # only now: where one cannot start, the next call tries again

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def upload(self, batch: Outgoing) -> None:
        """Writes the batch's object, again and again until it is written or the producer gives up."""
        pipeline = self._pipeline
        for failures in range(1 << 62):
            try:
                self._put(batch)
                break
            except Exception as error:  # whatever it was, the batch must not be lost
                if not pipeline.pause(error, self._errors.delay(failures), f"upload a batch under {self.place.prefix}"):
                    return
        with pipeline.lock:
            batch.uploaded = True
            self.wake.notify()

    def _put(self, batch: Outgoing) -> None:
        if self._stale(batch.name):
            batch.name = self.place.new_batch(self._pipeline.clock.now_ms())
        data = batch.data(self._pipeline.compression)
        batch.attempts += 1
        self._pipeline.store.put(batch.name, data)
        batch.location = batch.name
        self._pipeline.measures.bytes_written.inc(len(data))

    def _stale(self, name: str) -> bool:
        """Whether that is no name yet, or one so old that a collector may soon delete its unreferenced object.

        Such a batch is uploaded again under a new name: what is appended cannot have been collected.
        """
        named_at = batch_time_ms(name)
        return named_at is None or self._pipeline.clock.now_ms() - named_at >= self._pipeline.renew_after_ms

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
                if pipeline.given_up.wait(self._contention.delay(failures)):
                    return
            except Exception as error:  # as above: kept and tried again
                failures += 1
                if not pipeline.pause(error, self._errors.delay(failures), f"write {self.place.manifest}"):
                    return

    def _uploaded(self) -> list[Outgoing]:
        """The batches the next manifest write can carry: those at the head that are uploaded."""
        ready: list[Outgoing] = []
        for batch in self.queue:
            if not batch.uploaded or len(ready) == _MOST_PER_WRITE:
                break
            ready.append(batch)
        return ready

    def _write(self, ready: list[Outgoing]) -> None:
        if self._uncertain is not None:
            found = self._manifest.find(self._uncertain, [batch.locations for batch in ready])
            if found is not None:  # None: the write was not done, but may still be
                self._uncertain = None
            if found:
                self._complete(ready[:found])
                return
        # Known before the names are looked at: whatever a collector decides from now on makes the append conflict.
        self._manifest.latest_known()
        for batch in ready:
            if self._stale(batch.location):
                self._put(batch)
            batch.locations.add(batch.location)
        started = monotonic()
        try:
            self._manifest.append(
                [(batch.location, batch.metadata) for batch in ready],
                checksums={batch.location: batch.crc for batch in ready if batch.crc is not None},
            )
        except BaseException:
            if self._manifest.expected_sequence is not None:
                self._uncertain = self._manifest.expected_sequence
            raise
        finally:
            self._contention.took(monotonic() - started)
        self._uncertain = None
        self._complete(ready)

    def _complete(self, batches: list[Outgoing]) -> None:
        pipeline = self._pipeline
        with pipeline.lock:
            if pipeline.given_up.is_set() and not self.queue:
                return  # close has reported them already: an answer this late changes nothing
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
            for call in batch.calls:
                call.set_outcome(None, None)
            wake(batch.calls)
            batch.release(pipeline.slabs)
