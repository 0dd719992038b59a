"""Fields of JSON payloads as Arrow columns: all rows at once where they fit, row by row where they do not.

Arrow's JSON reader is fast and refuses a whole block for one row. A refused block is halved until few rows are left.
msgspec reads these rows one at a time, with types made from the same schema and errors that name the field. Both give
equal values for every row that both take. A schema with maps is read by msgspec alone: Arrow's reader has none.

Arrow's reader crashes the process when the first document is null, so it gets only objects.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from penstock.errors import ConfigError

_FEW = 32
"""Rows that are read one at a time once Arrow's reader has refused them together."""
_Mask = NDArray[np.bool_]
_Rows = NDArray[np.integer]
_OPEN, _CLOSE, _NULL = ord("{"), ord("}"), ord("n")


class Misfit(NamedTuple):
    """A payload that a schema does not fit."""

    row: int
    reason: str


class ParsedColumns(NamedTuple):
    """The fields of some payloads."""

    columns: list[pa.Array]
    absent: _Mask | None
    """A mask of the rows whose payload is null or does not fit: all their fields are null. None without such rows."""
    misfits: list[Misfit]


class PayloadParser:
    """Parses payloads by a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            _check_names(field)
        self.schema = schema
        self._wire = pa.schema([field.with_type(_wire_type(field.type)) for field in schema])
        self._quick = all(_is_quick(field.type) for field in schema)

    def parse(self, payloads: pa.BinaryArray, binary: _Mask | None = None) -> ParsedColumns:
        """Returns the fields of a binary column of JSON texts; `binary` marks rows whose payloads need not be JSON
        at all.
        """
        count = len(payloads)
        bounds = np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset : payloads.offset + count + 1]
        held = payloads.buffers()[2]
        data = np.zeros(0, np.uint8) if held is None else np.frombuffer(held, dtype=np.uint8)
        lengths = np.diff(bounds)
        firsts, lasts = _byte_of_each(data, bounds[:-1], lengths), _byte_of_each(data, bounds[1:] - 1, lengths)
        objects = (firsts == _OPEN) & (lasts == _CLOSE) & (lengths > 1)
        if binary is not None:
            objects &= ~binary
        rows = np.arange(count)
        if self._quick and objects.all():
            return _in_row_order(self.schema, self._pieces(payloads, rows), count)
        nulls = (firsts == _NULL) & (lengths == 4)
        if binary is not None:
            nulls &= ~binary
        pieces: list[_ParsedRows] = []
        if nulls.any():
            pieces.append(_ParsedRows(rows[nulls], [pa.nulls(int(nulls.sum()), field.type) for field in self.schema]))
        if self._quick and objects.any():
            pieces.extend(self._pieces(payloads.filter(pa.array(objects)), rows[objects]))
            rest = ~(objects | nulls)
        else:
            rest = ~nulls
        if rest.any():
            pieces.append(self._one_by_one(payloads.filter(pa.array(rest)), rows[rest]))
        return _in_row_order(self.schema, pieces, count, nulls)

    # ── all at once ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _pieces(self, payloads: pa.BinaryArray, rows: _Rows) -> Iterator[_ParsedRows]:
        """Yields the rows of objects, in as few pieces as they fit; `rows` holds their numbers."""
        count = len(payloads)
        if not count:
            return
        columns = self._together(payloads)
        if columns is not None:
            yield _ParsedRows(rows, columns)
        elif count <= _FEW:
            yield self._one_by_one(payloads, rows)
        else:
            half = count // 2
            yield from self._pieces(payloads.slice(0, half), rows[:half])
            yield from self._pieces(payloads.slice(half), rows[half:])

    def _together(self, payloads: pa.BinaryArray) -> list[pa.Array] | None:
        """Returns the fields of all rows by Arrow's reader; None when the reader refuses a row."""
        count = len(payloads)
        bounds = np.frombuffer(payloads.buffers()[1], dtype=np.int32)
        start, stop = int(bounds[payloads.offset]), int(bounds[payloads.offset + count])
        text = payloads.buffers()[2].slice(start, stop - start)
        try:
            table = pa.json.read_json(
                pa.BufferReader(text),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=stop - start + 1),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=self._wire, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
            if table.num_rows != count:
                return None
            return [_typed(_whole(table.column(field.name)), field.type) for field in self.schema]
        except (pa.ArrowInvalid, UnicodeDecodeError, Unfit):
            return None

    # ── row by row ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _one_by_one(self, payloads: pa.BinaryArray, rows: _Rows) -> _ParsedRows:
        """Parses every row by itself, and returns the errors of rows that do not fit."""
        convert = [converter(field.type) for field in self.schema]
        names = [f"f{at}" for at in range(len(self.schema))]
        values: list[list[object]] = [[] for _ in names]
        misfits = []
        bounds = np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset :].tolist()
        text = memoryview(payloads.buffers()[2] or b"")
        for at, row in enumerate(rows.tolist()):
            try:
                decoded = self._decoder.decode(text[bounds[at] : bounds[at + 1]])
                found = [
                    converted(None if decoded is None else getattr(decoded, name), change, field.name)
                    for name, change, field in zip(names, convert, self.schema, strict=True)
                ]
            except (msgspec.DecodeError, UnicodeDecodeError, Unfit) as error:
                misfits.append(Misfit(row, reason_of(error)))
                found = [None] * len(names)
            for column, value in zip(values, found, strict=True):
                column.append(value)
        columns = [pa.array(column, field.type) for column, field in zip(values, self.schema, strict=True)]
        return _ParsedRows(rows, columns, misfits)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[object]:
        return msgspec.json.Decoder(struct_type(list(self.schema)) | None)

    def __reduce__(self) -> tuple[type[PayloadParser], tuple[pa.Schema]]:
        return PayloadParser, (self.schema,)


