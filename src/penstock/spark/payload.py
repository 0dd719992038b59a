"""Payloads as Spark's types: the types with a JSON form, their JSON text, and the events on which a task crashed."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from penstock.core.documents.payloads import is_variant
from penstock.errors import ConfigError
from penstock.spark.versions import TIMES

_PLAIN: tuple[type[T.DataType], ...] = (
    T.NullType,
    T.BooleanType,
    T.IntegralType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    T.VariantType,
    *TIMES,
)


def check_form(path: str, kind: T.DataType) -> None:
    """Raises ConfigError, with the name of the column, for a type without a JSON form that gives equal values back."""
    if isinstance(kind, T.StructType):
        names = [field.name for field in kind.fields]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(f"the column {path!r} has the field {twice!r} twice")
        for field in kind.fields:
            check_form(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, T.ArrayType):
        check_form(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, _PLAIN) or isinstance(kind.keyType, T.NullType | T.CharType | T.VarcharType):
            raise ConfigError(
                f"the column {path!r} is a map with keys of the type {kind.keyType.simpleString()}; JSON has text there"
            )
        check_form(f"{path}[]", kind.valueType)
    elif not isinstance(kind, _PLAIN) or isinstance(kind, T.CharType | T.VarcharType):
        advice = "use STRING" if isinstance(kind, T.CharType | T.VarcharType) else "cast it to text or a number"
        raise ConfigError(f"the column {path!r} has the type {kind.simpleString()}, which has no JSON form: {advice}")


_CONTROL = r"[\x00-\x1f]"
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Microseconds since 1970."""
_quote = msgspec.json.Encoder().encode


def json_text(column: pa.Array, name: str = "payload") -> pa.Array:
    """Returns the JSON form of every value, as a string column without nulls: a null is the text null.

    `forms` says what it looks like. NaN, infinities and years beyond 9999 have none: ConfigError.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not len(column):
        return pa.array([], pa.string())
    text = _text(column, name)
    if column.null_count:
        text = pc.if_else(pc.is_valid(column), text, "null")
    return text


def _text(column: pa.Array, name: str) -> pa.Array:
    """Returns the text of values; the text of nulls is of no importance."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat("null", len(column))
    if pa.types.is_boolean(kind):
        return pc.if_else(column.fill_null(False), "true", "false")
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _filled(column.cast(pa.string()))
    if pa.types.is_floating(kind):
        return _float_text(column, name)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(_filled(column.cast(pa.string())))
    if pa.types.is_date(kind):
        return _joined('"', _filled(_in_years(column, name).cast(pa.string())), '"')
    if pa.types.is_timestamp(kind):
        return _joined('"', _filled(_time_text(column, name)), "Z" if kind.tz else "", '"')
    if pa.types.is_time(kind):
        return _joined('"', _filled(column.cast(pa.time64("us"), safe=False).cast(pa.string())), '"')
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encoded = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return _joined('"', _filled(pa.array(encoded, pa.string())), '"')
    if pa.types.is_duration(kind):
        return _filled(
            pa.array([None if one is None else _quote(one).decode() for one in column.to_pylist()], pa.string())
        )
    if is_variant(kind):
        return _variant_text(column)
    if pa.types.is_struct(kind):
        return _struct_text(column, name)
    if pa.types.is_map(kind):
        return _map_text(column, name)
    if pa.types.is_list(kind):
        return _list_text(column.offsets, json_text(column.values, f"{name}[]"), "[", "]")
    raise ConfigError(f"column {name!r} has the type {kind}, which has no JSON form: cast it to text")


def _time_text(column: pa.Array, name: str) -> pa.Array:
    """Times as ISO 8601, in UTC: Spark hands them over in the session's zone."""
    if column.type.tz:
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    return pc.binary_replace_slice(_in_years(column, name).cast(pa.string()), 10, 11, "T")


def _in_years(column: pa.Array, name: str) -> pa.Array:
    """Returns the column, when its years have four digits."""
    if len(column) > column.null_count:
        bounds = pc.min_max(column.cast(pa.timestamp("us")).cast(pa.int64()))
        if bounds["min"].as_py() < _YEAR_1 or bounds["max"].as_py() >= _YEAR_10000:
            raise ConfigError(f"column {name!r} holds a time outside of the years 1 to 9999, which ISO 8601 cannot say")
    return column


