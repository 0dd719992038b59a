"""`seal`: settled history becomes Parquet in a lake, verified, before the journal lets go of it.

    lake/orders/date=2026-03-01/00000000000000000001-00000000000001000000.parquet

For every file: write it under a name that readers skip, read it back and compare it with the journal, give it its name,
and then, in one commit of the journal, record it as a segment and drop its hot blocks. Killed before the commit, a file
is an orphan that the next `seal` removes; killed after it, the file is the history. Reads see either, never neither.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

import penstock
from penstock.api import Journal
from penstock.clock import from_ms, to_ms
from penstock.engine.contract import Engine
from penstock.errors import ConfigError, Corrupt
from penstock.journal.arrow import arrow_schema, joined, record_batch
from penstock.journal.block import Block
from penstock.journal.catalog import load_state, save_state
from penstock.journal.commit import Commit
from penstock.journal.compaction import _remove_prefix
from penstock.journal.names import check_name, check_position
from penstock.journal.reading import TopicView
from penstock.journal.sealed import Segment, load_segments, open_lake, save_segment

_FILE_EVENTS = 1_000_000
"""Events in one file, at the most."""
_GROUP_ROWS = 65_536
"""Rows in a row group: what a look-up of one event has to decode."""
_MARKER = "_penstock.json"
_TEXTS = ["topic", "kind", "key", "scope", "correlation_id", "causation_id"]


class SealReport(msgspec.Struct, frozen=True):
    """What a seal did."""

    topic: str
    lake: str
    events: int
    """Events sealed by this call."""
    files: int
    bytes: int
    through: int
    """Everything at or before this position is sealed now."""


def seal(
    journal: Journal | str,
    topic: str,
    *,
    lake: str,
    through: int | None = None,
    master: str | None = None,
    file_events: int = _FILE_EVENTS,
) -> SealReport:
    """Moves a topic's settled history into Parquet under `lake` (a folder, s3://bucket/prefix, …).

    Reads go on as before, across both. Without `through`, everything but the newest block is settled. Call it again to
    go on, also after a kill: what was sealed stays, what was half done is done again. With `master`, Spark's tasks
    write the files.
    """
    check_name(topic)
    if through is not None:
        check_position(through, "through")
    if not isinstance(file_events, int) or file_events < 1:
        raise ConfigError(f"file_events must be a whole number of at least 1, not {file_events!r}")
    lake = lake if "://" in lake else os.path.abspath(lake)  # noqa: PTH100
    with _opened(journal) as opened:
        return _Sealing(opened, topic, lake, file_events).run(through, master)


@contextmanager
def _opened(journal: Journal | str) -> Iterator[Journal]:
    if isinstance(journal, str):
        with penstock.open(journal) as opened:
            yield opened
    else:
        yield journal


class _Sealing:
    def __init__(self, journal: Journal, topic: str, lake: str, file_events: int) -> None:
        self.journal = journal
        self.topic = topic
        self.lake = lake
        self.file_events = file_events
        self.filesystem, self.root = open_lake(lake)

    def run(self, through: int | None, master: str | None) -> SealReport:
        with self.journal._engine.read() as snap:
            view = TopicView.open(snap, self.topic)
            if view is None:
                raise ConfigError(f"there is no topic {self.topic!r} to seal")
            if view.record.settings.by_key:
                raise ConfigError(
                    f"topic {self.topic!r} keeps only the newest event of every key, so its history is never settled"
                )
            state = load_state(snap, view.number, self.topic)
            known = list(load_segments(snap, view.number))
            ranges = self._plan(view, max(state.sealed, state.trimmed), through)
        self._claim(known)
        events = size = 0
        for segment in self._write(ranges, master):
            self.journal.run(partial(self._adopt, segment))
            events += segment.count
            size += segment.size
        if events:
            self.journal._engine.reclaim()
        sealed = ranges[-1][1] if ranges else max(state.sealed, state.trimmed)
        return SealReport(self.topic, self.lake, events, len(ranges), size, sealed)

    def _plan(self, view: TopicView, after: int, through: int | None) -> list[tuple[int, int]]:
        """Ranges of positions, one per file: of at most so many events, and of one day each."""
        latest = view.latest()
        if through is None:
            block = view.block_holding(latest) if latest else None
            through = block.first - 1 if block else latest
        through = min(through, latest)
        ranges: list[tuple[int, int]] = []
        while after < through:
            stop = min(after + self.file_events, through)
            ranges.extend(self._by_day(view, after, stop))
            after = stop
        return ranges

    def _by_day(self, view: TopicView, after: int, through: int) -> Iterator[tuple[int, int]]:
        while after < through:
            midnight = _day(view, after + 1, through) + timedelta(days=1)
            stop = min(through, max(view.position_before(to_ms(midnight, "date")), after))
            if stop == after:
                stop = through
            yield after, stop
            after = stop

    def _claim(self, known: list[Segment]) -> None:
        """Makes sure the folder is this topic's, and removes what an interrupted seal has left in it."""
        folder = f"{self.root}/{self.topic}"
        if isinstance(self.filesystem, pyarrow.fs.LocalFileSystem):
            self.filesystem.create_dir(folder, recursive=True)
        marker = f"{folder}/{_MARKER}"
        mine = {"journal": self.journal._record.id, "topic": self.topic}
        with suppress(FileNotFoundError):
            with self.filesystem.open_input_file(marker) as file:
                found = msgspec.json.decode(file.read())
            if found != mine:
                raise ConfigError(
                    f"{self.lake}/{self.topic} holds the sealed history of another journal: use another lake"
                )
            names = {segment.path for segment in known if segment.lake == self.lake}
            listing = self.filesystem.get_file_info(pyarrow.fs.FileSelector(folder, recursive=True))
            for info in listing:
                path = info.path.removeprefix(f"{self.root}/")
                if info.type == pyarrow.fs.FileType.File and path not in names and info.path != marker:
                    self.filesystem.delete_file(info.path)
            return
        with self.filesystem.open_output_stream(marker) as out:
            out.write(msgspec.json.encode(mine))

    def _write(self, ranges: list[tuple[int, int]], master: str | None) -> Iterator[Segment]:
        """Writes the files, several at once, and hands them over in order."""
        if master is not None:
            yield from self._write_on_spark(ranges, master)
            return
        engine = self.journal._engine
        workers = min(os.cpu_count() or 1, 4)
        with ThreadPoolExecutor(workers, thread_name_prefix="penstock-seal") as pool:
            waiting: list[Any] = []
            left = iter(ranges)
            for (
                after,
                stop,
            ) in left:  # a file ahead per worker: more would only fill the disk before anything is dropped
                waiting.append(pool.submit(write_segment, engine, self.topic, after, stop, self.lake))
                if len(waiting) > workers:
                    yield waiting.pop(0).result()
            for one in waiting:
                yield one.result()

    def _write_on_spark(self, ranges: list[tuple[int, int]], master: str) -> Iterator[Segment]:
        from penstock.spark.options import absolute_url
        from penstock.spark.sessions import session

        spark = session("penstock seal", master=master)
        url = absolute_url(f"{self.journal._engine.scheme}:{self.journal._engine.location}")
        topic, lake = self.topic, self.lake
        tasks = spark.sparkContext.parallelize(ranges, max(1, len(ranges)))
        yield from tasks.map(_SegmentTask(url, topic, lake)).toLocalIterator()

    def _adopt(self, segment: Segment, commit: Commit) -> None:
        """From now on the file is the history: records it and drops its hot blocks."""
        head = commit.head(self.topic)
        assert head is not None
        state = load_state(commit.tx, head.number, self.topic)
        if segment.first != max(state.sealed, state.trimmed) + 1:
            raise ConfigError(f"topic {self.topic!r} was sealed or compacted by somebody else meanwhile: seal it again")
        save_segment(commit.tx, head.number, segment)
        _remove_prefix(commit, self.topic, head.number, state, segment.last)
        save_state(
            commit.tx,
            head.number,
            msgspec.structs.replace(
                state,
                sealed=segment.last,
                latest=head.latest,
                recorded_ms=head.recorded_ms,
                last_id=head.last_id.to_bytes(16),
            ),
        )
        commit.writes += 1


