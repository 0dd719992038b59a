"""A folder as the place of a lease: conditional puts without a lock, which a stopped process would keep.

Every version of an object is a file of its own, `lease.7`; the one with the highest number counts. To replace version 7
is to link `lease.8`, which the file system lets one process do. Old versions are removed later; a process that slept
until its number was free again finds a higher one beside it, and takes its own back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.buffer.store import Stored, Version, VersionConflict
from penstock.errors import StorageError

KEPT = 8
"""Old versions that stay, so that readers seldom find the one they are about to read gone."""


class FolderStore:
    """The objects of a journal in a folder, as far as they are not SlateDB's own business."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"file://{folder}"
        self.identity = self.url

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        """The newest version of an object, or None; `known` itself when it still is that."""
        place = self._folder / path
        try:
            while (newest := _newest(place)) is not None:
                if known is not None and known.version == newest:
                    return known
                with suppress(FileNotFoundError):  # replaced, and removed, since it was listed
                    return Stored(_file(place, newest).read_bytes(), newest)
        except OSError as error:
            raise StorageError(f"{place} cannot be read: {error}", retryable=True) from error
        return None

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        """Replaces a version (None: makes the first), or raises `VersionConflict`."""
        place = self._folder / path
        number = 1 if version is None else version + 1
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        try:
            if (_newest(place) or 0) != number - 1:
                raise VersionConflict(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            try:
                _file(place, number).hardlink_to(temporary)
            except FileExistsError:
                raise VersionConflict(path) from None
            finally:
                temporary.unlink()
            if _newest(place) != number:
                _file(place, number).unlink(missing_ok=True)
                raise VersionConflict(path)
            for old in _numbers(place):
                if old < number - KEPT:
                    _file(place, old).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{place} cannot be written: {error}", retryable=True) from error
        return number

    def exists(self, path: str) -> bool:
        """Whether there is an object at `path`."""
        return (self._folder / path).exists()

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Every file in the folder, however deep, and its bytes."""
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with suppress(FileNotFoundError):  # removed meanwhile
                    place = Path(folder) / name
                    yield str(place.relative_to(self._folder)), place.stat().st_size


def _file(place: Path, number: int) -> Path:
    return place.with_name(f"{place.name}.{number}")


def _numbers(place: Path) -> list[int]:
    try:
        names = os.listdir(place.parent)  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError:
        return []
    begin = f"{place.name}."
    return [int(name[len(begin) :]) for name in names if name.startswith(begin) and name[len(begin) :].isdigit()]


def _newest(place: Path) -> int | None:
    return max(_numbers(place), default=None)
