"""Opens SlateDB: the settings that penstock chooses, and the number of requests by cause."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import slatedb.uniffi as sl

from penstock.core.engine.base import OverlayWrite
from penstock.core.engine.contract import EngineView, ObjectOptions
from penstock.core.names import shown_url, split_url
from penstock.engines.slatedb.bridge import call
from penstock.engines.slatedb.lease import LEASE_PATH, FolderStore
from penstock.errors import ConfigError, StorageError
from penstock.limits import (
    OBJECT_CACHE_BYTES,
    OBJECT_MEMTABLE_BYTES,
    RELAXED_SECONDS,
    STORE_CONNECT_SECONDS,
    TABLE_LEASES,
)
from penstock.objects.cloud import CloudStore, NoAnswer
from penstock.objects.store import cloud_settings, open_cloud, probe_conditional_puts

COLLECT_SECONDS = 600.0
"""The seconds between two garbage collections, and the least age of an object that is collected."""
SNAPSHOT_SECONDS = 900
"""The seconds after a compaction for which the replaced tables are kept for snapshots and readers."""

READER_POLL_MS = 86_400_000
"""The interval at which SlateDB moves a reader's tables by itself. It is as long as SlateDB allows, although SlateDB
begins with one such move."""

_LOG = sl.FlushOptions(flush_type=sl.FlushType.WAL)
_TABLES = sl.FlushOptions(flush_type=sl.FlushType.MEM_TABLE)


_COUNT = "slatedb.object_store.request_count"
_BYTES = {
    "log": "slatedb.wal.wal_flush_bytes",
    "database": "slatedb.db.l0_flush_bytes",
    "compaction": "slatedb.compactor.bytes_compacted",
}
"""Cause → SlateDB's counter of the bytes that it has put into the store for this cause."""
_CAUSES = {"db": "database", "compactor": "compaction", "gc": "collection", "reader": "reading"}
_KINDS = {"list_with_offset": "list", "list_with_delimiter": "list", "get_range": "get", "get_ranges": "get"}


def collectable_age(lease: float) -> float:
    """Returns the least age, in seconds, of an object that collection removes: many lease terms.

    A stopped writer that wakes after a takeover must find its next log slot still occupied (slatedb issues 352 and
    1622). Its lease has run out long before this slot could be free again.
    """
    return max(COLLECT_SECONDS, TABLE_LEASES * lease)


def open_database(location: ObjectLocation) -> sl.Db:
    """Opens the database for writing, which ends the earlier writer."""
    builder = sl.DbBuilder(location.path, location.store)
    builder.with_settings(sl.Settings.from_json_string(_settings(location.options.lease, location.folder is not None)))
    builder.with_sst_block_size(sl.SstBlockSize.BLOCK64_KIB)
    return _built(builder, location)


def open_reader(location: ObjectLocation, checkpoint: str | None = None) -> sl.DbReader:
    """Opens the tables of a checkpoint, or the newest tables. The tables do not move, and the log is not included."""
    builder = sl.DbReaderBuilder(location.path, location.store)
    builder.with_options(
        sl.ReaderOptions(
            manifest_poll_interval_ms=READER_POLL_MS,
            checkpoint_lifetime_ms=200_000_000,
            max_memtable_bytes=OBJECT_MEMTABLE_BYTES,
            skip_wal_replay=True,
        )
    )
    pinned = checkpoint is not None
    builder.with_reader_mode(sl.ReaderMode.CHECKPOINT(checkpoint) if pinned else sl.ReaderMode.FOLLOW_LATEST())
    return _built(builder, location)


def _built(builder: Any, location: ObjectLocation) -> Any:
    builder.with_db_cache(location.cache, 1)
    if location.recorder is not None:
        builder.with_metrics_recorder(location.recorder)
    return call(builder.build(), location.options.timeout)


def flush_log(database: sl.Db, timeout: float) -> None:
    """Puts everything written so far into the log with one PUT."""
    call(database.flush_with_options(_LOG), timeout)


def flush_tables(database: sl.Db, timeout: float | None = None) -> None:
    """Makes a table of everything written so far, so that opening need not replay this part of the log."""
    call(database.flush_with_options(_TABLES), timeout)


