"""Sending a projection class to Spark's workers, together with the event types it handles.

A class that workers can import is sent by name, and the import declares its event types there. A class of the program
itself (a script, a notebook, a test) is sent by value, with its event types.

States come back as a struct with the projection's fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import io
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from penstock.core.entity.projection import Projection, check_projection, folder_of, on
from penstock.core.schema import event, schema_of, schema_of_type, upcast
from penstock.errors import ConfigError
from penstock.spark.versions import arrow_schema_of

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
    """Returns the columns of a projected frame: key, generation, state."""
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
    """Returns the types of a class's fields, as far as they can be said."""
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
    """Returns the Spark type of a field; text (JSON) for a type that Spark does not have."""
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
        self.schema = arrow_schema_of(schema)
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
                raise _type_error(name, keys, values, convert, kind.field(at).type) from error
        if columns:
            struct = pa.StructArray.from_arrays(columns, fields=list(kind))
        else:
            struct = pa.array([{}] * len(states), kind)
        return pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.string()), pa.array(generations, pa.int64()), struct], schema=self.schema
        )


def _column(values: list[Any], convert: _Convert | None, kind: pa.DataType) -> pa.Array:
    return pa.array(values if convert is None else list(map(convert, values)), kind)


def _type_error(
    name: str, keys: list[str], values: list[Any], convert: _Convert | None, kind: pa.DataType
) -> ConfigError:
    """Returns the problem of the first value of a field that does not fit its column."""
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
    """Returns the function that makes a value acceptable to Arrow for a type; None where it is one already."""
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
    """Returns a whole number; raises for 1.5, which Arrow would cut to 1."""
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


cloudpickle: Any = importlib.import_module("pyspark.cloudpickle.cloudpickle")  # has no types


class Shipped:
    """A projection class on its way; `projection` is the class on either side."""

    def __init__(self, projection: type[Projection]) -> None:
        check_projection(projection)
        self.projection = projection

    def __reduce__(self) -> tuple[Callable[[bytes], Shipped], tuple[bytes]]:
        schemas = [
            schema for kind in sorted(folder_of(self.projection).kinds) if (schema := schema_of(kind)) is not None
        ]
        upcasters = {(schema.kind, step): function for schema in schemas for step, function in schema.upcasters.items()}
        types_ = [schema.type for schema in schemas if schema.type is not None]
        with _by_value([*self.projection.__mro__, *types_, *upcasters.values()]):
            return _arrive, (_packed((self.projection, types_, upcasters)),)


def _packed(things: object, declared: type[object] | None = None) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file, declared).dump(things)
        return file.getvalue()


def _arrive(packed: bytes) -> Shipped:
    projection, _, upcasters = cloudpickle.loads(packed)
    for (kind, step), function in upcasters.items():
        known = schema_of(kind)
        if known is None or step not in known.upcasters:
            upcast(kind, version=step)(function)
    return Shipped(projection)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Sends a class that workers cannot import as what it is made of; an event type is declared where it arrives."""

    def __init__(self, file: io.BytesIO, declared: type[object] | None) -> None:
        super().__init__(file)
        self._declared = declared
        """The event type that is sent, where it is its declaration's turn."""

    def reducer_override(self, thing: Any) -> Any:
        if thing is dataclasses.MISSING:
            return getattr, (dataclasses, "MISSING")  # others ask whether it is this one
        if not isinstance(thing, type) or importable(thing):
            return super().reducer_override(thing)
        schema = schema_of_type(thing)
        if issubclass(thing, msgspec.Struct):
            fields = [_field_parts(field) for field in msgspec.structs.fields(thing)]
            making = partial(msgspec.defstruct, thing.__name__, fields, frozen=thing.__struct_config__.frozen)
        elif schema is not None and thing is not self._declared:
            making = partial(cloudpickle.loads, _packed(thing, thing))
        else:
            reduced = super().reducer_override(thing)
            if reduced is NotImplemented or not dataclasses.is_dataclass(thing):
                return reduced
            make, (kind, name, bases, body, *more), (state, slots), *rest = reduced
            state.pop("__msgspec_cache__", None)  # made anew when it is wanted
            if issubclass(thing, Projection):  # made empty, and filled then; but a projection refuses to handle nothing
                body = {**body, "_at_first": _at_first}
            return make, (kind, name, bases, body, *more), (state, slots), *rest
        return _made, (making, *(("", 0) if schema is None else (schema.kind, schema.version)))


@on("penstock.none")
def _at_first(self: Projection) -> None:
    """Stands for the handler of a projection that is not filled yet."""


def _made(making: Callable[[], type[object]], kind: str, version: int) -> type[object]:
    """Returns a class from its parts; of an event type that was declared here before, the one that was."""
    known = schema_of(kind) if kind else None
    if known is not None and known.type is not None:
        return known.type
    return event(kind, version=version)(making()) if kind else making()


def importable(cls: type[object] | FunctionType) -> bool:
    """Returns True if a worker, which is another program with another search path, can import a class."""
    module = getattr(cls, "__module__", "__main__")
    if module == "__main__" or "<locals>" in cls.__qualname__:
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    depth = module.count(".") + (Path(spec.origin).stem == "__init__")
    return str(Path(spec.origin).parents[depth]) in _fresh_path()


@cache
def _fresh_path() -> frozenset[str]:
    """Returns the path on which a new interpreter looks for modules."""
    asked = [sys.executable, "-P", "-c", "import sys; print(*sys.path, sep=chr(10))"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(str(Path(entry).resolve()) for entry in found if entry) | frozenset(found)


def _field_parts(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.default is not msgspec.NODEFAULT:
        return field.name, field.type, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type


@contextmanager
def _by_value(things: Iterable[Any]) -> Iterator[None]:
    """Functions of modules that workers cannot import travel as what they are, not by name."""
    names = {thing.__module__ for thing in things if not importable(thing)} - {"__main__", "builtins"}
    already = cloudpickle.list_registry_pickle_by_value()
    added = [sys.modules[name] for name in names if name in sys.modules and name not in already]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
