"""The marks of entries that have left a manifest (`<manifest>.marks`): JSON, the highest number by name.

While entries are in the manifest, so are their marks. A consumer that removes the entries writes their marks here
first, so that a writer that comes back, however late, finds its mark in one place or the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.buffer.format.mark import Mark
from penstock.buffer.store import ObjectStore, Stored
from penstock.clock import Clock
from penstock.errors import Corrupt

#: Names that are remembered; beyond, those that have not been heard of for longest are forgotten.
NAMES = 1024


class _StoredMark(msgspec.Struct):
    number: int
    at_ms: int


class _MarksDocument(msgspec.Struct):
    marks: dict[str, _StoredMark]
    version: int = 1


class Marks:
    """The marks object of one manifest."""

    def __init__(self, store: ObjectStore, manifest: str, clock: Clock) -> None:
        self._store = store
        self._path = f"{manifest}.marks"
        self._clock = clock
        self._stored: Stored | None = None
        self._marks: dict[str, _StoredMark] = {}

    def read(self, name: str) -> int | None:
        """The highest number of that name whose entries have been removed, as far as anyone remembers."""
        self._load()
        kept = self._marks.get(name)
        return None if kept is None else kept.number

    def keep(self, marks: Iterable[Mark]) -> None:
        """Remembers the marks of entries about to be removed; `VersionConflict` when another consumer does so too."""
        self._load()
        now = self._clock.now_ms()
        merged = dict(self._marks)
        for name, number in marks:
            kept = merged.get(name)
            if kept is None or kept.number < number:
                merged[name] = _StoredMark(number, now)
        if merged == self._marks:
            return
        newest = sorted(merged.items(), key=lambda each: each[1].at_ms, reverse=True)[:NAMES]
        data = msgspec.json.encode(_MarksDocument(dict(newest)), order="sorted")
        version = self._store.put_if(self._path, data, self._stored.version if self._stored else None)
        self._marks, self._stored = dict(newest), Stored(data, version)

    def _load(self) -> None:
        stored = self._store.read(self._path, self._stored)
        if stored is None or stored is not self._stored:
            self._marks = {} if stored is None else _parse(stored.data, self._path)
        self._stored = stored


def _parse(data: Any, path: str) -> dict[str, _StoredMark]:
    try:
        found = msgspec.json.decode(bytes(data), type=_MarksDocument)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the marks of removed entries cannot be read: {error}. Delete the object to go on; a query whose last "
            "batch was cut off may then write it twice",
            file=path,
        ) from None
    if found.version != 1:
        raise Corrupt(f"marks of version {found.version} are unsupported (only 1)", file=path)
    return found.marks
