"""The data source `penstock-buffer`: a buffer's batches as a table and a stream, and as a place to write to.

An offset is a sequence for each manifest: the first unread sequence. The query takes the manifest's epoch when it plans
its first batch, and with it the right to remove entries; a query or consumer that takes the epoch later stops this
query. Spark calls `commit` with the end of a batch when the *next* batch is in its offset log. From then on no query
can request these entries again, not even a query whose newest commit-log entry was lost, and the entries are removed.

Writing tasks upload objects, and the commit appends all of them to the manifest at once; the consumer's collector
deletes objects that were uploaded in vain. Unknown options belong to the store and are passed on unread: they may be
secrets, and appear in no message and in no name.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from time import monotonic, sleep
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.buffer import Consumer, Descriptor, Fetcher, Metadata
from penstock.buffer.arrow import arrow_to_block
from penstock.buffer.format import MAX_BATCH_BYTES, Compression, Manifest, Mark, parse_manifest
from penstock.buffer.manifest import BufferPaths, buffer_paths, shard_of, shard_paths
from penstock.buffer.producer import Publisher, StagedObject
from penstock.core.clock import SystemClock
from penstock.core.names import shown_url
from penstock.errors import ConfigError, Fenced, PenstockError, PositionTrimmed
from penstock.limits import BUFFER_MANIFEST
from penstock.objects.store import CLOUD_SCHEMES, ObjectStore, open_store
from penstock.spark.options import SPARK_OPTIONS, check_known, choice, named_url, number, switch, written_once
from penstock.spark.sentences import in_sentences
from penstock.spark.sink import BatchWriter, StreamWriter, TaskShare, check_appends
from penstock.spark.source import Offsets, share_of
from penstock.spark.versions import LimitedReader, arrow_schema_of, check_batch_limits

_PLACE = ("url", "manifest", "prefix", "shards", "gcGrace")
_READ = (
    *(*_PLACE, "startingOffsets", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss"),
    *("gcInterval", "maxBatchBytes"),
)
_WRITE = (*_PLACE, "compression", "flushBytes", "txnAppId", "txnVersion")
_OWN = frozenset(name.lower() for name in (*_READ, *_WRITE))
_SCHEMES = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_FLUSH_BYTES = 32 << 20


class BufferOptions(msgspec.Struct, frozen=True):
    """The url and the shards of a buffer."""

    url: str
    shard_paths: tuple[BufferPaths, ...]
    gc_grace: float
    store: tuple[tuple[str, str], ...]
    """Options of the object store."""
    given: frozenset[str]
    """The names of our own options that were given, in lower case."""

    def open(self) -> ObjectStore:
        """Opens the store, which this process keeps open for the next task."""
        return _opened(os.getpid(), self.url, self.store)

    def __repr__(self) -> str:
        return f"BufferOptions({shown_url(self.url)!r})"


class BufferReadOptions(BufferOptions, frozen=True, kw_only=True):
    """The options of a read."""

    start: Literal["earliest", "latest"] = "earliest"
    max_offsets: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    gc_interval: float | None = 300
    max_batch_bytes: int = MAX_BATCH_BYTES

    __repr__ = BufferOptions.__repr__


class BufferWriteOptions(BufferOptions, frozen=True, kw_only=True):
    """The options of a write."""

    compression: Compression = "none"
    flush_bytes: int = _FLUSH_BYTES
    app: str | None = None
    version: int | None = None

    __repr__ = BufferOptions.__repr__


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Returns options with lower-case names and a resolved url; raises ConfigError without a url that Spark can use."""
    given, url = named_url(options, "buffer")
    if not url:
        raise ConfigError('no buffer is named: set option("url", "s3://bucket/prefix") or "file:///dir"')
    if url.startswith("memory:"):
        raise ConfigError(
            "Spark reads and writes a buffer from other processes, and memory:// lives in one; use file://"
        )
    given["url"] = url
    return given


