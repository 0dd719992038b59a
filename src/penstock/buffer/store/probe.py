"""Finding out whether a store honours conditional puts.

Some S3 look-alikes accept `If-Match` and `If-None-Match` and ignore them. Two producers on such a store would overwrite
each other's manifest entries without an error, so nothing may run there. The probe writes one object of a few bytes
beside the manifest (`<manifest>.probe`, left in place: producers often may not delete) and must be refused twice: when
it creates what exists, and when it replaces a version that is no longer the current one.
"""

from __future__ import annotations

import secrets
import threading

from penstock.buffer.store.contract import CLOUD_SCHEMES, ObjectStore, VersionConflict
from penstock.errors import StorageError

_proven: set[tuple[str, str]] = set()
_lock = threading.Lock()


def probe_conditional_puts(store: ObjectStore, manifest: str) -> None:
    """Returns if `store` honours conditional puts, else raises `StorageError`. Proven once per process."""
    if store.url.partition("://")[0] not in CLOUD_SCHEMES:
        return
    with _lock:
        if (store.identity, manifest) in _proven:
            return
    _probe(store, f"{manifest}.probe")
    with _lock:
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
        return  # another process is probing, which made our version stale, and the store noticed
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
