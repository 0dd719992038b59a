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
from penstock.limits import BUFFER_MANIFEST, BUFFER_PREFIX

_SUFFIX = ".batch"
_ULID_LENGTH = 26


class BufferPaths(NamedTuple):
    """One manifest and the prefix its batches are under."""

    manifest: str
    prefix: str

    def new_batch(self, now_ms: int) -> str:
        """A location that no other process will ever choose, that carries the time it was chosen at."""
        return f"{self.prefix}/{ULID.from_timestamp(now_ms)}{_SUFFIX}"


def place(manifest: str, prefix: str | None) -> BufferPaths:
    """Checks the two paths; a manifest that is not the usual one needs a prefix that is said.

    A collector knows its own manifest's batches, and takes all others under its prefix for waste.
    """
    if prefix is None:
        if manifest != BUFFER_MANIFEST:
            raise ConfigError(
                f"with the manifest {manifest!r} name the prefix of its batches as well (prefix=…), one of its own: "
                f"buffers that share {BUFFER_PREFIX!r} would delete each other's batches"
            )
        prefix = BUFFER_PREFIX
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
