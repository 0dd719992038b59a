"""Sealed history: a topic's oldest events in Parquet files of a lake, which are read as if they were still in the
store.

`segments` knows which events each file holds. A file's row groups are read as blocks, so no layer above notices a
difference. When a column parts a segment's events into several files, row groups of the same positions make one block.
"""

from __future__ import annotations

import io
import os
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.events import format_id
from penstock.core.journal.blocks import Block, block_of_rows, read_block, set_positions
from penstock.core.journal.index.runs import BloomFilter
from penstock.core.journal.sealed.segments import (
    SealedFiles,
    Segment,
    SegmentFile,
    load_segments,
    load_segments_back,
)
from penstock.core.names import shown_url, split_url
from penstock.errors import ConfigError, Corrupt, StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    from penstock.core.journal.blocks import Wire

K = TypeVar("K")
V = TypeVar("V")
decode_filters = msgspec.msgpack.Decoder(list[bytes]).decode
"""Decodes the key filters of a segment that a bulk write made. Each row group has one filter."""
_COLUMNS = [
    *("seq", "kind", "key", "scope", "payload", "headers", "occurred_at", "recorded_at", "id", "correlation_id"),
    *("causation_id", "tags", "payload_bytes"),
]
"""The columns of a block. Typed columns are for other readers."""


def sealed_blocks(
    snap: Snapshot, topic: int, name: str, after: int, through: int, trimmed: int, *, reverse: bool = False
) -> Iterator[Block]:
    """Yields the sealed events with after < position ≤ through, as blocks.

    The blocks include the other events of the same row groups.

    Events that compaction has `trimmed` since are left out, although the files still hold them.
    """
    after = max(after, trimmed)
    for segment in (load_segments_back if reverse else load_segments)(snap, topic, after, through):
        found = _open_segment(segment, name)
        groups = list(enumerate(found.groups))
        for group, (first, last) in reversed(groups) if reverse else groups:
            if last > after and first <= through:
                yield without(found.block(group), trimmed)


def blocks_with(segment: Segment, topic: str, key: str, *, reverse: bool) -> Iterator[Block]:
    """Yields the blocks of a bulk segment that may have events of a key."""
    found = _open_segment(segment, topic)
    groups = list(found.groups_with(key))
    yield from map(found.block, reversed(groups) if reverse else groups)


def sealed_start(snap: Snapshot, topic: int, name: str, seq: int) -> int | None:
    """Returns the first position of the row group that holds a position; this is a good place to cut a range.

    Returns None when no file holds the position.
    """
    for segment in load_segments(snap, topic, seq - 1, seq):
        for first, last in _open_segment(segment, name).groups:
            if first <= seq <= last:
                return first
        return seq
    return None


def check_sealed(snap: Snapshot, topic: int, name: str) -> None:
    """Raises Corrupt or StorageError when a file of sealed history differs from what was written."""
    for segment in load_segments(snap, topic):
        SealedSegment(segment, name).check()


def sealed_files_with(
    snap: Snapshot, topic: int, name: str, after: int, through: int, columns: frozenset[str]
) -> list[SealedBytes]:
    """Returns the files of sealed events with after < position ≤ through.

    Returns none when one of these files lacks one of the given columns.
    """
    segments = list(load_segments(snap, topic, after, through))
    if columns and not all(columns <= _open_segment(segment, name).names for segment in segments):
        return []
    return [SealedBytes(segment, file, name) for segment in segments for file in segment.files]


def list_segments(
    snap: Snapshot, topic: int, name: str, after: int, through: int, *, columns: bool
) -> Iterator[SealedFiles]:
    """Returns the files of sealed events with after < position ≤ through, as other readers of their lakes know them."""
    for segment in load_segments(snap, topic, after, through):
        root = open_lake(segment.lake)[1]
        parts = split_url(segment.lake) if "://" in segment.lake else split_url("file:")
        from urllib.parse import parse_qs

        named = {"endpoint": "endpoint_override" in parse_qs(parts.query), "access key": bool(parts.username)}
        yield SealedFiles(
            segment.first,
            segment.last,
            segment.count,
            parts.scheme,
            [f"{root}/{file.path}" for file in segment.files],
            [name for name, there in named.items() if there],
            segment.binary > 0,
            _typed_columns(segment, name) if columns and not segment.unfit else {},
            format_id(int.from_bytes(segment.base_id)) if segment.by_reference else "",
            segment.recorded_ms,
        )


