"""Sending a projection class to Spark's workers, together with the event types it handles.

A class that workers can import is sent by name, and the import declares its event types there as it did here. A class
of the program itself (a script, a notebook, a test) has to be sent as what it is made of. pickle's usual way, an empty
class that is filled later, does not work for classes that check themselves when they are made; so its parts are sent,
and the class is made from them anew.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import msgspec

from penstock.entity.projection.folding import folder_of
from penstock.entity.projection.projection import _KINDS as KINDS
from penstock.entity.projection.projection import Projection, check_projection
from penstock.schema import Schema, event, schema_of, schema_of_type, upcast
from penstock.spark.projection.states import field_types

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
