"""The manifest as a shared object: every change is one conditional put, tried again when somebody else was first.

Beside it stands the **trail** (`<manifest>.trail`), which a consumer writes before it removes entries: the sequence and
location of what was removed lately. A producer whose put got no answer looks for its own entry to learn whether the put
was done; the trail lets it find the entry even when a consumer was faster. What the trail says is always true (an
entry's location never changes), so a missing, damaged or outdated one costs certainty, never correctness.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import NamedTuple

from penstock.buffer.backoff import Backoff
from penstock.buffer.format import Manifest, append, dequeue, next_epoch, parse_manifest, set_epoch
from penstock.buffer.format.descriptor import Metadata
from penstock.buffer.format.manifest import empty_manifest
from penstock.buffer.measures import ManifestMeasures
from penstock.buffer.naming import batch_time_ms
from penstock.buffer.store import Store, Stored, VersionConflict
from penstock.buffer.store.contract import Buffer
from penstock.clock import Clock
from penstock.errors import Corrupt, Fenced, OutOfOrder

log = logging.getLogger("penstock.buffer")

#: The trail keeps this many entries, more while they are younger than the longest a put can be without an answer.
_TRAIL_ENTRIES = 1024
_TRAIL_ENTRIES_MOST = 16_384
_TRAIL_MS = 120_000


class Snapshot(NamedTuple):
    """A manifest as it was read, and what a conditional put needs to replace exactly that."""

    manifest: Manifest
    stored: Stored | None


class ManifestObject:
    """One manifest in a store. Not thread-safe: its owner takes care of that."""

    def __init__(self, store: Store, path: str, clock: Clock, measures: ManifestMeasures) -> None:
        self.path = path
        self._store = store
        self._clock = clock
        self._measures = measures
        self._trail = Trail(store, f"{path}.trail", clock)
        self._known: Snapshot | None = None
        self._backoff = Backoff(most=0.25)
        #: The sequence the last `append` would give its first entry; None when it did not get as far as writing.
        self.expected_sequence: int | None = None

    @property
    def length(self) -> int:
        """Entries when the manifest was last read or written."""
        return self._known.manifest.count if self._known else 0

    def load(self) -> Manifest:
        """The manifest now. Asks the store, but transfers it only when it changed."""
        return self._load().manifest

    def _load(self) -> Snapshot:
        known = self._known
        stored = self._store.read(self.path, known.stored if known else None)
        if known is None or stored is None or stored is not known.stored:
            known = Snapshot(_parse(stored.data if stored else None, self.path), stored)
        self._known = known
        self._measures.queue_length.set(known.manifest.count)
        return known

    def _replace(self, snapshot: Snapshot, data: bytes) -> None:
        """Puts `data` in the place of the snapshot; on any doubt about the outcome nothing is remembered."""
        self._known = None
        version = self._store.put_if(self.path, data, snapshot.stored.version if snapshot.stored else None)
        self._known = Snapshot(Manifest(data), Stored(data, version))
        self._measures.wrote(self._known.manifest.count)

    # ── producers ──

    def append(self, entries: Sequence[tuple[str, Sequence[Metadata]]]) -> int:
        """Tries once to append; returns the first entry's sequence.

        `VersionConflict` and `StorageError` leave it open whether it was done: ask `find` with `expected_sequence`.
        """
        self.expected_sequence = None
        snapshot = self._known or self._load()
        data = append(snapshot.manifest, entries)
        first = self.expected_sequence = snapshot.manifest.next_sequence
        try:
            self._replace(snapshot, data)
        except VersionConflict:
            self._measures.lost()
            raise
        return first

    def find(self, first: int, names: Sequence[Collection[str]]) -> int | None:
        """How many batches are in the queue (or were, lately), in this order from sequence `first`.

        Each batch is given by every location it was ever appended under. None while that sequence is still to come; 0
        when others have it, or nobody can tell any more.
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

    # ── the consumer ──

    def take_epoch(self) -> int:
        """Makes the caller the manifest's only consumer; whoever was it before is fenced."""
        for _ in self._backoff.attempts():
            snapshot = self._load()
            epoch = next_epoch(snapshot.manifest.epoch)
            try:
                self._replace(snapshot, set_epoch(snapshot.manifest, epoch))
            except VersionConflict:
                self._measures.lost()
                continue
            return epoch
        raise AssertionError("unreachable")

    def load_owned(self, epoch: int) -> Manifest:
        """The manifest now; `Fenced` when another consumer has taken it."""
        manifest = self.load()
        if manifest.epoch != epoch:
            raise Fenced(
                f"another consumer took over {self.path}: it has epoch {manifest.epoch}, this one {epoch}",
                epoch=manifest.epoch,
            )
        return manifest

    def dequeue(self, through: int, epoch: int) -> None:
        """Removes every entry up to `through`; `Fenced` when another consumer has taken the manifest."""
        for _ in self._backoff.attempts():
            manifest = self.load_owned(epoch)
            if through >= manifest.next_sequence:
                raise OutOfOrder(f"{self.path} has no entry {through} yet: {manifest.next_sequence} is next")
            snapshot = self._known
            assert snapshot is not None
            removed = list(takewhile(lambda entry: entry[0] <= through, manifest.locations()))
            if not removed:
                return
            try:
                self._trail.extend(removed)
                self._replace(snapshot, dequeue(manifest, through))
            except VersionConflict:
                self._measures.lost()
                continue
            return