def _typed_columns(segment: Segment, topic: str) -> dict[str, str]:
    """Returns the typed columns that all files of a segment have."""
    if segment.by_reference:
        from penstock.core.journal.sealed.columns import columns_schema

        return {field.name: str(field.type) for field in columns_schema(segment.columns)}
    file = SealedBytes(segment, segment.files[0], topic)
    with file.open() as opened:
        schema = file.footer(opened).schema.to_arrow_schema()
    return {field.name: str(field.type) for field in schema if field.name not in {*_COLUMNS, "topic"}}


def without(block: Block, trimmed: int) -> Block:
    """Returns a block without the positions through a given position."""
    if block.first > trimmed:
        return block
    return read_block(block_of_rows(block, range(block.row_after(trimmed), block.count)), block.topic)


class SealedSegment:
    """The open files of a segment."""

    def __init__(self, segment: Segment, topic: str) -> None:
        self._segment = segment
        self._topic = topic
        self._files = [_SealedFile(segment, file, topic) for file in segment.files]
        found: list[tuple[int, int, list[tuple[int, int]]]] = []
        spans = sorted((*span, at, row) for at, file in enumerate(self._files) for row, span in enumerate(file.groups))
        for first, last, at, row in spans:
            if found and first <= found[-1][1]:  # other rows of the same positions, in another file
                found[-1][2].append((at, row))
                found[-1] = (found[-1][0], max(found[-1][1], last), found[-1][2])
            else:
                found.append((first, last, [(at, row)]))
        self.groups = [(first, last) for first, last, _ in found]
        """The first and last position of each block."""
        self._sources = [sources for _, _, sources in found]

    def block(self, group: int) -> Block:
        """Returns the events of a group as a block."""
        return _blocks.get((self._segment.lake, self._segment.path, group), lambda: self._read(group))

    def _read(self, group: int) -> Block:
        tables = [self._files[at].read(row) for at, row in self._sources[group]]
        return Block(self._wire(tables[0] if len(tables) == 1 else _by_position(tables), group), self._topic)

    def _wire(self, table: pa.Table, group: int) -> Wire:
        batch = table.combine_chunks().to_batches()[0]
        wire = _columns_of(batch)
        if self._segment.by_reference:
            first = self.groups[group][0]
            number = int.from_bytes(self._segment.base_id) + first - self._segment.first
            set_positions(wire, first, self._segment.recorded_ms, number)
        else:
            _set_places(wire, batch)
        return wire

    def groups_with(self, key: str) -> Iterator[int]:
        """Returns the row groups of a bulk segment that may have events of a key."""
        hashed = zlib.crc32(key.encode())
        return (group for group, filter in enumerate(self._filters) if hashed in filter)

    @cached_property
    def _filters(self) -> list[BloomFilter]:
        """The key filter of each row group: it says which keys are certainly not in the group."""
        known = self._segment.keys
        assert known is not None
        path = self._segment.keys_path
        filesystem, root = open_lake(self._segment.lake)
        try:
            with filesystem.open_input_file(f"{root}/{path}") as opened:
                data = opened.read()
        except OSError as error:
            place = self._segment.shown(path)
            raise StorageError(f"the keys of sealed events, in {place}, cannot be read: {error}") from error
        if len(data) != known.size or zlib.crc32(data) != known.crc:
            raise Corrupt(
                "the keys of sealed events are not those that were written",
                topic=self._topic,
                seq=self._segment.first,
                file=self._segment.shown(path),
            )
        return [BloomFilter(words) for words in decode_filters(data)]

    def check(self) -> None:
        """Raises Corrupt or StorageError when a file of the segment differs from what was written."""
        for file in self._segment.files:
            SealedBytes(self._segment, file, self._topic).check()
        if self._segment.keys is not None:
            _ = self._filters

    @property
    def names(self) -> set[str]:
        """The columns that all files of the segment have."""
        return set.intersection(*(set(file.metadata.schema.to_arrow_schema().names) for file in self._files))


