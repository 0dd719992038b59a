"""The settings of producers and consumers: each field is an argument of their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from penstock.buffer.format import MAX_BATCH_BYTES, Compression
from penstock.buffer.manifest import BufferPaths, buffer_paths, shard_paths
from penstock.core.clock import Clock, Duration, seconds
from penstock.core.names import check_whole
from penstock.core.observe.metrics import REGISTRY, Registry
from penstock.errors import ConfigError
from penstock.limits import BUFFER_MANIFEST
from penstock.objects.store import ObjectStore, open_store, probe_conditional_puts

Key = Callable[[bytes], bytes | str | int]
Made = TypeVar("Made")
SettingsT = TypeVar("SettingsT")
Fields = ParamSpec("Fields")


class _Store(msgspec.Struct, frozen=True):
    """The one field that is given without its name."""

    url: str | ObjectStore


class BufferSettings(_Store, frozen=True, kw_only=True):
    """The place of a buffer, and the settings that both sides need."""

    manifest: str = BUFFER_MANIFEST
    prefix: str | None = None
    """The prefix of the batches; a manifest other than the default needs its own prefix."""
    shards: int = 1
    gc_grace: Duration = 600
    """The age at which the consumer deletes an object that no manifest names."""
    options: Mapping[str, object] | None = None
    """The options of the store: region, endpoint, access_key_id, timeout …"""
    clock: Clock | None = None
    metrics: Registry = REGISTRY

    def paths(self, shard: int) -> BufferPaths:
        """Returns the manifest and the prefix of one shard."""
        return shard_paths(buffer_paths(self.manifest, self.prefix), shard, self.shards)

    def open_store(self) -> ObjectStore:
        """Opens the store, which must be able to put conditionally."""
        store = open_store(self.url, self.options)
        probe_conditional_puts(store, self.manifest)
        return store

    def grace_ms(self) -> int:
        """Returns `gc_grace` in milliseconds."""
        return int(seconds(self.gc_grace, "gc_grace") * 1000)


class ProducerSettings(BufferSettings, frozen=True, kw_only=True):
    """The settings of a producer."""

    flush_interval: Duration = 0.1
    flush_bytes: int = 64 << 20
    max_buffered: int = 1000
    """The most calls that may wait for room before `produce` blocks."""
    compression: Compression = "none"
    key: Key | None = None
    """With shards: the function or name that decides an entry's shard."""
    uploads: int = 8
    inflight_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.compression not in ("none", "zstd"):
            raise ConfigError(f"compression must be 'none' or 'zstd', not {self.compression!r}")
        if check_whole(self.shards, "shards") > 1 and self.key is None:
            raise ConfigError("shards= needs key=: a function from an entry to what decides its shard")


class ConsumerSettings(BufferSettings, frozen=True, kw_only=True):
    """The settings of a consumer."""

    after: int | None = None
    """The last sequence that an earlier consumer has processed."""
    gc_interval: Duration | None = 300
    """The pause between two searches for garbage; None for no search."""
    shard: int = 0
    max_batch_bytes: int = MAX_BATCH_BYTES

    def __post_init__(self) -> None:
        if self.after is not None:
            check_whole(self.after, "after", 0)


def takes(
    settings: Callable[Fields, SettingsT],
) -> Callable[[Callable[[Made, SettingsT], None]], Callable[Concatenate[Made, Fields], None]]:
    """Gives a constructor the fields of its settings as arguments, with their names, types and defaults."""

    def decorate(construct: Callable[[Made, SettingsT], None]) -> Callable[Concatenate[Made, Fields], None]:
        def __init__(self: Made, /, *args: Fields.args, **fields: Fields.kwargs) -> None:
            construct(self, settings(*args, **fields))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        shown = inspect.Signature([own, *inspect.signature(settings).parameters.values()])
        vars(__init__)["__signature__"] = shown
        return __init__

    return decorate
