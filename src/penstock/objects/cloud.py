"""Stores through obstore: S3, Google Cloud Storage, Azure, and memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions as refused
from obstore.store import MemoryStore

from penstock.errors import ConfigError, StorageError
from penstock.objects.store import Buffer, Stored, Version, VersionConflict, too_large

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult
    from obstore.store import ObjectStore as AnyStore


_LIST_CHUNK = 1000
_DELETE_CHUNK = 1000
#: The same call fails again until a permission, a name or a setting changes.
_FINAL = (
    refused.PermissionDeniedError,
    refused.UnauthenticatedError,
    refused.InvalidPathError,
    refused.NotSupportedError,
    ValueError,
)
#: The parts of a provider's answer that were written for people.
_SAID = re.compile(r"<(?:Code|Message)>([^<]+)")

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


class CloudStore:
    """An obstore store with the contract's errors."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, object],
        inner: AnyStore,
        reopen: Callable[..., CloudStore],
        endpoint: str = "",
    ) -> None:
        self.url = url
        self.identity = f"{url.rstrip('/')} at {endpoint}" if endpoint else url.rstrip("/")
        self._options = dict(options)
        self._inner = inner
        self._reopen = reopen

    def __reduce__(self) -> tuple[object, ...]:
        return self._reopen, (self.url, self._options)

    def __repr__(self) -> str:
        return f"CloudStore({self.url!r})"

    def get(self, path: str, *, most: int | None = None) -> Buffer | None:
        with _errors("get", self.url, path):
            try:
                found = obstore.get(self._inner, path)
                if most is not None and found.meta["size"] > most:
                    raise too_large(self.url, path, found.meta["size"], most)
                return memoryview(found.bytes())
            except FileNotFoundError:
                return None

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        e_tag = known.version.get("e_tag") if known else None
        with _errors("get", self.url, path):
            try:
                found = obstore.get(self._inner, path, options={"if_none_match": e_tag} if e_tag else None)
                data = found.bytes()
            except FileNotFoundError:
                return None
            except refused.NotModifiedError:
                return known
            return Stored(bytes(data), _version(found.meta))

    def put(self, path: str, data: bytes | memoryview) -> None:
        with _errors("put", self.url, path):
            obstore.put(self._inner, path, data, use_multipart=False)

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        with _errors("put", self.url, path):
            try:
                done = obstore.put(self._inner, path, data, mode="create" if version is None else version)
            except (refused.PreconditionError, refused.AlreadyExistsError) as error:
                raise VersionConflict(path) from error
            except FileNotFoundError as error:
                if version is None:
                    raise
                raise VersionConflict(path) from error  # the object that the version named was deleted meanwhile
        return _version(done)

    def list(self, prefix: str) -> Iterator[str]:
        depth = prefix.count("/") + 1
        with _errors("list", self.url, prefix):
            for chunk in obstore.list(self._inner, prefix, chunk_size=_LIST_CHUNK):
                for found in chunk:
                    if found["path"].count("/") == depth:
                        yield found["path"]

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yields every object under the store's url, at any depth, with its size."""
        with _errors("list", self.url, ""):
            for chunk in obstore.list(self._inner, chunk_size=_LIST_CHUNK):
                for found in chunk:
                    yield found["path"], found["size"]

    def exists(self, path: str) -> bool:
        """Returns True when there is an object at `path`. Costs a single request and reads no bytes of the object."""
        with _errors("head", self.url, path):
            try:
                obstore.head(self._inner, path)
            except FileNotFoundError:
                return False
            return True

    def delete(self, paths: Sequence[str]) -> int:
        failed = 0
        for start in range(0, len(paths), _DELETE_CHUNK):
            chunk = list(paths[start : start + _DELETE_CHUNK])
            try:
                obstore.delete(self._inner, chunk)
            except (refused.BaseError, OSError, ValueError):
                failed += sum(not self._delete_one(path) for path in chunk)
        return failed

    def _delete_one(self, path: str) -> bool:
        try:
            obstore.delete(self._inner, path)
        except FileNotFoundError:
            return True
        except (refused.BaseError, OSError, ValueError):
            return False
        return True

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        """Does nothing: a put that never finished leaves no object."""


_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""The names of the error in different stores. For a list request, obstore reports it as any other failure."""


def _version(meta: ObjectMeta | PutResult) -> dict[str, str]:
    """Returns both names that a version can have: S3 and Azure compare e-tags, Google compares generations."""
    said = {"e_tag": meta.get("e_tag"), "version": meta.get("version")}
    version = {name: value for name, value in said.items() if value is not None}
    if not version:
        raise StorageError("the store returns neither e-tags nor versions, so it cannot hold a manifest")
    return version


class NoAnswer(StorageError):
    """No server answers at the store's address."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


def _no_answer(dump: str) -> str:
    """Returns the address and the reason from obstore's dump of an error, which is forty lines long."""
    address = re.search(r"https?://[^/\s]+", dump)
    reasons = re.findall(r'message: "([^"]+)"', dump) or re.findall(r"(dns error|timed? ?out)", dump, re.IGNORECASE)
    reason = f" ({reasons[-1].lower()})" if reasons else ""
    where = f"at {address[0]}" if address else "there"
    return f"no server answers {where}{reason}: is the endpoint right, and does the store run?"


@contextmanager
def _errors(verb: str, url: str, path: str) -> Iterator[None]:
    try:
        yield
    except (refused.BaseError, OSError, ValueError) as error:
        if "kind: Connect," in (dump := str(error)):
            raise NoAnswer(f"cannot {verb} {path} in {url}: {_no_answer(dump)}") from None
        told = _short_error(error)
        if gone := isinstance(error, FileNotFoundError) or any(word in told for word in _NO_BUCKET):
            told = f"no such bucket or container ({told})"
        retryable = not gone and not isinstance(error, _FINAL)
        raise StorageError(f"cannot {verb} {path} in {url}: {told}", retryable=retryable) from error


def _short_error(error: BaseException) -> str:
    """Returns the error and the server's own words, without the surrounding XML and obstore's dump of the error
    tree."""
    text = str(error).partition("\n\nDebug source")[0]
    happened = text.partition("\n")[0].partition("<?xml")[0].rstrip(": ")
    said = [found[1].partition("\n")[0].strip() for found in _SAID.finditer(text)]
    return ": ".join([happened[:400], *said])[:800]


# ── opening ──


def open_memory(url: str, options: Mapping[str, object]) -> CloudStore:
    """Returns a store in this process's memory, shared by all that open the same name."""
    if options:
        raise ConfigError(f"memory:// takes no options, not {', '.join(map(repr, options))}")
    with _memories_lock:
        inner = _memories.setdefault(url.removeprefix("memory://").strip("/"), MemoryStore())
    return CloudStore(url, options, inner, open_memory)
