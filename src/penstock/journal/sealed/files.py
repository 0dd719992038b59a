"""Sealed history: a topic's oldest events in Parquet files of a lake, read as if they were still here.

`segments` knows what lies where. A file's row groups are read as blocks, so that nobody above notices.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.journal.sealed.segments import Segment, load_segments
from penstock.journal.storage.block import Block, read_block
from penstock.journal.storage.joining import select
from penstock.names import shown_url

_KEPT_FILES = 16
_KEPT_BLOCKS = 8
_COLUMNS = [
    *("seq", "kind", "key", "scope", "payload", "headers", "occurred_at", "recorded_at", "id", "correlation_id"),
    *("causation_id", "payload_bytes", "link"),
]
"""What a block is made of; typed columns are for others."""


def sealed_blocks(snap: Snapshot, topic: int, name: str, after: int, through: int, trimmed: int) -> Iterator[Block]:
    """The sealed events after < position ≤ through (and their neighbours in the same row group), as blocks.

    What compaction has `trimmed` since is left out, though the files still hold it.
    """
    after = max(after, trimmed)
    for segment in load_segments(snap, topic, after, through):
        file = _files.open(segment, name)
        for group, (first, last) in enumerate(file.groups):
            if last > after and first <= through:
                yield _without(file.block(group), trimmed)


def sealed_blocks_back(
    snap: Snapshot, topic: int, name: str, after: int, through: int, trimmed: int
) -> Iterator[Block]:
    """The same, in reverse."""
    after = max(after, trimmed)
    for segment in reversed(list(load_segments(snap, topic, after, through))):
        file = _files.open(segment, name)
        for group in range(len(file.groups) - 1, -1, -1):
            first, last = file.groups[group]
            if last > after and first <= through:
                yield _without(file.block(group), trimmed)


def sealed_block_holding(snap: Snapshot, topic: int, name: str, seq: int, trimmed: int) -> Block | None:
    """The block of sealed events that holds a position."""
    for block in sealed_blocks(snap, topic, name, seq - 1, seq, trimmed):
        return block
    return None


def sealed_start(snap: Snapshot, topic: int, name: str, seq: int) -> int:
    """Where the row group begins that holds a sealed position: a good place to cut a range."""
    for segment in load_segments(snap, topic, seq - 1, seq):
        for first, last in _files.open(segment, name).groups:
            if first <= seq <= last:
                return first
    return seq


def check_sealed(snap: Snapshot, topic: int, name: str) -> None:
    """Corrupt or StorageError when a file of sealed history is not, byte for byte, what was written."""
    for segment in load_segments(snap, topic):
        SealedFile(segment, name).check()


def _without(block: Block, trimmed: int) -> Block:
    """A block without what was compacted away."""
    if block.first > trimmed:
        return block
    return read_block(select(block, range(block.row_after(trimmed), block.count)), block.topic)


class SealedFile:
    """One segment's file, open for reading."""

    def __init__(self, segment: Segment, topic: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._segment = segment
        self._topic = topic
        self._lock = threading.Lock()
        filesystem, root = open_lake(segment.lake)
        try:
            file = filesystem.open_input_file(f"{root}/{segment.path}")
            size = file.size()
        except OSError as error:
            raise StorageError(
                f"{self._events()} cannot be read: {error}", retryable=not isinstance(error, FileNotFoundError)
            ) from error
        if size != segment.size:
            raise self._damaged(f"the file has {size:,} bytes and should have {segment.size:,}")
        try:
            self._parquet = pq.ParquetFile(file, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(str(error)) from error
        self.groups = self._find_groups()

    def _find_groups(self) -> list[tuple[int, int]]:
        """The first and last position of each row group."""
        metadata = self._parquet.metadata
        if metadata.num_rows != self._segment.count:
            raise self._damaged(f"the file holds {metadata.num_rows} events and should hold {self._segment.count}")
        at = self._parquet.schema_arrow.get_field_index("seq")
        found = []
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(at).statistics
            found.append((int(statistics.min), int(statistics.max)))
        return found

    def block(self, group: int) -> Block:
        """A row group as a block."""
        import pyarrow as pa

        place = (self._segment.lake, self._segment.path, group)
        kept = _blocks.get(place)
        if kept is None:
            try:
                with self._lock:  # a ParquetFile is for one thread at a time
                    table = self._parquet.read_row_group(group, columns=_COLUMNS)
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, OSError) and "://" in self._segment.lake:
                    raise StorageError(f"{self._events()} cannot be read: {error}", retryable=True) from error
                raise self._damaged(str(error), self.groups[group][0]) from error
            kept = Block(_wire_of(table), self._topic)
            _blocks.put(place, kept)
        return kept

    def check(self) -> None:
        """Reads every byte and compares the checksum."""
        filesystem, root = open_lake(self._segment.lake)
        crc = 0
        try:
            with filesystem.open_input_stream(f"{root}/{self._segment.path}") as stream:
                while piece := stream.read(1 << 20):
                    crc = zlib.crc32(piece, crc)
        except OSError as error:
            raise StorageError(f"{self._events()} cannot be read: {error}", retryable=True) from error
        if crc != self._segment.crc:
            raise self._damaged("its bytes have another checksum than those that were written")

    def _events(self) -> str:
        segment = self._segment
        return f"events {segment.first} to {segment.last} of topic {self._topic!r} are sealed in {segment.place}, which"

    def _damaged(self, reason: str, seq: int | None = None) -> Corrupt:
        place = self._segment.place
        return Corrupt(f"a file of sealed history is damaged: {reason}", topic=self._topic, seq=seq, file=place)


def _wire_of(table: Any) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.journal.storage.from_arrow import wire_of

    batch = table.combine_chunks().to_batches()[0]
    columns = {name: batch.column(name) for name in ("kind", "key", "scope", "headers", "occurred_at")}
    columns["correlation"] = batch.column("correlation_id")
    columns["causation"] = batch.column("causation_id")
    raw = batch.column("payload_bytes")
    text = batch.column("payload")
    if raw.null_count < len(raw):
        columns["payload"] = pc.coalesce(raw, text.cast(pa.binary()))
        columns["binary"] = pc.is_valid(raw)
    else:
        columns["payload"] = text
    wire = wire_of(pa.RecordBatch.from_pydict(columns), trusted=True)
    seqs = np.asarray(batch.column("seq"))
    wire.first = int(seqs[0])
    if int(seqs[-1] - seqs[0]) != len(seqs) - 1:
        wire.seqs = seqs.astype("<i8").tobytes()
    _set_runs(wire, batch)
    links = batch.column("link")
    if links.null_count < len(links):
        wire.chain = b"".join(link or bytes(32) for link in links.to_pylist())
    return wire


def _set_runs(wire: Any, batch: Any) -> None:
    """Times and ids as a block keeps them: runs of ids that count up and share their time."""
    import numpy as np
    import pyarrow as pa

    from penstock.journal.storage.columns import pack_ints

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
    wire.run_counts = pack_ints(np.diff(np.append(starts, len(recorded))).tolist())
    times = recorded[starts]
    wire.run_time = int(times[0])
    wire.run_times = pack_ints((times - times[0]).tolist())
    wire.run_ids = packed[starts, 6:].tobytes()


class _Files:
    """The files looked into lately."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str, int], SealedFile] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, segment: Segment, topic: str) -> SealedFile:
        place = (segment.lake, segment.path, segment.crc)
        with self._lock:
            found = self._open.get(place)
            if found is not None:
                self._open.move_to_end(place)
                return found
        found = SealedFile(segment, topic)
        with self._lock:
            self._open[place] = found
            while len(self._open) > _KEPT_FILES:
                self._open.popitem(last=False)
        return found


class _SealedBlocks:
    """The blocks made from row groups lately: look-ups tend to come in crowds."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, int], Block] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: tuple[str, str, int]) -> Block | None:
        with self._lock:
            found = self._kept.get(place)
            if found is not None:
                self._kept.move_to_end(place)
            return found

    def put(self, place: tuple[str, str, int], block: Block) -> None:
        with self._lock:
            self._kept[place] = block
            while len(self._kept) > _KEPT_BLOCKS:
                self._kept.popitem(last=False)


_files = _Files()
_blocks = _SealedBlocks()


def open_lake(lake: str) -> tuple[Any, str]:
    """The filesystem of a lake and the path in it; ConfigError when there is no such place."""
    return _open_lake(lake, os.getpid())


@lru_cache(maxsize=16)
def _open_lake(lake: str, process: int) -> tuple[Any, str]:
    """The same, once per process: connections to an object store are worth keeping, and do not survive a fork."""
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
        # Not chained: Arrow's own error repeats the url with its credentials.
        raise ConfigError(f"{shown_url(lake)!r} is no place for sealed history: {said}") from None
    return filesystem, root.rstrip("/")