def read_options(options: Mapping[str, str]) -> BufferReadOptions:
    """Checks the resolved options of a read; a ConfigError names an invalid option and the reason."""
    where, given = _where(options, "penstock-buffer read")
    interval = _seconds(given, "gcInterval", 300)
    found = BufferReadOptions(
        **where,
        start=choice(given, "startingOffsets", "earliest", "latest"),
        max_offsets=number(given, "maxOffsetsPerTrigger"),
        min_partitions=number(given, "minPartitions"),
        fail_on_data_loss=switch(given, "failOnDataLoss"),
        gc_interval=interval or None,
        max_batch_bytes=number(given, "maxBatchBytes") or MAX_BATCH_BYTES,
    )
    found.open()
    return found


def write_options(options: Mapping[str, str]) -> BufferWriteOptions:
    """Checks the resolved options of a write; a ConfigError names an invalid option and the reason."""
    where, given = _where(options, "penstock-buffer write")
    app, version = written_once(given)
    flush = number(given, "flushBytes") or _FLUSH_BYTES
    if flush > MAX_BATCH_BYTES:
        raise ConfigError(f"flushBytes is at most {MAX_BATCH_BYTES}, not {flush}")
    found = BufferWriteOptions(
        **where,
        compression=choice(given, "compression", "none", "zstd"),
        flush_bytes=flush,
        app=app,
        version=version,
    )
    found.open()
    return found


def _where(options: Mapping[str, str], what: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the options that say which buffer it is, as arguments, and those that are ours; `what`: as for
    `check_known`.
    """
    given = {name: value for name, value in options.items() if name in _OWN}
    rest = {name: value for name, value in options.items() if name not in _OWN and name not in SPARK_OPTIONS}
    scheme = given["url"].partition("://")[0]
    if _SCHEMES.get(scheme, scheme) not in CLOUD_SCHEMES:  # only those have options of their own
        check_known(rest, _READ, _WRITE, what)
    shards = number(given, "shards") or 1
    whole = buffer_paths(given.get("manifest", BUFFER_MANIFEST), given.get("prefix"))
    where = {
        "url": given["url"],
        "shard_paths": tuple(shard_paths(whole, shard, shards) for shard in range(shards)),
        "gc_grace": _seconds(given, "gcGrace", 600),
        "store": tuple(sorted(rest.items())),
        "given": frozenset(given),
    }
    return where, given


@lru_cache(maxsize=8)
def _opened(pid: int, url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(url, dict(options))


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{name} is a number of seconds, not {text!r}")
    return value


DDL = "sequence BIGINT, index INT, entry BINARY, metadata BINARY, ingested_at TIMESTAMP, location STRING"
_TIME = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("index", pa.int32()),
        ("entry", pa.binary()),
        ("metadata", pa.binary()),
        ("ingested_at", _TIME),
        ("location", pa.string()),
    ]
)
_AHEAD = 3
"""The objects that a task fetches ahead."""
_ROWS = 65_536
_PARTITIONS = 32
"""The number of tasks up to which each object has its own task, unless minPartitions asks for more."""


class ManifestRange(InputPartition):
    """The share of a task: some entries of one manifest, in order."""

    def __init__(self, manifest: str, entries: Sequence[Descriptor]) -> None:
        super().__init__(None)
        self.manifest = manifest
        self.entries = tuple(entries)

    def __repr__(self) -> str:
        return f"{self.manifest}[{self.entries[0].sequence}, {self.entries[-1].sequence}]"


def cut(found: Sequence[tuple[str, Sequence[Descriptor]]], options: BufferReadOptions) -> list[ManifestRange]:
    """Returns entries by manifest as runs for tasks: one object for each task, or several for many objects."""
    total = sum(len(entries) for _, entries in found)
    tasks = min(total, max(_PARTITIONS, options.min_partitions or 0))
    runs: list[ManifestRange] = []
    for manifest, entries in found:
        share = max(1, round(tasks * len(entries) / total)) if entries else 0
        bounds = [len(entries) * part // share for part in range(share + 1)] if share else []
        runs += [ManifestRange(manifest, entries[begin:end]) for begin, end in pairwise(bounds)]
    return runs


class BufferLayout(msgspec.Struct, frozen=True):
    """The columns of a query, in order."""

    schema: pa.Schema

    @classmethod
    def of(cls, wanted: StructType) -> BufferLayout:
        """Returns the layout of a schema; raises ConfigError for unknown columns."""
        schema = arrow_schema_of(wanted)
        for one in schema:
            if one.name not in _SCHEMA.names:
                raise ConfigError(
                    f"an entry of a buffer has no column {one.name!r}; there are {', '.join(_SCHEMA.names)}"
                )
            stored = _SCHEMA.field(one.name).type
            if one.type != stored:
                raise ConfigError(f"column {one.name!r} is {stored} here; the schema asks for {one.type}")
        return cls(schema)

    def batches(self, descriptor: Descriptor, entries: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one object, in pieces."""
        columns = [self._column(one.name, descriptor, entries) for one in self.schema]
        whole = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        for start in range(0, whole.num_rows, _ROWS):
            yield whole.slice(start, _ROWS)

    def _column(self, name: str, descriptor: Descriptor, entries: pa.BinaryArray) -> pa.Array:
        count = len(entries)
        if name == "entry":
            return entries
        if name == "index":
            return pa.array(np.arange(count, dtype=np.int32))
        if name == "sequence":
            return pa.repeat(pa.scalar(descriptor.sequence, pa.int64()), count)
        if name == "location":
            return pa.repeat(pa.scalar(descriptor.location, pa.string()), count)
        uncovered, lengths = _runs(descriptor.metadata, count)
        if name == "metadata":
            values = pa.array([None, *(each.payload for each in descriptor.metadata)], pa.binary())
        else:
            times = [None, *(each.ingested_at_ms * 1000 for each in descriptor.metadata)]
            values = pa.array(times, pa.int64()).cast(_TIME)
        which = np.repeat(np.arange(len(values), dtype=np.int32), [uncovered, *lengths])
        return values.take(pa.array(which))


def _runs(metadata: Sequence[Metadata], count: int) -> tuple[int, list[int]]:
    """Returns the number of entries before the first range, and how many each range covers."""
    starts = [min(each.start_index, count) for each in metadata]
    ends = [*starts[1:], count] if starts else []
    lengths = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
    return count - sum(lengths), lengths


def read_run(run: ManifestRange, options: BufferReadOptions, layout: BufferLayout) -> Iterator[pa.RecordBatch]:
    """Fetches a task's objects and yields their rows, in order."""
    fetcher = Fetcher(options.open(), run.manifest, options.max_batch_bytes)
    waiting = deque(run.entries)
    coming: deque[tuple[Descriptor, Future[pa.BinaryArray]]] = deque()
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="penstock-fetch") as pool:
        try:
            while waiting or coming:
                while waiting and len(coming) < _AHEAD:
                    descriptor = waiting.popleft()
                    coming.append((descriptor, pool.submit(fetcher.fetch_arrow, descriptor)))
                descriptor, entries = coming.popleft()
                yield from layout.batches(descriptor, entries.result())
        finally:
            for _, left in coming:
                left.cancel()


