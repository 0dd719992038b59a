"""The states of a projection as Spark sees them: a struct with the projection's fields."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.entity.projection.projection import Projection
from penstock.errors import ConfigError

_PLAIN: dict[object, T.DataType] = {
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    str: T.StringType(),
    bytes: T.BinaryType(),
    datetime: T.TimestampType(),
    date: T.DateType(),
    Decimal: T.DecimalType(38, 18),
}
_Convert = Callable[[Any], object]
_json = msgspec.json.Encoder().encode


def result_schema(projection: type[Projection]) -> T.StructType:
    """The columns of a projected frame: key, generation, state."""
    hints = field_types(projection)
    fields = [T.StructField(name, spark_type(hints.get(name))) for name in _names(projection)]
    return T.StructType(
        [
            T.StructField("key", T.StringType()),
            T.StructField("generation", T.LongType()),
            T.StructField("state", T.StructType(fields)),
        ]
    )


def field_types(projection: type[object]) -> dict[str, object]:
    """The types of a class's fields, as far as they can be said."""
    try:
        return typing.get_type_hints(projection)
    except Exception:  # a name that cannot be resolved here: those fields are written as JSON text
        return {
            name: annotation
            for base in reversed(projection.__mro__)
            for name, annotation in getattr(base, "__annotations__", {}).items()
            if not isinstance(annotation, str)
        }


def spark_type(annotation: object) -> T.DataType:
    """The Spark type of a field; text (JSON) for what has no type of its own there."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        real = [argument for argument in arguments if argument is not type(None)]
        return spark_type(real[0]) if len(real) == 1 else T.StringType()
    if origin in (list, set, frozenset, Sequence) and arguments:
        return T.ArrayType(spark_type(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return T.ArrayType(spark_type(arguments[0]))
    if origin in (dict, Mapping) and arguments and arguments[0] in (str, int):
        return T.MapType(_PLAIN[arguments[0]], spark_type(arguments[1]))
    if isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation) or issubclass(annotation, msgspec.Struct)
    ):
        hints = field_types(annotation)
        return T.StructType([T.StructField(name, spark_type(hints.get(name))) for name in _names(annotation)])
    return T.StringType()


def _names(cls: type[object]) -> list[str]:
    if issubclass(cls, msgspec.Struct):
        return [field.name for field in msgspec.structs.fields(cls)]
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


class StateRows:
    """Makes record batches of states."""

    def __init__(self, schema: T.StructType) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        state = schema["state"].dataType
        assert isinstance(state, T.StructType)
        self._convert = [(field.name, _converter(field.dataType)) for field in state.fields]

    def batch(self, keys: list[str], generations: list[int], states: list[object]) -> pa.RecordBatch:
        columns = []
        kind = self.schema.field("state").type
        for at, (name, convert) in enumerate(self._convert):
            values = [getattr(state, name) for state in states]
            try:
                columns.append(_column(values, convert, kind.field(at).type))
            except (ValueError, TypeError, OverflowError) as error:
                raise _misfit(name, keys, values, convert, kind.field(at).type) from error
        if columns:
            struct = pa.StructArray.from_arrays(columns, fields=list(kind))
        else:
            struct = pa.array([{}] * len(states), kind)
        return pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.string()), pa.array(generations, pa.int64()), struct], schema=self.schema
        )


def _column(values: list[Any], convert: _Convert | None, kind: pa.DataType) -> pa.Array:
    return pa.array(values if convert is None else list(map(convert, values)), kind)


def _misfit(name: str, keys: list[str], values: list[Any], convert: _Convert | None, kind: pa.DataType) -> ConfigError:
    """What is wrong with the first value of a field that is none of its column's."""
    for key, value in zip(keys, values, strict=True):
        try:
            _column([value], convert, kind)
        except (ValueError, TypeError, OverflowError) as error:
            return ConfigError(
                f"the state of {key!r} has {name}={value!r:.80}, which does not fit the column that the field's "
                f"annotation makes, {kind}: {error}"
            )
    return ConfigError(f"the values of {name} do not fit into one column of {kind}")


def _converter(kind: T.DataType) -> _Convert | None:
    """What makes a value one that Arrow takes for a type; None where it is one already."""
    if isinstance(kind, T.StringType):
        return _as_text
    if isinstance(kind, T.LongType):
        return _as_whole
    if isinstance(kind, T.ArrayType):
        inner = _converter(kind.elementType)
        return _each(inner)
    if isinstance(kind, T.MapType):
        return _pairs(_converter(kind.valueType))
    if isinstance(kind, T.StructType):
        return _members([(field.name, _converter(field.dataType)) for field in kind.fields])
    return None


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return _json(value).decode()


def _as_whole(value: Any) -> int | None:
    """Arrow would cut 1.5 to 1, where the state in-process is 1.5."""
    if value is None:
        return None
    whole = int(value)
    if whole != value:
        raise ValueError(f"{value!r} is no whole number")
    return whole


def _each(convert: _Convert | None) -> _Convert:
    def apply(values: Iterable[object] | None) -> list[object] | None:
        if values is None:
            return None
        return list(values) if convert is None else [convert(value) for value in values]

    return apply


def _pairs(convert: _Convert | None) -> _Convert:
    def apply(values: Mapping[object, object] | None) -> list[tuple[object, object]] | None:
        if values is None:
            return None
        return [(key, value if convert is None else convert(value)) for key, value in values.items()]

    return apply


def _members(members: list[tuple[str, _Convert | None]]) -> _Convert:
    def apply(value: object) -> dict[str, object] | None:
        if value is None:
            return None
        found = {name: getattr(value, name) for name, _ in members}
        return {name: found[name] if convert is None else convert(found[name]) for name, convert in members}

    return apply
