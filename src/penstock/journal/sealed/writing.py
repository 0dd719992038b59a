"""One file of sealed history: written under a name that readers skip, read back, compared, and given its name."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from penstock.clock import from_ms
from penstock.durable import like, make_folder, settle
from penstock.engine.contract import Engine
from penstock.errors import Corrupt
from penstock.journal.commit.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.sealed.files import open_lake
from penstock.journal.sealed.segments import Segment
from penstock.journal.sealed.tables.columns import TypedColumns
from penstock.journal.storage.block import Block
from penstock.journal.storage.to_arrow import arrow_schema, joined, record_batch

_GROUP_ROWS = 65_536
"""Rows in a row group at the most, unless a block has more: what a look-up of one event has to decode."""
_TEXTS = ["topic", "kind", "key", "scope", "correlation_id", "causation_id"]


def sealed_schema() -> pa.Schema:
    """The columns of every sealed file: a topic's, with bytes and hash-chain links beside them."""
    return arrow_schema().append(pa.field("payload_bytes", pa.binary())).append(pa.field("link", pa.binary()))


class SealPlace(NamedTuple):
    """Where a seal's files go, and how they look."""

    topic: str
    lake: str
    token: str
    """The seal's; part of its files' names."""
    columns: str = ""
    """Typed columns beside the JSON text."""


def write_segment(engine: Engine, place: SealPlace, after: int, through: int) -> Segment:
    """Writes the events of a range into one file, reads it back, and gives it its name."""
    topic, lake, token, _ = place
    filesystem, root = open_lake(lake)
    with engine.read() as snap:
        view = TopicView.open(snap, topic)
        assert view is not None
        day = day_of(view, after + 1, through)
        folder = f"{topic}/date={day:%Y-%m-%d}"
        file = f"{after + 1:020d}-{through:020d}-{token}.parquet"
        local = isinstance(filesystem, pyarrow.fs.LocalFileSystem)
        target = f"{root}/{folder}/{file}"
        path = f"{root}/{folder}/_{file}" if local else target  # elsewhere a file is not there before it is whole
        if local:
            make_folder(f"{root}/{folder}")
        tally = _Tally()
        typed = TypedColumns(place.columns)
        schema = pa.schema([*sealed_schema(), *typed.schema])
        with filesystem.open_output_stream(path) as out, pq.ParquetWriter(out, schema, **_PARQUET) as writer:
            for group in _grouped(_batches(view, after, through, typed)):
                for batch in group:
                    tally.add(batch)
                table = pa.Table.from_batches(group)
                writer.write_table(table, row_group_size=table.num_rows)
        holes = load_state(snap, view.number, topic).compacted > after
    if not holes and (tally.count, tally.first, tally.last) != (through - after, after + 1, through):
        raise Corrupt("events are missing that were to be sealed", topic=topic, seq=after + 1)
    size, crc = _verify(filesystem, path, tally, topic)
    if local:
        like(engine.location, path)
        settle(path, target)
    return Segment(after + 1, through, tally.count, lake, f"{folder}/{file}", size, crc, tally.binary, typed.unfit)


_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": _TEXTS,
    "column_encoding": {
        "seq": "DELTA_BINARY_PACKED",
        "id": "DELTA_BYTE_ARRAY",
        "occurred_at": "DELTA_BINARY_PACKED",
        "recorded_at": "DELTA_BINARY_PACKED",
    },
    "write_page_checksum": True,
    "sorting_columns": [pq.SortingColumn(0)],
}
"""Encodings that Spark's vectorised reader, DuckDB and Arrow all read; ids and times differ little from row to row."""


def _batches(view: TopicView, after: int, through: int, typed: TypedColumns) -> Iterator[pa.RecordBatch]:
    for block in joined(view.blocks(after, through), _GROUP_ROWS):
        start = block.row_after(after) if block.first <= after else 0
        stop = block.row_after(through) if block.last > through else block.count
        if stop > start:
            yield _sealed_batch(block, start, stop, typed)


