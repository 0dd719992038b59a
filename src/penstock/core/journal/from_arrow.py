"""From Arrow record batches to blocks, column by column, without a look at single rows.

Rows are in canonical columns: topic, kind, payload (text or bytes), binary, key, scope, correlation, causation,
tags (as one text), headers, occurred_at, and those of `RowOptions`; all but kind and payload may be missing. The blocks
have no positions, recording times or ids: the commit that publishes them gives these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from penstock.core.journal.blocks import (
    FORMAT,
    TEXTS,
    CodedText,
    Headers,
    Ints,
    PlainText,
    RowOptions,
    SignedInts,
    Text,
    Wire,
    with_options,
)
from penstock.core.names import TAG_END, check_kind, check_name
from penstock.errors import ConfigError
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS, MAX_HEADERS, MAX_KEY_BYTES, MAX_PAYLOAD_BYTES

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray
except ImportError as error:  # pragma: no cover - the extra is there in development
    raise ConfigError('Arrow needs the extra: pip install "penstock[arrow]"') from error


BLOCK_PAYLOAD = 4 * BLOCK_BYTES
"""The most payload bytes of one block, unless a single payload is larger, as for a large append."""
_Bounds = NDArray[np.int32]
_NO_ID = bytes(10)
_SAMPLE = 256
_values = msgspec.json.Decoder(msgspec.Raw)
_objects: msgspec.json.Decoder[object] = msgspec.json.Decoder(type("_Object", (msgspec.Struct,), {}, gc=False))
"""Decodes an object and keeps nothing of it, which is twice as fast as keeping its bytes."""


def blocks(rows: pa.RecordBatch) -> Iterator[tuple[str, Wire]]:
    """Yields the blocks of rows, topic by topic; ConfigError when a row cannot be an event."""
    names = rows.column("topic")
    if names.null_count:
        raise ConfigError("the column topic is null in a row; it says where the row goes")
    topics = pc.unique(names).to_pylist()
    for topic in topics:
        check_name(topic)
        mine = rows if len(topics) == 1 else rows.filter(pc.equal(names, topic))
        ends = _bounds(mine.column("payload")).astype(np.int64)
        start = 0
        while start < mine.num_rows:
            stop = int(np.searchsorted(ends, ends[start] + BLOCK_PAYLOAD, side="right")) - 1
            stop = min(max(stop, start + 1), start + BLOCK_EVENTS, mine.num_rows)
            yield topic, wire_of(mine.slice(start, stop - start))
            start = stop


def wire_of(rows: pa.RecordBatch, *, trusted: bool = False) -> Wire:
    """Returns a block of all rows; `trusted` rows were events before, and their contents need no check."""
    count = rows.num_rows
    kinds, codes = _kinds(rows.column("kind"))
    payload = rows.column("payload")
    binary = rows.column("binary") if "binary" in rows.schema.names else None
    bounds = _bounds(payload)
    data = _data(payload, bounds)
    lengths = np.diff(bounds)
    if int(lengths.max()) > MAX_PAYLOAD_BYTES:
        raise ConfigError(f"a payload of {int(lengths.max()):,} bytes is too large; at most {MAX_PAYLOAD_BYTES:,}")
    if binary is None and not trusted:
        _check_json(payload, data, bounds)
    wire = Wire(FORMAT, count, 0, count, 0, 0, _NO_ID, kinds, codes, _ints(lengths), memoryview(data))
    if binary is not None and pc.any(binary).as_py():
        wire.binary = np.asarray(binary.cast(pa.uint8())).tobytes()
    for name in TEXTS:
        if name in rows.schema.names:
            column = rows.column(name)
            if column.null_count < count:
                setattr(wire, name, _text(column, name, checked=not trusted))
    if "headers" in rows.schema.names:
        wire.headers = _headers(rows.column("headers"))
    if "occurred_at" in rows.schema.names:
        wire.occurred = _times(rows.column("occurred_at"))
    return wire if trusted else with_options(wire, _options(rows))


def packed_tags(column: pa.ListArray) -> pa.StringArray:
    """Returns the stored text of each list of tags; the tags of a list are already distinct and sorted."""
    packed = pc.binary_join_element_wise(TAG_END, pc.binary_join(column, TAG_END), TAG_END, "")
    return pc.if_else(pc.greater(pc.list_value_length(column), 0), packed, None)


def _options(rows: pa.RecordBatch) -> RowOptions:
    """Returns the options of rows."""
    given = [name for name in RowOptions.__struct_fields__ if name in rows.schema.names]
    asked = [name for name in given if rows.column(name).null_count < rows.num_rows]
    return RowOptions(**{name: rows.column(name).to_pylist() for name in asked})


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _bounds(column: pa.Array) -> _Bounds:
    """Returns the beginning of each value in a string or binary column's bytes, and, last, the end of the last
    value."""
    return np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]


def _data(column: pa.Array, bounds: _Bounds) -> memoryview:
    held = column.buffers()[2]
    return memoryview(b"") if held is None else memoryview(held)[int(bounds[0]) : int(bounds[-1])]


def _ints(values: NDArray[np.integer]) -> Ints:
    """Returns non-negative numbers as a block keeps them: one number when all are the same, else in the narrowest
    width.
    """
    high = int(values.max())
    if int(values.min()) == high:
        return high
    width = "u1" if high < 1 << 8 else "<u2" if high < 1 << 16 else "<u4" if high < 1 << 32 else "<u8"
    return values.astype(width).tobytes()


def _kinds(column: pa.Array) -> tuple[list[str], Ints]:
    if column.null_count:
        raise ConfigError("the column kind is null in a row; every event has a kind")
    coded = column.dictionary_encode()
    kinds = coded.dictionary.to_pylist()
    for kind in kinds:
        check_kind(kind)
    return kinds, _ints(np.asarray(coded.indices))


def _text(column: pa.Array, name: str, *, checked: bool = True) -> Text:
    """Returns a column of optional strings; as a dictionary where few values repeat."""
    count = len(column)
    if checked:
        sizes = pc.min_max(pc.binary_length(column))
        if sizes["min"].as_py() == 0:
            raise ConfigError(f"the column {name} has an empty text; use null for none")
        if (sizes["max"].as_py() or 0) > MAX_KEY_BYTES:
            raise ConfigError(
                f"the column {name} has a text of {sizes['max']} bytes; at most {MAX_KEY_BYTES} are allowed"
            )
    if _repeats(column):
        coded = column.dictionary_encode(null_encoding="encode")
        if len(coded.dictionary) * 4 <= count or len(coded.dictionary) == 1:
            return CodedText(coded.dictionary.to_pylist(), _ints(np.asarray(coded.indices)))
    nulls = None
    if column.null_count:
        nulls = np.asarray(column.is_null().cast(pa.uint8())).tobytes()
        column = column.fill_null("")
    bounds = _bounds(column)
    return PlainText(_ints(np.diff(bounds)), bytes(_data(column, bounds)), nulls)


def _repeats(column: pa.Array) -> bool:
    """Returns True if values may repeat often enough for a dictionary.

    It checks a sample, which saves making a dictionary in vain.
    """
    count = len(column)
    if count <= 4 * _SAMPLE:
        return True
    rows = pa.array(np.arange(0, count, count // _SAMPLE))
    return len(pc.unique(column.take(rows))) * 2 <= len(rows) or len(pc.unique(column.slice(0, _SAMPLE))) * 2 <= _SAMPLE


def _headers(column: pa.Array) -> Headers | None:
    if column.null_count:
        column = pc.coalesce(column, pa.array([[]], column.type).take(pa.array(np.zeros(len(column), dtype=np.int8))))
    bounds = np.asarray(column.offsets)
    total = int(bounds[-1] - bounds[0])
    if not total:
        return None
    counts = np.diff(bounds)
    if int(counts.max()) > MAX_HEADERS:
        raise ConfigError(f"a row has {int(counts.max())} headers; at most {MAX_HEADERS} are allowed")
    names = column.keys.slice(int(bounds[0]), total)
    values = column.items.slice(int(bounds[0]), total)
    if values.null_count or names.null_count or pc.min(pc.binary_length(names)).as_py() == 0:
        raise ConfigError("the column headers maps text to text: no header may be null or have an empty name")
    packed = [_text(part, "headers", checked=False) for part in (names, values)]
    return Headers(_ints(counts), total, *packed)


def _times(column: pa.Array) -> SignedInts | None:
    """Returns the times in milliseconds; a row without a time gets the time of its commit."""
    if column.null_count == len(column):
        return None
    if column.null_count:
        column = column.fill_null(pa.scalar(int(time.time() * 1_000_000), pa.int64()).cast(column.type))
    micros = np.asarray(column.cast(pa.int64()))
    ms = np.floor_divide(micros, 1000)
    first = int(ms[0])
    return first if (ms == first).all() else ms.astype("<i8").tobytes()


def _check_json(payload: pa.Array, data: memoryview, bounds: _Bounds) -> None:
    """Raises ConfigError when a payload is not one JSON value, because no reader could read it later."""
    if _all_objects(payload, data, bounds):
        return
    starts = (bounds - bounds[0]).tolist()
    for start, stop in pairwise(starts):
        try:
            _values.decode(data[start:stop])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = bytes(data[start : min(stop, start + 60)]).decode(errors="replace")
            raise ConfigError(
                f"a payload is not JSON: {shown!r} ({error}). Write it with to_json, give the column payload as a "
                "struct, or as binary for bytes"
            ) from error


def _all_objects(payload: pa.Array, data: memoryview, bounds: _Bounds) -> bool:
    """Returns True if every payload is one JSON object or array, by one check of all payloads; False may also mean
    unknown.

    The payloads are read as lines. When a line ends in a bracket and the next line begins with a bracket, no value can
    reach across the end of the line: a container would lack a comma there, and a text cannot contain an end of line. So
    each line holds whole values, at least one. The number of values equals the number of lines only if each line holds
    exactly one value.
    """
    count = len(payload)
    if not (np.diff(bounds) > 1).all():
        return False
    text = np.frombuffer(data, dtype=np.uint8)
    firsts, lasts = text[bounds[:-1] - bounds[0]], text[bounds[1:] - bounds[0] - 1]
    opened, closed = (firsts == 123) | (firsts == 91), (lasts == 125) | (lasts == 93)
    if not (opened & closed).all():
        return False
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), payload), "\n")
    try:
        decoder = _objects if (firsts == 123).all() else _values
        return len(decoder.decode_lines(lines[0].as_buffer())) == count
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
