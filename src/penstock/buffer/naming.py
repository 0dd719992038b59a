"""Where a buffer's objects are: the manifest, the batches, and their shards."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from penstock.errors import ConfigError

try:
    from ulid import ULID
except ModuleNotFoundError as error:
    raise ConfigError('the buffer needs its extra: pip install "penstock[buffer]"') from error

from penstock.buffer.store import check_path
from penstock.errors import ConfigError

_SUFFIX = ".batch"
_ULID_LENGTH = 26


class BufferPaths(NamedTuple):
    """One manifest and the prefix its batches are under."""

    manifest: str
    prefix: str

    def new_batch(self, now_ms: int) -> str:
        """A location that no other process will ever choose, that carries the time it was chosen at."""
        return f"{self.prefix}/{ULID.from_timestamp(now_ms)}{_SUFFIX}"


def place(manifest: str, prefix: str) -> BufferPaths:
    """Checks the two paths."""
    return BufferPaths(check_path(manifest, "manifest"), check_path(prefix.rstrip("/"), "prefix"))


def shard_place(whole: BufferPaths, shard: int, shards: int) -> BufferPaths:
    """One of `shards` manifests, with a prefix of its own (a collector knows only its own manifest's references).

    The names carry the number of shards: after a change of it, old and new shards never mix.
    """
    if shards < 1 or not 0 <= shard < shards:
        raise ConfigError(f"shard must be between 0 and shards - 1, not {shard} of {shards}")
    if shards == 1:
        return whole
    tail = f"{shard:05d}-of-{shards:05d}"
    return BufferPaths(f"{whole.manifest}-{tail}", f"{whole.prefix}/shard-{tail}")


def shard_of(key: bytes | str | int, shards: int) -> int:
    """Which shard a key belongs to: the same on every machine and in every release."""
    if isinstance(key, int):
        return key % shards
    return zlib.crc32(key.encode() if isinstance(key, str) else key) % shards


def batch_time_ms(location: str) -> int | None:
    """When a batch's location was chosen, or None when its name is not a ULID's."""
    name = location.rpartition("/")[2]
    if not name.endswith(_SUFFIX) or len(name) != _ULID_LENGTH + len(_SUFFIX):
        return None
    try:
        return ULID.from_str(name[:_ULID_LENGTH]).milliseconds
    except ValueError:
        return None