class Trail:
    """What was removed from a manifest lately; stored in a manifest's own format, without metadata."""

    def __init__(self, store: Store, path: str, clock: Clock) -> None:
        self._store = store
        self._path = path
        self._clock = clock
        self._known: Snapshot | None = None
        self._loaded = False

    def read(self) -> list[tuple[int, str]]:
        """Every sequence and location it still knows."""
        self._load()
        return list(self._known.manifest.locations()) if self._known else []

    def extend(self, removed: Sequence[tuple[int, str]]) -> None:
        """Adds entries about to be removed; `VersionConflict` when another consumer writes the trail too."""
        if not self._loaded:
            self._load()
        known = self._known
        manifest = known.manifest if known else empty_manifest(removed[0][0])
        there = dict(manifest.locations())
        fresh = [entry for entry in removed if entry not in there.items()]
        if not fresh:
            return
        if fresh[0][0] != manifest.next_sequence:  # a gap, or a manifest that began anew: what was known says nothing
            manifest = empty_manifest(fresh[0][0])
        data = append(manifest, [(location, ()) for _, location in fresh])
        data = self._trim(Manifest(data))
        self._loaded = False
        version = self._store.put_if(self._path, data, known.stored.version if known and known.stored else None)
        self._known = Snapshot(Manifest(data), Stored(data, version))
        self._loaded = True

    def _load(self) -> None:
        stored = self._store.read(self._path, self._known.stored if self._known else None)
        if stored is None:
            self._known = None
        elif self._known is None or stored is not self._known.stored:
            self._known = Snapshot(_advice(stored), stored)
        self._loaded = True

    def _trim(self, manifest: Manifest) -> bytes:
        spare = manifest.count - _TRAIL_ENTRIES
        horizon = self._clock.now_ms() - _TRAIL_MS
        through = None
        for index, (sequence, location) in enumerate(manifest.locations() if spare > 0 else ()):
            if index >= spare:
                break
            if manifest.count - index <= _TRAIL_ENTRIES_MOST and (batch_time_ms(location) or 0) >= horizon:
                break
            through = sequence
        return bytes(manifest.data) if through is None else dequeue(manifest, through)


def _parse(data: Buffer | None, path: str) -> Manifest:
    try:
        return parse_manifest(data)
    except Corrupt as error:
        raise Corrupt(str(error), file=path) from None


def _advice(stored: Stored) -> Manifest:
    """A trail's contents; damage makes it an empty one, to be written over."""
    try:
        manifest = parse_manifest(stored.data)
        for _ in manifest.locations():
            pass
    except Corrupt:
        return empty_manifest(0)
    return manifest