class SealedBytes:
    """The bytes of one sealed file. Readers get only bytes that were compared with their checksums."""

    def __init__(self, segment: Segment, file: SegmentFile, topic: str) -> None:
        self._segment = segment
        self._file = file
        self._topic = topic
        self._pieces = file.load_pieces()
        self._ends = [end for end, _ in self._pieces]
        self._whole: set[int] = set()
        """The pieces that `read` has already compared."""
        self.size = file.size
        if self._ends != sorted(set(self._ends)) or self._ends[-1:] != [self.size]:
            raise self.damaged("the journal's record of its checksums has gaps")

    def open(self) -> pa.NativeFile:
        """Opens the file in its lake. Raises Corrupt when its size is not the size that was written."""
        filesystem, root = open_lake(self._segment.lake)
        try:
            opened = filesystem.open_input_file(f"{root}/{self._file.path}")
        except OSError as error:
            raise self._unreadable(error, retryable=not isinstance(error, FileNotFoundError)) from error
        if (size := opened.size()) != self.size:
            raise self.damaged(f"the file has {size:,} bytes and should have {self.size:,}")
        return opened

    def between(self, opened: pa.NativeFile, start: int, stop: int, seq: int | None = None) -> bytes:
        """Returns the bytes of successive pieces, read in one request.

        `seq` is the position of an event in them, for error messages.
        """
        data = self._read(opened, start, stop)
        view = memoryview(data)
        for number in range(bisect_right(self._ends, start), bisect_left(self._ends, stop) + 1):
            end, crc = self._pieces[number]
            if zlib.crc32(view[max(0, self._start(number) - start) : end - start]) != crc:
                raise self.damaged("its bytes have another checksum than the written bytes", seq)
        return data

    def read(self, opened: pa.NativeFile, start: int, stop: int) -> bytes:
        """Returns any bytes of the file. The pieces with these bytes are read whole, and compared the first time."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        first, last = bisect_right(self._ends, start), bisect_left(self._ends, stop)
        if self._whole.issuperset(range(first, last + 1)):
            return self._read(opened, start, stop)
        low = self._start(first)
        data = self.between(opened, low, self._ends[last])
        self._whole.update(range(first, last + 1))
        return data[start - low : stop - low]

    def check(self) -> None:
        """Reads every byte and compares the checksum."""
        filesystem, root = open_lake(self._segment.lake)
        crc = 0
        try:
            with filesystem.open_input_stream(f"{root}/{self._file.path}") as stream:
                while piece := stream.read(1 << 20):
                    crc = zlib.crc32(piece, crc)
        except OSError as error:
            raise self._unreadable(error) from error
        if crc != self._file.crc:
            raise self.damaged("its bytes have another checksum than the written bytes")

    def footer(self, opened: pa.NativeFile) -> pq.FileMetaData:
        """Returns the footer of the file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        start = self._start(len(self._ends) - 1)
        data = self.between(opened, start, self.size)
        try:
            metadata = pq.ParquetFile(self.as_file(data, start)).metadata
        except (OSError, pa.ArrowException) as error:
            raise self.damaged(str(error)) from error
        if metadata.num_rows != self._file.count:
            raise self.damaged(f"the file holds {metadata.num_rows} events and should hold {self._file.count}")
        return metadata

    def as_file(self, data: bytes, start: int) -> pa.NativeFile:
        """Returns some of the bytes as a file that contains nothing else."""
        import pyarrow as pa

        return pa.PythonFile(_PieceFile(data, start, self.size), mode="r")

    def damaged(self, reason: str, seq: int | None = None) -> Corrupt:
        """Returns the error of a damaged file, with its place."""
        place = self._segment.shown(self._file.path)
        return Corrupt(f"a file of sealed history is damaged: {reason}", topic=self._topic, seq=seq, file=place)

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def _read(self, opened: pa.NativeFile, start: int, stop: int) -> bytes:
        try:
            data: bytes = opened.read_at(stop - start, start)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) != stop - start:
            raise self.damaged(f"it ends before byte {stop:,}")
        return data

    def _unreadable(self, error: OSError, *, retryable: bool = True) -> StorageError:
        segment = self._segment
        which = f"some of events {segment.first}" if segment.parts else f"events {segment.first}"
        events = f"{which} to {segment.last} of topic {self._topic!r} are sealed in {segment.shown(self._file.path)}"
        return StorageError(f"{events}, which cannot be read: {error}", retryable=retryable)


