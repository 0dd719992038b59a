"""Files by the values of a column: each value of a day has files of its own, in a folder that is named after it.

    date=2026-03-01/region=eu/…          as Hive, Delta Lake and other readers of folders of Parquet name them

The column is in the files as well, so that types do not have to be guessed from the names of folders. A value that
cannot name a folder leaves the column empty in its row; the JSON text beside it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.limits import MAX_PARTITION_VALUES
from penstock.names import shown_url

_NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows without a value."""
_LONGEST = 200
"""Bytes of a folder's name after the `=`; file systems take 255 in all."""
_KIND = "kind"
"""The column of every event that files may be parted by; all others are typed columns."""


def check_partition(column: str, schema: pa.Schema) -> None:
    """ConfigError when files cannot be parted by a column."""
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
    """What the folders of a file say: by column, the value of all its rows."""
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
        """A typed column without the values that cannot name a folder, and how many those were."""
        if not pa.types.is_string(column.type):
            return column, 0
        values = column.dictionary_encode()
        bad = [_folder_value(value) is None for value in values.dictionary.to_pylist()]
        if not any(bad):
            return column, 0
        drop = pc.fill_null(pc.take(pa.array(bad), values.indices), False)
        return pc.if_else(drop, None, column), pc.sum(drop).as_py()

    def parted(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """By folder: the rows of a table, in their order."""
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
    """A value as a folder names it; None when it cannot: empty, too long, or taken for no value at all."""
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
    """A text without the signs that mean something in paths. Letters stay: Spark unescapes to single bytes' signs."""
    return re.sub(r"[\x00-\x7f]+", lambda some: quote(some[0], safe=""), text)
