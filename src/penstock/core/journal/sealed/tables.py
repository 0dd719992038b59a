"""A topic's sealed files as a table of Delta Lake or Apache Iceberg. The table is kept equal to the journal's segments.

The journal's segments are the truth, and the table must hold exactly these segments. One commit of the table adds
missing files and removes files that are no longer segments. If the process is killed before that commit, the next seal
finds the same difference and commits it. If the process is killed after it, there is no difference. The table has only
files of its own lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.journal.sealed.columns import check_change, check_partition, columns_schema, columns_text
from penstock.core.journal.sealed.files import SealedBytes, open_lake
from penstock.core.journal.sealed.segments import Segment, SegmentFile, TableSettings
from penstock.core.journal.sealed.writing import sealed_schema
from penstock.core.names import TABLE_FORMATS, TableFormat, shown_url
from penstock.errors import ConfigError


class Owner(NamedTuple):
    """The topic and the journal that a table belongs to."""

    journal: str
    topic: str
    lake: str

    @property
    def shown(self) -> str:
        """The place of the table, for people."""
        return f"{shown_url(self.lake)}/{self.topic}"


class LakeFile(NamedTuple):
    """A sealed file that is to be added to a table."""

    path: str
    """The path within the topic's folder."""
    location: str
    """The location for readers that do not know the lake: a path or a url."""
    file: SegmentFile
    metadata: pq.FileMetaData
    """The metadata in the file's Parquet footer."""


class LakeTable(Protocol):
    """A table over sealed files."""

    def paths(self) -> set[str]:
        """Returns the paths of its files, within the topic's folder."""
        ...

    def through(self) -> int:
        """Returns the last position that was sealed when the table was last written; 0 for a new table."""
        ...

    def update(self, add: Sequence[LakeFile], remove: Iterable[str], schema: pa.Schema, through: int) -> None:
        """Adds and removes files, and adds new columns, all in one commit."""
        ...


@contextmanager
def open_table(owner: Owner, settings: TableSettings) -> Iterator[LakeTable]:
    """Returns the table that a topic's lake is registered as."""
    if settings.format == "delta":
        from penstock.core.journal.sealed.delta import DeltaLakeTable

        yield DeltaLakeTable(owner, settings.partition_by)
    else:
        from penstock.core.journal.sealed.iceberg import IcebergLakeTable, open_catalog

        with open_catalog(settings.catalog, owner) as catalog:
            yield IcebergLakeTable(owner, catalog, settings.partition_by)


class TableRequest(NamedTuple):
    """The settings that a caller of `seal` requests for the lake's files.

    A setting that is left open stays as it was.
    """

    format: TableFormat | None = None
    columns: str | type[object] | None = None
    catalog: str | None = None
    partition_by: str | None = None

    def applied(self, before: TableSettings | None, lake: str) -> TableSettings:
        """Returns the new settings.

        Raises ConfigError when these settings are not possible, or not after the earlier settings.
        """
        known = before or TableSettings()
        columns = columns_text(self.columns) or known.columns
        partition = known.partition_by if self.partition_by is None else self.partition_by
        found = TableSettings(self.format or known.format, columns, self.catalog or known.catalog, partition)
        if found.format not in TABLE_FORMATS:
            raise ConfigError(f"format is one of {', '.join(TABLE_FORMATS)}, not {found.format!r}")
        if known.format not in ("parquet", found.format):
            raise ConfigError(
                f"{shown_url(lake)} has this topic as a table of format {known.format}: seal to another lake for "
                f"{found.format}"
            )
        if known.catalog not in ("", found.catalog):
            raise ConfigError(f"this topic's table in {shown_url(lake)} is in another catalog already")
        if found.catalog and found.format != "iceberg":
            raise ConfigError("catalog goes with format='iceberg': Delta and plain Parquet have none")
        check_change(known.columns, columns)
        check_partition(partition, columns_schema(columns))
        if before is not None and partition != before.partition_by:
            how = f"by {before.partition_by!r}" if before.partition_by else "by no column"
            raise ConfigError(
                f"files sealed to {shown_url(lake)} before are parted {how}, and stay so: seal to another lake for "
                "other ones"
            )
        _check_library(found, lake)
        return found


def _check_library(settings: TableSettings, lake: str) -> None:
    if settings.format == "delta":
        from penstock.core.journal.sealed.delta import check_library

        check_library()
    elif settings.format == "iceberg":
        from penstock.core.journal.sealed.iceberg import check_catalog

        check_catalog(settings.catalog, lake)


def table_schema(settings: TableSettings) -> pa.Schema:
    """Returns the columns of the files; typed columns are last."""
    return pa.schema([*sealed_schema(), *columns_schema(settings.columns)])


def bring_up_to_date(owner: Owner, settings: TableSettings, segments: Iterable[Segment], sealed: int) -> None:
    """Updates the table to hold exactly these segments."""
    if settings.format == "parquet":
        return
    with open_table(owner, settings) as table:
        if table.through() > sealed:
            raise ConfigError(
                f"the table at {owner.shown} was written through position {table.through()}, beyond the {sealed} that "
                "this journal has sealed: another journal uses it, or this one is an older copy; use another lake"
            )
        files = ((one, file) for one in segments if one.lake == owner.lake for file in one.files)
        wanted = {file.path.removeprefix(f"{owner.topic}/"): (one, file) for one, file in files}
        held = table.paths()
        add = [_described(owner, path, *wanted[path]) for path in sorted(wanted.keys() - held)]
        table.update(add, sorted(held - wanted.keys()), table_schema(settings), sealed)


def _described(owner: Owner, path: str, segment: Segment, file: SegmentFile) -> LakeFile:
    found = SealedBytes(segment, file, owner.topic)
    with found.open() as opened:
        return LakeFile(path, table_root(owner) + "/" + path, file, found.footer(opened))


def table_root(owner: Owner) -> str:
    """Returns the topic's folder as other programs name it: a path, or a url without options and credentials."""
    _, root = open_lake(owner.lake)
    scheme = owner.lake.partition("://")[0] if "://" in owner.lake else "file"
    return f"{root}/{owner.topic}" if scheme == "file" else f"{scheme}://{root}/{owner.topic}"
