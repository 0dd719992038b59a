"""The manifest as a shared object: every change is one conditional put of a whole new manifest.

A put can fail in three ways: another writer was first (`VersionConflict`), the store refused the put, or the answer was
lost. After any such failure a producer cannot know whether its entries are in the manifest; `find_appended` looks for
them.
"""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import msgspec

from penstock.buffer.format import Descriptor, Manifest, Mark, Metadata, append, dequeue, empty_manifest, parse_manifest
from penstock.core.clock import Clock
from penstock.core.consuming.handover import finish
from penstock.core.names import check_text, check_whole
from penstock.core.observe.metrics import REGISTRY, Registry
from penstock.errors import Closed, ConfigError, Corrupt
from penstock.limits import BUFFER_MANIFEST, BUFFER_PREFIX
from penstock.objects.store import ObjectStore, Stored, VersionConflict, check_path

try:
    from ulid import ULID
except ModuleNotFoundError as error:
    raise ConfigError('the buffer needs its extra: pip install "penstock[buffer]"') from error


log = logging.getLogger("penstock.buffer")


class ManifestVersion(NamedTuple):
    """A manifest as it was read, and the version that a conditional put needs to replace exactly this manifest."""

    manifest: Manifest
    stored: Stored | None


class ManifestObject:
    """A manifest in a store. Not thread-safe: its owner serialises calls."""

    def __init__(self, store: ObjectStore, path: str, clock: Clock, measures: ManifestCounters) -> None:
        self.path = path
        self._store = store
        self._measures = measures
        self._trail = Trail(store, path, clock)
        self._marks = Marks(store, path, clock)
        self._known: ManifestVersion | None = None
        self.contention = Contention()
        """The pause after an `append` that lost against another writer."""
        self.length = 0
        """The number of entries when the manifest was last read or written."""
        self._uncertain: int | None = None
        """The sequence that an `append` without an answer would have given its first entry."""

    def load(self) -> Manifest:
        """Returns the current manifest. Asks the store, but transfers the manifest only when it changed."""
        return self._load().manifest

    def latest_known(self) -> Manifest:
        """Returns the manifest as it was last read or written. When this is outdated, the next `append` conflicts."""
        return (self._known or self._load()).manifest

    def _load(self) -> ManifestVersion:
        known = self._known
        stored = self._store.read(self.path, known.stored if known else None)
        if known is None or stored is None or stored is not known.stored:
            known = ManifestVersion(parse_manifest(stored.data if stored else None, self.path), stored)
        self._remember(known)
        return known

    def _replace(self, snapshot: ManifestVersion, data: bytes) -> None:
        """Replaces the snapshot by `data`; when the outcome is in doubt, nothing is remembered."""
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
        self.length = snapshot.manifest.count
        self._measures.queue_length.set(self.length)

    def latest_mark(self, name: str) -> int | None:
        """Returns the highest number appended under this name, among the entries of the manifest and the removed
        entries.

        Returns None when there is no such number, when it was forgotten (see `Marks`), or when a consumer that keeps no
        marks removed it.
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
    ) -> None:
        """Tries once to append to the latest known manifest.

        After `VersionConflict` and `StorageError` the outcome is unknown: call `find_appended` before the next attempt.
        """
        snapshot = self._known or self._load()
        data = append(snapshot.manifest, entries, mark, checksums)
        self._uncertain = snapshot.manifest.next_sequence
        started = time.monotonic()
        try:
            self._replace(snapshot, data)
        finally:
            self.contention.took(time.monotonic() - started)
        self._uncertain = None

    def find_appended(self, names: Sequence[Collection[str]]) -> int:
        """Returns the number of batches that an `append` without an answer has put into the queue, in this order.

        Each batch is given by every location it was ever appended under. Returns 0 when the append was not done (yet),
        when other entries have its place, or when the outcome cannot be known any more.
        """
        first = self._uncertain
        if first is None:
            return 0
        manifest = self.load()
        if manifest.next_sequence <= first:
            return 0  # and it may still be done
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
        self._uncertain = None  # only now: after a failed read the outcome is still unknown
        return found


# ── What a producer and a consumer have in common ──


class BufferHandle(ABC):
    """One side of a buffer until `close`; a child that is forked from its process must not use it."""

    def __init__(self, measures: ManifestCounters) -> None:
        self._manifest_measures = measures
        self._pid = os.getpid()

    @property
    def conflict_rate(self) -> float:
        """The number of manifest writes that lost to another writer, per hundred successful writes."""
        return self._manifest_measures.conflict_rate

    @property
    def _inherited(self) -> bool:
        """Returns True when this process was forked from the process that created the object."""
        return os.getpid() != self._pid

    def _check_process(self) -> None:
        if self._inherited:
            what = type(self).__name__.lower()
            raise Closed(
                f"the {what} was made by process {self._pid} and this one was forked from it; make one in the child"
            )

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await finish(self.close)


# ── How long to wait before trying again ──


class Backoff:
    """Pauses that grow with every failure and are spread at random, so that colliding writers do not collide again."""

    def __init__(self, *, first: float = 0.002, most: float = 1.0, seed: int | None = None) -> None:
        self._first = first
        self._most = most
        self._random = random.Random(seed)

    def delay(self, failures: int) -> float:
        """Returns seconds to wait after this many failures in a row."""
        ceiling = min(self._most, self._first * 2.0 ** min(failures, 30))
        return self._random.uniform(ceiling / 4, ceiling)

    def attempts(self) -> Iterator[int]:
        """Counts attempts without end, waiting between them."""
        failures = 0
        while True:
            yield failures
            time.sleep(self.delay(failures))
            failures += 1


class Contention:
    """Waits after a lost race.

    The unit is the duration of a round of the race: short on a disk, longer across a network.
    """

    # Waits grow linearly from a short start. With few contenders every round has a winner, and an idle store helps no
    # contender. With many contenders, the waits grow until a round has about one contender.
    _STEP = 0.5
    _MOST_ROUNDS = 32.0
    _WEIGHT = 0.2

    def __init__(self) -> None:
        self._round = 0.005
        self._random = random.Random()

    def took(self, seconds: float) -> None:
        """Learns from one more round."""
        self._round += self._WEIGHT * (seconds - self._round)

    def delay(self, losses: int) -> float:
        """Returns seconds to wait after losing this many times in a row."""
        rounds = min(self._MOST_ROUNDS, self._STEP * losses)
        return min(2.0, self._random.uniform(0.0, rounds) * self._round)


# ── Where a buffer's objects are: the manifest, the batches, and their shards ──


RENEW_SHARE = 0.4
"""The share of the collector's grace after which an unreferenced object is uploaded again."""
_SUFFIX = ".batch"
_ULID_LENGTH = 26