@functools.cache
def _settings(lease: float, local: bool) -> str:
    """Returns SlateDB's settings as JSON."""
    settings: dict[str, Any] = json.loads(sl.Settings.default().to_json_string())
    age = _seconds(collectable_age(lease))
    settings |= {
        "flush_interval": _seconds(RELAXED_SECONDS),
        "manifest_poll_interval": "60s",
        "l0_sst_size_bytes": OBJECT_MEMTABLE_BYTES,
        "max_unflushed_bytes": 4 * OBJECT_MEMTABLE_BYTES,
        "l0_max_ssts": 96,
        "l0_max_ssts_per_key": 96,
    }
    settings["compactor_options"] |= {
        "poll_interval": "200ms" if local else "45s",
        "commit_compacted_interval": "100ms" if local else "1s",
        "checkpoint_lifetime": f"{SNAPSHOT_SECONDS}s",
    }
    settings["compactor_options"]["worker"] |= {"compactions_poll_interval": "200ms" if local else "45s"}
    for kind in ("manifest_options", "wal_options", "compacted_options", "compactions_options"):
        settings["garbage_collector_options"][kind] |= {"interval": _seconds(COLLECT_SECONDS), "min_age": age}
    # The empty objects with which writers fence each other are never removed, because a stalled writer must meet them.
    settings["garbage_collector_options"]["wal_fence_options"] = None
    return json.dumps(settings)


def _seconds(value: float) -> str:
    return f"{round(value * 1000)}ms"


def count_requests(recorder: sl.DefaultMetricsRecorder) -> dict[str, Counter[str]]:
    """Returns SlateDB's own requests since it was opened: cause → kind (put, get, head, list, delete, and bytes) →
    number.

    SlateDB counts a put of the log under the database; here it is counted apart, because each commit is such a put.
    """
    found: dict[str, Counter[str]] = {}
    for metric in recorder.metrics_by_name(_COUNT):
        labels = {label.key: label.value for label in metric.labels}
        number = metric.value[0]
        if number:
            api = labels["api"]
            kind = "put" if api.startswith("multipart") else _KINDS.get(api, api)
            cause = _CAUSES.get(labels["component"], labels["component"])
            found.setdefault(cause, Counter())[kind] += number
    for cause, name in _BYTES.items():
        if number := sum(metric.value[0] for metric in recorder.metrics_by_name(name)):
            found.setdefault(cause, Counter())["bytes"] += number
    if logged := sum(metric.value[0] for metric in recorder.metrics_by_name("slatedb.wal.wal_buffer_flushes")):
        found.setdefault("log", Counter())["put"] += logged
        found["database"]["put"] -= logged
    return found


def make_batch(view: EngineView, changes: OverlayWrite) -> sl.WriteBatch | None:
    """Returns the changes of a transaction over a snapshot as one batch; None without changes."""
    batch, count = sl.WriteBatch(), 0
    for start, stop in changes.ranges:  # SlateDB deletes no ranges: every key of a range is looked up
        for key, _ in view.scan(start, stop):
            if key not in changes.changes:
                batch.delete(key)
                count += 1
    for key, value in changes.changes.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
        count += 1
    return batch if count else None


# ── From a url and options to the stores behind it: SlateDB's own, and the buffer's for everything that is not SlateDB'
# Credentials, regions and endpoints are found as for the buffer (`penstock.objects.store`). A folder is a store too,
# for tests and development: SlateDB does not fsync files in a folder.


_PROVIDERS = {"s3": sl.ObjectStoreType.S3, "gs": sl.ObjectStoreType.GCS, "az": sl.ObjectStoreType.AZURE}
REQUEST_SECONDS = 30
"""The seconds that SlateDB waits for a request before it repeats the request."""
AGAIN_SECONDS = 0.25
"""The seconds before opening asks an unresponsive store again."""

log = logging.getLogger("penstock.engine.slatedb")


