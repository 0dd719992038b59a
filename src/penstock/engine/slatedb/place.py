"""From a url and options to the stores behind it: SlateDB's own, and the buffer's for everything that is not SlateDB's.

Credentials, regions and endpoints are found as the buffer finds them (`penstock.buffer.store.opening`): one place for
both. A folder is a store too, for tests and development: SlateDB does not fsync what it writes there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import slatedb.uniffi as sl

from penstock.buffer.store.cloud import CloudStore
from penstock.buffer.store.opening import cloud_settings, open_cloud
from penstock.buffer.store.probe import probe_conditional_puts
from penstock.engine.slatedb.folder import FolderStore
from penstock.engine.slatedb.options import ObjectOptions
from penstock.errors import ConfigError, StorageError
from penstock.names import shown_url

_PROVIDERS = {"s3": sl.ObjectStoreType.S3, "gs": sl.ObjectStoreType.GCS, "az": sl.ObjectStoreType.AZURE}
REQUEST_SECONDS = 30
"""How long SlateDB waits for one request before it makes it again."""


class Place:
    """Where a journal's objects lie."""

    def __init__(self, url: str, options: ObjectOptions) -> None:
        """`url` is s3://…, gs://…, az://…, or the path of a folder."""
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
        parts = urlsplit(url)
        self.path = parts.path.strip("/")
        if not self.path:
            raise ConfigError(
                f"{shown_url(url)!r} names a bucket and nothing in it; a journal needs a place of its own there: "
                f"{shown_url(url).rstrip('/')}/shop"
            )
        self.store = _slatedb_store(parts.scheme, parts.netloc, options.store)
        # Failures of single requests are the lease's to judge: it knows how much time is left.
        patience = min(options.timeout, options.lease) / 3
        retry: dict[str, Any] = {
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=patience),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(milliseconds=500),
                "base": 2,
            },
        }
        quick = {"timeout": timedelta(seconds=patience), **options.store}
        self.objects = open_cloud(url, quick, retry)


def _slatedb_store(scheme: str, bucket: str, options: Mapping[str, Any]) -> sl.ObjectStore:
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


def check_store(place: Place, path: str, *, writing: bool) -> None:
    """Raises what is wrong with the bucket, the credentials or the endpoint; proves conditional puts when `writing`.

    SlateDB would ask a missing bucket, or one that refuses, again for ever.
    """
    if isinstance(place.objects, FolderStore):
        return
    try:
        place.objects.read(path)
        if writing:
            probe_conditional_puts(place.objects, path)
    except StorageError as error:
        if error.retryable:
            raise
        raise ConfigError(f"no journal can be opened at {place.url}: {error}") from error
