"""The files of sealed history.

They are written under names that readers skip, read back, compared, and then given their final names.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.core.clock import from_ms
from penstock.core.durable import copy_permissions, make_folder, move_into_place
from penstock.core.engine.contract import Engine, Snapshot
from penstock.core.journal.blocks import Block
from penstock.core.journal.index.runs import BloomFilter
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.columns import Partition, TypedColumns, text_and_bytes
from penstock.core.journal.sealed.files import column_ends, open_lake
from penstock.core.journal.sealed.segments import (
    MARKER,
    NO_PIECES,
    Pieces,
    SealMarker,
    Segment,
    SegmentKeys,
    SegmentPart,
    keys_beside,
    packed_pieces,
)
from penstock.core.journal.to_arrow import arrow_schema, coalesce, record_batch
from penstock.core.names import shown_url
from penstock.errors import ConfigError, Corrupt, StorageError, UnknownTopic

GROUP_ROWS = 65_536
"""The maximum number of rows in a row group, unless a block has more.

A look-up of one event must decode a whole row group.
"""
_PIECE_BYTES = 16_384
"""The minimum size of a piece, in bytes.

A piece has its own checksum in the journal: it is a column of a row group, or several small columns.
"""
_TEXTS = ["topic", "kind", "key", "scope", "correlation_id", "causation_id"]


def sealed_schema(names: Sequence[str] | None = None) -> pa.Schema:
    """Returns the columns of every sealed file, or those that are named, and a column for payloads that are bytes."""
    schema = arrow_schema()
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    return schema.append(pa.field("payload_bytes", pa.binary()))


class SealTarget(NamedTuple):
    """The place and the form of a seal's files."""

    topic: str
    lake: str
    token: str
    """The token of the seal, which is part of its files' names."""
    columns: str = ""
    """Typed columns beside the JSON text."""
    partition_by: str = ""
    """The column by whose values the files are parted."""


def topic_to_seal(snap: Snapshot, topic: str) -> TopicView:
    """Returns the topic that is being sealed.

    When the topic was made anew meanwhile, all events that were to be sealed are trimmed.
    """
    view = TopicView.open(snap, topic)
    if view is None:
        raise dropped(topic)
    return view


def dropped(topic: str) -> UnknownTopic:
    return UnknownTopic(f"topic {topic!r} was dropped while it was sealed")


def compacted(topic: str) -> ConfigError:
    """Returns the error of a seal whose events are no longer all there.

    The next seal begins with the remaining events.
    """
    return ConfigError(f"topic {topic!r} was compacted meanwhile, or dropped and made anew: seal it again")


def write_segment(
    engine: Engine,
    target: SealTarget,
    after: int,
    through: int,
    change: Callable[[Block], Block] = lambda block: block,
    *,
    filtered: bool = False,
) -> Segment:
    """Writes the events of a range into one file, or one file per value.

    Reads the files back and gives them their final names.

    `change` may replace each block on its way by another block with the same positions. With `filtered`, no index
    covers the events, and the file gets filters of the keys.
    """
    topic = target.topic
    with engine.read() as snap:
        view = topic_to_seal(snap, topic)
        state = view.state()
        day = None if state.trimmed > after else day_of(view, after + 1, through)
        if day is None:
            raise compacted(topic)
        folder = f"{topic}/date={day:%Y-%m-%d}"
        file = f"{after + 1:020d}-{through:020d}-{target.token}.parquet"
        typed = TypedColumns(target.columns)
        partition = Partition(target.partition_by, topic, target.lake) if target.partition_by else None
        keys: list[pa.ChunkedArray] = []
        with _SegmentWriter(target.lake, folder, file, pa.schema([*sealed_schema(), *typed.schema])) as writer:
            for group in _grouped(_batches(view, after, through, typed, partition, change)):
                rows = pa.Table.from_batches(group)
                writer.add(rows, partition)
                if filtered:
                    keys.append(rows.column("key"))
    tally = writer.total
    if state.compacted <= after and (tally.count, tally.first, tally.last) != (through - after, after + 1, through):
        raise Corrupt("events are missing that were to be sealed", topic=topic, seq=after + 1)
    summary, filters = key_filters(keys) if keys else (None, b"")
    if summary is not None:
        filesystem, root = open_lake(target.lake)
        beside = f"{root}/{keys_beside(f'{folder}/{file}')}"
        put_whole(filesystem, beside, filters, partial=f"{beside}.part", store=engine.location)
    parts = writer.finish(engine.location, topic)
    size, crc = sum(one.size for one in parts), 0 if partition else parts[0].crc
    kept = tuple(parts) if partition else ()
    path = f"{folder}/{file}"
    pieces = NO_PIECES if partition else parts[0].pieces
    return Segment(
        after + 1,
        through,
        tally.count,
        target.lake,
        path,
        size,
        crc,
        tally.binary,
        typed.unfit,
        kept,
        pieces,
        keys=summary,
        columns=target.columns if filtered else "",
    )


