"""What the buffer counts, under the reference's names."""

from __future__ import annotations

from penstock.observe.metrics import REGISTRY, Registry


class BufferCounters:
    """The buffer's metrics in one registry."""

    def __init__(self, registry: Registry = REGISTRY) -> None:
        count, gauge, spread = registry.counter, registry.gauge, registry.histogram
        self.batches_flushed = count("buffer.batches_flushed", "Batches whose manifest entry is durable.")
        self.entries_flushed = count("buffer.entries_flushed", "Entries in those batches.")
        self.bytes_flushed = count("buffer.bytes_flushed", "Bytes of those entries, before compression.")
        self.bytes_written = count("buffer.bytes_written", "Bytes of batch objects written, after compression.")
        self.flush_duration = spread("buffer.flush_duration_seconds", "From a batch being due to its manifest entry.")
        self.batches_collected = count("buffer.batches_collected", "Batches fetched by consumers.")
        self.entries_collected = count("buffer.entries_collected", "Entries in those batches.")
        self.bytes_collected = count("buffer.bytes_collected", "Bytes of those batches as stored.")
        self.fetch_duration = spread("buffer.fetch_duration_seconds", "Getting and checking one batch object.")
        self.consumer_lag = gauge("buffer.consumer_lag_seconds", "Age of the newest entry of the batch last fetched.")
        self.queue_length = gauge("buffer.queue_length", "Manifest entries when it was last read or written.")
        self.descriptors = count("buffer.descriptors_handed_out", "Manifest entries handed out to be fetched.")
        self.acks = count("buffer.acks", "Batches acknowledged.")
        self.gc_files_deleted = count("buffer.gc_files_deleted", "Batch objects deleted by the collector.")
        self.gc_files_failed = count("buffer.gc_files_failed", "Batch objects the collector could not delete.")
        self.gc_duration = spread("buffer.gc_duration_seconds", "One collection.")
        self.retries = count("buffer.retries", "Uploads and manifest writes that failed and were tried again.")
        self._writes = registry.counters("buffer.manifest_writes", "Manifest writes that won.", ("role",))
        self._conflicts = registry.counters("buffer.manifest_conflicts", "Manifest writes that lost.", ("role",))

    def for_role(self, role: str) -> ManifestCounters:
        """The manifest counters of one side, "producer" or "consumer"."""
        return ManifestCounters(self, role)


class ManifestCounters:
    """How often one side wrote the manifest, and how often another writer was first."""

    def __init__(self, measures: BufferCounters, role: str) -> None:
        self._writes = measures._writes.labels(role=role)
        self._conflicts = measures._conflicts.labels(role=role)
        self.queue_length = measures.queue_length
        self.writes = 0
        self.conflicts = 0

    def wrote(self) -> None:
        self.writes += 1
        self._writes.inc()

    def lost(self) -> None:
        self.conflicts += 1
        self._conflicts.inc()

    @property
    def conflict_rate(self) -> float:
        """Conflicts per hundred writes that won, at most 100."""
        return min(100.0, self.conflicts / self.writes * 100) if self.writes else 0.0
