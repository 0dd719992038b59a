"""Staging areas: tasks put blocks into a folder or a bucket; the journal's writer reads them and sweeps.

An area is a folder, or a prefix of an object store, that tasks may write to and the writer may read. An object is one
piece of a batch: msgpack of [topic, block] pairs. Its name holds everything that sweeping must know:

    blocks/{job}.{number}.{milliseconds}.{batch}.{piece}

`number` is the micro-batch of a stream, 0 for a job with only one batch. `batch` names the objects that one attempt of
one task staged. Only objects that a commit names are ever read, so failed attempts, and objects that outlive their
commit, change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from penstock.core.engine.url import parse_url
from penstock.core.names import shown_url, split_url
from penstock.errors import ConfigError, StorageError
from penstock.limits import STAGED_SECONDS

if TYPE_CHECKING:
    from penstock.objects.store import ObjectStore

_FOLDER = "blocks"
_TRIES = 20
"""The number of attempts to make a folder that others may remove while it is still empty."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class _Name(msgspec.Struct, frozen=True):
    """The parts of an object's name."""

    job: str
    number: int
    begun_ms: int


def encode_piece(blocks: Sequence[tuple[str, bytes]]) -> bytes:
    """Topics and blocks as one piece."""
    return _encode(blocks)


def decode_piece(body: bytes | memoryview) -> list[tuple[str, bytes]]:
    """Returns the topics and blocks in a piece; raises ConfigError when the bytes are no piece."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"these are no staged blocks: {error}") from error


def own_area(url: str) -> str | None:
    """Returns the area beside a journal's own objects, when it is in an object store (an absolute url); else None."""
    where = parse_url(url)
    if not where.in_object_store:
        return None
    url = f"{where.scheme}:{where.path}" if where.in_bucket else f"file://{where.path}"
    return f"{url.rstrip('/')}/penstock/staging"


def own_lake(url: str) -> str | None:
    """Returns the lake beside a journal's own objects, when it is in an object store that Arrow knows, too; else
    None.
    """
    where = parse_url(url)
    if not where.in_object_store or (where.in_bucket and where.scheme not in ("s3", "gs")):
        return None
    place = f"{where.scheme}:{where.path}" if where.in_bucket else where.path
    return f"{place.rstrip('/')}/penstock/lake"


def area_of(url: str) -> StagingArea:
    """Returns the default area of a journal (an absolute url): inside its bucket, or beside its file."""
    own = own_area(url)
    if own is not None:
        return StagingArea(own)
    path = Path(parse_url(url)[1])
    return StagingArea(folder_url(path.parent), folder=f"{path.name}.staging")


def folder_url(path: str | Path) -> str:
    """Returns the url of a folder of this machine."""
    return f"file://{quote(str(Path(path).absolute()))}"


def check_area(url: str) -> str:
    """Returns the url of an area in the form in which urls are compared; raises ConfigError when the url cannot hold
    an area.
    """
    from penstock.objects.store import CLOUD_SCHEMES  # an extra that only programs need that stage objects

    known = (*(f"{scheme}://" for scheme in CLOUD_SCHEMES), "file:///")
    if not url.startswith(known):
        raise ConfigError(
            f"{shown_url(url)!r} is no place for staged objects: the url begins with one of {', '.join(known)}"
        )
    return url.rstrip("/")


class _Files:
    """A folder as the store of an area. Its files are not synced, because Spark repeats a lost batch."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def put(self, path: str, data: bytes) -> None:
        target = self._root / path
        for tries in range(_TRIES):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                return
            except FileNotFoundError as error:  # a job that found the folder empty removed it
                if tries == _TRIES - 1:
                    raise StorageError(f"cannot stage in {target.parent}: {error}", retryable=True) from error
            except OSError as error:
                raise StorageError(f"cannot stage in {target.parent}: {error}") from error

    def get(self, path: str, *, most: int) -> bytes | None:
        try:
            with (self._root / path).open("rb") as file:
                return file.read(most + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read what was staged: {error}") from error

    def list(self, prefix: str) -> Iterator[str]:
        with suppress(FileNotFoundError):
            yield from [f"{prefix}/{found.name}" for found in (self._root / prefix).iterdir()]

    def delete(self, paths: Sequence[str]) -> int:
        failed = 0
        for path in paths:
            try:
                (self._root / path).unlink(missing_ok=True)
            except OSError:
                failed += 1
        for folder in {(self._root / path).parent for path in paths}:
            with suppress(OSError):  # other jobs are staging
                folder.rmdir()
        return failed


def _open_store(url: str, options: Mapping[str, object] | None) -> ObjectStore | _Files:
    if url.startswith("file://"):
        return _Files(unquote(split_url(url).path))
    from penstock.objects.store import open_store

    return open_store(url, options)


class StagingArea:
    """A folder, or a prefix of an object store, that holds staged blocks."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.time,
        folder: str = _FOLDER,
    ) -> None:
        """Opens the store; `options` are the store's options, `clock` tells seconds since 1970, and `folder` goes
        when it is empty.
        """
        self.url = check_area(url)
        self._options = options
        self._clock = clock
        self._folder = folder

    @cached_property
    def _store(self) -> ObjectStore | _Files:
        return _open_store(self.url, self._options)

    def put(self, job: str, number: int, batch: str, piece: int, body: bytes) -> str:
        """Stores a piece and returns its path."""
        name = f"{job}.{number}.{round(self._clock() * 1000)}.{batch}.{piece}"
        path = f"{self._folder}/{name}"
        self._store.put(path, body)
        return path

    def get(self, path: str, size: int) -> bytes:
        """Returns a piece of this many bytes; raises StorageError when it is missing or has another size."""
        if path.rpartition("/")[0] != self._folder:
            raise ConfigError(f"{path[:80]!r} is not the path of a staged object")
        found = self._store.get(path, most=size)
        if found is None or len(found) != size:
            state = "not there any more" if found is None else f"of {len(found):,} bytes"
            raise StorageError(
                f"{path} in {shown_url(self.url)}, staged with {size:,} bytes, is {state}: it was swept, or replaced, "
                "or is on the disk of another machine; run the query again"
            )
        return bytes(found)

    def sweep(self, job: str, through: int | None = None) -> int:
        """Removes a job's objects of batches up to a number, and old objects of other jobs.

        Returns the number of removed objects.
        """
        oldest = (self._clock() - STAGED_SECONDS) * 1000
        gone = [
            path
            for path, name in self._list_staged()
            if name.begun_ms < oldest or (name.job == job and (through is None or name.number <= through))
        ]
        return len(gone) - self._store.delete(gone) if gone else 0

    def _list_staged(self) -> Iterator[tuple[str, _Name]]:
        for path in self._store.list(self._folder):
            parts = path.rpartition("/")[2].rsplit(".", 4)
            if len(parts) == 5 and parts[1].isdecimal() and parts[2].isdecimal():
                yield path, _Name(parts[0], int(parts[1]), int(parts[2]))
