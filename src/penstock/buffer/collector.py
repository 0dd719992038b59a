"""The collector: deletes batch objects that no consumer can need any more.

An object goes only if all of this holds: it stands directly under the prefix and its name is a ULID's; the manifest
does not name it; it is older than every batch the manifest names; and its age has reached the grace. The objects are
listed *before* the manifest is read, so a batch appended in between is seen as named.

What if a producer appends an object just as it is being deleted? It looks at the age of its objects after it has read
the manifest it will replace, and uploads those that are no longer young again, under a new name. A consumer's collector
changes the manifest (its own epoch) before it deletes, so an append prepared before that cannot succeed, and one
prepared after it no longer names what is doomed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from penstock.buffer.format import Manifest, parse_manifest
from penstock.buffer.manifest import BufferPaths, batch_time_ms
from penstock.buffer.store import ObjectStore
from penstock.errors import Fenced

log = logging.getLogger("penstock.buffer")


class Collection(NamedTuple):
    """What one collection did."""

    deleted: int
    failed: int
    kept: int


def collect(
    store: ObjectStore,
    paths: BufferPaths,
    *,
    now_ms: int,
    grace_ms: int,
    decide: Callable[[Callable[[Manifest], list[str] | None]], list[str] | None] | None = None,
    dry_run: bool = False,
) -> Collection:
    """Deletes what no consumer can need; `dry_run` only counts.

    `decide` is the consumer's way to make a choice stand (`OwnedManifest.decide`). Without one, as from the command
    line beside a running consumer, an object is safe from a producer that stops for no longer than the grace.
    """
    batches = {path: time for path in store.list(paths.prefix) if (time := batch_time_ms(path)) is not None}

    def doomed_by(manifest: Manifest) -> list[str] | None:
        named = {location for _, location in manifest.locations()}
        horizon = _horizon(named, now_ms - grace_ms)
        return sorted(path for path, time in batches.items() if path not in named and time < horizon) or None

    if decide is None or dry_run:
        found = store.get(paths.manifest)
        # Where there is no manifest its name was mistyped, perhaps, and the objects are those of another one.
        doomed = None if found is None else doomed_by(parse_manifest(found))
    else:
        doomed = decide(doomed_by)
    if dry_run:
        return Collection(len(doomed or ()), 0, len(batches) - len(doomed or ()))
    failed = store.delete(doomed) if doomed else 0
    deleted = len(doomed or ()) - failed
    store.sweep(paths.prefix, now_ms - grace_ms)
    return Collection(deleted, failed, len(batches) - deleted)


def _horizon(named: set[str], newest_old_ms: int) -> int:
    """The time before which objects may be deleted: past their grace, and older than all the manifest names."""
    horizon = newest_old_ms + 1
    for location in named:
        time = batch_time_ms(location)
        if time is None:  # a name that tells no time: nothing can be said to be older than that batch
            return 0
        horizon = min(horizon, time)
    return horizon


class Collector:
    """A thread that collects every so often, until it is stopped or its consumer is fenced."""

    def __init__(self, collect: Callable[[], int], interval: float) -> None:
        self._collect = collect
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-collector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._collect()
            except Fenced:
                return
            except Exception as error:  # whatever it was: the thread must not end unseen
                log.warning("garbage collection failed; trying again in %g s: %s", self._interval, error)