class _ParsedRows(NamedTuple):
    """Several parsed rows."""

    rows: _Rows
    columns: list[pa.Array]
    misfits: list[Misfit] = []


def _in_row_order(
    schema: pa.Schema, parsed: Iterable[_ParsedRows], count: int, nulls: _Mask | None = None
) -> ParsedColumns:
    """Returns the pieces in the order of their rows."""
    pieces: list[_ParsedRows] = list(parsed)
    misfits = [misfit for piece in pieces for misfit in piece.misfits]
    absent = nulls if nulls is not None and nulls.any() else None
    if misfits:
        absent = np.zeros(count, bool) if absent is None else absent.copy()
        absent[[misfit.row for misfit in misfits]] = True
        misfits.sort()
    if len(pieces) == 1:
        return ParsedColumns(pieces[0].columns, absent, misfits)
    if not pieces:
        return ParsedColumns([pa.nulls(0, field.type) for field in schema], None, [])
    order = np.concatenate([piece.rows for piece in pieces])
    back = None if (np.diff(order) == 1).all() else pa.array(np.argsort(order))
    columns = []
    for at in range(len(schema)):
        whole = pa.concat_arrays([piece.columns[at] for piece in pieces])
        columns.append(whole if back is None else whole.take(back))
    return ParsedColumns(columns, absent, misfits)


def _byte_of_each(data: NDArray[np.uint8], offsets: _Rows, lengths: _Rows) -> NDArray[np.uint8]:
    """Returns a byte of each row; 0 for an empty one."""
    if not data.size:
        return np.zeros(len(offsets), np.uint8)
    return np.where(lengths > 0, data[np.clip(offsets, 0, data.size - 1)], 0)


def _check_names(field: pa.Field) -> None:
    """Raises ConfigError for a name that must be escaped in JSON: there are several ways to escape it, and msgspec
    supports none of them.
    """
    if any(character in '"\\' or character < " " for character in field.name):
        raise ConfigError(f"payloadSchema: the field {field.name!r} cannot be asked for by name; use from_json")
    inner = field.type
    for child in (inner.field(at) for at in range(inner.num_fields)):
        _check_names(child)


def is_variant(kind: pa.DataType) -> bool:
    """Returns True when a type is Spark's form of a VARIANT: a value and the names in it."""
    return pa.types.is_struct(kind) and any(b"variant" in (field.metadata or {}) for field in kind)


# ── types for Arrow's reader ─────────────────────────────────────────────────────────────────────────────────────────
def _is_quick(kind: pa.DataType) -> bool:
    """Returns True when Arrow's reader reads a type. It reads no maps and variants, and it breaks lists of nulls."""
    unread = (pa.types.is_map, pa.types.is_null, is_variant)
    return not any(check(inner) for inner in _innermost(kind) for check in unread)


