"""The places of a buffer's objects: one small contract over S3, Google Cloud Storage, Azure, a directory, and memory.

    s3://bucket/prefix   gs://bucket/prefix   az://container/prefix   file:///dir   memory://name

`ObjectStore` is the contract of a store. `cloud` implements it with obstore, `FileStore` with a directory (durable, and
safe between processes). `probe_conditional_puts` tests whether a store honours conditional puts, on which all users
depend.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote

from penstock.core.durable import as_storage_error, lock_file, make_folder, sync_folder
from penstock.core.names import check_mapping, shown_url, split_url
from penstock.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from penstock.objects.cloud import CloudStore


# ── The contract ──


CLOUD_SCHEMES = ("s3", "gs", "az")

#: The value by which a store knows that an object has not changed since it was read; opaque to its users.
Version = Any
Buffer = bytes | memoryview | Any


class VersionConflict(Exception):
    """A conditional put met another version than it named. Read the object again and decide anew."""


class Stored(NamedTuple):
    """An object's bytes and their version."""

    data: Buffer
    version: Version


@runtime_checkable
@runtime_checkable
class ObjectStore(Protocol):
    """An object store. Paths are relative, with `/` between segments. Failures are `StorageError`."""

    url: str
    identity: str  # the real place of the objects: two stores with one identity hold the same objects

    def get(self, path: str, *, most: int | None = None) -> Buffer | None:
        """Returns the object's bytes, or None when there is no object.

        Raises StorageError, without reading, when it has more than `most` bytes.
        """
        ...

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        """Returns the object with its version, or None when there is no object; `known` itself when it is still
        current.
        """
        ...

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Writes or replaces the object. Returns when it is durable; no reader ever sees half of it.

        The store may keep a memoryview, so its memory must not change any more.
        """
        ...

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        """Writes the object if its version is still `version` (None: if there is no object), else raises
        `VersionConflict`.
        """
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Returns the paths of the objects directly under `prefix`, in no particular order."""
        ...

    def delete(self, paths: Sequence[str]) -> int:
        """Deletes the objects. An object that is already gone counts as deleted. Returns the number of objects that
        could not be deleted."""
        ...

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        """Removes the remains of killed writers under `prefix` that are older than this time."""
        ...


def too_large(url: str, path: str, size: int, most: int) -> StorageError:
    """Returns the error of an object that is not read because of its size."""
    return StorageError(f"{path} in {url} has {size:,} bytes, and at most {most:,} are taken")


def check_path(path: str, what: str) -> str:
    """Checks that every store can hold a path and that the path stays below the store's root; raises ConfigError
    otherwise.
    """
    segments = path.split("/")
    if not path or any(segment in ("", ".", "..") for segment in segments):
        raise ConfigError(f"{what} must be a relative path without empty, '.' or '..' segments, not {path!r}")
    if any(ord(character) < 0x20 or character in "\\\x7f" for character in path):
        raise ConfigError(f"{what} must not contain control characters or backslashes: {path!r}")
    return path


# ── From a url and options to a store ──


_SCHEMES = (*CLOUD_SCHEMES, "file", "memory")
#: The options of the HTTP client; every other option belongs to the provider (region, endpoint, access_key_id …).
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
#: obstore would retry a request for three minutes. The producer retries by itself, because it knows the batch and the
#: attempt.
_RETRY: dict[str, object] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2},
}
#: The timeout of a whole request: a batch of 64 MiB at 5 Mbit/s still succeeds, which obstore's 30 s would not allow.
_REQUEST_TIMEOUT = "120s"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def open_store(url: str | ObjectStore, options: Mapping[str, object] | None = None) -> ObjectStore:
    """Opens the store that a url names; a store is returned unchanged.

    Credentials, region and endpoint come from the provider's usual environment variables (AWS_ACCESS_KEY_ID,
    AWS_REGION, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_CONNECTION_STRING …)
    unless `options` names them.
    """
    if not isinstance(url, str):
        if not isinstance(url, ObjectStore):
            raise ConfigError(f"a buffer is in a store that a url names, like s3://bucket/prefix, not in {url!r:.80}")
        if options:
            raise ConfigError("options belong to a url; a store that is already open has its own")
        return url
    parts = split_url(url)
    scheme = {"s3a": "s3", "gcs": "gs", "azure": "az"}.get(parts.scheme, parts.scheme)
    given = check_mapping(options, "options")
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"{shown_url(url)!r} does not name a store: the url must begin with one of "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}"
        )
    if scheme == "file":
        return _open_file(url, parts.netloc, unquote(parts.path), given)
    try:
        from penstock.objects.cloud import open_memory
    except ImportError as error:
        raise ConfigError(f'{scheme}:// needs obstore: pip install "penstock[buffer]"') from error
    if scheme == "memory":
        return open_memory(url, given)
    return open_cloud(url, given)


