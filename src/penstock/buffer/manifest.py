"""The manifest as a shared object: every change is one conditional put of a whole new manifest.

A put can fail in three ways: another writer was first (`VersionConflict`), it was refused, or its answer was lost.
After any of them a producer cannot know whether its entries are in the queue; `find` looks for them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.buffer.counters import ManifestCounters
from penstock.buffer.format import Manifest, append, parse_manifest
from penstock.buffer.format.descriptor import Metadata
from penstock.buffer.format.mark import Mark
from penstock.buffer.marks import Marks
from penstock.buffer.store import ObjectStore, Stored, VersionConflict
from penstock.buffer.store.contract import Buffer
from penstock.buffer.trail import Trail
from penstock.clock import Clock
from penstock.errors import Corrupt

log = logging.getLogger("penstock.buffer")


class ManifestVersion(NamedTuple):
    """A manifest as it was read, and what a conditional put needs to replace exactly that."""

    manifest: Manifest
    stored: Stored | None


class ManifestObject:
    """One manifest in a store. Not thread-safe: its owner serialises calls."""

    def __init__(self, store: ObjectStore, path: str, clock: Clock, measures: ManifestCounters) -> None:
        self.path = path
        self._store = store
        self._measures = measures
        self._trail = Trail(store, path, clock)
        self._marks = Marks(store, path, clock)
        self._known: ManifestVersion | None = None
        self._length = 0
        #: The sequence the last `append` would give its first entry; None when it did not get as far as writing.
        self.expected_sequence: int | None = None

    @property
    def length(self) -> int:
        """Entries when the manifest was last read or written."""
        return self._length

    def load(self) -> Manifest:
        """The manifest now. Asks the store, but transfers it only when it changed."""
        return self._load().manifest

    def latest_known(self) -> Manifest:
        """The manifest as last read or written, which may be outdated: then the next `append` conflicts."""
        return (self._known or self._load()).manifest

    def _load(self) -> ManifestVersion:
        known = self._known
        stored = self._store.read(self.path, known.stored if known else None)
        if known is None or stored is None or stored is not known.stored:
            known = ManifestVersion(_parse(stored.data if stored else None, self.path), stored)
        self._remember(known)
        return known

    def _replace(self, snapshot: ManifestVersion, data: bytes) -> None:
        """Puts `data` in the place of the snapshot; on any doubt about the outcome nothing is remembered."""
        self._known = None
        try:
            version = self._store.put_if(self.path, data, snapshot.stored.version if snapshot.stored else None)
        except VersionConflict:
            self._measures.lost()
            raise
        written = ManifestVersion(Manifest(data), Stored(data, version))
        self._remember(written)
        self._measures.wrote()

    def _remember(self, snapshot: ManifestVersion) -> None:
        self._known = snapshot
        self._length = snapshot.manifest.count
        self._measures.queue_length.set(self._length)

    def latest_mark(self, name: str) -> int | None:
        """The highest number that was appended under this name, by the manifest now and by what was removed from it.

        None when there is none; it can also have been forgotten (see `Marks`), or removed by a consumer that does not
        keep marks.
        """
        found = [mark.number for mark in self.load().marks() if mark.name == name]
        # After the manifest: a consumer writes the marks before it removes the entries.
        removed = self._marks.read(name)
        return max(found if removed is None else [*found, removed], default=None)

    def append(
        self,
        entries: Sequence[tuple[str, Sequence[Metadata]]],
        mark: Mark | None = None,
        checksums: Mapping[str, int] | None = None,
    ) -> int:
        """Tries once to append to the latest known manifest; returns the first entry's sequence.

        `VersionConflict` and `StorageError` leave it open whether it was done: ask `find` with `expected_sequence`.
        """
        self.expected_sequence = None
        snapshot = self._known or self._load()
        data = append(snapshot.manifest, entries, mark, checksums)
        first = self.expected_sequence = snapshot.manifest.next_sequence
        self._replace(snapshot, data)
        return first

    def find(self, first: int, names: Sequence[Collection[str]]) -> int | None:
        """How many batches are in the queue (or were, lately), in this order from sequence `first`.

        Each batch is given by every location it was ever appended under. None while that sequence is still to come; 0
        when others have it, or it cannot be told any more.
        """
        manifest = self.load()
        if manifest.next_sequence <= first:
            return None
        wanted = range(first, first + len(names))
        there = {sequence: location for sequence, location in manifest.locations() if sequence in wanted}
        if first not in there:
            there.update((sequence, location) for sequence, location in self._trail.read() if sequence in wanted)
        if first not in there:
            log.warning(
                "%s: entry %d was consumed and forgotten before its producer saw it; a batch may be delivered twice",
                self.path,
                first,
            )
        found = 0
        for sequence, locations in zip(wanted, names, strict=True):
            if there.get(sequence) not in locations:
                break
            found += 1
        return found


def _parse(data: Buffer | None, path: str) -> Manifest:
    try:
        return parse_manifest(data)
    except Corrupt as error:
        raise Corrupt(str(error), file=path) from None
