"""Sealed files as a Delta table. Its log is beside them, in the topic's folder, and names them by relative paths.

Every commit has a `txn` action: its application is this journal's topic, and its version is the last sealed position.
So two concurrent commits conflict, and one of them fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import parse_qs, unquote

import msgspec
import pyarrow as pa

from penstock.core.durable import sync_folder, sync_path
from penstock.core.journal.sealed.columns import partition_values
from penstock.core.journal.sealed.tables import LakeFile, Owner, table_root
from penstock.core.names import split_url
from penstock.errors import ConfigError, Corrupt, StorageError

_NO_STATISTICS = frozenset({"payload", "headers", "payload_bytes", "id"})
"""Columns whose minimum and maximum do not help a reader."""
_LONGEST = 64
"""The maximum length of a text's bounds in characters. Longer bounds would fill the log."""
_UNSYNCED = 2
"""The number of entries at the log's end that may not be on disk: the newest entry, and one earlier entry whose sync
failed.
"""
log = logging.getLogger("penstock.journal.sealed")


def check_library() -> None:
    """Raises ConfigError, which names the extra, when the library is missing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise ConfigError('format="delta" needs deltalake: pip install "penstock[delta]"') from error


class DeltaLakeTable:
    """The Delta table of a topic in a lake."""

    def __init__(self, owner: Owner, partition_by: str = "") -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        self._owner = owner
        self._partition = ["date", partition_by] if partition_by else ["date"]
        self._application = f"penstock/{owner.journal}/{owner.topic}"
        self._place = table_root(owner)
        self._options = storage_options(owner.lake)
        self._set_torn_entries_aside()
        try:
            self._table: DeltaTable | None = DeltaTable(self._place, storage_options=self._options)
        except TableNotFoundError:
            self._table = None
        except DeltaError as error:
            raise Corrupt(f"the log of the Delta table at {owner.shown} cannot be read: {error}") from error

    def _entries(self) -> list[Path]:
        """Returns the files of the table's log, oldest first. Returns none when the table is not in a local folder."""
        if "://" in self._owner.lake:
            return []
        return sorted(entry for entry in Path(self._place, "_delta_log").glob("*.json") if entry.stem.isdecimal())

    def _set_torn_entries_aside(self) -> None:
        """Renames torn entries at the log's end: a power cut may leave entries that no reader can read.

        The next update repeats what they said.

        These entries were not on disk yet, so no seal that listed files in them was ever acknowledged. An entry after a
        missing entry cannot be read either.
        """
        entries = self._entries()[-_UNSYNCED:]
        torn = next((at for at, entry in enumerate(entries) if not _is_whole(entry)), len(entries))
        if torn > 1 and int(entries[1].stem) != int(entries[0].stem) + 1:
            torn = 1
        for entry in entries[torn:]:
            entry.rename(entry.with_suffix(".torn"))
            sync_folder(entry.parent)
            log.warning("%s was torn by a crash, and is set aside", entry)

    def _store_log(self, before: int) -> None:
        """Writes new entries of the log to disk, because deltalake does not sync them."""
        entries = self._entries()
        for entry in entries[before:]:
            sync_path(entry)
        if entries:
            for folder in (entries[0].parent, entries[0].parent.parent):
                sync_folder(folder)

    def paths(self) -> set[str]:
        if self._table is None:
            return set()
        return {unquote(path) for path in pa.table(self._table.get_add_actions()).column("path").to_pylist()}

    def through(self) -> int:
        return 0 if self._table is None else self._table.transaction_version(self._application) or 0

    def update(self, add: Sequence[LakeFile], remove: Iterable[str], schema: pa.Schema, through: int) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

        now = time.time_ns() // 1_000_000
        wanted = Schema.from_arrow(schema.append(pa.field("date", pa.date32())))
        properties = CommitProperties(
            app_transactions=[Transaction(self._application, through, now)], max_commit_retries=0
        )
        added = [
            AddAction(one.path, one.file.size, partition_values(one.path), now, True, _statistics(one, schema))
            for one in add
        ]
        removed = list(remove)
        before = max(0, len(self._entries()) - 1)  # the newest entry too: its sync may have failed
        try:
            if self._table is None:
                create_table_with_add_actions(
                    self._place,
                    wanted,
                    added,
                    partition_by=self._partition,
                    name=self._owner.topic.replace("/", "_"),
                    description=f"Topic {self._owner.topic} of the journal {self._owner.journal}, sealed by penstock",
                    storage_options=self._options,
                    commit_properties=properties,
                )
                self._store_log(before)
                return
            known = {field.name for field in self._table.schema().fields}
            fresh = [field for field in wanted.fields if field.name not in known]
            if fresh:
                self._table.alter.add_columns(fresh)
                self._store_log(before)  # an entry is on disk before the next one is written
            if added or removed:
                gone = [RemoveAction(path, True, now, partition_values=partition_values(path)) for path in removed]
                self._table.create_write_transaction(
                    [*added, *gone], "append", wanted, self._partition, commit_properties=properties
                )
            self._store_log(before)
        except CommitFailedError as error:
            raise StorageError(
                f"the Delta table at {self._owner.shown} was changed by another program meanwhile; seal again",
                retryable=True,
            ) from error
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table at {self._owner.shown} cannot be written: {error}") from error


def _is_whole(entry: Path) -> bool:
    """Returns True if every line of an entry is JSON."""
    try:
        lines = entry.read_bytes().splitlines()
        return bool([msgspec.json.decode(line) for line in lines])
    except msgspec.DecodeError:
        return False


def storage_options(lake: str) -> dict[str, str]:
    """Returns the options of deltalake for the store that a lake's url names; the rest comes from the environment."""
    if "://" not in lake:
        return {}
    parts = split_url(lake)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    found: dict[str, str] = {}
    if parts.scheme == "s3":
        if parts.username:
            found["AWS_ACCESS_KEY_ID"] = unquote(parts.username)
            found["AWS_SECRET_ACCESS_KEY"] = unquote(parts.password or "")
        if "region" in query:
            found["AWS_REGION"] = query["region"]
        if "endpoint_override" in query:
            scheme = query.get("scheme", "https")
            found["AWS_ENDPOINT_URL"] = f"{scheme}://{query['endpoint_override'].removeprefix(f'{scheme}://')}"
            found["AWS_ALLOW_HTTP"] = "true" if scheme == "http" else "false"
    return found


def _statistics(file: LakeFile, schema: pa.Schema) -> str:
    """Returns a file's counts and bounds, from its Parquet footer."""
    least: dict[str, object] = {}
    most: dict[str, object] = {}
    nulls: dict[str, int] = {}
    places = {file.metadata.schema.column(at).path: at for at in range(file.metadata.num_columns)}
    for name in schema.names:
        if name in _NO_STATISTICS or name not in places:
            continue
        found = [
            file.metadata.row_group(group).column(places[name]).statistics
            for group in range(file.metadata.num_row_groups)
        ]
        if any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounded = [one for one in found if one.has_min_max]
        if not bounded or len(bounded) < sum(one.num_values > 0 for one in found):
            continue
        low, high = _bound(min(one.min for one in bounded)), _bound(max(one.max for one in bounded))
        if low is not None and high is not None:
            least[name], most[name] = low, high
    return msgspec.json.encode(
        {"numRecords": file.file.count, "minValues": least, "maxValues": most, "nullCount": nulls}
    ).decode()


def _bound(value: object) -> object:
    """Returns a bound in Delta's form; None when the value has no such form or is too long."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond:06d}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value) if float(value) == value else None
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    return None if isinstance(value, bytes) or value != value else value