def _day(view: TopicView, seq: int, through: int) -> datetime:
    """The day (its midnight, UTC) of the first event at or after a position."""
    for block in view.blocks(seq - 1, through):
        recorded = from_ms(block.recorded_ms(block.row_after(seq - 1)))
        return datetime(recorded.year, recorded.month, recorded.day, tzinfo=UTC)
    raise Corrupt("a block is missing", topic=view.name, seq=seq)


class _SegmentTask:
    """The work of a Spark task: one file."""

    def __init__(self, url: str, topic: str, lake: str) -> None:
        self.url = url
        self.topic = topic
        self.lake = lake

    def __call__(self, bounds: tuple[int, int]) -> Segment:
        from penstock.spark.stores import reading

        return write_segment(reading(self.url)._engine, self.topic, *bounds, self.lake)


# ── one file ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def sealed_schema() -> pa.Schema:
    """The columns of a sealed file: a topic's, with bytes and hash-chain links beside them."""
    return arrow_schema().append(pa.field("payload_bytes", pa.binary())).append(pa.field("link", pa.binary()))


def write_segment(engine: Engine, topic: str, after: int, through: int, lake: str) -> Segment:
    """Writes the events of a range into one file, reads it back, and gives it its name."""
    filesystem, root = open_lake(lake)
    with engine.read() as snap:
        view = TopicView.open(snap, topic)
        assert view is not None
        day = _day(view, after + 1, through)
        name = f"{topic}/date={day:%Y-%m-%d}/{after + 1:020d}-{through:020d}.parquet"
        local = isinstance(filesystem, pyarrow.fs.LocalFileSystem)
        target = f"{root}/{name}"
        path = f"{target}.partial" if local else target
        if local:
            filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        tally = _Tally()
        with filesystem.open_output_stream(path) as out, pq.ParquetWriter(out, sealed_schema(), **_PARQUET) as writer:
            for batch in _grouped(_batches(view, after, through)):
                tally.add(batch)
                writer.write_batch(batch, row_group_size=_GROUP_ROWS)
        holes = load_state(snap, view.number, topic).compacted > after
    if not holes and (tally.count, tally.first, tally.last) != (through - after, after + 1, through):
        raise Corrupt("events are missing that were to be sealed", topic=topic, seq=after + 1)
    size, crc = _verify(filesystem, path, tally, topic)
    if local:
        _settle(path, target)
    return Segment(after + 1, through, tally.count, lake, name, size, crc)