def _struct_text(column: pa.Array, name: str) -> pa.Array:
    pieces: list[pa.Array | str] = ["{"]
    for at, (field, values) in enumerate(zip(column.type, column.flatten(), strict=True)):
        label = _quote(field.name).decode()
        pieces.append(f"{',' if at else ''}{label}:")
        pieces.append(json_text(values, f"{name}.{field.name}"))
    pieces.append("}")
    return _joined(*pieces) if column.type.num_fields else pa.repeat("{}", len(column))


def _variant_text(column: pa.Array) -> pa.Array:
    from pyspark.sql.variant_utils import VariantUtils

    found = column.to_pylist()
    texts = [None if one is None else VariantUtils.to_json(one["value"], one["metadata"]) for one in found]
    return _filled(pa.array(texts, pa.string()))


def _map_text(column: pa.Array, name: str) -> pa.Array:
    keys, values = column.keys, column.items
    labels = keys if pa.types.is_string(keys.type) else json_text(keys, name)
    if not pa.types.is_string(keys.type) and len(labels) and pc.any(pc.starts_with(labels, '"')).as_py():
        labels = pc.utf8_slice_codeunits(labels, 1, -1)
    pairs = _joined(_quoted(labels), ":", json_text(values, f"{name}[]"))
    return _list_text(column.offsets, pairs, "{", "}")


def _list_text(offsets: object, values: object, opening: str, closing: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(offsets, values)
    return _joined(opening, pc.binary_join(lists, ","), closing)


def _float_text(column: pa.Array, name: str) -> pa.Array:
    if not pc.all(pc.is_finite(column.fill_null(0)), min_count=0).as_py():
        raise ConfigError(f"column {name!r} holds NaN or an infinity, which JSON cannot say; use null or text instead")
    text = _filled(column.cast(pa.string()))
    whole = pc.match_substring_regex(text, r"^-?[0-9]+$")
    return pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)


def _quoted(column: pa.Array) -> pa.Array:
    """Returns text in quotes, with JSON escapes."""
    if _needs_escapes(column):
        for plain, escaped in _ESCAPES:
            column = pc.replace_substring(column, plain, escaped)
        if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():  # the rare ones
            column = pa.array([_spelled(value) for value in column.to_pylist()], pa.string())
    return _joined('"', column, '"')


def _needs_escapes(column: pa.Array) -> bool:
    """Returns True if any byte of the column is a quote, a backslash or a control character; asking by row is far
    slower."""
    held = column.buffers()[2]
    if held is None:
        return False
    data = np.frombuffer(held, dtype=np.uint8)
    return bool(((data < 32) | (data == 34) | (data == 92)).any())


def _spelled(escaped: str) -> str:
    return "".join(character if character >= " " else f"\\u{ord(character):04x}" for character in escaped)


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null("") if column.null_count else column


def _joined(*pieces: object) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, "")


R = TypeVar("R")

_MARK = "penstock, decoding "
_CRASHED = re.compile(r"Fatal Python error: ([^\n]+)")
_EVENTS = re.compile(rf'File "{_MARK}([^"\n]+)"')


def _do(work: Callable[[], object]) -> object:
    return work()


def decoding(topic: str, first: int, last: int, work: Callable[[], R]) -> R:
    """Returns the result of `work`; should the process crash meanwhile, its traceback names the events."""
    code = _do.__code__.replace(co_filename=f"{_MARK}topic {topic}, events {first} to {last}")
    found: R = FunctionType(code, {})(work)
    return found


def crash_of(text: str) -> str | None:
    """Returns the events that Spark's error of a crashed task was decoding; None when it is of another kind."""
    crashed, events = _CRASHED.search(text), _EVENTS.search(text)
    if crashed is None or events is None:
        return None
    return (
        f"a worker crashed ({crashed[1].strip()}) while it decoded payloads of {events[1]}: they would do it "
        "again. Leave them out (startingOffsets, kinds, keys), or read them without payloadSchema"
    )
