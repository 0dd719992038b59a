"""Sending a projection class to Spark's workers, together with the event types it handles.

A class that workers can import is sent by name, and the import declares its event types there as it did here. A class
of the program itself (a script, a notebook, a test) has to be sent as what it is made of. pickle's usual way, an empty
class that is filled later, does not work for classes that check themselves when they are made; so its parts are sent,
and the class is made from them anew.

States come back as a struct with the projection's fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import types as T

from penstock.entity.projection import _KINDS as KINDS
from penstock.entity.projection import Projection, check_projection, folder_of
from penstock.errors import ConfigError
from penstock.schema import Schema, event, schema_of, schema_of_type, upcast
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


cloudpickle: Any = importlib.import_module("pyspark.cloudpickle.cloudpickle")  # has no types

_GENERATED = frozenset({"__eq__", "__init__", "__replace__", "__repr__"})
"""Methods that dataclasses add to a class."""


class _FieldParts(NamedTuple):
    annotation: object
    default: object = None
    factory: Callable[[], object] | None = None


class _ClassParts(NamedTuple):
    """What a projection class is made of."""

    name: str
    qualname: str
    bases: list[type[Any] | _ClassParts]
    version: int
    filed: str
    """The name its snapshots are kept under."""
    fingerprint: str
    fields: dict[str, _FieldParts]
    namespace: dict[str, object]


class _SchemaParts(NamedTuple):
    """What an event type is made of: a struct's name, fields and options, or a type that is sent as it is."""

    kind: str
    version: int
    type: type[object] | tuple[str, list[tuple[Any, ...]], dict[str, Any]] | None
    upcasters: dict[int, Callable[[Any], object]]


class Shipped:
    """A projection class on its way; `projection` is the class on either side."""

    def __init__(self, projection: type[Projection]) -> None:
        check_projection(projection)
        self.projection = projection

    def __reduce__(self) -> tuple[Callable[[bytes], Shipped], tuple[bytes]]:
        kinds = sorted(folder_of(self.projection).kinds)
        schemas = [parts for kind in kinds if (parts := _parts_of_schema(kind)) is not None]
        with _by_value([*self.projection.__mro__, *(made for schema in schemas for made in _makers(schema))]):
            return _arrive, (cloudpickle.dumps((_parts_of(self.projection), schemas)),)


def importable(cls: type[object] | FunctionType) -> bool:
    """Whether a worker, which is another program with another search path, can import a class."""
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
    """Where a new interpreter looks for modules."""
    asked = [sys.executable, "-P", "-c", "import sys; print(*sys.path, sep=chr(10))"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(str(Path(entry).resolve()) for entry in found if entry) | frozenset(found)


def _parts_of(cls: type[Any]) -> type[Any] | _ClassParts:
    if cls is Projection or importable(cls):
        return cls
    own = {field.name: field for field in dataclasses.fields(cls)}
    namespace = {name: _plain(value) for name, value in vars(cls).items() if name not in own and _is_own(name, value)}
    fields: dict[str, _FieldParts] = {}
    known = field_types(cls)
    for name, written in cls.__annotations__.items():
        annotation = known.get(name, written)
        field = own.get(name)
        if field is None:
            fields[name] = _FieldParts(annotation)
        elif field.default_factory is not dataclasses.MISSING:
            fields[name] = _FieldParts(annotation, factory=field.default_factory)
        else:
            fields[name] = _FieldParts(annotation, field.default)
    declared = cls.__projection__
    bases = [_parts_of(base) for base in cls.__bases__]
    return _ClassParts(
        cls.__name__, cls.__qualname__, bases, declared.version, declared.name, declared.fingerprint, fields, namespace
    )


def _is_own(name: str, value: object) -> bool:
    """Whether the class's author wrote it: not what dataclasses, typing or msgspec leave on a class."""
    if name in _GENERATED:
        return False
    return not (name.startswith("__") and name.endswith("__")) or isinstance(value, types.FunctionType)


def _plain(value: object) -> object:
    """A handler that names the types it asks for instead of holding them: those are made anew where it arrives."""
    if not isinstance(value, types.FunctionType):
        return value
    copy = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
    copy.__kwdefaults__ = value.__kwdefaults__
    copy.__qualname__ = value.__qualname__
    copy.__module__ = value.__module__
    copy.__annotations__ = {
        name: annotation.__name__ if _schema(annotation) else annotation
        for name, annotation in value.__annotations__.items()
    }
    for name, held in vars(value).items():
        setattr(copy, name, tuple(map(_kind_of, held)) if name == KINDS else held)
    return copy


def _kind_of(kind: object) -> object:
    schema = _schema(kind)
    return kind if schema is None else schema.kind


def _schema(annotation: object) -> Schema | None:
    return schema_of_type(annotation) if isinstance(annotation, type) else None


def _made_of(parts: type[Any] | _ClassParts) -> type[Any]:
    if isinstance(parts, type):
        return parts

    def fill(body: dict[str, object]) -> None:
        body.update(parts.namespace)
        body["__qualname__"] = parts.qualname
        body["__annotations__"] = {name: field.annotation for name, field in parts.fields.items()}
        for name, field in parts.fields.items():
            if name not in parts.namespace:
                made = field.factory
                body[name] = field.default if made is None else dataclasses.field(default_factory=made)

    options = {"version": parts.version, "name": parts.filed}
    made: type[Any] = types.new_class(parts.name, tuple(map(_made_of, parts.bases)), options, fill)
    made.__projection__.fingerprint = parts.fingerprint  # of the annotations as they were written
    return made


def _parts_of_schema(kind: str) -> _SchemaParts | None:
    schema = schema_of(kind)
    if schema is None or (schema.type is not None and importable(schema.type)):
        return None
    if schema.type is not None and issubclass(schema.type, msgspec.Struct):
        options = {"frozen": schema.type.__struct_config__.frozen, "rename": None}
        fields = [_field_parts(field) for field in msgspec.structs.fields(schema.type)]
        return _SchemaParts(kind, schema.version, (schema.type.__name__, fields, options), dict(schema.upcasters))
    return _SchemaParts(kind, schema.version, schema.type, dict(schema.upcasters))


def _field_parts(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.default is not msgspec.NODEFAULT:
        return field.name, field.type, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type


@contextmanager
def _by_value(things: list[type[object] | FunctionType]) -> Iterator[None]:
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


def _makers(schema: _SchemaParts) -> list[Any]:
    return [*schema.upcasters.values(), *([schema.type] if isinstance(schema.type, type) else [])]


def _arrive(packed: bytes) -> Shipped:
    parts, schemas = cloudpickle.loads(packed)
    for kind, version, type_, upcasters in schemas:
        known = schema_of(kind)
        if type_ is not None and (known is None or known.type is None):
            made = type_ if isinstance(type_, type) else msgspec.defstruct(type_[0], type_[1], **type_[2])
            event(kind, version=version)(made)
        for step, function in upcasters.items():
            if known is None or step not in known.upcasters:
                upcast(kind, version=step)(function)
    return Shipped(_made_of(parts))
