"""The collector: deletes batch objects that nobody can need any more.

An object goes only if all of this holds: it stands directly under the prefix and its name is a ULID's; the manifest
does not name it; it is older than every batch the manifest names; and its age has reached the grace. The objects are
listed *before* the manifest is read, so a batch appended in between is seen as named. A producer never appends an
object whose age has come near the grace (it uploads it again under a new name first).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from penstock.buffer.format import parse_manifest
from penstock.buffer.measures import Measures
from penstock.buffer.naming import Place, batch_time_ms
from penstock.buffer.store import Store
from penstock.errors import Fenced, PenstockError

log = logging.getLogger("penstock.buffer")


class Collection(NamedTuple):
    """What one collection did."""

    deleted: int
    failed: int
    kept: int


def collect(
    store: Store,
    place: Place,
    *,
    now_ms: int,
    grace_ms: int,
    epoch: int | None = None,
    measures: Measures | None = None,
    dry_run: bool = False,
) -> Collection:
    """Deletes what nobody can need; `Fenced` when the manifest has another `epoch`. `dry_run` only counts."""
    started = perf_counter()
    counted = measures or Measures()
    times = {path: batch_time_ms(path) for path in store.list(place.prefix)}
    batches = {path: time for path, time in times.items() if time is not None}
    manifest = parse_manifest(store.get(place.manifest))
    if epoch is not None and manifest.epoch != epoch:
        raise Fenced(f"another consumer took over {place.manifest}", epoch=manifest.epoch)
    named = {location for _, location in manifest.locations()}
    horizon = _horizon(named, now_ms - grace_ms)
    doomed = sorted(path for path, time in batches.items() if path not in named and time < horizon)
    failed = 0 if dry_run else store.delete(doomed)
    deleted = len(doomed) - failed
    if not dry_run:
        store.sweep(place.prefix, now_ms - grace_ms)
        counted.gc_files_deleted.inc(deleted)
        counted.gc_files_failed.inc(failed)
        counted.gc_duration.observe(perf_counter() - started)
    return Collection(deleted, failed, len(batches) - deleted)


def _horizon(named: set[str], newest_old_ms: int) -> int:
    """Only what was named before this time may go: past its grace, and older than everything the manifest names."""
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

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._stop.is_set()

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
            except PenstockError as error:
                log.warning("garbage collection failed; trying again in %g s: %s", self._interval, error)