def _open_file(url: str, host: str, path: str, options: Mapping[str, object]) -> ObjectStore:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise ConfigError(f"{shown_url(url)!r} must give an absolute path: file:///data/buffer has three slashes")
    if options:
        raise ConfigError(f"file:// takes no options, not {', '.join(map(repr, options))}")
    return FileStore(path)


class CloudSettings(NamedTuple):
    """The provider's settings, the HTTP client's settings, and the endpoint if it was given."""

    config: dict[str, object]
    client: dict[str, object]
    endpoint: str


def cloud_settings(url: str, options: Mapping[str, object], environ: Mapping[str, str]) -> CloudSettings:
    """Returns the settings from `options` and the environment for s3://, gs:// or az://, for any library that opens the
    store."""
    if shown_url(url) != url:
        raise ConfigError(
            f"{shown_url(url)!r} was given with a user, a password or a query, and they do not belong into a url: "
            "give options (access_key_id, secret_access_key, endpoint, region …), or the environment's variables"
        )
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    if split_url(url).scheme in ("az", "azure"):
        config = azure_config(config, environ)
    endpoint = str(config.get("endpoint") or next((environ[name] for name in _ENDPOINTS if environ.get(name)), ""))
    if endpoint.startswith("http://"):  # an emulator or a private store without TLS: http was written on purpose
        client.setdefault("allow_http", True)
    if not split_url(url).netloc:
        raise ConfigError(f"{shown_url(url)!r} names no bucket or container")
    return CloudSettings(config, client, endpoint)


def open_cloud(url: str, options: Mapping[str, object], retry: Mapping[str, object] | None = None) -> CloudStore:
    """Opens s3://, gs:// or az://; a ConfigError names an option that the provider does not know."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    from penstock.objects.cloud import CloudStore

    config, client, endpoint = cloud_settings(url, options, os.environ)
    client.setdefault("timeout", _REQUEST_TIMEOUT)
    try:
        inner = from_url(url, config=config, client_options=client, retry_config=retry or _RETRY)  # type: ignore[call-overload]
    except (BaseError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"cannot open {url}: {said}") from error
    return CloudStore(url, options, inner, open_cloud, endpoint)


# ── The names under which Azure's own tools keep credentials, where obstore reads others ──


_AZURE_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
#: A variable of the az command line, and its option.
_AZURE_VARIABLES = {"AZURE_STORAGE_ACCOUNT": "account_name", "AZURE_STORAGE_KEY": "account_key"}
_AZURE_PARTS = {"accountname": "account_name", "accountkey": "account_key", "sharedaccesssignature": "sas_token"}


def azure_config(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns obstore's settings: the parts of a connection string, and the settings that only Azure's tools name.

    Options take precedence over the environment. A connection string in the environment counts only when no option is
    given: a mixture could send the credentials of one account to another account.
    """
    given = dict(config)
    connection = given.pop("connection_string", None)
    if connection is not None:
        return {**_taken_apart(connection, "the option connection_string"), **given}
    if not given and environ.get(_AZURE_CONNECTION):
        return _taken_apart(environ[_AZURE_CONNECTION], _AZURE_CONNECTION)
    found = {
        option: environ[variable]
        for variable, option in _AZURE_VARIABLES.items()
        if environ.get(variable) and not environ.get(f"AZURE_STORAGE_{option.upper()}")
    }
    return {**found, **given}


