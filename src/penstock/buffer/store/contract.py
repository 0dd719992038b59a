"""What the buffer asks of an object store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.errors import ConfigError, StorageError

CLOUD_SCHEMES = ("s3", "gs", "az")

#: What a store needs to know that an object is still the one that was read; opaque to its users.
Version = Any
Buffer = bytes | memoryview | Any


class VersionConflict(Exception):
    """A conditional put met another version than the one it named; read again and decide anew."""


class Stored(NamedTuple):
    """An object's bytes and the version they are of."""

    data: Buffer
    version: Version


@runtime_checkable
class ObjectStore(Protocol):
    """An object store. Paths are relative, with `/` between segments. Failures are `StorageError`."""

    url: str
    identity: str  # where the objects really are: two stores with one identity hold the same objects

    def get(self, path: str, *, most: int | None = None) -> Buffer | None:
        """The object's bytes, or None when there is none; StorageError, unread, when it has more than `most`."""
        ...

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        """The object with its version, or None when there is none; `known` itself when it is still the current one."""
        ...

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Writes the object, replacing any. Returns when it is durable; no reader ever sees half of it.

        Once it has returned, a memoryview's memory may be used for something else.
        """
        ...

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        """Writes the object if its version is still `version` (None: if there is none), else `VersionConflict`."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """The paths of the objects directly under `prefix`, in no particular order."""
        ...

    def delete(self, paths: Sequence[str]) -> int:
        """Deletes these objects; one that is already gone counts as deleted. Returns how many could not be."""
        ...

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        """Removes what writers that were killed left behind under `prefix` before that time."""
        ...


def too_large(url: str, path: str, size: int, most: int) -> StorageError:
    """The error of an object that is not read because of its size."""
    return StorageError(f"{path} in {url} has {size:,} bytes, and at most {most:,} are taken")


def check_path(path: str, what: str) -> str:
    """A path every store can hold and none can be led out of its root by; ConfigError when it is not."""
    segments = path.split("/")
    if not path or any(segment in ("", ".", "..") for segment in segments):
        raise ConfigError(f"{what} must be a relative path without empty, '.' or '..' segments, not {path!r}")
    if any(ord(character) < 0x20 or character in "\\\x7f" for character in path):
        raise ConfigError(f"{what} must not contain control characters or backslashes: {path!r}")
    return path
