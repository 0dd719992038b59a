"""From blocks to Arrow record batches, column by column: buffers are handed over or made by numpy, never row by row.

The schema is the one the Spark source offers; payloads are JSON text, or bytes when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Literal

from penstock.core.engine.contract import Engine
from penstock.core.events import format_id
from penstock.core.journal.blocks import Block, CodedText, Headers, Ints, SignedInts, Text, join_blocks
from penstock.core.journal.reading import TopicView
from penstock.core.names import TAG_END
from penstock.errors import ConfigError

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray
except ImportError as error:  # pragma: no cover - the extra is there in development
    raise ConfigError('Arrow needs the extra: pip install "penstock[arrow]"') from error


PayloadType = Literal["string", "binary"]

_TIME = pa.timestamp("us", "UTC")
_HEADERS = pa.map_(pa.string(), pa.string())
_SMALL_BLOCK_ROWS = 8192
"""Neighbouring blocks with fewer rows are joined first, because a record batch costs some 50 µs, however few rows it
has.
"""
_JOINED_BYTES = 8 << 20

_HEX = np.array([int.from_bytes(f"{byte:02x}".encode(), "little") for byte in range(256)], dtype="<u4")
_HEX4 = (_HEX[:, None] | (_HEX[None, :] << 16)).ravel()
"""Two bytes as four digits, in one word."""
_ID_WORDS = 9
"""An id's text has 36 characters: nine words of four."""
_WIDTHS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


@cache
def arrow_schema(payload: PayloadType = "string") -> pa.Schema:
    """Returns the columns of a topic in Arrow."""
    return pa.schema(
        [
            pa.field("seq", pa.int64()),
            pa.field("topic", pa.string()),
            pa.field("kind", pa.string()),
            pa.field("key", pa.string()),
            pa.field("scope", pa.string()),
            pa.field("payload", pa.string() if payload == "string" else pa.binary()),
            pa.field("headers", _HEADERS),
            pa.field("occurred_at", _TIME),
            pa.field("recorded_at", _TIME),
            pa.field("id", pa.string()),
            pa.field("correlation_id", pa.string()),
            pa.field("causation_id", pa.string()),
            pa.field("tags", pa.list_(pa.string())),
        ]
    )