def _taken_apart(text: str, where: str) -> dict[str, object]:
    parts = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, sign, value = part.partition("=")
        if not sign:
            raise ConfigError(f"{where} must be name=value pairs between semicolons; {name[:20]!r} has no value")
        parts[name.strip().lower()] = value.strip()
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": "true"}
    config: dict[str, object] = {option: parts[name] for name, option in _AZURE_PARTS.items() if parts.get(name)}
    endpoint = parts.get("blobendpoint")
    if endpoint is None and "endpointsuffix" in parts and "account_name" in config:
        protocol = parts.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{config['account_name']}.blob.{parts['endpointsuffix']}"
    if endpoint is not None:
        config["endpoint"] = endpoint.rstrip("/")
        # https://account.blob.core.windows.net: a connection string with a signature instead of a key names no account.
        config.setdefault("account_name", endpoint.partition("://")[2].partition(".")[0])
    if "account_name" not in config:
        raise ConfigError(f"{where} names no account: AccountName= or BlobEndpoint= is missing")
    return config


# ── A store in a directory: what is acknowledged is on disk, and any number of processes may share it ──
# An object is written to a temporary file beside its own, fsynced, and renamed over it; then the directory is
# fsynced. Conditional puts hold a lock (flock) on a lock file of the object's own while they compare, write, rename and
# sync, so two processes cannot both win. Reading such an object shares the lock and syncs the directory too (which
# costs nothing when it is synced already), so no process acts on a version that a power cut could take back. The kernel
# drops the lock of a process that dies. Names that begin with a dot are ours.


_TEMPORARY = ".tmp"
_TAIL = 64
#: Linux writes and reads at most 2 GiB minus a page per call.
_MOST = 1 << 30


class FileStore:
    """A directory as an object store."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).resolve()
        self.url = f"file://{self._root}"
        self.identity = self.url
        with as_storage_error(f"open {self.url}"):
            make_folder(self._root)

    def __reduce__(self) -> tuple[object, ...]:
        return FileStore, (str(self._root),)

    def __repr__(self) -> str:
        return f"FileStore({str(self._root)!r})"

    def get(self, path: str, *, most: int | None = None) -> Buffer | None:
        found = self._load(self._path_of(path), most)
        return None if found is None else found.data

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        target = self._path_of(path)
        with self._errors("get", path):
            version = self._version(target)
            if version is None:
                return None
            if known is not None and version == known.version:
                return known
            with _locked(target, fcntl.LOCK_SH):
                found = self._load(target)
                _sync_directory(target.parent)
                return found

    def put(self, path: str, data: bytes | memoryview) -> None:
        target = self._path_of(path)
        with self._errors("put", path):
            self._write_temporary(target, data).rename(target)
            _sync_directory(target.parent)

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        target = self._path_of(path)
        with self._errors("put", path):
            if self._version(target) != version:  # the lock would tell the same later
                raise VersionConflict(path)
            # Written under the lock: only one writer can win the race, and the others would sync in vain.
            with _locked(target, fcntl.LOCK_EX):
                if self._version(target) != version:
                    raise VersionConflict(path)
                self._write_temporary(target, data).rename(target)
                _sync_directory(target.parent)
                return self._version(target)

    def list(self, prefix: str) -> Iterator[str]:
        with self._errors("list", prefix):
            try:
                found = list(os.scandir(self._path_of(prefix)))
            except FileNotFoundError:
                return
        for entry in found:
            if not entry.name.startswith(".") and entry.is_file():
                yield f"{prefix}/{entry.name}"

    def delete(self, paths: Sequence[str]) -> int:
        failed = 0
        for path in paths:
            try:
                self._path_of(path).unlink()
            except FileNotFoundError:
                continue
            except OSError:
                failed += 1
        return failed

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        with self._errors("sweep", prefix), suppress(FileNotFoundError):
            for entry in os.scandir(self._path_of(prefix)):
                if entry.name.startswith(".") and entry.name.endswith(_TEMPORARY):
                    with suppress(FileNotFoundError):  # renamed or swept by another meanwhile
                        if entry.stat().st_mtime_ns < older_than_ms * 1_000_000:
                            Path(entry.path).unlink()

    def _path_of(self, path: str) -> Path:
        return self._root / check_path(path, "an object's path")

    def _errors(self, verb: str, path: str) -> AbstractContextManager[None]:
        return as_storage_error(f"{verb} {path} in {self.url}")

    def _load(self, target: Path, most: int | None = None) -> Stored | None:
        with self._errors("get", target.name), _opened(target) as file:
            if file is None:
                return None
            status = os.fstat(file)
            if most is not None and status.st_size > most:
                raise too_large(self.url, target.name, status.st_size, most)
            data = _read(file, status.st_size)
        return Stored(data, _tag(status, bytes(data[-_TAIL:])))

    def _version(self, target: Path) -> Version | None:
        """Returns the current version, from the file's identity and its last bytes: a manifest's footer differs in
        every write.

        The inode and the time are not enough: both can repeat within one tick of the clock.
        """
        with self._errors("get", target.name), _opened(target) as file:
            if file is None:
                return None
            status = os.fstat(file)
            return _tag(status, os.pread(file, _TAIL, max(0, status.st_size - _TAIL)))

    def _write_temporary(self, target: Path, data: bytes | memoryview) -> Path:
        temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            make_folder(target.parent)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest[:_MOST]) :]
                os.fsync(file)
            finally:
                os.close(file)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary


@contextmanager
def _opened(target: Path) -> Iterator[int | None]:
    """Opens a file to read; yields None when the file does not exist."""
    try:
        file = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def _tag(status: os.stat_result, tail: bytes) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}-{zlib.crc32(tail):x}"


def _read(file: int, size: int) -> bytes:
    parts: list[bytes] = []
    left = size
    while left > 0 and (part := os.read(file, min(left, _MOST))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _locked(target: Path, how: int) -> Iterator[None]:
    name = target.parent / f".{target.name}.lock"
    try:
        file = lock_file(name, how)
    except FileNotFoundError:
        make_folder(target.parent)
        file = lock_file(name, how)
    try:
        yield
    finally:
        os.close(file)


class _DirectorySync:
    """Makes the names in a directory durable, once for all threads that wait for it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = threading.Lock()
        self._begun = 0
        self._done = 0

    def sync(self) -> None:
        # Every sync that begins after this line covers all earlier renames.
        wanted = self._begun + 1
        with self._turn:
            if self._done >= wanted:
                return
            self._begun += 1
            sync_folder(self._directory)
            self._done = self._begun