class BufferPaths(NamedTuple):
    """The path of a manifest and the prefix of its batches."""

    manifest: str
    prefix: str

    def new_batch(self, now_ms: int) -> str:
        """Returns a location that no other process will ever choose; the name holds the current time."""
        return f"{self.prefix}/{ULID.from_timestamp(now_ms)}{_SUFFIX}"


def buffer_paths(manifest: str, prefix: str | None) -> BufferPaths:
    """Checks and returns the two paths; a manifest other than the default needs a prefix of its own.

    A collector knows the batches of its own manifest, and treats all other objects under its prefix as garbage.
    """
    if prefix is None:
        if manifest != BUFFER_MANIFEST:
            raise ConfigError(
                f"with the manifest {manifest!r} name the prefix of its batches as well (prefix=…), one of its own: "
                f"buffers that share {BUFFER_PREFIX!r} would delete each other's batches"
            )
        prefix = BUFFER_PREFIX
    return BufferPaths(
        check_path(check_text(manifest, "manifest"), "manifest"),
        check_path(check_text(prefix, "prefix").rstrip("/"), "prefix"),
    )


def shard_paths(whole: BufferPaths, shard: int, shards: int) -> BufferPaths:
    """Returns the paths of a shard: its manifest and a prefix.

    Each shard has its own prefix, because a collector knows only the references of its own manifest.

    The names hold the number of shards, so that old and new shards never mix after a change of this number.
    """
    if check_whole(shard, "shard", 0) >= check_whole(shards, "shards"):
        raise ConfigError(f"shard must be between 0 and shards - 1, not {shard} of {shards}")
    if shards == 1:
        return whole
    tail = f"{shard:05d}-of-{shards:05d}"
    return BufferPaths(f"{whole.manifest}-{tail}", f"{whole.prefix}/shard-{tail}")


def shard_of(key: bytes | str | int, shards: int) -> int:
    """Returns the shard of a key, which is the same on every machine and in every release."""
    if isinstance(key, int):
        return key % shards
    return zlib.crc32(key.encode() if isinstance(key, str) else key) % shards


