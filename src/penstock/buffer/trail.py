"""The trail: what was removed from a manifest lately (`<manifest>.trail`), in a manifest's own format without metadata.

A consumer writes it before it removes entries. A producer whose put got no answer looks for its own entry to learn
whether the put was done; the trail lets it find the entry even when a consumer was faster. What the trail says is
always true (an entry's location never changes), so a missing, damaged or outdated one costs certainty, never
correctness.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.buffer.format import Manifest, append, dequeue, parse_manifest
from penstock.buffer.format.manifest import empty_manifest
from penstock.buffer.naming import batch_time_ms
from penstock.buffer.store import ObjectStore, Stored
from penstock.clock import Clock
from penstock.errors import Corrupt

#: The trail keeps this many entries, more while they are younger than the longest a put can be without an answer.
_ENTRIES = 1024
_ENTRIES_MOST = 16_384
_YOUNG_MS = 300_000


class Trail:
    """The trail of one manifest."""

    def __init__(self, store: ObjectStore, manifest: str, clock: Clock) -> None:
        self._store = store
        self._path = f"{manifest}.trail"
        self._clock = clock
        self._manifest = empty_manifest(0)
        self._stored: Stored | None = None
        self._current = False  # whether what is known is what we wrote or read last

    def read(self) -> list[tuple[int, str]]:
        """Every sequence and location it still knows."""
        self._load()
        return list(self._manifest.locations())

    def extend(self, removed: Sequence[tuple[int, str]]) -> None:
        """Adds entries about to be removed; `VersionConflict` when another consumer writes the trail too."""
        if not self._current:
            self._load()
        known = set(self._manifest.locations())
        fresh = [entry for entry in removed if entry not in known]
        if not fresh:
            return
        manifest = self._manifest
        if fresh[0][0] != manifest.next_sequence:  # a gap, or a manifest that began anew: what was known says nothing
            manifest = empty_manifest(fresh[0][0])
        data = self._trimmed(Manifest(append(manifest, [(location, ()) for _, location in fresh])))
        self._current = False
        version = self._store.put_if(self._path, data, self._stored.version if self._stored else None)
        self._manifest, self._stored = Manifest(data), Stored(data, version)
        self._current = True

    def _load(self) -> None:
        stored = self._store.read(self._path, self._stored)
        if stored is None or stored is not self._stored:
            self._manifest = empty_manifest(0) if stored is None else _advice(stored)
        self._stored = stored
        self._current = True

    def _trimmed(self, manifest: Manifest) -> bytes:
        spare = manifest.count - _ENTRIES
        young = self._clock.now_ms() - _YOUNG_MS
        through = None
        for index, (sequence, location) in enumerate(manifest.locations() if spare > 0 else ()):
            if index >= spare:
                break
            if manifest.count - index <= _ENTRIES_MOST and (batch_time_ms(location) or 0) >= young:
                break
            through = sequence
        return bytes(manifest.data) if through is None else dequeue(manifest, through)


def _advice(stored: Stored) -> Manifest:
    """A trail's contents; damage makes it an empty one, to be written over."""
    try:
        manifest = parse_manifest(stored.data)
        for _ in manifest.locations():
            pass
    except Corrupt:
        return empty_manifest(0)
    return manifest
