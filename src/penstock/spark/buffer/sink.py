"""Writing frames and streams to a buffer: tasks upload objects, the commit appends them to the manifest at once.

The append carries a mark that says which batch of which query it was. A batch that is run again, because whatever was
killed before Spark could note its success, finds its mark and changes nothing; what its tasks uploaded in vain is
deleted by the consumer's collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.buffer import Metadata
from penstock.buffer.format.arrow import arrow_to_block
from penstock.buffer.format.batch import MAX_BATCH_BYTES
from penstock.buffer.format.mark import Mark
from penstock.buffer.naming import shard_of
from penstock.buffer.produce.publishing import Publisher, StagedObject
from penstock.clock import SystemClock
from penstock.errors import ConfigError
from penstock.spark.buffer.options import BufferWriteOptions
from penstock.spark.sink.writers import TaskShare

_COLUMNS = ("entry", "metadata", "key")
_BYTES = (pa.binary(), pa.string())
_UPLOADS = 2
"""Objects a task uploads while it makes the next one."""
_RANGES = 10_000
"""Runs of equal metadata in one object: each of them stands in the manifest, which every write carries whole."""


@dataclass
class Uploaded(TaskShare):
    """What one task has uploaded, by shard."""

    objects: list[tuple[int, StagedObject]] = field(default_factory=list)


class BufferTarget:
    """A buffer that a frame is written to."""

    def __init__(self, options: BufferWriteOptions, schema: StructType) -> None:
        _check_columns(to_arrow_schema(schema, timezone="UTC"), len(options.places))
        self.options = options
        self.app, self.version = options.app, options.version or 0

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, number: int) -> Uploaded:
        """Uploads a task's rows as objects of about flushBytes."""
        share = Uploaded(job)
        coming: deque[tuple[int, Future[StagedObject]]] = deque()
        with ThreadPoolExecutor(_UPLOADS, thread_name_prefix="penstock-upload") as pool:
            for shard, rows in _gathered(batches, len(self.options.places), self.options.flush_bytes):
                while len(coming) >= _UPLOADS:
                    done, staged = coming.popleft()
                    share.objects.append((done, staged.result()))
                coming.append((shard, pool.submit(self._upload, shard, rows)))
            share.objects += [(shard, staged.result()) for shard, staged in coming]
        return share

    def _upload(self, shard: int, rows: pa.RecordBatch) -> StagedObject:
        metadata = _ranges(rows)
        return self._publisher(shard).stage(
            arrow_to_block(rows.column("entry")), metadata, rows.num_rows, self.options.compression
        )

    def publish(self, shares: Sequence[TaskShare], by: tuple[str, str] | None, version: int) -> None:
        mark = None if by is None else Mark(":".join(by), version)
        for shard in range(len(self.options.places)):
            uploaded = (share for share in shares if isinstance(share, Uploaded))
            staged = [one for share in uploaded for which, one in share.objects if which == shard]
            if staged:
                self._publisher(shard).publish(staged, mark)

    def sweep(self, job: str, through: int | None = None) -> None:
        """Nothing to do: a commit whose answer was lost ends here too, and what was not published is collected."""

    def _publisher(self, shard: int) -> Publisher:
        options = self.options
        return Publisher(options.open(), options.places[shard], gc_grace=options.gc_grace)


def _check_columns(schema: pa.Schema, shards: int) -> None:
    twice = next((name for at, name in enumerate(schema.names) if name in schema.names[:at]), None)
    if twice is not None:
        raise ConfigError(f"the frame has the column {twice!r} twice")
    unknown = [name for name in schema.names if name not in _COLUMNS]
    if unknown:
        raise ConfigError(
            f"an entry of a buffer has no column {unknown[0]!r}; there are {', '.join(_COLUMNS)}. "
            'Put the rest into the entry: to_json(struct(…)).alias("entry")'
        )
    if "entry" not in schema.names:
        raise ConfigError('the frame has no column "entry": text or bytes')
    for column in schema:
        if column.type not in _BYTES:
            raise ConfigError(f"the column {column.name!r} must be text or bytes, not {column.type}")
    if shards > 1 and "key" not in schema.names:
        raise ConfigError('shards needs a column "key" (text or bytes): rows of one key go to one shard, in order')
    if shards == 1 and "key" in schema.names:
        raise ConfigError('the column "key" decides the shard, and this buffer has one: drop it, or set shards')


def _gathered(batches: Iterator[pa.RecordBatch], shards: int, flush_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows by shard, as record batches each of which makes an object."""
    held: list[list[pa.RecordBatch]] = [[] for _ in range(shards)]
    sizes = [0] * shards
    for batch in batches:
        for shard, rows in _by_shard(_narrowed(batch), shards):
            for piece in _pieces(rows, flush_bytes):
                size = _size(piece)
                if held[shard] and sizes[shard] + size > flush_bytes:
                    yield shard, pa.concat_batches(held[shard])
                    held[shard], sizes[shard] = [], 0
                held[shard].append(piece)
                sizes[shard] += size
    for shard, left in enumerate(held):
        if left:
            yield shard, pa.concat_batches(left)


def _narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with bytes for entries and metadata, and no null among the entries."""
    if batch.column("entry").null_count:
        raise ConfigError("a row has no entry (it is null): filter such rows out, or write something for them")
    columns = {name: batch.column(name).cast(pa.binary()) for name in batch.schema.names}
    return pa.RecordBatch.from_pydict(columns)


def _by_shard(batch: pa.RecordBatch, shards: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if shards == 1:
        yield 0, batch
        return
    if batch.column("key").null_count:
        raise ConfigError("a row has no key (it is null), so that no shard can be chosen for it")
    keys = batch.column("key").dictionary_encode()
    chosen = np.array([shard_of(key, shards) for key in keys.dictionary.to_pylist()])[keys.indices.to_numpy()]
    for shard in np.unique(chosen):
        yield int(shard), batch.filter(pa.array(chosen == shard))


def _size(rows: pa.RecordBatch) -> int:
    """Bytes of a block with these entries."""
    entries = rows.column("entry")
    return int(pc.sum(pc.binary_length(entries)).as_py() or 0) + 4 * len(entries)


def _pieces(rows: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The rows, cut where they would make an object that is too large."""
    if _size(rows) <= most:
        yield rows
    elif rows.num_rows == 1:
        if _size(rows) > MAX_BATCH_BYTES:
            raise ConfigError(f"an entry of {_size(rows)} bytes is larger than an object may be ({MAX_BATCH_BYTES})")
        yield rows
    else:
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half), most)
        yield from _pieces(rows.slice(half), most)


def _ranges(rows: pa.RecordBatch) -> list[Metadata]:
    """One metadata range for each run of rows with the same metadata."""
    now = SystemClock().now_ms()
    if "metadata" not in rows.schema.names:
        return [Metadata(0, now)]
    runs: Any = pc.run_end_encode(rows.column("metadata").fill_null(b""))
    if len(runs.values) > _RANGES:
        raise ConfigError(
            f"{rows.num_rows} rows have {len(runs.values)} runs of different metadata, more than {_RANGES}: every run "
            "stands in the manifest. Sort by metadata, or put it into the entry"
        )
    starts = [0, *runs.run_ends.to_pylist()[:-1]]
    return [Metadata(start, now, payload) for start, payload in zip(starts, runs.values.to_pylist(), strict=True)]