def batch_time_ms(location: str) -> int | None:
    """Returns the time at which a batch's location was chosen, or None when its name is not a ULID."""
    name = location.rpartition("/")[2]
    if not name.endswith(_SUFFIX) or len(name) != _ULID_LENGTH + len(_SUFFIX):
        return None
    try:
        return ULID.from_str(name[:_ULID_LENGTH]).milliseconds
    except ValueError:
        return None


def lag_of(waiting: Sequence[Descriptor]) -> float | None:
    """Returns the seconds since the first of some batches was produced; None without batches, or when the batch has
    no time.
    """
    for batch in waiting[:1]:
        born = batch.metadata[0].ingested_at_ms if batch.metadata else batch_time_ms(batch.location)
        return None if born is None else max(0.0, time.time() - born / 1000)
    return None


# ── What a buffer is known by, whatever url and endpoint lead to it: a random name in `<manifest>.id` ──
# The manifest cannot hold the id, because another system reads its bytes too. The first caller writes the object.


_ID = re.compile(rb"[0-9a-f]{32}")


def buffer_id(store: ObjectStore, manifest: str) -> str:
    """Returns the stored identity of a manifest's buffer, and makes one if necessary."""
    path = f"{manifest}.id"
    while True:
        found = store.get(path)
        if found is not None:
            if _ID.fullmatch(bytes(found)) is None:
                raise Corrupt("a buffer's id is 32 hexadecimal digits; restore the object", file=path)
            return bytes(found).decode()
        with suppress(VersionConflict):  # another drain was first, and its id counts
            store.put_if(path, secrets.token_hex(16).encode(), None)


# ── The trail: what was removed from a manifest lately (`<manifest>.trail`), in a manifest's own format without metadat
# A consumer writes the trail before it removes entries. A producer whose put got no answer looks for its own entry to
# learn whether the put was done; in the trail it finds the entry even after a consumer has removed it from the
# manifest. The trail is always true, because an entry's location never changes. So a missing, damaged or outdated trail
# costs certainty, never correctness.


#: The trail keeps this many entries, and more while they are younger than the longest time that a put can stay
#: unanswered.
_TRAIL_ENTRIES = 1024
_TRAIL_ENTRIES_MOST = 16_384
_YOUNG_MS = 300_000


class Trail:
    """The trail of one manifest."""

    def __init__(self, store: ObjectStore, manifest: str, clock: Clock) -> None:
        self._store = store
        self._path = f"{manifest}.trail"
        self._clock = clock
        self._manifest = empty_manifest(0)
        self._stored: Stored | None = None
        self._current = False  # whether the known contents are the contents that we last wrote or read

    def read(self) -> list[tuple[int, str]]:
        """Returns every sequence and location that the trail still holds."""
        self._load()
        return list(self._manifest.locations())

    def extend(self, removed: Sequence[tuple[int, str]]) -> None:
        """Adds entries that are about to be removed; raises `VersionConflict` when another consumer writes the trail
        too.
        """
        if not self._current:
            self._load()
        known = set(self._manifest.locations())
        fresh = [entry for entry in removed if entry not in known]
        if not fresh:
            return
        manifest = self._manifest
        # a gap, or a manifest that began anew: the old entries are meaningless
        if fresh[0][0] != manifest.next_sequence:
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
        spare = manifest.count - _TRAIL_ENTRIES
        young = self._clock.now_ms() - _YOUNG_MS
        through = None
        for index, (sequence, location) in enumerate(manifest.locations() if spare > 0 else ()):
            if index >= spare:
                break
            if manifest.count - index <= _TRAIL_ENTRIES_MOST and (batch_time_ms(location) or 0) >= young:
                break
            through = sequence
        return bytes(manifest.data) if through is None else dequeue(manifest, through)


def _advice(stored: Stored) -> Manifest:
    """Returns a trail's contents; a damaged trail counts as empty and is overwritten."""
    try:
        manifest = parse_manifest(stored.data)
        for _ in manifest.locations():
            pass
    except Corrupt:
        return empty_manifest(0)
    return manifest


# ── The marks of entries that have left a manifest (`<manifest>.marks`): JSON, the highest number by name ──
# The marks of entries are in the manifest as long as the entries. A consumer that removes entries writes their marks
# here first. So a writer that returns, however late, finds its mark in either place.


