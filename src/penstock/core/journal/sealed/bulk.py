"""The files of a bulk write, which a task makes.

They are like the files that sealing makes, without the columns that only the commit knows.

A row's position, id and recording time follow from its segment and its index in the file. The task also makes the data
for look-ups by key: for each row group a filter of its keys, in a small file beside the Parquet file.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.durable import as_storage_error
from penstock.core.journal.blocks import Block, set_positions
from penstock.core.journal.from_arrow import wire_of
from penstock.core.journal.sealed.columns import TypedColumns
from penstock.core.journal.sealed.files import open_lake
from penstock.core.journal.sealed.referring import BulkTarget, FileName
from penstock.core.journal.sealed.segments import (
    FILE_EVENTS,
    KEYS_SUFFIX,
    NewSegment,
    Pieces,
    packed_pieces,
)
from penstock.core.journal.sealed.writing import (
    GROUP_ROWS,
    key_filters,
    open_parquet,
    piece_ends,
    put_whole,
    sealed_batch,
)
from penstock.core.journal.summaries import summary_of
from penstock.core.journal.to_arrow import arrow_schema
from penstock.core.names import shown_url
from penstock.limits import SUMMARY_VALUES

PLACES = ("seq", "recorded_at", "id")
"""The columns that only the commit knows."""
_FILE_BYTES = 128 << 20
"""The approximate size at which a file is complete. A task holds the file in memory until then."""

TYPED = "typed "
"""The prefix of the names of columns that become typed columns of files."""
_UNTYPED = TypedColumns("")


def write_files(
    target: BulkTarget, events: Iterable[pa.RecordBatch], origin: tuple[str, int, str], *, now_ms: int | None = None
) -> Iterator[NewSegment]:
    """Writes events into files of a lake. The events belong to the topic only when a commit refers to the files.

    `events` have the columns of blocks (see `from_arrow`). They may also have typed columns, whose names begin with
    `TYPED`. `origin` is the job, the number of its micro-batch (0 for a job with only one), and the name of this
    attempt of a task.
    """
    job, number, attempt = origin
    begun, files = round(time.time() * 1000) if now_ms is None else now_ms, 0
    name = partial(FileName, job, number, begun)
    file = _BulkFile(target)
    for rows in events:
        for start in range(0, rows.num_rows, GROUP_ROWS):
            file.add(rows.slice(start, GROUP_ROWS), begun)
        if file.count >= FILE_EVENTS or file.size >= _FILE_BYTES:
            yield file.finish(name(f"{attempt}-{files}.parquet").path)
            file, files = _BulkFile(target), files + 1
    if file.count:
        yield file.finish(name(f"{attempt}-{files}.parquet").path)


class _BulkFile:
    """A file in memory while it is made."""

    def __init__(self, target: BulkTarget) -> None:
        self._target = target
        self._typed = TypedColumns(target.columns)
        self._names = [name for name in arrow_schema().names if name not in PLACES]
        self._out = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self.count = 0
        self._binary = 0
        self._kinds: set[str] | None = set()
        self._scopes: set[str] | None = set()
        self._occurred: tuple[int, int] | None = None
        self._group_keys: list[pa.ChunkedArray] = []

    @property
    def size(self) -> int:
        """The number of bytes that are written."""
        return int(self._out.tell())

    def add(self, rows: pa.RecordBatch, now_ms: int) -> None:
        """Adds events. Raises ConfigError when a row cannot be an event.

        If only some events have a time, the others get the time of writing: an index cannot say which events have none.
        """
        wire = wire_of(rows)
        if wire.occurred is None and "occurred_at" in rows.schema.names:
            wire.occurred = now_ms
        set_positions(wire, 1, 0, 0)
        block = Block(wire, self._target.topic)
        if self._rows and self._rows + block.count > GROUP_ROWS:
            self._write_group()
        self._summarise(block)
        batch = self._batch(block, rows)
        if wire.occurred is None:
            at = batch.schema.get_field_index("occurred_at")
            batch = batch.set_column(at, "occurred_at", pa.nulls(len(batch), batch.schema.field(at).type))
        self._binary += len(batch) - batch.column("payload_bytes").null_count
        self._held.append(batch)
        self._rows += block.count
        self.count += block.count

    def _batch(self, block: Block, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the columns of the file. The typed columns come from the rows if the rows have them."""
        given = [TYPED + field.name for field in self._typed.schema]
        if not set(given) <= set(rows.schema.names):
            return sealed_batch(block, 0, block.count, self._typed, names=self._names)
        plain = sealed_batch(block, 0, block.count, _UNTYPED, names=self._names)
        columns = [*plain.columns, *(rows.column(name) for name in given)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*plain.schema, *self._typed.schema]))

    def _summarise(self, block: Block) -> None:
        summary = summary_of(block)
        self._kinds = _united(self._kinds, summary.kinds)
        self._scopes = _united(self._scopes, summary.scopes)
        if block.wire.occurred is not None:
            low, high = summary.occurred
            known = self._occurred
            self._occurred = (low, high) if known is None else (min(known[0], low), max(known[1], high))

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._held)
        if self._writer is None:
            self._writer = open_parquet(self._out, table)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._group_keys.append(table.column("key"))
        self._held, self._rows = [], 0

    def finish(self, path: str) -> NewSegment:
        """Puts the file into its lake and returns its description."""
        self._write_group()
        assert self._writer is not None
        self._writer.close()
        data = self._out.getvalue()
        crc, pieces = _checksums(data)
        path = f"{self._target.topic}/{path}"
        keys, filters = key_filters(self._group_keys)
        with as_storage_error(f"write {path} in {shown_url(self._target.lake)}"):
            if keys is not None:
                _put(self._target, path + KEYS_SUFFIX, filters)
            _put(self._target, path, data)
        return NewSegment(
            self._target.lake,
            path,
            self.count,
            data.size,
            crc,
            self._binary,
            self._typed.unfit,
            packed_pieces(pieces),
            None if self._kinds is None else tuple(sorted(self._kinds)),
            None if self._scopes is None else tuple(sorted(self._scopes)),
            self._occurred,
            keys,
            self._target.columns,
        )


def _united(known: set[str] | None, more: tuple[str, ...] | None) -> set[str] | None:
    """Returns the values of two ranges together; None when they are too many or unknown."""
    if known is None or more is None:
        return None
    known |= set(more)
    return known if len(known) <= SUMMARY_VALUES else None


def _checksums(data: pa.Buffer) -> tuple[int, Pieces]:
    """Returns the CRC-32 of a file, and of each of its pieces."""
    view, start, pieces = memoryview(data), 0, []
    for end in piece_ends(pq.read_metadata(pa.BufferReader(data)), data.size):
        pieces.append((end, zlib.crc32(view[start:end])))
        start = end
    return zlib.crc32(view), tuple(pieces)


def _put(target: BulkTarget, path: str, data: pa.Buffer | bytes) -> None:
    filesystem, root = open_lake(target.lake)
    folder, _, name = f"{root}/{path}".rpartition("/")
    put_whole(filesystem, f"{folder}/{name}", data, partial=f"{folder}/_{name}", store=target.store)