_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": _TEXTS,
    "column_encoding": {
        "seq": "DELTA_BINARY_PACKED",
        "id": "DELTA_BYTE_ARRAY",
        "occurred_at": "DELTA_BINARY_PACKED",
        "recorded_at": "DELTA_BINARY_PACKED",
    },
    "write_page_checksum": True,
    "sorting_columns": [pq.SortingColumn(0)],
}
"""Encodings that Spark's vectorised reader, DuckDB and Arrow all read; ids and times differ little from row to row."""


def _batches(view: TopicView, after: int, through: int) -> Iterator[pa.RecordBatch]:
    for block in joined(view.blocks(after, through), _GROUP_ROWS):
        start = block.row_after(after) if block.first <= after else 0
        stop = block.row_after(through) if block.last > through else block.count
        if stop > start:
            batch = _sealed_batch(block)
            yield batch if stop - start == block.count else batch.slice(start, stop - start)


def _sealed_batch(block: Block) -> pa.RecordBatch:
    whole = record_batch(block, "binary")
    payload = whole.column("payload")
    nothing = pa.nulls(block.count, pa.binary())
    if block.wire.binary is None:
        text, raw = pa.Array.from_buffers(pa.string(), block.count, payload.buffers()), nothing
    else:
        binary = pa.array(np.frombuffer(block.wire.binary, dtype=np.uint8) != 0)
        raw = pc.if_else(binary, payload, None)
        text = pc.if_else(binary, None, payload).cast(pa.string())
    links = nothing
    if block.wire.chain is not None:
        links = pa.Array.from_buffers(pa.binary(32), block.count, [None, pa.py_buffer(block.wire.chain)]).cast(
            pa.binary()
        )
    columns = [text if name == "payload" else whole.column(name) for name in whole.schema.names]
    return pa.RecordBatch.from_arrays([*columns, raw, links], schema=sealed_schema())


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of a row group's size: a row group per block would be many small ones."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        while rows >= _GROUP_ROWS:
            whole = pa.concat_batches(held)
            yield whole.slice(0, _GROUP_ROWS)
            rest = whole.slice(_GROUP_ROWS)
            held, rows = ([rest], rest.num_rows) if rest.num_rows else ([], 0)
    if held:
        yield pa.concat_batches(held)


class _Tally:
    """What goes into a file, in numbers: enough to know it again."""

    def __init__(self) -> None:
        self.count = 0
        self.seqs = 0
        self.first = self.last = 0
        self.crcs = {"payload": 0, "payload_bytes": 0, "id": 0}

    def add(self, batch: pa.RecordBatch) -> None:
        seqs = np.asarray(batch.column("seq"))
        self.first = self.first or int(seqs[0])
        self.last = int(seqs[-1])
        self.count += len(seqs)
        self.seqs = (self.seqs + int(seqs.sum())) & 0xFFFFFFFFFFFFFFFF
        for name, crc in self.crcs.items():
            self.crcs[name] = zlib.crc32(_text_bytes(batch.column(name)), crc)

    def same(self, other: _Tally) -> bool:
        return vars(self) == vars(other)


def _text_bytes(column: Any) -> memoryview:
    if column.null_count:  # where there is null, there may be any bytes
        column = column.drop_null()
    bounds = np.frombuffer(column.buffers()[1], dtype=np.int32)
    data = column.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[int(bounds[column.offset]) : int(bounds[column.offset + len(column)])]


def _verify(filesystem: Any, path: str, tally: _Tally, topic: str) -> tuple[int, int]:
    """Reads the file back: page checksums, counts, positions and contents must be those of the journal."""
    found = _Tally()
    with filesystem.open_input_file(path) as file:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        for group in range(parquet.num_row_groups):
            for batch in parquet.read_row_group(group, columns=["seq", *found.crcs]).to_batches():
                found.add(batch)
    if not found.same(tally):
        raise Corrupt(f"a sealed file does not hold what was written to it: {path}", topic=topic, seq=tally.first)
    size = crc = 0
    with filesystem.open_input_stream(path) as stream:
        while piece := stream.read(1 << 20):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
    return size, crc


def _settle(path: str, target: str) -> None:
    """Puts a local file on disk under its name."""
    with open(path, "rb") as file:  # noqa: PTH123
        os.fsync(file.fileno())
    os.replace(path, target)  # noqa: PTH105
    folder = os.open(os.path.dirname(target), os.O_RDONLY)  # noqa: PTH120
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