#: The number of names that are remembered. Beyond it, the names that were not used for the longest time are forgotten.
MARK_NAMES = 1024


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
        """Returns the highest number of a name among removed entries, if it was not forgotten."""
        self._load()
        kept = self._marks.get(name)
        return None if kept is None else kept.number

    def keep(self, marks: Iterable[Mark]) -> None:
        """Remembers the marks of entries that are about to be removed; raises `VersionConflict` when another
        consumer does the same.
        """
        self._load()
        now = self._clock.now_ms()
        merged = dict(self._marks)
        for name, number in marks:
            kept = merged.get(name)
            if kept is None or kept.number < number:
                merged[name] = _StoredMark(number, now)
        if merged == self._marks:
            return
        newest = sorted(merged.items(), key=lambda each: each[1].at_ms, reverse=True)[:MARK_NAMES]
        data = msgspec.json.encode(_MarksDocument(dict(newest)), order="sorted")
        version = self._store.put_if(self._path, data, self._stored.version if self._stored else None)
        self._marks, self._stored = dict(newest), Stored(data, version)

    def _load(self) -> None:
        stored = self._store.read(self._path, self._stored)
        if stored is None or stored is not self._stored:
            self._marks = {} if stored is None else _parse_marks(stored.data, self._path)
        self._stored = stored


def _parse_marks(data: Any, path: str) -> dict[str, _StoredMark]:
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


# ── What the buffer counts, under the reference's names ──


class BufferCounters:
    """The buffer's metrics in one registry."""

    def __init__(self, registry: Registry = REGISTRY) -> None:
        if not isinstance(registry, Registry):
            raise ConfigError(f"metrics= is a penstock.metrics.Registry, not {registry!r:.80}")
        count, gauge, spread = registry.counter, registry.gauge, registry.histogram
        self.batches_flushed = count("buffer.batches_flushed", "Batches whose manifest entry is durable.")
        self.entries_flushed = count("buffer.entries_flushed", "Entries in those batches.")
        self.bytes_flushed = count("buffer.bytes_flushed", "Bytes of those entries, before compression.")
        self.bytes_written = count("buffer.bytes_written", "Bytes of batch objects written, after compression.")
        self.flush_duration = spread("buffer.flush_duration_seconds", "From a batch being due to its manifest entry.")
        self.batches_collected = count("buffer.batches_collected", "Batches fetched by consumers.")
        self.entries_collected = count("buffer.entries_collected", "Entries in those batches.")
        self.bytes_collected = count("buffer.bytes_collected", "Bytes of those batches as stored.")
        self.fetch_duration = spread("buffer.fetch_duration_seconds", "Getting and checking one batch object.")
        self.consumer_lag = gauge("buffer.consumer_lag_seconds", "Age of the newest entry of the batch last fetched.")
        self.queue_length = gauge("buffer.queue_length", "Manifest entries when it was last read or written.")
        self.descriptors = count("buffer.descriptors_handed_out", "Manifest entries handed out to be fetched.")
        self.acks = count("buffer.acks", "Batches acknowledged.")
        self.gc_files_deleted = count("buffer.gc_files_deleted", "Batch objects deleted by the collector.")
        self.gc_files_failed = count("buffer.gc_files_failed", "Batch objects the collector could not delete.")
        self.gc_duration = spread("buffer.gc_duration_seconds", "One collection.")
        self.retries = count("buffer.retries", "Uploads and manifest writes that failed and were tried again.")
        self._writes = registry.counters("buffer.manifest_writes", "Manifest writes that won.", ("role",))
        self._conflicts = registry.counters("buffer.manifest_conflicts", "Manifest writes that lost.", ("role",))

    def for_role(self, role: str) -> ManifestCounters:
        """Returns the manifest counters of one side, "producer" or "consumer"."""
        return ManifestCounters(self, role)


class ManifestCounters:
    """The numbers of manifest writes, and of writes that lost to another writer."""

    def __init__(self, measures: BufferCounters, role: str) -> None:
        self._writes = measures._writes.labels(role=role)
        self._conflicts = measures._conflicts.labels(role=role)
        self.queue_length = measures.queue_length
        self.writes = 0
        self.conflicts = 0

    def wrote(self) -> None:
        self.writes += 1
        self._writes.inc()

    def lost(self) -> None:
        self.conflicts += 1
        self._conflicts.inc()

    @property
    def conflict_rate(self) -> float:
        """The number of conflicts per hundred successful writes, at most 100."""
        return min(100.0, self.conflicts / self.writes * 100) if self.writes else 0.0