class _SealedFile:
    """An open Parquet file.

    The only file of a segment stays open. Of several files, only the data of their footers is kept.
    """

    def __init__(self, segment: Segment, file: SegmentFile, topic: str) -> None:
        self._bytes = SealedBytes(segment, file, topic)
        self._segment = segment
        self._opened: pa.NativeFile | None = None
        opened = self._bytes.open()
        self.metadata = self._bytes.footer(opened)
        if segment.parts:
            opened.close()
        else:
            self._opened = opened
        self._ends = [0, *(ends[-1] for ends in column_ends(self.metadata))]
        self.groups = self._find_groups()

    def _find_groups(self) -> list[tuple[int, int]]:
        """Returns the first and last position of each row group."""
        if self._segment.by_reference:
            counts = [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]
            ends = list(accumulate(counts, initial=self._segment.first - 1))
            return [(end + 1, through) for end, through in pairwise(ends)]
        at = self.metadata.schema.to_arrow_schema().get_field_index("seq")
        found = []
        for group in range(self.metadata.num_row_groups):
            statistics = self.metadata.row_group(group).column(at).statistics
            found.append((int(statistics.min), int(statistics.max)))
        return found

    def read(self, group: int) -> pa.Table:
        """Returns a row group as a table."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        seq = self.groups[group][0]
        start, stop = self._ends[group : group + 2]
        if self._opened is None:
            with self._bytes.open() as opened:
                data = self._bytes.between(opened, start, stop, seq)
        else:
            data = self._bytes.between(self._opened, start, stop, seq)
        piece = self._bytes.as_file(data, start)
        try:
            # Only existing columns are read: a file of a bulk write has no positions, ids and recording times.
            return pq.ParquetFile(piece, metadata=self.metadata).read_row_group(group, columns=_COLUMNS)
        except (OSError, pa.ArrowException) as error:
            raise self._bytes.damaged(str(error), seq) from error


def column_ends(metadata: pq.FileMetaData) -> list[list[int]]:
    """Returns, for each row group, the ends of its columns' bytes, in order."""
    found = []
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(at) for at in range(metadata.num_columns)]
        starts = [each.dictionary_page_offset or each.data_page_offset for each in columns]
        found.append(sorted(start + each.total_compressed_size for start, each in zip(starts, columns, strict=True)))
    return found


class _PieceFile(io.RawIOBase):
    """A piece of a file at its place, behind zeros.

    The reader reads the end of a file ahead, in larger steps than it needs.
    """

    def __init__(self, data: bytes, start: int, size: int) -> None:
        super().__init__()
        self._data, self._start, self._size = memoryview(data), start, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        at = self._at - self._start
        stop = len(self._data) if size is None or size < 0 else min(len(self._data), at + size)
        found = bytes(max(0, min(0, stop) - at)) + bytes(self._data[max(0, at) : max(0, stop)])
        self._at += len(found)
        return found


def _by_position(tables: list[pa.Table]) -> pa.Table:
    """Returns rows that were parted by a column, again in the order of their positions."""
    import numpy as np
    import pyarrow as pa

    table = pa.concat_tables(tables).combine_chunks()
    return table.take(pa.array(np.argsort(np.asarray(table.column("seq")))))