_syncs: dict[Path, _DirectorySync] = {}
os.register_at_fork(after_in_child=_syncs.clear)  # a thread that no longer exists may hold a turn


def _sync_directory(directory: Path) -> None:
    _syncs.setdefault(directory, _DirectorySync(directory)).sync()


# ── Finding out whether a store honours conditional puts ──
# Some S3 look-alikes accept `If-Match` and `If-None-Match` and ignore them. Two producers on such a store would
# overwrite each other's manifest entries without an error, so nothing may run there. The probe writes one object of a
# few bytes beside the manifest (`<manifest>.probe`, left there: producers often may not delete) and must be refused
# twice: when it creates what exists, and when it replaces a version that is no longer the current one.


_proven: set[tuple[str, str]] = set()
_proven_lock = threading.Lock()


def probe_conditional_puts(store: ObjectStore, manifest: str) -> None:
    """Checks that `store` honours conditional puts, else raises `StorageError`. The check runs once per process."""
    if store.url.partition("://")[0] not in CLOUD_SCHEMES:
        return
    with _proven_lock:
        if (store.identity, manifest) in _proven:
            return
    _probe(store, f"{manifest}.probe")
    with _proven_lock:
        _proven.add((store.identity, manifest))


def _probe(store: ObjectStore, path: str) -> None:
    # Contents must be unique: S3's e-tags are content hashes, and equal bytes would make a stale tag current again.
    try:
        store.put_if(path, _unique(), None)
    except VersionConflict:
        pass  # left by an earlier probe, and the refusal is half of the proof
    else:
        try:
            store.put_if(path, _unique(), None)
        except VersionConflict:
            pass
        else:
            raise _refusal(store, "it let an existing object be created again (If-None-Match)")
    found = store.read(path)
    if found is None:
        raise _refusal(store, "it does not return an object it has just accepted")
    try:
        store.put_if(path, _unique(), found.version)
    except VersionConflict:
        return  # another process is probing, which made our version stale, and the store refused it
    try:
        store.put_if(path, _unique(), found.version)
    except VersionConflict:
        return
    raise _refusal(store, "it let a stale version be replaced (If-Match)")


def _unique() -> bytes:
    return secrets.token_hex(16).encode()


def _refusal(store: ObjectStore, reason: str) -> StorageError:
    return StorageError(
        f"{store.url} does not honour conditional puts: {reason}. Producers would overwrite each other's batches, so "
        "the buffer does not run here. Use a store with conditional writes (S3, Google Cloud Storage, Azure, MinIO, R2, file://)."
    )
