"""The manifest as its one consumer sees it: owned by epoch, and lost to the consumer that takes a newer one.

Every change is a conditional put on a manifest that was read with one of our epochs in it, so a consumer that has been
fenced can change nothing, however late its request arrives.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import takewhile
from typing import TypeVar

from penstock.buffer.backoff import Backoff
from penstock.buffer.counters import ManifestCounters
from penstock.buffer.format import Manifest, dequeue, next_epoch, set_epoch
from penstock.buffer.manifest import ManifestObject, ManifestVersion
from penstock.buffer.store import ObjectStore, VersionConflict
from penstock.clock import Clock
from penstock.errors import Fenced, OutOfOrder

T = TypeVar("T")


class OwnedManifest(ManifestObject):
    """A manifest that fences its earlier consumer when it is made. Not thread-safe, like its base."""

    def __init__(self, store: ObjectStore, path: str, clock: Clock, measures: ManifestCounters) -> None:
        super().__init__(store, path, clock, measures)
        self._backoff = Backoff(most=0.25)
        # Several, because a new one whose answer was lost may or may not have been written.
        self._epochs: set[int] = set()
        self.epoch = self._take_over()

    def _take_over(self) -> int:
        for _ in self._backoff.attempts():
            snapshot = self._load()
            epoch = next_epoch(snapshot.manifest.epoch)
            try:
                self._replace(snapshot, set_epoch(snapshot.manifest, epoch))
            except VersionConflict:
                continue
            self._epochs = {epoch}
            return epoch
        raise AssertionError("unreachable")

    def load_owned(self) -> Manifest:
        """The manifest now; `Fenced` when another consumer has taken it."""
        return self._load_owned().manifest

    def _load_owned(self) -> ManifestVersion:
        snapshot = self._load()
        epoch = snapshot.manifest.epoch
        if epoch not in self._epochs:
            raise Fenced(
                f"another consumer took over {self.path}: it has epoch {epoch}, this one {self.epoch}", epoch=epoch
            )
        self.epoch = epoch
        return snapshot

    def dequeue(self, through: int) -> None:
        """Removes every entry up to `through`."""
        for _ in self._backoff.attempts():
            snapshot = self._load_owned()
            manifest = snapshot.manifest
            if through >= manifest.next_sequence:
                raise OutOfOrder(f"{self.path} has no entry {through} yet: {manifest.next_sequence} is next")
            removed = list(takewhile(lambda entry: entry[0] <= through, manifest.locations()))
            if not removed:
                return
            marks = list(manifest.marks(through))
            try:
                self._trail.extend(removed)
                if marks:
                    self._marks.keep(marks)
                self._replace(snapshot, dequeue(manifest, through))
            except VersionConflict:
                continue
            return

    def decide(self, choose: Callable[[Manifest], T | None]) -> T | None:
        """Chooses by the manifest and makes the choice stand: no append that has not seen it can succeed afterwards.

        The epoch changes to one that no other consumer would choose, and with it the manifest. Who read it before must
        read it again before writing. None is no choice, and changes nothing.
        """
        for _ in self._backoff.attempts():
            snapshot = self._load_owned()
            chosen = choose(snapshot.manifest)
            if chosen is None:
                return None
            epoch = next_epoch(snapshot.manifest.epoch + 1 + secrets.randbelow(1 << 32))
            self._epochs.add(epoch)
            try:
                self._replace(snapshot, set_epoch(snapshot.manifest, epoch))
            except VersionConflict:
                continue
            self._epochs = {epoch}
            self.epoch = epoch
            return chosen
        raise AssertionError("unreachable")