class ObjectLocation:
    """The location of a journal's objects and the options of their store."""

    def __init__(self, url: str, options: ObjectOptions, *, reading: bool = False) -> None:
        """Opens a database; `url` is s3://…, gs://…, az://…, or the path of a folder.

        A reader may wait for the whole `timeout`.
        """
        self.url = url
        self.options = options
        self.name = url if "://" in url else f"slatedb:{url}"
        """The name that messages use for the store."""
        self.objects: CloudStore | FolderStore
        if "://" not in url:
            self.folder: Path | None = Path(url)
            self.path = url
            if options.store:
                raise ConfigError(f"a folder takes no store options, not {', '.join(map(repr, options.store))}")
            self.store = sl.ObjectStore.resolve("file:///")
            self.objects = FolderStore(self.folder)
            return
        self.folder = None
        parts = split_url(url)
        self.path = parts.path.strip("/")
        if not self.path:
            raise ConfigError(
                f"{shown_url(url)!r} names a bucket and nothing in it; a journal needs a path of its own there: "
                f"{shown_url(url).rstrip('/')}/shop"
            )
        self.store = _slatedb_store(parts.scheme, parts.netloc, options.store)
        # The lease judges failures of single requests, because it knows the remaining time. A reader has no lease.
        patience = (options.timeout if reading else min(options.timeout, options.lease)) / 3
        retry: dict[str, object] = {
            "max_retries": 1000 if reading else 2,
            "retry_timeout": timedelta(seconds=options.timeout if reading else patience),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(milliseconds=500),
                "base": 2,
            },
        }
        quick = {"timeout": timedelta(seconds=patience), **options.store}
        self.objects = open_cloud(url, quick, retry)

    @functools.cached_property
    def cache(self) -> sl.DbCache:
        """The cache for the blocks of tables."""
        return sl.DbCache.new_foyer_cache(sl.FoyerCacheOptions(max_capacity=OBJECT_CACHE_BYTES, shards=4))

    @functools.cached_property
    def recorder(self) -> sl.DefaultMetricsRecorder | None:
        """The counter of requests.

        A folder has no counter: its requests cost nothing, and registering counters takes as long as opening.
        """
        return sl.DefaultMetricsRecorder() if self.folder is None else None

    def admin(self) -> sl.Admin:
        return sl.AdminBuilder(self.path, self.store).build()


def _slatedb_store(scheme: str, bucket: str, options: Mapping[str, object]) -> sl.ObjectStore:
    url = f"{scheme}://{bucket}"
    config, client, _ = cloud_settings(url, options, os.environ)
    builder = sl.ObjectStoreBuilder.from_env(_PROVIDERS[scheme])
    builder.with_url(url)
    client.setdefault("timeout", f"{REQUEST_SECONDS}s")
    client.setdefault("connect_timeout", "5s")
    for name, value in {**config, **client}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            builder.with_config(name, text)
        except sl.Error as error:
            raise ConfigError(f"cannot open {url}: {error}") from error
    try:
        return builder.build()
    except sl.Error as error:
        raise ConfigError(f"cannot open {url}: {error}") from error


def check_store(location: ObjectLocation, *, writing: bool, timeout: float, patient: bool = False) -> None:
    """Raises an error that says what is wrong with the bucket, the credentials or the endpoint. Proves conditional puts
    when `writing`.

    SlateDB would retry forever on a bucket that is missing or refuses access. Here an unresponsive store is asked again
    for `timeout` seconds, and only for a few seconds when no server answers at its address. A `patient` standby asks
    without end, because it waits for another writer's end anyway.
    """
    if isinstance(location.objects, FolderStore):
        return
    begun, warned = time.monotonic(), False
    while True:
        try:
            # An object of a missing bucket is None too; listing the bucket tells the difference.
            if location.objects.read(LEASE_PATH) is None:
                next(location.objects.list("manifest"), None)
            if writing:
                probe_conditional_puts(location.objects, LEASE_PATH)
            return
        except StorageError as error:
            if not error.retryable:
                raise ConfigError(f"no journal can be opened at {location.url}: {error}") from error
            patience = min(timeout, STORE_CONNECT_SECONDS) if isinstance(error, NoAnswer) else timeout
            if not patient and time.monotonic() + AGAIN_SECONDS > begun + patience:
                raise
            if not warned:
                warned = True
                log.warning("%s cannot be opened yet, and is asked again: %s", location.url, error)
        time.sleep(AGAIN_SECONDS)