def key_filters(groups: list[pa.ChunkedArray]) -> tuple[SegmentKeys | None, bytes]:
    """Returns the summary of the keys of row groups, and the file of their filters; None when no event has a key."""
    coded = pa.chunked_array([chunk for group in groups for chunk in group.chunks]).combine_chunks().dictionary_encode()
    known = coded.dictionary
    if not len(known):
        return None, b""
    ends = pc.min_max(known)
    hashes = np.fromiter(map(zlib.crc32, known.cast(pa.binary()).to_pylist()), dtype=np.uint32, count=len(known))
    codes = np.asarray(coded.indices.fill_null(len(known)))
    at, filters = 0, []
    for group in groups:
        held = np.zeros(len(known) + 1, dtype=bool)
        held[codes[at : at + len(group)]] = True
        filters.append(BloomFilter.packed(hashes[held[:-1]]))
        at += len(group)
    encoded = msgspec.msgpack.encode(filters)
    return SegmentKeys(len(encoded), zlib.crc32(encoded), ends["min"].as_py(), ends["max"].as_py()), encoded


class _SegmentWriter:
    """The open files of one segment: one file, or one for each value of a column."""

    def __init__(self, lake: str, folder: str, file: str, schema: pa.Schema) -> None:
        self._filesystem, root = open_lake(lake)
        self._local = isinstance(self._filesystem, fs.LocalFileSystem)
        self._root = f"{root}/{folder}"
        self._name = file
        self._schema = schema
        self._files: dict[str, _OpenFile] = {}
        self.total = _Tally()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, table: pa.Table, partition: Partition | None) -> None:
        """Writes the rows of a row group."""
        for batch in table.to_batches():
            self.total.add(batch)
        for folder, rows in [("", table)] if partition is None else partition.parted(table):
            self._file(folder, rows).add(rows)

    def _file(self, folder: str, rows: pa.Table) -> _OpenFile:
        file = self._files.get(folder)
        if file is None:
            path = f"{self._root}/{folder}" if folder else self._root
            if self._local:
                make_folder(path)
            target = f"{path}/{self._name}"
            # An object store has no file before the file is complete.
            written = f"{path}/_{self._name}" if self._local else target
            file = self._files[folder] = _OpenFile(self._filesystem, written, target, rows)
        return file

    def finish(self, store: str | None, topic: str) -> list[SegmentPart]:
        """Reads the files back, and gives them their final names. The files get the permissions of `store`."""
        parts = []
        for folder, file in sorted(self._files.items()):
            crc, pieces = _verify(self._filesystem, file.path, file.tally, topic)
            parts.append(SegmentPart(folder, file.tally.count, pieces[-1][0], crc, packed_pieces(pieces)))
        if self._local:
            for file in self._files.values():
                copy_permissions(store, file.path)
                move_into_place(file.path, file.target)
        return parts


class _OpenFile:
    """An open file. `rows` are the rows of its first row group."""

    def __init__(self, filesystem: fs.FileSystem, path: str, target: str, rows: pa.Table) -> None:
        self.path = path
        self.target = target
        self.tally = _Tally()
        self._out = filesystem.open_output_stream(path)
        self._writer = open_parquet(self._out, rows)

    def add(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self.tally.add(batch)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> None:
        self._writer.close()
        self._out.close()


_ENCODINGS = {
    "seq": "DELTA_BINARY_PACKED",
    "id": "DELTA_BYTE_ARRAY",
    "occurred_at": "DELTA_BINARY_PACKED",
    "recorded_at": "DELTA_BINARY_PACKED",
}
"""Encodings that Spark's vectorised reader, DuckDB and Arrow all read. Ids and times differ little from row to row."""


def open_parquet(out: pa.NativeFile, rows: pa.Table) -> pq.ParquetWriter:
    """Opens a new file of sealed events. `rows` are the rows of its first row group."""
    names = set(rows.schema.names)
    sorting = {"sorting_columns": [pq.SortingColumn(rows.schema.get_field_index("seq"))]} if "seq" in names else {}
    return pq.ParquetWriter(
        out,
        rows.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in _TEXTS if name in names],
        column_encoding={name: encoding for name, encoding in _ENCODINGS.items() if name in names},
        write_page_checksum=True,
        **sorting,
        **_key_filter(rows),
    )