@in_sentences
class BufferSource(DataSource):
    """`spark.read.format("penstock-buffer").option("url", "s3://…")`, and the same for streams and writes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = resolved(options)

    @classmethod
    def name(cls) -> str:
        return "penstock-buffer"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return BufferBatchReader(read_options(self.given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return BufferStreamReader(read_options(self.given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check_appends(overwrite, "a buffer")
        return BatchWriter(BufferTarget(write_options(self.given), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        check_appends(overwrite, "a buffer")
        return StreamWriter(BufferTarget(write_options(self.given), schema))


@in_sentences
class BufferBatchReader(DataSourceReader):
    """A batch reader, which reads the manifest when the query is planned; it owns nothing and acknowledges nothing."""

    def __init__(self, options: BufferReadOptions, schema: StructType) -> None:
        for name in ("startingOffsets", "maxOffsetsPerTrigger", "gcInterval"):
            if name.lower() in options.given:
                raise ConfigError(f"{name} is for streams; a batch looks at everything that is in the buffer now")
        self.options = options
        self.layout = BufferLayout.of(schema)

    def partitions(self) -> Sequence[InputPartition]:
        store = self.options.open()
        manifests = [paths.manifest for paths in self.options.shard_paths]
        return cut([(path, list(parse_manifest(store.get(path), path))) for path in manifests], self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ManifestRange):  # Spark makes one of its own when there are none
            return iter(())
        return read_run(partition, self.options, self.layout)


_POLL = 0.1
"""The seconds between two reads of an unchanged manifest; Spark itself would ask a hundred times a second."""


@in_sentences
class BufferStreamReader(LimitedReader):
    """A stream reader, which reads a buffer batch after batch, as its only consumer."""

    def __init__(self, options: BufferReadOptions, schema: StructType) -> None:
        check_batch_limits(options.given, ("maxOffsetsPerTrigger",))
        self.options = options
        self.limited = options.max_offsets is not None
        self.layout = BufferLayout.of(schema)
        self._consumers: dict[str, Consumer] = {}
        self._seen: dict[str, Manifest] = {}
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._anchored = True
        self._idle_since: float | None = None

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def initialOffset(self) -> dict[str, int]:
        """Returns the start of a new query. Spark asks more than once and must get one answer."""
        if self._initial is None:
            self._refresh()
            latest = self.options.start == "latest"
            self._initial = {path: _end(seen) if latest else _begin(seen) for path, seen in self._seen.items()}
            # "latest" would be another place after a crash, so the first batch is left empty: the checkpoint then holds
            # the place before anything depends on it.
            self._anchored = not latest
        return dict(self._initial)

    def end_after(self, start: dict[str, int], *, limited: bool) -> dict[str, int]:
        self._check_manifests(start)
        if not self._anchored:
            self._anchored = True
            return start
        self._wait_if_idle()
        self._refresh()
        self._check_ahead(start)
        end = self._ends() if self._target is None else self._target
        end = {path: max(end[path], start[path]) for path in end}
        if limited and self.options.max_offsets is not None:
            end = share_of(start, end, self.options.max_offsets)
        self._idle_since = monotonic() if end == start else None
        return end

    def reportLatestOffset(self) -> dict[str, int] | None:
        return self._ends() if self._seen else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._refresh()
        self._target = self._ends()

    def _wait_if_idle(self) -> None:
        """Waits instead of answering from memory: a program that produced before asking Spark must find its entries
        in the answer.
        """
        if self._idle_since is not None and not self.options.url.startswith("file:"):
            sleep(max(0.0, self._idle_since + _POLL - monotonic()))

    def _ends(self) -> Offsets:
        return {path: _end(seen) for path, seen in self._seen.items()}

    def _check_manifests(self, offsets: Offsets) -> None:
        known = [paths.manifest for paths in self.options.shard_paths]
        if sorted(offsets) != sorted(known):
            raise ConfigError(
                f"the checkpoint is of a query that reads {', '.join(sorted(offsets))}; the options name "
                f"{', '.join(known)}. Start with a new checkpoint, or with the manifest and shards of that query"
            )

    def _check_ahead(self, start: Offsets) -> None:
        for path, manifest in self._seen.items():
            if self.options.fail_on_data_loss and _end(manifest) < start[path]:
                raise ConfigError(
                    f"this query has read {path} to {start[path]}, and {self.options.url} is only at {_end(manifest)}: "
                    "it is another buffer, or began again. Start with a new checkpoint, or set failOnDataLoss=false to "
                    "wait until it has grown again"
                )

    # ── the manifests ────────────────────────────────────────────────────────────────────────────────────────────────
    def _refresh(self) -> None:
        """Reads the manifests, taking them over from any other consumer the first time."""
        for path, consumer in self._owned().items():
            with self._fenced(path):
                self._seen[path] = consumer.read_manifest()

    def _owned(self) -> dict[str, Consumer]:
        options = self.options
        for paths in options.shard_paths:
            if paths.manifest not in self._consumers:
                self._consumers[paths.manifest] = Consumer(
                    options.open(),
                    manifest=paths.manifest,
                    prefix=paths.prefix,
                    gc_interval=options.gc_interval,
                    gc_grace=options.gc_grace,
                )
        return self._consumers

    @contextmanager
    def _fenced(self, path: str) -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            raise Fenced(
                f"another query or consumer took over {path} of {self.options.url}: it has epoch {error.epoch}, this "
                f"query had {self._consumers[path].epoch}. A buffer has one reader at a time, so this query stops; its "
                "checkpoint keeps its place. To take the buffer back, stop the other one and start this one again",
                epoch=error.epoch,
            ) from None

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self.plan(start, end)
        self._check_manifests(end)
        if any(path not in self._seen or _end(self._seen[path]) < end[path] for path in end):
            self._refresh()
        return cut([(path, self._entries(path, start[path], end[path])) for path in sorted(end)], self.options)

    def _entries(self, path: str, start: int, end: int) -> list[Descriptor]:
        manifest = self._seen[path]
        found = [each for each in manifest.after(start - 1 if start else None, end - start) if each.sequence < end]
        if len(found) < end - start and self.options.fail_on_data_loss:
            oldest = _begin(manifest)
            raise PositionTrimmed(
                f"entries {start} to {min(oldest, end) - 1} of {path} were removed by another consumer before this "
                f"query read them; the oldest left is {oldest}. Set failOnDataLoss=false to go on without them",
                oldest=oldest,
            )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ManifestRange)
        return read_run(partition, self.options, self.layout)

    def commit(self, end: dict[str, int]) -> None:
        """Removes what was read: see the top of this file."""
        self._check_manifests(end)
        for path, consumer in self._owned().items():
            last = end[path] - 1
            if last > (-1 if consumer.acked is None else consumer.acked):
                with self._fenced(path):
                    consumer.ack_through(last)

    def stop(self) -> None:
        """Ends the collectors; unacknowledged entries are delivered again."""
        for consumer in self._consumers.values():
            with suppress(PenstockError):
                consumer.close()


def _begin(manifest: Manifest) -> int:
    first = manifest.first_sequence()
    return manifest.next_sequence if first is None else first


def _end(manifest: Manifest) -> int:
    return manifest.next_sequence


_COLUMNS = ("entry", "metadata", "key")
_BYTES = (pa.binary(), pa.string())
_UPLOADS = 2
"""The objects that a task uploads while it makes the next object."""
_RANGES = 10_000
"""The most runs of equal metadata in one object: the manifest holds each run, and every write carries the whole
manifest.
"""


@dataclass
class Uploaded(TaskShare):
    """The uploads of a task, by shard."""

    objects: list[tuple[int, StagedObject]] = field(default_factory=list)


class BufferTarget:
    """A buffer that a frame is written to."""

    def __init__(self, options: BufferWriteOptions, schema: StructType) -> None:
        _check_columns(arrow_schema_of(schema), len(options.shard_paths))
        self.options = options
        self.app, self.version = options.app, options.version

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, number: int) -> Uploaded:
        """Uploads a task's rows as objects of about flushBytes."""
        share = Uploaded(job)
        coming: deque[tuple[int, Future[StagedObject]]] = deque()
        with ThreadPoolExecutor(_UPLOADS, thread_name_prefix="penstock-upload") as pool:
            for shard, rows in _gathered(batches, len(self.options.shard_paths), self.options.flush_bytes):
                while len(coming) >= _UPLOADS:
                    done, staged = coming.popleft()
                    share.objects.append((done, staged.result()))
                coming.append((shard, pool.submit(self._upload, shard, rows)))
            share.objects += [(shard, staged.result()) for shard, staged in coming]
        return share

    def _upload(self, shard: int, rows: pa.RecordBatch) -> StagedObject:
        metadata = _ranges(rows)
        return self._publisher(shard).stage(
            arrow_to_block(rows.column("entry")), metadata, rows.num_rows, self.options.compression
        )

    def publish(self, shares: Sequence[TaskShare], by: tuple[str, str] | None, version: int) -> bool:
        mark = None if by is None else Mark(":".join(by), version)
        written = True
        for shard in range(len(self.options.shard_paths)):
            uploaded = (share for share in shares if isinstance(share, Uploaded))
            staged = [one for share in uploaded for which, one in share.objects if which == shard]
            if staged:
                written = self._publisher(shard).publish(staged, mark) and written
        return written

    def sweep(self, job: str, through: int | None = None) -> None:
        """Does nothing: a commit whose answer was lost ends here too, and what was not published is collected."""

    def _publisher(self, shard: int) -> Publisher:
        options = self.options
        return Publisher(options.open(), options.shard_paths[shard], gc_grace=options.gc_grace)