def _columns_of(batch: pa.RecordBatch) -> Wire:
    """Returns all columns of a block except positions, ids and recording times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.core.journal.from_arrow import packed_tags, wire_of

    columns = {name: batch.column(name) for name in ("kind", "key", "scope", "headers", "occurred_at")}
    columns["correlation"] = batch.column("correlation_id")
    columns["causation"] = batch.column("causation_id")
    if "tags" in batch.schema.names:  # files of earlier versions have no tags
        columns["tags"] = packed_tags(batch.column("tags"))
    raw = batch.column("payload_bytes")
    text = batch.column("payload")
    if raw.null_count < len(raw):
        columns["payload"] = pc.coalesce(raw, text.cast(pa.binary()))
        columns["binary"] = pc.is_valid(raw)
    else:
        columns["payload"] = text
    return wire_of(pa.RecordBatch.from_pydict(columns), trusted=True)


def _set_places(wire: Wire, batch: pa.RecordBatch) -> None:
    import numpy as np

    seqs = np.asarray(batch.column("seq"))
    wire.first = int(seqs[0])
    if int(seqs[-1] - seqs[0]) != len(seqs) - 1:
        wire.seqs = seqs.astype("<i8").tobytes()
    _set_runs(wire, batch)


def _set_runs(wire: Wire, batch: pa.RecordBatch) -> None:
    """Sets times and ids in a block's form: runs of consecutive ids with the same time."""
    import numpy as np
    import pyarrow as pa

    from penstock.core.journal.blocks import set_runs

    ids = batch.column("id")
    start = np.frombuffer(ids.buffers()[1], dtype=np.int32)[ids.offset]
    text = np.frombuffer(ids.buffers()[2], dtype=np.uint8)[start : start + 36 * len(ids)].reshape(-1, 36)
    digits = np.concatenate([text[:, :8], text[:, 9:13], text[:, 14:18], text[:, 19:23], text[:, 24:]], axis=1)
    nibbles = np.where(digits >= 97, digits - 87, digits - 48).astype(np.uint8)
    packed = np.ascontiguousarray((nibbles[:, ::2] << 4) | nibbles[:, 1::2])
    high, low = packed[:, :8].copy().view(">u8").ravel(), packed[:, 8:].copy().view(">u8").ravel()
    recorded = np.asarray(batch.column("recorded_at").cast(pa.int64())) // 1000
    follows = (high[1:] == high[:-1]) & (low[1:].astype(np.uint64) - low[:-1].astype(np.uint64) == 1)
    follows &= recorded[1:] == recorded[:-1]
    starts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    counts = np.diff(np.append(starts, len(recorded)))
    set_runs(wire, counts.tolist(), recorded[starts].tolist(), packed[starts, 6:].tobytes())


class _Kept(Generic[K, V]):
    """A limited number of recently made values: look-ups for the same value often follow each other."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Returns the kept value of a key, else the value that `make` makes."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made

    def clear(self) -> None:
        self._kept.clear()


_segments: _Kept[tuple[str, str, int], SealedSegment] = _Kept(16)
_blocks: _Kept[tuple[str, str, int], Block] = _Kept(8)


def _open_segment(segment: Segment, topic: str) -> SealedSegment:
    return _segments.get((segment.lake, segment.path, segment.crc), lambda: SealedSegment(segment, topic))


def open_lake(lake: str) -> tuple[fs.FileSystem, str]:
    """Returns the filesystem of a lake and the path in it. Raises ConfigError when the place does not exist."""
    return _open_lake(lake, os.getpid())


@lru_cache(maxsize=16)
def _open_lake(lake: str, process: int) -> tuple[fs.FileSystem, str]:
    """Opens a lake once per process.

    Connections to an object store are expensive to open, and they do not survive a fork.
    """
    try:
        import pyarrow as pa
        import pyarrow.fs
    except ImportError as error:
        raise ConfigError('sealed history is read with Arrow: pip install "penstock[arrow]"') from error
    try:
        if "://" in lake:
            filesystem, root = pyarrow.fs.FileSystem.from_uri(lake)
        else:
            filesystem, root = pyarrow.fs.LocalFileSystem(), lake
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        said = str(error).replace(lake, shown_url(lake))
        # The error is not chained, because Arrow's own error repeats the url with its credentials.
        raise ConfigError(f"{shown_url(lake)!r} is no place for sealed history: {said}") from None
    return filesystem, root.rstrip("/")