_HAS_FILTERS = "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters
"""True if the installed pyarrow can write Bloom filters. Not every supported version can."""


def _key_filter(rows: pa.Table) -> dict[str, object]:
    """Returns the options for Bloom filters, sized for the number of keys in some rows.

    Readers that look for one key skip row groups by them.
    """
    keys = pc.count_distinct(rows["key"]).as_py() if _HAS_FILTERS else 0
    return {"bloom_filter_options": {"key": {"ndv": keys, "fpp": 0.05}}} if keys else {}


def _batches(
    view: TopicView,
    after: int,
    through: int,
    typed: TypedColumns,
    partition: Partition | None,
    change: Callable[[Block], Block],
) -> Iterator[pa.RecordBatch]:
    for block in map(change, coalesce(view.blocks(after, through), GROUP_ROWS)):
        start = block.row_after(after) if block.first <= after else 0
        stop = block.row_after(through) if block.last > through else block.count
        if stop > start:
            yield sealed_batch(block, start, stop, typed, partition)


def sealed_batch(
    block: Block,
    start: int,
    stop: int,
    typed: TypedColumns,
    partition: Partition | None = None,
    names: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Returns several rows of a block with the columns of a sealed file.

    With `names`, the columns of every event are limited to these names.
    """
    whole = record_batch(block, "binary", names)
    payload = whole.column("payload")
    binary = None if block.wire.binary is None else np.frombuffer(block.wire.binary, dtype=np.uint8) != 0
    text, raw = text_and_bytes(payload, binary)
    columns = [text if name == "payload" else whole.column(name) for name in whole.schema.names]
    schema = sealed_schema(names)
    batch = pa.RecordBatch.from_arrays([*columns, raw], schema=schema).slice(start, stop - start)
    if not len(typed.schema):
        return batch
    fields = typed.of(payload.slice(start, stop - start), None if binary is None else binary[start:stop])
    if partition is not None and partition.column in typed.schema.names:
        at = typed.schema.names.index(partition.column)
        fields[at], unfit = partition.fitting(fields[at])
        typed.unfit += unfit
    return pa.RecordBatch.from_arrays([*batch.columns, *fields], schema=pa.schema([*schema, *typed.schema]))


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yields groups of batches, each for one row group.

    A row group for every block would give many small row groups.
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if held and rows + batch.num_rows > GROUP_ROWS:
            yield held
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield held


class _Tally:
    """Counts and checksums of a file's contents, enough to recognise the contents."""

    def __init__(self) -> None:
        self.count = 0
        self.seqs = 0
        self.first = self.last = 0
        self.binary = 0
        self.crcs = {"payload": 0, "payload_bytes": 0, "id": 0}

    def add(self, batch: pa.RecordBatch) -> None:
        seqs = np.asarray(batch.column("seq"))
        self.first = self.first or int(seqs[0])
        self.last = int(seqs[-1])
        self.count += len(seqs)
        self.binary += len(seqs) - batch.column("payload_bytes").null_count
        self.seqs = (self.seqs + int(seqs.sum())) & 0xFFFFFFFFFFFFFFFF
        for name, crc in self.crcs.items():
            self.crcs[name] = zlib.crc32(_text_bytes(batch.column(name)), crc)

    def same(self, other: _Tally) -> bool:
        return vars(self) == vars(other)


def _text_bytes(column: pa.Array) -> memoryview:
    if column.null_count:  # the bytes of a null value are arbitrary
        column = column.drop_null()
    bounds = np.frombuffer(column.buffers()[1], dtype=np.int32)
    data = column.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[int(bounds[column.offset]) : int(bounds[column.offset + len(column)])]


def _verify(filesystem: fs.FileSystem, path: str, tally: _Tally, topic: str) -> tuple[int, Pieces]:
    """Reads the file back. Page checksums, counts, positions and contents must be those of the journal.

    Returns the CRC-32 of the file, and of each of its pieces.
    """
    found = _Tally()
    damaged = Corrupt("a sealed file does not hold what was written to it", topic=topic, seq=tally.first, file=path)
    try:
        with filesystem.open_input_file(path) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            for group in range(parquet.num_row_groups):
                for batch in parquet.read_row_group(group, columns=["seq", *found.crcs]).to_batches():
                    found.add(batch)
            ends = piece_ends(parquet.metadata, file.size())
    except pa.ArrowException as error:
        raise damaged from error
    if not found.same(tally):
        raise damaged
    crc = at = 0
    pieces = []
    with filesystem.open_input_stream(path) as stream:
        for end in ends:
            own = 0
            while at < end and (part := stream.read(min(1 << 20, end - at))):
                crc, own = zlib.crc32(part, crc), zlib.crc32(part, own)
                at += len(part)
            pieces.append((end, own))
    return crc, tuple(pieces)


def piece_ends(metadata: pq.FileMetaData, size: int) -> list[int]:
    """Returns the ends of the pieces.

    A piece ends with the column that makes it large enough, with the row group, or with the file.
    """
    ends = [0]
    for columns in column_ends(metadata):
        for end in columns:
            if end == columns[-1] or end - ends[-1] >= _PIECE_BYTES:
                ends.append(end)
    return [*ends[1:], size]


def day_of(view: TopicView, seq: int, through: int) -> datetime | None:
    """Returns the day (its midnight, UTC) of the first event in a range of positions; None when compaction has left
    no event.
    """
    for block in view.blocks(seq - 1, through):
        row = block.row_after(seq - 1)
        if block.seq(row) > through:  # a block may begin before the range and end after it
            return None
        recorded = from_ms(block.recorded_ms(row))
        return datetime(recorded.year, recorded.month, recorded.day, tzinfo=UTC)
    return None


# ── A topic's folder in a lake: its marker says whose history it holds, and files that became no segment are removed ──


def put_whole(
    filesystem: fs.FileSystem, target: str, data: pa.Buffer | bytes, *, partial: str, store: str | None = None
) -> None:
    """Writes a file that is visible only when it is complete.

    On a disk it has the name `partial` until then, and gets the permissions of the store.
    """
    local = isinstance(filesystem, fs.LocalFileSystem)
    if local:
        make_folder(target.rpartition("/")[0])
    with filesystem.open_output_stream(partial if local else target) as out:
        out.write(data)
    if local:
        copy_permissions(store, partial)
        move_into_place(partial, target)


class LakeFolder:
    """The folder that one seal of a topic writes to."""

    def __init__(self, lake: str, topic: str) -> None:
        self.lake = lake
        self.topic = topic
        self._filesystem, self._root = open_lake(lake)

    def __str__(self) -> str:
        return f"{shown_url(self.lake)}/{self.topic}"

    def size(self, path: str) -> int | None:
        """Returns the size of a file of this lake in bytes; None when the file does not exist."""
        size: int | None = self._filesystem.get_file_info(f"{self._root}/{path}").size
        return size

    def files(self, below: str) -> Iterator[tuple[str, int]]:
        """Returns the paths of the files in and below a folder of the lake, with their sizes."""
        selector = pyarrow.fs.FileSelector(f"{self._root}/{below}", allow_not_found=True, recursive=True)
        for info in self._filesystem.get_file_info(selector):
            if info.type == pyarrow.fs.FileType.File:
                yield info.path.removeprefix(f"{self._root}/"), info.size

    def marker(self, journal: str) -> SealMarker | None:
        """Returns the folder's marker, which must be this journal's; None when no seal has signed the folder yet."""
        try:
            with self._filesystem.open_input_file(f"{self._root}/{self.topic}/{MARKER}") as file:
                found = msgspec.json.decode(file.read(), type=SealMarker)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StorageError(f"{self}/{MARKER} cannot be read: {error}") from error
        if (found.journal, found.topic) != (journal, self.topic):
            raise ConfigError(f"{self} holds the sealed history of another journal: use another lake")
        return found

    def sign(self, journal: str, seal: str) -> None:
        """Writes the marker, which says that this seal was the last to work on the folder."""
        target = f"{self._root}/{self.topic}/{MARKER}"
        text = msgspec.json.encode(SealMarker(journal, self.topic, seal))
        put_whole(self._filesystem, target, text, partial=f"{target}.{seal}")

    def remove(self, lake: str, path: str) -> bool:
        """Removes a file whose events are removed.

        Returns False when the file is in another lake that cannot be reached now.

        An abandoned lake must not block the lake that is in use.
        """
        try:
            filesystem, root = open_lake(lake)
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{root}/{path}")
        except (OSError, ConfigError):
            if lake == self.lake:
                raise
            return False
        return True

    def remove_orphans(self, seal: str, known: frozenset[tuple[str, str]]) -> None:
        """Deletes the files of a finished seal that did not become segments.

        A seal that is still running may name a file meanwhile. That seal then notices it, and removes the file that it
        has written.
        """
        for path, _ in list(self.files(self.topic)):
            if seal in path.rpartition("/")[2] and (self.lake, path) not in known:
                self.remove(self.lake, path)
