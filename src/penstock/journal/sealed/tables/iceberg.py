"""Sealed files as an Iceberg table: registered where they lie, in a catalog of the user's or one beside the lake.

pyiceberg repeats a commit that lost a race, which would add the same files twice; here it does not, and the seal says
that it has to be repeated. Every snapshot carries the last sealed position as a property.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError, StorageError
from penstock.journal.sealed.files import open_lake
from penstock.journal.sealed.tables.table import LakeFile, Owner, table_root

_NAMESPACE = "penstock"
_THROUGH = "penstock.through"
_OWNER = "penstock.journal"
_CATALOG_FILE = "_iceberg.db"
"""The catalog beside a lake's files, where the user names none."""


def check_catalog(catalog: str, lake: str) -> None:
    """ConfigError when the library or the catalog is missing."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise ConfigError('format="iceberg" needs pyiceberg: pip install "penstock[iceberg]"') from error
    if not catalog and "://" in lake:
        raise ConfigError(
            "an Iceberg table in an object store needs a catalog: name one of ~/.pyiceberg.yaml, or its uri"
        )
    if catalog:
        _load(catalog, lake)


def _load(catalog: str, lake: str) -> Any:
    from pyiceberg.catalog import load_catalog

    if not catalog:
        from pyiceberg.catalog.sql import SqlCatalog

        _, root = open_lake(lake)
        return SqlCatalog(_NAMESPACE, uri=f"sqlite:///{root}/{_CATALOG_FILE}", warehouse=f"file://{root}")
    try:
        if "://" in catalog:
            kind = {} if catalog.startswith(("http://", "https://", "thrift://")) else {"type": "sql"}
            return load_catalog(_NAMESPACE, uri=catalog, **kind)
        return load_catalog(catalog)
    except Exception as error:  # pyiceberg's catalogs raise what their libraries raise
        raise ConfigError(f"the Iceberg catalog {catalog.rpartition('@')[2]!r} cannot be opened: {error}") from error


class IcebergLakeTable:
    """The Iceberg table of a topic in a lake."""

    def __init__(self, owner: Owner, catalog: str) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        self._owner = owner
        self._root = table_root(owner)
        self._catalog = _load(catalog, owner.lake)
        self._name = (_NAMESPACE, owner.topic)
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None
        if self._table is not None and self._table.properties.get(_OWNER) != owner.journal:
            raise ConfigError(
                f"the Iceberg catalog has a table {'.'.join(self._name)} already, which is not of this journal: "
                "use another catalog"
            )

    def paths(self) -> set[str]:
        if self._table is None:
            return set()
        found = self._table.inspect.files().column("file_path").to_pylist()
        return set(map(self._relative, found))

    def _location(self) -> str:
        """Where the table's own files go: beside the topics' folders, which hold nothing but Parquet for others."""
        lake = self._root.removesuffix(f"/{self._owner.topic}")
        return f"{lake if '://' in lake else f'file://{lake}'}/_iceberg/{self._owner.topic}"

    def _relative(self, path: str) -> str:
        return path.removeprefix("file://").removeprefix(f"{self._root}/")

    def through(self) -> int:
        if self._table is None or self._table.current_snapshot() is None:
            return 0
        return max(int(one.summary.additional_properties.get(_THROUGH, 0)) for one in self._table.snapshots())

    def update(self, add: Sequence[LakeFile], remove: Iterable[str], schema: pa.Schema, through: int) -> None:
        from pyiceberg.exceptions import CommitFailedException

        removed = set(remove)
        try:
            if self._table is None:
                self._catalog.create_namespace_if_not_exists(_NAMESPACE)
                self._table = self._catalog.create_table(
                    self._name,
                    schema=schema,
                    location=self._location(),
                    properties={_OWNER: self._owner.journal, "commit.retry.num-retries": "0"},
                )
            marks = {_THROUGH: str(through)}
            with self._table.transaction() as changes:
                known = set(self._table.schema().column_names)
                fresh = [field for field in schema if field.name not in known]
                if fresh:
                    with changes.update_schema() as update:
                        update.union_by_name(schema)
                if removed:
                    with changes.update_snapshot(snapshot_properties=marks).overwrite() as rest:
                        for task in self._table.scan().plan_files():
                            if self._relative(task.file.file_path) in removed:
                                rest.delete_data_file(task.file)
                if add:
                    changes.add_files([one.location for one in add], snapshot_properties=marks)
        except CommitFailedException as error:
            raise StorageError(
                f"the Iceberg table of {self._owner.shown} was changed by another program meanwhile; seal again",
                retryable=True,
            ) from error
        except (ValueError, OSError) as error:
            raise StorageError(f"the Iceberg table of {self._owner.shown} cannot be written: {error}") from error
