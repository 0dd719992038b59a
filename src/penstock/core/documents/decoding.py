"""Decodes documents from outside into values of declared types, or raises a ConfigError that names the wrong field.

Unknown names are refused at every level, with the nearest known name: a misspelt field must not count as a missing
field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from msgspec import inspect as types

T = TypeVar("T")
Q = TypeVar("Q", bound=msgspec.Struct)


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def decoded(data: bytes, decode: Callable[[bytes], T], kind: object, what: str = "the body") -> T:
    """Returns a body as a value of the expected type."""
    try:
        return decode(data)
    except RecursionError:
        raise ConfigError(f"{what} cannot be used: it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} cannot be used: {misspelt_in(data, kind) or error}") from error


def misspelt_in(data: bytes, kind: object) -> str | None:
    """Returns a sentence about the first unknown field in a JSON text; None when every field is known, or the text
    is no JSON.
    """
    from msgspec.inspect import type_info  # imported here: only errors need it

    try:
        return _misspelt(msgspec.json.decode(data), type_info(kind), "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _misspelt(value: object, kind: types.Type, where: str) -> str | None:
    from msgspec import inspect as types

    if isinstance(kind, types.Metadata):
        return _misspelt(value, kind.type, where)
    if isinstance(kind, types.UnionType):
        wanted = types.StructType if isinstance(value, dict) else types.ListType
        return next((_misspelt(value, one, where) for one in kind.types if isinstance(one, wanted)), None)
    if isinstance(kind, types.ListType) and isinstance(value, list):
        found = (_misspelt(one, kind.item_type, f"{where}[{number}]") for number, one in enumerate(value))
        return next(filter(None, found), None)
    if isinstance(kind, types.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for name, inner in value.items():
            if name in fields:
                found_inside = _misspelt(inner, fields[name], f"{where}.{name}")
                if found_inside is not None:
                    return found_inside
            elif kind.cls.__struct_config__.forbid_unknown_fields:
                there = f" at {where.lstrip('.')}" if where else ""
                return f"there is no field {name[:80]!r}{there}{nearest(name, fields)}"
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence about an unknown name: the nearest known one, or all of them."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name[:80], names, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}" if names else ""


# ── query parameters ─────────────────────────────────────────────────────────────────────────────────────────────────
def query_of(given: Mapping[str, Sequence[str]], kind: type[Q]) -> Q:
    """Returns a query string's parameters as a struct.

    A parameter without a value counts as not given, a flag as given.
    """
    fields = _fields(kind)
    values: dict[str, object] = {}
    for name, texts in given.items():
        field = fields.get(name)
        if field is None:
            raise unknown_parameter(name, fields)
        if field.many:
            values[name] = [text for text in texts if text]
        elif texts[-1] or field.flag:
            values[name] = field.read(name, texts[-1])
    return kind(**values)


def refuse_parameters(given: Iterable[str]) -> None:
    """Refuses query parameters, for operations without parameters."""
    for name in given:
        raise unknown_parameter(name, ())


def unknown_parameter(name: str, known: Iterable[str]) -> ConfigError:
    if not list(known):
        return ConfigError(f"this takes no query parameters, and there is {name[:80]!r}")
    return ConfigError(f"there is no query parameter {name[:80]!r}{nearest(name, known)}")


class _Parameter:
    """A parameter: its type, and the sentence for a text that does not fit."""

    def __init__(self, field: msgspec.structs.FieldInfo) -> None:
        from msgspec import inspect as types

        kind = types.type_info(field.type)
        while isinstance(kind, types.Metadata):
            kind = kind.type
        options = kind.types if isinstance(kind, types.UnionType) else (kind,)
        self._type = field.type
        self.many = any(isinstance(one, types.ListType) for one in options)
        self.flag = any(isinstance(one, types.BoolType) for one in options)
        choices = next((one.values for one in options if isinstance(one, types.LiteralType)), ())
        if choices:
            self._rule = "is " + " or ".join(f'"{choice}"' for choice in choices)
        elif self.flag:
            self._rule = "is true or false"
        elif any(isinstance(one, types.IntType) for one in options):
            self._rule = "must be a whole number of at least 0"
        else:
            self._rule = "cannot be used"

    def read(self, name: str, text: str) -> object:
        if self.flag:
            text = {"": "true", "yes": "true", "no": "false"}.get(text.lower(), text)
        try:
            return msgspec.convert(text, self._type, strict=False)
        except msgspec.ValidationError:
            raise ConfigError(f"{name} {self._rule}, not {text[:40]!r}") from None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Parameter]:
    return {field.name: _Parameter(field) for field in msgspec.structs.fields(kind)}
