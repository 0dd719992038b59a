"""From a url and options to the stores behind it: SlateDB's own, and the buffer's for everything that is not SlateDB's.

Credentials, regions and endpoints are found as the buffer finds them (`penstock.buffer.store`): one place for
both. A folder is a store too, for tests and development: SlateDB does not fsync what it writes there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import slatedb.uniffi as sl

from penstock.buffer.cloud import CloudStore
from penstock.buffer.store import cloud_settings, open_cloud, probe_conditional_puts
from penstock.engine.slatedb.folder import FolderStore
from penstock.engine.slatedb.options import ObjectOptions
from penstock.errors import ConfigError, StorageError
from penstock.names import shown_url, split_url

_PROVIDERS = {"s3": sl.ObjectStoreType.S3, "gs": sl.ObjectStoreType.GCS, "az": sl.ObjectStoreType.AZURE}
REQUEST_SECONDS = 30
"""How long SlateDB waits for one request before it makes it again."""
AGAIN_SECONDS = 0.25
"""How long opening waits before it asks a store again that did not answer."""

log = logging.getLogger("penstock.engine.slatedb")


class Place:
    """Where a journal's objects lie."""

    def __init__(self, url: str, options: ObjectOptions, *, reading: bool = False) -> None:
        """`url` is s3://…, gs://…, az://…, or the path of a folder. One who only reads may ask for all of `timeout`."""
        self.url = url
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
                f"{shown_url(url)!r} names a bucket and nothing in it; a journal needs a place of its own there: "
                f"{shown_url(url).rstrip('/')}/shop"
            )
        self.store = _slatedb_store(parts.scheme, parts.netloc, options.store)
        # Failures of single requests are the lease's to judge: it knows how much time is left. A reader has none.
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


def check_store(place: Place, path: str, *, writing: bool, timeout: float, patient: bool = False) -> None:
    """Raises what is wrong with the bucket, the credentials or the endpoint; proves conditional puts when `writing`.

    SlateDB would ask a missing bucket, or one that refuses, again for ever. A store that is late or away is asked again
    for `timeout` seconds, and without end by a `patient` standby, which waits for another writer's end anyway.
    """
    if isinstance(place.objects, FolderStore):
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            if place.objects.read(path) is None:  # so is an object of a bucket that is not there; listing it tells
                next(place.objects.list("manifest"), None)
            if writing:
                probe_conditional_puts(place.objects, path)
            return
        except StorageError as error:
            if not error.retryable:
                raise ConfigError(f"no journal can be opened at {place.url}: {error}") from error
            if not patient and time.monotonic() + AGAIN_SECONDS > deadline:
                raise
            log.warning("%s cannot be opened yet: %s", place.url, error)
        time.sleep(AGAIN_SECONDS)
