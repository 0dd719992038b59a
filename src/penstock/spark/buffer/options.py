"""The options of `penstock-buffer`: its own as checked values, and the object store's, which are passed on unread.

Options of the store may be secrets: they appear in no message and in no name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from penstock.buffer.format import MAX_BATCH_BYTES, Compression
from penstock.buffer.manifest import BufferPaths, buffer_paths, shard_paths
from penstock.buffer.store import CLOUD_SCHEMES, ObjectStore, open_store
from penstock.errors import ConfigError
from penstock.limits import BUFFER_MANIFEST
from penstock.names import check_consumer, shown_url
from penstock.spark.options import SPARK_OPTIONS, number, switch

_PLACE = ("url", "manifest", "prefix", "shards", "gcGrace")
_READ = (
    *_PLACE,
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "gcInterval",
    "maxBatchBytes",
)
_WRITE = (*_PLACE, "compression", "flushBytes", "txnAppId", "txnVersion")
_OWN = frozenset(name.lower() for name in (*_READ, *_WRITE))
_SCHEMES = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_FLUSH_BYTES = 32 << 20


class BufferOptions(msgspec.Struct, frozen=True):
    """Which buffer it is."""

    url: str
    shard_paths: tuple[BufferPaths, ...]
    gc_grace: float
    store: tuple[tuple[str, str], ...]
    """Options of the object store."""
    given: frozenset[str]
    """The names of our own options that were given, in lower case."""

    def open(self) -> ObjectStore:
        """The store, kept open by this process for the next task."""
        return _opened(os.getpid(), self.url, self.store)

    def __repr__(self) -> str:
        return f"BufferOptions({shown_url(self.url)!r})"


class BufferReadOptions(BufferOptions, frozen=True, kw_only=True):
    """What a read was asked for."""

    start: Literal["earliest", "latest"] = "earliest"
    max_offsets: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    gc_interval: float | None = 300
    max_batch_bytes: int = MAX_BATCH_BYTES

    __repr__ = BufferOptions.__repr__


class BufferWriteOptions(BufferOptions, frozen=True, kw_only=True):
    """What a write was asked for."""

    compression: Compression = "none"
    flush_bytes: int = _FLUSH_BYTES
    app: str | None = None
    version: int | None = None

    __repr__ = BufferOptions.__repr__


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Options with names in lower case and the url in its place; ConfigError when there is none that Spark can use."""
    given = {name.lower(): value for name, value in options.items()}
    if given.get("url") and given.get("path"):
        raise ConfigError('the buffer is named twice: by option("url", …) and by the path given to load or save')
    url = given.pop("path", None) or given.get("url")
    if not url:
        raise ConfigError('no buffer is named: set option("url", "s3://bucket/prefix") or "file:///dir"')
    if url.startswith("memory:"):
        raise ConfigError(
            "Spark reads and writes a buffer from other processes, and memory:// lives in one; use file://"
        )
    given["url"] = url
    return given


def read_options(options: Mapping[str, str]) -> BufferReadOptions:
    """Checks the resolved options of a read; ConfigError says which one cannot be used and why."""
    where, given = _where(options, _READ, "read")
    start = given.get("startingoffsets", "earliest").strip().lower()
    if start not in ("earliest", "latest"):
        raise ConfigError(f'startingOffsets is "earliest" or "latest" for a buffer, not {start!r}')
    interval = _seconds(given, "gcInterval", 300)
    found = BufferReadOptions(
        **where,
        start="latest" if start == "latest" else "earliest",
        max_offsets=number(given, "maxOffsetsPerTrigger"),
        min_partitions=number(given, "minPartitions"),
        fail_on_data_loss=switch(given, "failOnDataLoss"),
        gc_interval=interval or None,
        max_batch_bytes=number(given, "maxBatchBytes") or MAX_BATCH_BYTES,
    )
    found.open()
    return found


def write_options(options: Mapping[str, str]) -> BufferWriteOptions:
    """Checks the resolved options of a write; ConfigError says which one cannot be used and why."""
    where, given = _where(options, _WRITE, "write")
    compression = given.get("compression", "none").lower()
    if compression not in ("none", "zstd"):
        raise ConfigError(f'compression is "none" or "zstd", not {compression!r}')
    app, version = given.get("txnappid"), number(given, "txnVersion", least=0)
    if app is not None:
        check_consumer(app, "txnAppId")
    flush = number(given, "flushBytes") or _FLUSH_BYTES
    if flush > MAX_BATCH_BYTES:
        raise ConfigError(f"flushBytes is at most {MAX_BATCH_BYTES}, not {flush}")
    found = BufferWriteOptions(
        **where,
        compression="zstd" if compression == "zstd" else "none",
        flush_bytes=flush,
        app=app,
        version=version,
    )
    found.open()
    return found


def _where(options: Mapping[str, str], names: tuple[str, ...], doing: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The options that say which buffer it is, as arguments, and those that are ours."""
    known = {name.lower() for name in names}
    given = {name: value for name, value in options.items() if name in _OWN}
    rest = {name: value for name, value in options.items() if name not in _OWN and name not in SPARK_OPTIONS}
    scheme = given["url"].partition("://")[0]
    unknown = [name for name in given if name not in known]
    if _SCHEMES.get(scheme, scheme) not in CLOUD_SCHEMES:  # only those have options of their own
        unknown += rest
    if unknown:
        raise ConfigError(f"a penstock-buffer {doing} has no option {unknown[0]!r}; there are {', '.join(names)}")
    shards = number(given, "shards") or 1
    whole = buffer_paths(given.get("manifest", BUFFER_MANIFEST), given.get("prefix"))
    where = {
        "url": given["url"],
        "shard_paths": tuple(shard_paths(whole, shard, shards) for shard in range(shards)),
        "gc_grace": _seconds(given, "gcGrace", 600),
        "store": tuple(sorted(rest.items())),
        "given": frozenset(given),
    }
    return where, given


@lru_cache(maxsize=8)
def _opened(pid: int, url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(url, dict(options))


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{name} is a number of seconds, not {text!r}")
    return value
