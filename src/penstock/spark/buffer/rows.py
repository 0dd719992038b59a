"""From manifest entries to the record batches Spark asked for.

A task gets a run of entries. It fetches the next few objects while Spark takes the rows of the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.buffer import Descriptor, Fetcher, Metadata
from penstock.errors import ConfigError
from penstock.spark.buffer.options import BufferReadOptions

DDL = "sequence BIGINT, index INT, entry BINARY, metadata BINARY, ingested_at TIMESTAMP, location STRING"
_TIME = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("index", pa.int32()),
        ("entry", pa.binary()),
        ("metadata", pa.binary()),
        ("ingested_at", _TIME),
        ("location", pa.string()),
    ]
)
_AHEAD = 3
"""Objects a task fetches ahead."""
_ROWS = 65_536
_PARTITIONS = 32
"""Up to so many tasks there is one per object, unless minPartitions asks for more."""


class ManifestRange(InputPartition):
    """One task's share: some entries of one manifest, in order."""

    def __init__(self, manifest: str, entries: Sequence[Descriptor]) -> None:
        super().__init__(None)
        self.manifest = manifest
        self.entries = tuple(entries)

    def __repr__(self) -> str:
        return f"{self.manifest}[{self.entries[0].sequence}, {self.entries[-1].sequence}]"


def cut(found: Sequence[tuple[str, Sequence[Descriptor]]], options: BufferReadOptions) -> list[ManifestRange]:
    """Entries by manifest as runs for tasks: an object each, or more where there are many."""
    total = sum(len(entries) for _, entries in found)
    tasks = min(total, max(_PARTITIONS, options.min_partitions or 0))
    runs: list[ManifestRange] = []
    for manifest, entries in found:
        share = max(1, round(tasks * len(entries) / total)) if entries else 0
        bounds = [len(entries) * part // share for part in range(share + 1)] if share else []
        runs += [ManifestRange(manifest, entries[begin:end]) for begin, end in pairwise(bounds)]
    return runs


class BufferLayout(msgspec.Struct, frozen=True):
    """Which columns a query gets, in order."""

    schema: pa.Schema

    @classmethod
    def of(cls, wanted: StructType) -> BufferLayout:
        """The layout of a schema; ConfigError when it asks for what there is not."""
        schema = to_arrow_schema(wanted, timezone="UTC")
        for field in schema:
            if field.name not in _SCHEMA.names:
                raise ConfigError(
                    f"an entry of a buffer has no column {field.name!r}; there are {', '.join(_SCHEMA.names)}"
                )
            stored = _SCHEMA.field(field.name).type
            if field.type != stored:
                raise ConfigError(f"column {field.name!r} is {stored} here; the schema asks for {field.type}")
        return cls(schema)

    def batches(self, descriptor: Descriptor, entries: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """The rows of one object, in pieces."""
        columns = [self._column(field.name, descriptor, entries) for field in self.schema]
        whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        for start in range(0, whole.num_rows, _ROWS):
            yield whole.slice(start, _ROWS)

    def _column(self, name: str, descriptor: Descriptor, entries: pa.BinaryArray) -> pa.Array:
        count = len(entries)
        if name == "entry":
            return entries
        if name == "index":
            return pa.array(np.arange(count, dtype=np.int32))
        if name == "sequence":
            return pa.repeat(pa.scalar(descriptor.sequence, pa.int64()), count)
        if name == "location":
            return pa.repeat(pa.scalar(descriptor.location, pa.string()), count)
        uncovered, lengths = _runs(descriptor.metadata, count)
        if name == "metadata":
            values = pa.array([None, *(each.payload for each in descriptor.metadata)], pa.binary())
        else:
            times = [None, *(each.ingested_at_ms * 1000 for each in descriptor.metadata)]
            values = pa.array(times, pa.int64()).cast(_TIME)
        which = np.repeat(np.arange(len(values), dtype=np.int32), [uncovered, *lengths])
        return values.take(pa.array(which))


def _runs(metadata: Sequence[Metadata], count: int) -> tuple[int, list[int]]:
    """How many entries come before the first range, and how many each range covers."""
    starts = [min(each.start_index, count) for each in metadata]
    ends = [*starts[1:], count] if starts else []
    lengths = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
    return count - sum(lengths), lengths


def read_run(run: ManifestRange, options: BufferReadOptions, layout: BufferLayout) -> Iterator[pa.RecordBatch]:
    """Fetches a task's objects and gives their rows, in order."""
    fetcher = Fetcher(options.open(), run.manifest, options.max_batch_bytes)
    waiting = deque(run.entries)
    coming: deque[tuple[Descriptor, Future[pa.BinaryArray]]] = deque()
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="penstock-fetch") as pool:
        try:
            while waiting or coming:
                while waiting and len(coming) < _AHEAD:
                    descriptor = waiting.popleft()
                    coming.append((descriptor, pool.submit(fetcher.fetch_arrow, descriptor)))
                descriptor, entries = coming.popleft()
                yield from layout.batches(descriptor, entries.result())
        finally:
            for _, left in coming:
                left.cancel()
