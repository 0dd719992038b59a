"""The streaming side of the source: offsets, ownership, acknowledgements.

An offset is a sequence for each manifest: the first one that has not been read. The query takes the manifest's epoch
when it plans its first batch, and with it the right to remove entries; another query or consumer that takes it later
stops this one. Spark calls `commit` with the end of a batch when the *next* batch is in its offset log: from then on
nothing can ask for those entries again, not even a query whose newest commit-log entry was lost, and they are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.buffer import Consumer, Descriptor
from penstock.buffer.format import Manifest
from penstock.errors import ConfigError, Fenced, PenstockError, PositionTrimmed
from penstock.spark.buffer.options import BufferReadOptions
from penstock.spark.buffer.rows import BufferLayout, ManifestRange, cut, read_run
from penstock.spark.source.ranges import Offsets, limited

_POLL = 0.1
"""Seconds between looks at a manifest in which nothing was new; Spark itself would ask a hundred times a second."""


class BufferStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a buffer batch after batch, as its one consumer."""

    def __init__(self, options: BufferReadOptions, schema: StructType) -> None:
        self.options = options
        self.layout = BufferLayout.of(schema)
        self._consumers: dict[str, Consumer] = {}
        self._seen: dict[str, Manifest] = {}
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._anchored = True
        self._idle_since: float | None = None

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def initialOffset(self) -> dict[str, int]:
        """Where a new query starts. Spark asks more than once and must get one answer."""
        if self._initial is None:
            self._refresh()
            latest = self.options.start == "latest"
            self._initial = {path: _end(seen) if latest else _begin(seen) for path, seen in self._seen.items()}
            # "latest" would be another place if it were asked for again after a crash: the first batch is left empty,
            # so that the checkpoint holds the place before anything depends on it.
            self._anchored = not latest
        return dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self._check_manifests(start)
        if not self._anchored:
            self._anchored = True
            return start
        self._wait_if_idle()
        self._refresh()
        self._check_ahead(start)
        end = self._ends() if self._target is None else self._target
        end = {path: max(end[path], start[path]) for path in end}
        if isinstance(limit, ReadMaxRows):
            end = limited(start, end, limit.max_rows)
        self._idle_since = monotonic() if end == start else None
        return end

    def reportLatestOffset(self) -> dict[str, int] | None:
        return self._ends() if self._seen else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._refresh()
        self._target = self._ends()

    def _wait_if_idle(self) -> None:
        """Waits rather than answer from memory: who produced before asking Spark must find it in the answer."""
        if self._idle_since is not None and not self.options.url.startswith("file:"):
            sleep(max(0.0, self._idle_since + _POLL - monotonic()))

    def _ends(self) -> Offsets:
        return {path: _end(seen) for path, seen in self._seen.items()}

    def _check_manifests(self, offsets: Offsets) -> None:
        known = [place.manifest for place in self.options.places]
        if sorted(offsets) != sorted(known):
            raise ConfigError(
                f"the checkpoint is of a query that reads {', '.join(sorted(offsets))}; the options name "
                f"{', '.join(known)}. Start with a new checkpoint, or with the manifest and shards of that query"
            )

    def _check_ahead(self, start: Offsets) -> None:
        for path, manifest in self._seen.items():
            if self.options.fail_on_data_loss and _end(manifest) < start[path]:
                raise ConfigError(
                    f"this query has read {path} to {start[path]}, and {self.options.url} is only at {_end(manifest)}: "
                    "it is another buffer, or began anew. Start with a new checkpoint, or set failOnDataLoss=false to "
                    "wait until it has grown again"
                )

    # ── the manifests ────────────────────────────────────────────────────────────────────────────────────────────────
    def _refresh(self) -> None:
        """Reads the manifests, taking them over from any other consumer the first time."""
        for path, consumer in self._owned().items():
            with self._fenced(path):
                self._seen[path] = consumer.read_manifest()

    def _owned(self) -> dict[str, Consumer]:
        options = self.options
        for place in options.places:
            if place.manifest not in self._consumers:
                self._consumers[place.manifest] = Consumer(
                    options.open(),
                    manifest=place.manifest,
                    prefix=place.prefix,
                    gc_interval=options.gc_interval,
                    gc_grace=options.gc_grace,
                )
        return self._consumers

    @contextmanager
    def _fenced(self, path: str) -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            raise Fenced(
                f"another query or consumer took over {path} of {self.options.url}: it has epoch {error.epoch}, this "
                f"query had {self._consumers[path].epoch}. A buffer has one reader at a time, so this query stops; its "
                "checkpoint keeps its place. To take the buffer back, stop the other one and start this one again",
                epoch=error.epoch,
            ) from None

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._check_manifests(end)
        if any(path not in self._seen or _end(self._seen[path]) < end[path] for path in end):
            self._refresh()
        return cut([(path, self._entries(path, start[path], end[path])) for path in sorted(end)], self.options)

    def _entries(self, path: str, start: int, end: int) -> list[Descriptor]:
        manifest = self._seen[path]
        found = [each for each in manifest.after(start - 1 if start else None, end - start) if each.sequence < end]
        if len(found) < end - start and self.options.fail_on_data_loss:
            oldest = _begin(manifest)
            raise PositionTrimmed(
                f"entries {start} to {min(oldest, end) - 1} of {path} were removed by another consumer before this "
                f"query read them; the oldest left is {oldest}. Set failOnDataLoss=false to go on without them",
                oldest=oldest,
            )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ManifestRange)
        return read_run(partition, self.options, self.layout)

    def commit(self, end: dict[str, int]) -> None:
        """Removes what was read: see the top of this file."""
        self._check_manifests(end)
        for path, consumer in self._owned().items():
            last = end[path] - 1
            if last > (-1 if consumer.acked is None else consumer.acked):
                with self._fenced(path):
                    consumer.ack_through(last)

    def stop(self) -> None:
        """Ends the collectors; whatever was not acknowledged comes again."""
        for consumer in self._consumers.values():
            with suppress(PenstockError):
                consumer.close()


def _begin(manifest: Manifest) -> int:
    first = manifest.first_sequence()
    return manifest.next_sequence if first is None else first


def _end(manifest: Manifest) -> int:
    return manifest.next_sequence