def _innermost(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields the types of the values in structs and lists, however deep; a type that is neither is its own."""
    if pa.types.is_struct(kind) and not is_variant(kind):
        for field in kind:
            yield from _innermost(field.type)
    elif pa.types.is_list(kind):
        yield from _innermost(kind.value_type)
    else:
        yield kind


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type that Arrow's reader reads: text where it cannot read the type, or reads it too loosely."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wire_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wire_type(kind.value_type)))
    if any(check(kind) for check in (pa.types.is_date, pa.types.is_time, pa.types.is_binary, pa.types.is_duration)):
        return pa.string()
    return pa.string() if pa.types.is_timestamp(kind) and kind.tz is None else kind


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns a column of a wire type as the type it stands for; an error when a value does not fit."""
    if pa.types.is_float32(kind):
        if pc.any(pc.is_inf(column)).as_py():
            raise Unfit
        return column
    if pa.types.is_decimal(kind):
        if pc.any(pc.greater_equal(pc.abs(column), Decimal(10) ** (kind.precision - kind.scale))).as_py():
            raise Unfit
        return column
    if column.type == kind and not _has_lax(kind):
        return column
    if pa.types.is_struct(kind):
        fields = [_typed(column.field(at), field.type) for at, field in enumerate(kind)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask) if fields else column.cast(kind)
    if pa.types.is_list(kind):
        mask = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(column.offsets, _typed(column.values, kind.value_type), kind, mask=mask)
    if pa.types.is_time(kind):
        whole = pc.binary_join_element_wise("1970-01-01T", column, "")
        if not pc.all(pc.match_substring_regex(column, r"^\d\d:\d\d:\d\d"), min_count=0).as_py():
            raise Unfit
        return whole.cast(pa.timestamp("us")).cast(pa.time64("us")).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([from_base64(value) for value in column.to_pylist()], kind)
    if pa.types.is_duration(kind):
        return pa.array([None if value is None else _duration(value) for value in column.to_pylist()], kind)
    return column.cast(kind)


def _has_lax(kind: pa.DataType) -> bool:
    """Returns True when a type that is its own wire type contains a FLOAT or a DECIMAL, which Arrow's reader lets grow
    too large."""
    return any(pa.types.is_float32(inner) or pa.types.is_decimal(inner) for inner in _innermost(kind))


# ── Types and conversions for payloads that are read one at a time: msgspec decodes, these make Arrow's values of it ──


_FLOAT_MAX = 3.4028235677973366e38
"""The number from which a FLOAT is infinite."""


class Unfit(ValueError):
    """A value that its field does not take."""


def struct_type(fields: list[pa.Field]) -> type[msgspec.Struct]:
    """Returns a struct whose fields may be missing or null; their real names are its fields' names in JSON."""
    members = [(f"f{at}", _or_null(field.type), None) for at, field in enumerate(fields)]
    return msgspec.defstruct("Fields", members, rename={f"f{at}": field.name for at, field in enumerate(fields)})


def _or_null(kind: pa.DataType) -> Any:
    """Returns the type of a value that may be null; JSON as it is written has its own."""
    return msgspec.Raw if is_variant(kind) else _python_type(kind) | None


def _python_type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return struct_type(list(kind))
    if pa.types.is_map(kind):
        return dict[str, _or_null(kind.item_type)]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_or_null(kind.value_type)]  # type: ignore[misc]
    if pa.types.is_null(kind):
        return type(None)
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return int if kind.bit_width == 64 else Annotated[int, msgspec.Meta(ge=-most, lt=most)]
    if pa.types.is_floating(kind):
        return float
    return Decimal if pa.types.is_decimal(kind) else str


Converter = Callable[[Any], object]


def converted(value: object, convert: Converter | None, name: str) -> object:
    if value is None or convert is None:
        return value
    try:
        return convert(value)
    except (ValueError, ArithmeticError) as error:
        raise Unfit(f"{error} - at `$.{name}`") from error


