"""Typed columns of sealed history: fields of payloads beside the JSON text, with types and statistics.

`customer STRING, total DOUBLE` names fields of the payload's object and their types. A payload that does not fit
leaves its row's typed columns empty; the JSON text beside them is always whole.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.documents.ddl import SchemaText, fields
from penstock.documents.payloads import PayloadParser
from penstock.errors import ConfigError

_TYPES: Mapping[str, pa.DataType] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "BINARY": pa.binary(),
}
"""The types that Parquet, Delta and Iceberg all have, by the names that Spark gives them."""
_DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_OF_PYTHON: tuple[tuple[type, str], ...] = (
    (bool, "BOOLEAN"),  # before int, which it is as well
    (int, "BIGINT"),
    (float, "DOUBLE"),
    (str, "STRING"),
    (bytes, "BINARY"),
    (datetime, "TIMESTAMP"),
    (date, "DATE"),
)
_RESERVED = frozenset(
    {
        *("seq", "topic", "kind", "key", "scope", "payload", "headers", "occurred_at", "recorded_at", "id"),
        *("correlation_id", "causation_id", "payload_bytes", "date"),
        "link",  # files and tables of earlier versions have it
    }
)


def columns_text(columns: str | type[object] | None) -> str:
    """The typed columns a caller asked for, as text: given as such, or as the type whose fields they are."""
    if columns is None:
        return ""
    text = columns.strip() if isinstance(columns, str) else _of_type(columns)
    columns_schema(text)
    return text


@lru_cache(maxsize=64)
def columns_schema(text: str) -> pa.Schema:
    """The typed columns in Arrow; ConfigError when they cannot be columns of a sealed file."""
    if not text:
        return pa.schema([])
    found = []
    for name, kind in fields(SchemaText("columns", text)).items():
        if name.lower() in _RESERVED:
            raise ConfigError(f"columns: every sealed event has a column {name!r} already; leave it to the JSON text")
        found.append(pa.field(name, _arrow_type(name, kind.upper())))
    by_letters = {field.name.lower() for field in found}
    if len(by_letters) < len(found):
        raise ConfigError("columns: two names differ only in their case, which tables do not tell apart")
    return pa.schema(found)


def check_change(before: str, after: str) -> None:
    """ConfigError unless `after` keeps every column of `before` as it is: files and tables that have them stay."""
    old, new = columns_schema(before), columns_schema(after)
    for field in old:
        if field.name not in new.names or new.field(field.name).type != field.type:
            raise ConfigError(
                f"columns: files sealed before have {field.name!r} as {field.type}; columns can be added, not changed "
                "or left out: seal to another lake for others"
            )


class TypedColumns:
    """Makes the typed columns of batches of sealed events, and counts the payloads that did not fit."""

    def __init__(self, text: str) -> None:
        self.schema = columns_schema(text)
        self._parser = PayloadParser(self.schema) if len(self.schema) else None
        self.unfit = 0

    def of(self, payload: pa.BinaryArray, binary: NDArray[np.bool_] | None) -> list[pa.Array]:
        """The columns for a binary column of payloads; `binary` marks those that are bytes and no JSON, None: none."""
        if self._parser is None:
            return []
        parsed = self._parser.parse(payload, binary)
        self.unfit += len(parsed.misfits)
        return parsed.columns


def _arrow_type(name: str, kind: str) -> pa.DataType:
    known = _TYPES.get(kind)
    if known is not None:
        return known
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise ConfigError(
        f"columns: {name!r} has the type {kind}, which is not one of {', '.join(_TYPES)} and DECIMAL(p,s); "
        "nested values stay in the JSON text"
    )


def _of_type(declared: type[object]) -> str:
    """The fields of a declared event type that can be columns; others stay in the JSON text."""
    if not (dataclasses.is_dataclass(declared) or hasattr(declared, "__annotations__")):
        raise ConfigError(f'columns is text like "customer STRING, total DOUBLE" or an event type, not {declared!r}')
    found = []
    for name, hint in typing.get_type_hints(declared).items():
        kind = _of_hint(hint)
        if kind is not None and not name.startswith("_") and name.lower() not in _RESERVED:
            found.append(f"`{name}` {kind}")
    if not found:
        raise ConfigError(f"columns: {declared.__name__} has no field that can be a column")
    return ", ".join(found)


def _of_hint(hint: object) -> str | None:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        real = [one for one in typing.get_args(hint) if one is not type(None)]
        return _of_hint(real[0]) if len(real) == 1 else None
    if typing.get_origin(hint) is typing.Annotated:
        return _of_hint(typing.get_args(hint)[0])
    if not isinstance(hint, type):
        return None
    return next((kind for python, kind in _OF_PYTHON if issubclass(hint, python)), None)