def read_batches(
    engine: Engine,
    topic: str,
    after: int,
    limit: int | None,
    through: int,
    batch_rows: int,
    payload: PayloadType = "string",
    now_ms: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the events after < position ≤ through of one snapshot, as record batches."""
    with engine.read() as snap:
        view = TopicView.open(snap, topic, now_ms)
        if view is None:
            return
        view.check_not_trimmed(after)
        after = max(after, view.hidden)
        left = limit
        together = batch_rows if limit is None else min(batch_rows, limit)
        for block in coalesce(view.blocks(after, through), together):
            start = block.row_after(after) if block.first <= after else 0
            stop = block.row_after(through) if block.last > through else block.count
            if left is not None:
                stop = min(stop, start + left)
                left -= stop - start
            if stop > start:
                whole = record_batch(block, payload, wanted=range(start, stop))
                for row in range(start, stop, batch_rows):
                    yield whole.slice(row, min(batch_rows, stop - row))
            if left == 0:
                return


def arrow_stream(batches: Iterator[pa.RecordBatch], requested_schema: object = None) -> object:
    """Returns record batches of events as a capsule of Arrow's C stream interface."""
    return pa.RecordBatchReader.from_batches(arrow_schema(), batches).__arrow_c_stream__(requested_schema)


def coalesce(blocks: Iterator[Block], batch_rows: int) -> Iterator[Block]:
    """Yields the same events in fewer, larger blocks where blocks are small."""
    small: list[Block] = []
    rows = size = 0
    for block in blocks:
        large = block.count >= _SMALL_BLOCK_ROWS
        if small and (large or rows + block.count > batch_rows or size > _JOINED_BYTES):
            yield small[0] if len(small) == 1 else join_blocks(small)
            small, rows, size = [], 0, 0
        if large:
            yield block
        else:
            small.append(block)
            rows += block.count
            size += block.payload_size
    if small:
        yield small[0] if len(small) == 1 else join_blocks(small)


def record_batch(
    block: Block,
    payload: PayloadType = "string",
    names: Sequence[str] | None = None,
    *,
    wanted: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """Returns all events of a block as one record batch, with only the named columns when names are given.

    `wanted` are the rows that the caller uses: only their payloads must be text.
    """
    schema = arrow_schema(payload)
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    if payload == "string" and block.wire.binary is not None and "payload" in schema.names:
        _check_text(block, range(block.count) if wanted is None else wanted)
    return pa.RecordBatch.from_arrays([_column(block, name, payload) for name in schema.names], schema=schema)


def _column(block: Block, name: str, payload: PayloadType) -> pa.Array:
    count, wire = block.count, block.wire
    match name:
        case "seq":
            return _positions(block)
        case "topic":
            return _constant(block.topic, count)
        case "kind":
            return _coded(wire.kinds, wire.kind_codes, count)
        case "key":
            return _text(wire.key, count)
        case "scope":
            return _text(wire.scope, count)
        case "payload":
            return _payloads(block, payload)
        case "headers":
            return _headers(wire.headers, count)
        case "occurred_at" if wire.occurred is not None:
            return _times(wire.occurred, count)
        case "occurred_at" | "recorded_at":
            return _recorded(block)
        case "id":
            return _ids(block)
        case "correlation_id":
            return _text(wire.correlation, count)
        case "tags":
            return _tags(wire.tags, count)
        case _:
            return _text(wire.causation, count)


def _numbers(column: Ints, count: int) -> NDArray[np.integer]:
    if isinstance(column, int):
        return np.full(count, column, dtype=np.int64)
    return np.frombuffer(column, dtype=_WIDTHS[len(column) // count])


def _offsets(lengths: Ints, count: int) -> NDArray[np.int32]:
    bounds = np.zeros(count + 1, dtype=np.int32)
    if isinstance(lengths, int):
        if lengths:
            bounds[:] = np.arange(0, lengths * count + 1, lengths, dtype=np.int32)
    else:
        np.cumsum(_numbers(lengths, count), out=bounds[1:])
    return bounds


def _positions(block: Block) -> pa.Array:
    if block.wire.seqs is None:
        return pa.array(np.arange(block.first, block.first + block.count, dtype=np.int64))
    return pa.array(np.frombuffer(block.wire.seqs, dtype="<i8"))


@lru_cache(maxsize=64)
def _constant(value: str | None, count: int) -> pa.Array:
    """Returns a column of one value.

    Blocks of one topic tend to have the same sizes and constants, so the column is cached.
    """
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(pa.scalar(value, pa.string()), count)


@lru_cache(maxsize=16)
def _no_headers(count: int) -> pa.Array:
    empty = pa.array([], pa.string())
    return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, dtype=np.int32)), empty, empty)


def _coded(values: Sequence[str | None], codes: Ints, count: int) -> pa.Array:
    if isinstance(codes, int):
        return _constant(values[codes], count)
    return pa.array(values, pa.string()).take(pa.array(_numbers(codes, count)))


def _text(column: Text | None, count: int) -> pa.Array:
    if column is None:
        return _constant(None, count)
    if isinstance(column, CodedText):
        return _coded(column.values, column.codes, count)
    validity = None
    if column.nulls is not None:
        validity = pa.py_buffer(np.packbits(np.frombuffer(column.nulls, dtype=np.uint8) == 0, bitorder="little"))
    bounds = pa.py_buffer(_offsets(column.lengths, count))
    return pa.StringArray.from_buffers(count, bounds, pa.py_buffer(column.data), validity)


def _tags(column: Text | None, count: int) -> pa.Array:
    """Returns the tags of each event as a list; null for an event without tags."""
    if column is None:
        return pa.nulls(count, pa.list_(pa.string()))
    if isinstance(column, CodedText) and not isinstance(column.codes, int):
        return _lists(pa.array(column.values, pa.string())).take(pa.array(_numbers(column.codes, count)))
    return _lists(_text(column, count))


def _lists(packed: pa.StringArray) -> pa.ListArray:
    return pc.split_pattern(pc.utf8_slice_codeunits(packed, 1, -1), TAG_END)


def _payloads(block: Block, payload: PayloadType) -> pa.Array:
    wire, count = block.wire, block.count
    bounds = pa.py_buffer(_offsets(wire.lengths, count))
    data = pa.py_buffer(block.payload)
    if payload == "binary":
        return pa.Array.from_buffers(pa.binary(), count, [None, bounds, data])
    return pa.StringArray.from_buffers(count, bounds, data)


def _check_text(block: Block, rows: Sequence[int]) -> None:
    for row in rows:
        if block.is_binary(row):
            try:
                bytes(block.raw_payload(row)).decode()
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"event {block.seq(row)} of topic {block.topic!r} has a payload of bytes that are not text; "
                    'read it with payload="binary" (in Spark: payloadFormat=binary)'
                ) from error


def _headers(headers: Headers | None, count: int) -> pa.Array:
    if headers is None or not headers.total:
        return _no_headers(count)
    names, values = _text(headers.names, headers.total), _text(headers.values, headers.total)
    return pa.MapArray.from_arrays(pa.array(_offsets(headers.counts, count)), names, values)


def _times(column: SignedInts, count: int) -> pa.Array:
    if isinstance(column, int):
        return _micros(np.full(count, column, dtype=np.int64))
    return _micros(np.frombuffer(column, dtype="<i8"))


def _micros(ms: NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(_TIME, len(ms), [None, pa.py_buffer(ms * 1000)])


def _recorded(block: Block) -> pa.Array:
    if block.wire.run_counts == block.count:
        return _micros(np.full(block.count, block.wire.run_time, dtype=np.int64))
    times = np.array(block.run_times, dtype=np.int64)
    return _micros(np.repeat(times, np.diff(np.append(np.array(block.run_starts), block.count))))


def _ids(block: Block) -> pa.Array:
    """Returns the ids as UUID text: 36 bytes a row, from the runs' first ids.

    Within a run only the last digits differ, unless counting carries over into the upper half of an id's low half.
    """
    count, runs = block.count, block.run_ids
    templates = np.frombuffer("".join(map(format_id, runs)).encode(), dtype="<u4").reshape(len(runs), _ID_WORDS)
    if len(runs) == count:
        words = templates
    else:
        starts = np.array(block.run_starts, dtype=np.int64)
        counts = np.diff(np.append(starts, count))
        words = np.repeat(templates, counts, axis=0)
        first = np.array([number & 0xFFFFFFFF for number in runs], dtype=np.int64) - starts
        low = np.repeat(first, counts) + np.arange(count)
        words[:, 7] = _HEX4[(low >> 16) & 0xFFFF]
        words[:, 8] = _HEX4[low & 0xFFFF]
        for row in np.flatnonzero(low > 0xFFFFFFFF):
            words[row] = np.frombuffer(format_id(block.id_number(int(row))).encode(), dtype="<u4")
    bounds = _offsets(36, count)
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(words))
