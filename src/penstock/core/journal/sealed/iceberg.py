"""Sealed files as an Iceberg table: they are registered where they are, in a catalog of the user's or in a catalog
beside the lake.

pyiceberg repeats a commit that lost a race, which would add the same files twice. Here it does not repeat the commit,
and the seal reports that it has to be repeated. Every snapshot has the last sealed position as a property. The table's
own files are on disk before the catalog names them (`synced_files`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.durable import sync_folder
from penstock.core.journal.sealed.files import open_lake
from penstock.core.journal.sealed.tables import LakeFile, Owner, table_root
from penstock.errors import ConfigError, PenstockError, StorageError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


_NAMESPACE = "penstock"
_THROUGH = "penstock.through"
_OWNER = "penstock.journal"
_CATALOG_FILE = "_iceberg.db"
"""The catalog beside a lake's files, when the user names no catalog."""
_SYNCED = {"py-io-impl": f"{__name__.rpartition('.')[0]}.synced_files.SyncedFileIO"}
"""The options by which pyiceberg syncs a table's own files in a local folder.

In an object store, files are durable once they are written.
"""


def check_catalog(catalog: str, lake: str) -> None:
    """Raises ConfigError when the library or the catalog is missing."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise ConfigError('format="iceberg" needs pyiceberg: pip install "penstock[iceberg]"') from error
    if not catalog and "://" in lake:
        raise ConfigError(
            "an Iceberg table in an object store needs a catalog: name one of ~/.pyiceberg.yaml, or its uri"
        )
    if catalog:
        _load(catalog, lake).close()


def open_catalog(catalog: str, owner: Owner) -> closing[Catalog]:
    """Returns a catalog by its name or uri, or the catalog in a file beside the lake.

    Its connections close when the block ends.
    """
    with _as_storage_error(owner, "read"):
        return closing(_load(catalog, owner.lake))


def _load(catalog: str, lake: str) -> Catalog:
    from pyiceberg.catalog import load_catalog

    if not catalog:
        from pyiceberg.catalog.sql import SqlCatalog

        _, root = open_lake(lake)
        return SqlCatalog(_NAMESPACE, uri=f"sqlite:///{root}/{_CATALOG_FILE}", warehouse=f"file://{root}", **_SYNCED)
    files = {} if "://" in lake else _SYNCED
    try:
        if "://" in catalog:
            kind = {} if catalog.startswith(("http://", "https://", "thrift://")) else {"type": "sql"}
            return load_catalog(_NAMESPACE, uri=catalog, **kind, **files)
        return load_catalog(catalog, **files)
    except Exception as error:  # pyiceberg's catalogs raise the errors of their libraries
        raise ConfigError(f"the Iceberg catalog {catalog.rpartition('@')[2]!r} cannot be opened: {error}") from error


@contextmanager
def _as_storage_error(owner: Owner, done: str) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException

    try:
        yield
    except CommitFailedException as error:
        raise StorageError(
            f"the Iceberg table of {owner.shown} was changed by another program meanwhile; seal again", retryable=True
        ) from error
    except PenstockError:
        raise
    except Exception as error:  # pyiceberg's catalogs raise the errors of their libraries
        raise StorageError(
            f"the Iceberg table of {owner.shown} cannot be {done}: {error}", retryable=isinstance(error, OSError)
        ) from error


class IcebergLakeTable:
    """The Iceberg table of a topic in a lake."""

    def __init__(self, owner: Owner, catalog: Catalog, partition_by: str = "") -> None:
        from pyiceberg.exceptions import NoSuchTableError

        self._owner = owner
        self._partition = partition_by
        self._root = table_root(owner)
        self._name = (_NAMESPACE, owner.topic)
        self._catalog = catalog
        with _as_storage_error(owner, "read"):
            try:
                self._table: Table | None = self._catalog.load_table(self._name)
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
        """Returns the place of the table's own files.

        It is beside the topics' folders, which contain only Parquet for other readers.
        """
        lake = self._root.removesuffix(f"/{self._owner.topic}")
        return f"{lake if '://' in lake else f'file://{lake}'}/_iceberg/{self._owner.topic}"

    def _relative(self, path: str) -> str:
        return path.removeprefix("file://").removeprefix(f"{self._root}/")

    def through(self) -> int:
        if self._table is None or self._table.current_snapshot() is None:
            return 0
        said = [one.summary for one in self._table.snapshots() if one.summary is not None]
        return max((int(one.additional_properties.get(_THROUGH, 0)) for one in said), default=0)

    def update(self, add: Sequence[LakeFile], remove: Iterable[str], schema: pa.Schema, through: int) -> None:
        removed = set(remove)
        with _as_storage_error(self._owner, "written"):
            if self._table is None:
                self._catalog.create_namespace_if_not_exists(_NAMESPACE)
                self._table = self._create(schema)
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
            self._put_on_disk()

    def _put_on_disk(self) -> None:
        """Syncs a commit to a SQLite catalog.

        The commit ends with the removal of a file, and SQLite does not sync that removal.
        """
        from pyiceberg.catalog.sql import SqlCatalog

        if isinstance(self._catalog, SqlCatalog) and self._catalog.engine.dialect.name == "sqlite":
            database = self._catalog.engine.url.database
            if database and database != ":memory:":
                sync_folder(Path(database).absolute().parent)

    def _create(self, schema: pa.Schema) -> Table:
        """Creates a table with the partitions of its files: the day of recording, and a column if there is one."""
        from pyiceberg.transforms import DayTransform

        with (
            self._catalog.create_table_transaction(
                self._name,
                schema=schema,
                location=self._location(),
                properties={_OWNER: self._owner.journal, "commit.retry.num-retries": "0"},
            ) as making,
            making.update_spec() as spec,
        ):
            spec.add_field("recorded_at", DayTransform(), "date")
            if self._partition:
                spec.add_identity(self._partition)
        return self._catalog.load_table(self._name)