def _check_columns(schema: pa.Schema, shards: int) -> None:
    twice = next((name for at, name in enumerate(schema.names) if name in schema.names[:at]), None)
    if twice is not None:
        raise ConfigError(f"the frame has the column {twice!r} twice")
    unknown = [name for name in schema.names if name not in _COLUMNS]
    if unknown:
        raise ConfigError(
            f"an entry of a buffer has no column {unknown[0]!r}; there are {', '.join(_COLUMNS)}. "
            'Put the rest into the entry: to_json(struct(…)).alias("entry")'
        )
    if "entry" not in schema.names:
        raise ConfigError('the frame has no column "entry": text or bytes')
    for column in schema:
        if column.type not in _BYTES:
            raise ConfigError(f"the column {column.name!r} must be text or bytes, not {column.type}")
    if shards > 1 and "key" not in schema.names:
        raise ConfigError('shards needs a column "key" (text or bytes): rows of one key go to one shard, in order')
    if shards == 1 and "key" in schema.names:
        raise ConfigError('the column "key" decides the shard, and this buffer has one: drop it, or set shards')


def _gathered(batches: Iterator[pa.RecordBatch], shards: int, flush_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields rows by shard, as record batches that each make an object."""
    held: list[list[pa.RecordBatch]] = [[] for _ in range(shards)]
    sizes = [0] * shards
    for batch in batches:
        for shard, rows in _by_shard(_narrowed(batch), shards):
            for piece in _pieces(rows, flush_bytes):
                size = _size(piece)
                if held[shard] and sizes[shard] + size > flush_bytes:
                    yield shard, pa.concat_batches(held[shard])
                    held[shard], sizes[shard] = [], 0
                held[shard].append(piece)
                sizes[shard] += size
    for shard, left in enumerate(held):
        if left:
            yield shard, pa.concat_batches(left)


def _narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with bytes for entries and metadata, and without null entries."""
    if batch.column("entry").null_count:
        raise ConfigError("a row has no entry (it is null): filter such rows out, or write something for them")
    columns = {name: batch.column(name).cast(pa.binary()) for name in batch.schema.names}
    return pa.RecordBatch.from_pydict(columns)


def _by_shard(batch: pa.RecordBatch, shards: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if shards == 1:
        yield 0, batch
        return
    if batch.column("key").null_count:
        raise ConfigError("a row has no key (it is null), so that no shard can be chosen for it")
    keys = batch.column("key").dictionary_encode()
    chosen = np.array([shard_of(key, shards) for key in keys.dictionary.to_pylist()])[keys.indices.to_numpy()]
    for shard in np.unique(chosen):
        yield int(shard), batch.filter(pa.array(chosen == shard))


def _size(rows: pa.RecordBatch) -> int:
    """Returns bytes of a block with these entries."""
    entries = rows.column("entry")
    return int(pc.sum(pc.binary_length(entries)).as_py() or 0) + 4 * len(entries)


def _pieces(rows: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows, cut where they would make an object that is too large."""
    if _size(rows) <= most:
        yield rows
    elif rows.num_rows == 1:
        if _size(rows) > MAX_BATCH_BYTES:
            raise ConfigError(f"an entry of {_size(rows)} bytes is larger than an object may be ({MAX_BATCH_BYTES})")
        yield rows
    else:
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half), most)
        yield from _pieces(rows.slice(half), most)


def _ranges(rows: pa.RecordBatch) -> list[Metadata]:
    """Returns a metadata range for each run of rows with the same metadata."""
    now = SystemClock().now_ms()
    if "metadata" not in rows.schema.names:
        return [Metadata(0, now)]
    runs: Any = pc.run_end_encode(rows.column("metadata").fill_null(b""))
    if len(runs.values) > _RANGES:
        raise ConfigError(
            f"{rows.num_rows} rows have {len(runs.values)} runs of different metadata, more than {_RANGES}: every run "
            "stands in the manifest. Sort by metadata, or put it into the entry"
        )
    starts = [0, *runs.run_ends.to_pylist()[:-1]]
    return [Metadata(start, now, payload) for start, payload in zip(starts, runs.values.to_pylist(), strict=True)]