def _sealed_batch(block: Block, start: int, stop: int, typed: TypedColumns) -> pa.RecordBatch:
    whole = record_batch(block, "binary")
    payload = whole.column("payload")
    binary = None
    nothing = pa.nulls(block.count, pa.binary())
    if block.wire.binary is None:
        text, raw = pa.Array.from_buffers(pa.string(), block.count, payload.buffers()), nothing
    else:
        binary = np.frombuffer(block.wire.binary, dtype=np.uint8) != 0
        raw = pc.if_else(pa.array(binary), payload, None)
        text = pc.if_else(pa.array(binary), None, payload).cast(pa.string())
    links = nothing
    if block.wire.chain is not None:
        links = pa.Array.from_buffers(pa.binary(32), block.count, [None, pa.py_buffer(block.wire.chain)]).cast(
            pa.binary()
        )
    columns = [text if name == "payload" else whole.column(name) for name in whole.schema.names]
    batch = pa.RecordBatch.from_arrays([*columns, raw, links], schema=sealed_schema()).slice(start, stop - start)
    if not len(typed.schema):
        return batch
    fields = typed.of(payload.slice(start, stop - start), None if binary is None else binary[start:stop])
    schema = pa.schema([*sealed_schema(), *typed.schema])
    return pa.RecordBatch.from_arrays([*batch.columns, *fields], schema=schema)


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """The batches of a row group each: one per block would be many small ones."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if held and rows + batch.num_rows > _GROUP_ROWS:
            yield held
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield held


class _Tally:
    """What goes into a file, in numbers: enough to know it again."""

    def __init__(self) -> None:
        self.count = 0
        self.seqs = 0
        self.first = self.last = 0
        self.binary = 0
        self.crcs = {"payload": 0, "payload_bytes": 0, "id": 0}

    def add(self, batch: pa.RecordBatch) -> None:
        seqs = np.asarray(batch.column("seq"))
        self.first = self.first or int(seqs[0])
        self.last = int(seqs[-1])
        self.count += len(seqs)
        self.binary += len(seqs) - batch.column("payload_bytes").null_count
        self.seqs = (self.seqs + int(seqs.sum())) & 0xFFFFFFFFFFFFFFFF
        for name, crc in self.crcs.items():
            self.crcs[name] = zlib.crc32(_text_bytes(batch.column(name)), crc)

    def same(self, other: _Tally) -> bool:
        return vars(self) == vars(other)


def _text_bytes(column: Any) -> memoryview:
    if column.null_count:  # where there is null, there may be any bytes
        column = column.drop_null()
    bounds = np.frombuffer(column.buffers()[1], dtype=np.int32)
    data = column.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[int(bounds[column.offset]) : int(bounds[column.offset + len(column)])]


def _verify(filesystem: Any, path: str, tally: _Tally, topic: str) -> tuple[int, int]:
    """Reads the file back: page checksums, counts, positions and contents must be those of the journal."""
    found = _Tally()
    with filesystem.open_input_file(path) as file:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        for group in range(parquet.num_row_groups):
            for batch in parquet.read_row_group(group, columns=["seq", *found.crcs]).to_batches():
                found.add(batch)
    if not found.same(tally):
        raise Corrupt(f"a sealed file does not hold what was written to it: {path}", topic=topic, seq=tally.first)
    size = crc = 0
    with filesystem.open_input_stream(path) as stream:
        while piece := stream.read(1 << 20):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
    return size, crc


def day_of(view: TopicView, seq: int, through: int) -> datetime:
    """The day (its midnight, UTC) of the first event at or after a position."""
    for block in view.blocks(seq - 1, through):
        recorded = from_ms(block.recorded_ms(block.row_after(seq - 1)))
        return datetime(recorded.year, recorded.month, recorded.day, tzinfo=UTC)
    raise Corrupt("a block is missing", topic=view.name, seq=seq)
