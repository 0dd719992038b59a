"""A store that watches every change of the manifest and every deletion, and says what may not have happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.buffer.format import Manifest, next_epoch, parse_manifest
from penstock.objects.store import ObjectStore, Stored

from .conftest import MANIFEST


class Audit:
    """What the actors did to one buffer. Changes of the manifest are checked one after the other, as they happen."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.violations: list[str] = []
        self.deleted: set[str] = set()
        self.owner: str | None = None
        self.appended: list[str] = []
        self.dequeues = self.epochs = 0

    def view(self, actor: str) -> AuditedStore:
        return AuditedStore(self, actor)

    def manifest(self) -> Manifest:
        return parse_manifest(self.store.get(MANIFEST))

    def changed(self, actor: str, before: Manifest, after: Manifest) -> None:
        old, new = list(before.locations()), list(after.locations())
        if after.epoch != before.epoch:
            self.epochs += 1
            taken = after.epoch == next_epoch(before.epoch)
            self._expect(taken or actor == self.owner, f"{actor} jumped to epoch {after.epoch} without owning")
            self._expect(old == new, f"{actor} changed entries with the epoch")
            self.owner = actor
        elif after.next_sequence != before.next_sequence:
            added = new[len(old) :]
            self._expect(new[: len(old)] == old, f"{actor} changed entries while appending")
            self._expect(
                [sequence for sequence, _ in added] == list(range(before.next_sequence, after.next_sequence)),
                f"{actor} appended the wrong sequences",
            )
            for _, location in added:
                self._expect(location not in self.appended, f"{actor} appended {location} twice")
                self._expect(location not in self.deleted, f"{actor} appended {location}, which was collected")
                self._expect(self.store.get(location) is not None, f"{actor} appended {location}, which is not stored")
                self.appended.append(location)
        else:
            self.dequeues += 1
            self._expect(new == old[len(old) - len(new) :], f"{actor} removed something else than the oldest entries")
            self._expect(actor == self.owner, f"{actor} moved the frontier, but {self.owner} owns the manifest")

    def _expect(self, true: bool, otherwise: str) -> None:
        if not true:
            self.violations.append(otherwise)


class AuditedStore:
    """One actor's way to the audited store."""

    def __init__(self, audit: Audit, actor: str) -> None:
        self._audit = audit
        self._actor = actor
        self.url = audit.store.url
        self.identity = audit.store.identity

    def get(self, path: str) -> Any:
        return self._audit.store.get(path)

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        return self._audit.store.read(path, known)

    def put(self, path: str, data: bytes) -> None:
        self._audit.store.put(path, data)

    def put_if(self, path: str, data: bytes, version: Any) -> Any:
        if path != MANIFEST:
            return self._audit.store.put_if(path, data, version)
        with self._audit.lock:
            before = self._audit.manifest()
            done = self._audit.store.put_if(path, data, version)
            self._audit.changed(self._actor, before, parse_manifest(data))
            return done

    def list(self, prefix: str) -> Iterator[str]:
        return self._audit.store.list(prefix)

    def delete(self, paths: Sequence[str]) -> int:
        audit = self._audit
        with audit.lock:
            named = {location for _, location in audit.manifest().locations()}
            for path in paths:
                audit._expect(path not in named, f"{self._actor} deleted {path}, which the manifest names")
            audit.deleted.update(paths)
            return audit.store.delete(paths)

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        self._audit.store.sweep(prefix, older_than_ms)
