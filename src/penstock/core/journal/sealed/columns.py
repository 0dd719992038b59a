"""Typed columns of sealed history: fields of payloads, with types and statistics, beside the JSON text.

`customer STRING, total DOUBLE` names fields of the payload's object and their types. If a payload does not fit, its
row's typed columns are empty. The JSON text beside them is always complete.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from functools import lru_cache
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.documents.ddl import SchemaText, fields
from penstock.core.documents.payloads import PayloadParser
from penstock.core.names import shown_url
from penstock.errors import ConfigError
from penstock.limits import MAX_PARTITION_VALUES

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
"""The types that Parquet, Delta and Iceberg have in common, by their Spark names."""
_DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_OF_PYTHON: tuple[tuple[type, str], ...] = (
    (bool, "BOOLEAN"),  # before int, because a bool is an int too
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
        *("correlation_id", "causation_id", "tags", "payload_bytes", "date"),
        "link",  # files and tables of earlier versions have it
    }
)


def columns_text(columns: str | type[object] | None) -> str:
    """Returns the typed columns that a caller asked for, as text.

    The caller gives the text, or a type whose fields become columns.
    """
    if columns is None:
        return ""
    text = columns.strip() if isinstance(columns, str) else _of_type(columns)
    columns_schema(text)
    return text


@lru_cache(maxsize=64)
def columns_schema(text: str) -> pa.Schema:
    """Returns the typed columns as an Arrow schema. Raises ConfigError when they cannot be columns of a sealed file."""
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
    """Raises ConfigError unless `after` keeps every column of `before` unchanged: files and tables with these
    columns remain.
    """
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
        """Returns the typed columns for a binary column of payloads.

        `binary` marks the payloads that are bytes and not JSON; None marks no payload.
        """
        if self._parser is None:
            return []
        parsed = self._parser.parse(payload, binary)
        self.unfit += len(parsed.misfits)
        return parsed.columns


def text_and_bytes(payload: pa.BinaryArray, binary: NDArray[np.bool_] | None) -> tuple[pa.Array, pa.Array]:
    """Returns payloads as the columns `payload` and `payload_bytes`.

    Each row has a value in one of them. `binary` is as for `of`.
    """
    if binary is None:
        text = pa.Array.from_buffers(pa.string(), len(payload), payload.buffers(), offset=payload.offset)
        return text, pa.nulls(len(payload), pa.binary())
    are_bytes = pa.array(binary)
    return pc.if_else(are_bytes, None, payload).cast(pa.string()), pc.if_else(are_bytes, payload, None)


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
    """Returns the fields of a declared event type that can be columns. The other fields stay in the JSON text only."""
    if not (dataclasses.is_dataclass(declared) or hasattr(declared, "__annotations__")):
        raise ConfigError(f'columns is text like "customer STRING, total DOUBLE" or an event type, not {declared!r}')
    found = []
    try:
        hints = typing.get_type_hints(declared)
    except Exception as error:  # evaluating a quoted annotation may raise any exception
        raise ConfigError(f"columns: an annotation of {declared.__name__} cannot be resolved: {error}") from error
    for name, hint in hints.items():
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


# ── Files by the values of a column: each value of a day has files of its own, in a folder that is named after it ──
#     date=2026-03-01/region=eu/…          as Hive, Delta Lake and other readers of folders of Parquet name them
#
# The column is in the files as well, so that types do not have to be guessed from the names of folders. A value that
# cannot name a folder leaves the column empty in its row; the JSON text beside it is whole.


_NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""The folder for rows without a value."""
_LONGEST = 200
"""The maximum size of a folder's name after the `=`, in bytes. File systems take 255 bytes in all."""
_KIND = "kind"
"""The only column of every event by which files may be parted. All other such columns are typed columns."""


def check_partition(column: str, schema: pa.Schema) -> None:
    """Raises ConfigError when files cannot be parted by a column."""
    if not column or column == _KIND:
        return
    if column not in schema.names:
        known = ", ".join([_KIND, *schema.names])
        raise ConfigError(
            f"partition_by: {column!r} is no typed column: name it in columns as well, as in "
            f'columns="{column} STRING"; there are {known}'
        )
    if len(_escaped(column).encode()) > 50:
        raise ConfigError(f"partition_by: {column[:40]!r}… is too long for the name of a folder")
    kind = schema.field(column).type
    if not any(
        check(kind) for check in (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean)
    ):
        raise ConfigError(
            f"partition_by: {column!r} is {kind}; files are parted by text, whole numbers, dates or booleans"
        )


def partition_values(path: str) -> dict[str, str | None]:
    """Returns the partition values in the folders of a file: for each column, the value that all its rows have."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals:
            found[unquote(name)] = None if value == _NOTHING else unquote(value)
    return found


class Partition:
    """Parts tables by the values of one column."""

    def __init__(self, column: str, topic: str, lake: str) -> None:
        self.column = column
        self._topic = topic
        self._lake = lake
        self._seen: set[str] = set()

    def fitting(self, column: pa.Array) -> tuple[pa.Array, int]:
        """Returns a typed column without the values that cannot name a folder, and the number of these values."""
        if not pa.types.is_string(column.type):
            return column, 0
        values = column.dictionary_encode()
        bad = [_folder_value(value) is None for value in values.dictionary.to_pylist()]
        if not any(bad):
            return column, 0
        drop = pc.fill_null(pc.take(pa.array(bad), values.indices), False)
        return pc.if_else(drop, None, column), pc.sum(drop).as_py()

    def parted(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Returns the rows of a table by folder, in their order."""
        values = table.column(self.column).combine_chunks().dictionary_encode(null_encoding="encode")
        codes = np.asarray(values.indices)
        order = np.argsort(codes, kind="stable")
        if len(values.dictionary) > 1:
            table = table.take(pa.array(order))
        counts = np.bincount(codes, minlength=len(values.dictionary))
        at = 0
        for value, count in zip(values.dictionary.to_pylist(), counts.tolist(), strict=True):
            yield self._folder(value), table.slice(at, count)
            at += count

    def _folder(self, value: object) -> str:
        named = _folder_value(value)
        if named is None:
            raise ConfigError(
                f"partition_by: the {self.column} {str(value)[:40]!r}… of topic {self._topic!r} cannot name a folder: "
                "seal to another lake, by another column or none"
            )
        self._seen.add(named)
        if len(self._seen) > MAX_PARTITION_VALUES:
            raise ConfigError(
                f"partition_by: {self.column!r} has more than {MAX_PARTITION_VALUES} values in one day of topic "
                f"{self._topic!r}, each of which would be a file in {shown_url(self._lake)}: seal to another lake, by "
                "a column with fewer values or none"
            )
        return f"{_escaped(self.column)}={named}"


def _folder_value(value: object) -> str | None:
    """Returns a value as the name of a folder.

    Returns None when the value cannot be a name: it is empty, too long, or has another meaning.
    """
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    text = str(value)
    named = re.sub(r"\.(?=\.*$)", "%2E", _escaped(text))  # Windows drops dots at the end of a name
    return None if text in ("", _NOTHING) or len(named.encode()) > _LONGEST else named


def _escaped(text: str) -> str:
    """Returns a text with escapes for the characters that have a meaning in paths.

    Letters remain, because Spark reads each escape as one single-byte character.
    """
    return re.sub(r"[\x00-\x7f]+", lambda some: quote(some[0], safe=""), text)