def converter(kind: pa.DataType) -> Converter | None:
    """Converts a decoded value to one that Arrow takes for a type; None where none is needed."""
    if is_variant(kind):
        return variant_of
    if pa.types.is_struct(kind):
        return _struct_converter(kind)
    if pa.types.is_map(kind):
        return _map_converter(kind)
    if pa.types.is_list(kind):
        inner = converter(kind.value_type)
        return None if inner is None else lambda values: [None if one is None else inner(one) for one in values]
    if pa.types.is_integer(kind) and kind.bit_width == 64:
        return _long
    if pa.types.is_float32(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    return _text_converter(kind)


def _struct_converter(kind: pa.DataType) -> Converter:
    members = [(f"f{at}", field.name, converter(field.type)) for at, field in enumerate(kind)]

    def convert(value: object) -> dict[str, object]:
        found = ((name, getattr(value, slot), inner) for slot, name, inner in members)
        return {name: one if one is None or inner is None else inner(one) for name, one, inner in found}

    return convert


def _map_converter(kind: pa.DataType) -> Converter:
    from_key, from_value = _key_converter(kind.key_type), converter(kind.item_type)

    def convert(values: dict[str, object]) -> list[tuple[object, object]]:
        return [
            (from_key(key), value if value is None or from_value is None else from_value(value))
            for key, value in values.items()
        ]

    return convert


def _key_converter(kind: pa.DataType) -> Converter:
    """Returns a map's key from its text in JSON."""
    if pa.types.is_boolean(kind):
        return _switch
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda text: _whole_number(int(text), most)
    if pa.types.is_floating(kind):
        return (lambda text: _float(float(text))) if pa.types.is_float32(kind) else float
    if pa.types.is_decimal(kind):
        return lambda text: _decimal(Decimal(text), kind)
    return _text_converter(kind) or str


def _text_converter(kind: pa.DataType) -> Converter | None:
    """Converts text to a value of a type that JSON has no literal for; None where text is the value."""
    if pa.types.is_timestamp(kind):
        return _timestamp if kind.tz else _timestamp_ntz
    known = {pa.types.is_date: date.fromisoformat, pa.types.is_time: _time, pa.types.is_binary: from_base64}
    known[pa.types.is_duration] = _duration
    return next((convert for check, convert in known.items() if check(kind)), None)


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise Unfit(f"{text!r} is not true or false")
    return text == "true"


def _whole_number(value: int, most: int) -> int:
    if not -most <= value < most:
        raise Unfit(f"{value} is out of range")
    return value


def _long(value: int) -> int:
    return _whole_number(value, 1 << 63)


def _float(value: float) -> float:
    if not math.isfinite(value) or abs(value) >= _FLOAT_MAX:
        raise Unfit(f"{value} is out of the range of a FLOAT")
    return value


def _decimal(value: Decimal, kind: pa.DataType) -> Decimal:
    with localcontext(prec=100):
        scaled = value.scaleb(kind.scale) if value.is_finite() else Decimal("0.5")
        if scaled != scaled.to_integral_value() or abs(scaled) >= 10**kind.precision:
            raise Unfit(f"{value} does not fit DECIMAL({kind.precision},{kind.scale})")
    return value


def _timestamp(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _timestamp_ntz(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo:
        raise Unfit(f"{text!r} has an offset, and the field is a timestamp without one")
    return found


def _time(text: str) -> time:
    found = time.fromisoformat(text)
    if found.tzinfo:
        raise Unfit(f"{text!r} has an offset, and the field is a time without one")
    return found


def _duration(text: str) -> timedelta:
    try:
        return msgspec.convert(text, timedelta)
    except msgspec.ValidationError as error:
        raise Unfit(f"{text!r} is no duration like P1DT2H: {error}") from error


def variant_of(text: msgspec.Raw) -> dict[str, bytes] | None:
    """Returns JSON as Spark's VARIANT; null stays null."""
    from pyspark.sql.variant_utils import VariantUtils  # only Spark needs this import

    written = bytes(text)
    if written == b"null":
        return None
    value, metadata = VariantUtils.parse_json(written.decode())
    return {"value": value, "metadata": metadata}


def from_base64(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Unfit(f"it is not base64: {error}") from error


def reason_of(error: Exception) -> str:
    """Returns the reason with the field's name before it."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    return f"field {path!r}: {text}" if path else text
