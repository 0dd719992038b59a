"""The journal's record of sealed history: which Parquet files hold which events, and which seal is the newest.

    z topic last        a segment: a Parquet file with the events first … last, or one for each value of a column
    y topic             the topic's seals: whose turn it is, and which files await their removal

Sealing makes segments of hot blocks. These segments follow one another without a gap from the topic's beginning through
`TopicState.sealed`. One commit records a segment and drops its blocks, after the file was written and verified. Every
seal has a token, which is part of its files' names. So two seals never write the same file, and only the newest seal
may record segments.

A bulk write makes segments at the topic's end (see `referring`). Its file exists before the commit that refers to it,
so the file does not contain positions, ids or the recording time. The segment has these values for the first row; the
values of the other rows follow from their index in the file. Such segments are after `sealed`, among hot blocks,
through `TopicState.referred`. Sealing goes on around them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.core.engine.contract import Snapshot, WriteTx
from penstock.core.journal import keys
from penstock.core.journal.catalog import TopicState, load_record, load_state
from penstock.core.names import shown_url
from penstock.errors import ConfigError, StorageError

_encode = msgspec.msgpack.Encoder().encode

Pieces = tuple[tuple[int, int], ...]
"""The end of each piece of a file, and the CRC-32 of the piece's bytes. Readers check the CRC-32.

A piece is a column of a row group, or several small columns. In older files it is a whole row group. The last piece is
the footer. Parquet's own checksums leave out the headers of pages and the footer.
"""


NO_PIECES = msgspec.Raw(b"\x90")
_decode_pieces = msgspec.msgpack.Decoder(Pieces).decode


def packed_pieces(pieces: Pieces) -> msgspec.Raw:
    """Returns the pieces of a file in packed form for the record of a segment: a reader of many records decodes no
    pieces.
    """
    return msgspec.Raw(_encode(pieces))


class SegmentPart(msgspec.Struct, frozen=True, array_like=True):
    """A file of a segment whose events are parted by a column."""

    folder: str
    """The folder with the file, below the folder of the day: `region=eu`. The file has the segment's name."""
    count: int
    size: int
    crc: int
    pieces: msgspec.Raw = NO_PIECES


class SegmentFile(msgspec.Struct, frozen=True):
    """A Parquet file of sealed events."""

    path: str
    """The file's path in the lake."""
    count: int
    size: int
    crc: int
    """The CRC-32 of the file's bytes."""
    pieces: msgspec.Raw

    def load_pieces(self) -> Pieces:
        """Returns the file's pieces."""
        return keys.stored(_decode_pieces, bytes(self.pieces), "the record of a sealed file")


class SegmentKeys(msgspec.Struct, frozen=True, array_like=True):
    """The summary of the keys of a bulk segment: the file of filters beside it, and the least and greatest key."""

    size: int
    """The size of the file of filters in bytes. Its path is the segment's path with `KEYS_SUFFIX`."""
    crc: int
    low: str
    high: str


KEYS_SUFFIX = ".keys"


def keys_beside(path: str) -> str:
    """Returns the path of the key filters beside a file that other programs read. Those programs skip this path."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/_{name}{KEYS_SUFFIX}"


class NewSegment(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file that a task has written. It becomes a segment when a commit refers to it."""

    lake: str
    path: str
    count: int
    size: int
    crc: int
    binary: int
    unfit: int
    pieces: msgspec.Raw
    """The file's `Pieces`, encoded: a commit of many files decodes none of them."""
    kinds: tuple[str, ...] | None
    """The kinds of its events; None when there are too many."""
    scopes: tuple[str, ...] | None
    occurred: tuple[int, int] | None
    """The earliest and latest producer times, in milliseconds; None when no event has a time."""
    keys: SegmentKeys | None = None
    columns: str = ""
    """The file's typed columns."""


class PlacedSegments(msgspec.Struct, frozen=True):
    """Files that a job has written, which become events of a topic."""

    files: list[NewSegment]
    before: int = 0
    """The number of the commit's batches before the files."""


class BulkSegments(msgspec.Struct, frozen=True):
    """The events of a commit that are already in files."""

    topic: str
    job: str
    """The job that wrote the files."""
    number: int
    """The number of the micro-batch; 0 for a job that has only one."""
    placed: list[PlacedSegments]

    @property
    def files(self) -> list[NewSegment]:
        """All files, in order."""
        return [file for one in self.placed for file in one.files]

    @property
    def once(self) -> bytes:
        """The name under which the journal remembers that the files are published."""
        from hashlib import md5  # most commands do not need it

        return md5(f"{self.topic} {self.job} {self.number}".encode(), usedforsecurity=False).digest()


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Sealed events that follow one another.

    They are in one Parquet file, or in one file for each value of the lake's partition column.
    """

    first: int
    last: int
    count: int
    lake: str
    """The url or folder of the lake with the segment."""
    path: str
    """The file's path in the lake.

    When the segment has parts, each part has this path with its folder before the name.
    """
    size: int
    crc: int
    """The CRC-32 of the file's bytes. Each part has its own."""
    binary: int = 0
    """The number of its payloads that are bytes."""
    unfit: int = 0
    """The number of its payloads that did not fit the typed columns. These columns are empty in the payloads' rows."""
    parts: tuple[SegmentPart, ...] = ()
    """The files of the segment, when a column parts them."""
    pieces: msgspec.Raw = NO_PIECES
    """The pieces of the file. Each part has its own."""
    base_id: bytes = b""
    """The id of the first event of a bulk segment; the following ids count up from it.

    Empty when the file has the ids.
    """
    recorded_ms: int = 0
    """The time when its events were recorded; 0 when the file has the times."""
    keys: SegmentKeys | None = None
    """The summary of its keys. The keys of other segments are in the index."""
    columns: str = ""
    """The typed columns of a bulk segment, or of a segment that was joined from bulk segments.

    Files of other segments name their typed columns themselves.
    """

    @property
    def by_reference(self) -> bool:
        """True if a bulk write made the segment: its file has no positions, ids and recording times."""
        return bool(self.base_id)

    @property
    def filtered(self) -> bool:
        """True if its events came in bulk writes: the segment's own filters find their keys, and no index does."""
        return self.by_reference or self.keys is not None

    @property
    def keys_path(self) -> str:
        """The path of the file with its filters, if it has filters."""
        return self.path + KEYS_SUFFIX if self.by_reference else keys_beside(self.path)

    def may_hold(self, key: str) -> bool:
        """Returns True if events of a filtered segment may have a key."""
        return self.keys is not None and self.keys.low <= key <= self.keys.high

    @property
    def paths(self) -> list[str]:
        """The paths of all its files in the lake."""
        beside = [] if self.keys is None else [self.keys_path]
        return [*(file.path for file in self.files), *beside]

    @property
    def day(self) -> str:
        """The folder of its day; of a bulk segment, the folder of its job."""
        return self.path.rpartition("/")[0]

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        """The segment's Parquet files."""
        if not self.parts:
            return (SegmentFile(self.path, self.count, self.size, self.crc, self.pieces),)
        name = self.path.rpartition("/")[2]
        return tuple(
            SegmentFile(f"{self.day}/{one.folder}/{name}", one.count, one.size, one.crc, one.pieces)
            for one in self.parts
        )

    def shown(self, path: str) -> str:
        """Returns the path of a file of the segment, for people."""
        return f"{shown_url(self.lake)}/{path}"


class TableSettings(msgspec.Struct, frozen=True, array_like=True):
    """The format and columns of a topic's files in a lake, for other programs."""

    format: str = "parquet"
    """The format: "parquet" for plain files, "delta" or "iceberg" for files that a table also lists."""
    columns: str = ""
    """Typed columns beside the JSON text, for example `customer STRING, total DOUBLE`."""
    catalog: str = ""
    """The Iceberg catalog; empty for the catalog beside the lake."""
    partition_by: str = ""
    """The column by whose values files are parted within their day; empty for one file per range."""


class Seals(msgspec.Struct, frozen=True, array_like=True):
    """The records that a topic's seals leave for one another."""

    token: str = ""
    """The token of the newest seal."""
    markers: dict[str, str] = {}
    """The token of the last seal that is known to have signed the topic's folder, by lake."""
    unfinished: tuple[tuple[str, str], ...] = ()
    """Lakes and tokens of seals that may have left files without segments."""
    gone: tuple[tuple[str, str], ...] = ()
    """Lakes and paths of files that are no longer segments: their events were removed, or they were merged into
    other files.
    """
    tables: dict[str, TableSettings] = {}
    """The table that lists a lake's files, and their typed columns, by lake."""
    signed: tuple[tuple[str, str, int], ...] = ()
    """Lakes, tokens and times of the newest bulk writes that have signed the topic's folder.

    Any of them may have signed last.
    """


class SealMarker(msgspec.Struct, frozen=True):
    """The marker of a folder: the topic whose history the folder holds, and the seal or bulk write that signed it
    last.
    """

    journal: str
    topic: str
    seal: str


MARKER = "_penstock.json"


def check_marker(seals: Seals, lake: str, marker: SealMarker | None, folder: str, *, known: bool) -> None:
    """Raises an error when a folder is not as this journal left it.

    `known` is True if the folder has files of this journal.

    The last signature may be from the last seal of this journal, from any interrupted seal, or from a bulk write.
    """
    if marker is None:
        if known:
            raise StorageError(
                f"{folder} should hold sealed history, and its {MARKER} is not there: is the right folder mounted?"
            )
        return
    own = {token for place, token, *_ in (*seals.unfinished, *seals.signed) if place == lake}
    if marker.seal not in {seals.markers.get(lake), seals.token, *own}:
        raise ConfigError(
            f"{folder} has files of a copy of this journal, of a dropped topic of this name, or of a time after the "
            "backup from which this journal was restored: use another lake"
        )


_decode_segment = msgspec.msgpack.Decoder(Segment).decode
_decode_seals = msgspec.msgpack.Decoder(Seals).decode


def save_new(tx: WriteTx, topic: int, made: NewSegment, place: tuple[int, bytes, int]) -> int:
    """Saves a file of a bulk write as a segment. Returns the segment's last position.

    `place` holds the first position, the id of the first event, and the recording time.
    """
    first, base_id, recorded_ms = place
    last = first + made.count - 1
    what = made.count, made.lake, made.path, made.size, made.crc, made.binary, made.unfit
    record = first, last, *what, (), made.pieces, base_id, recorded_ms, made.keys, made.columns
    # has the form of a `Segment`, whose pieces are encoded already
    tx.put(keys.segment_key(topic, last), _encode(record))
    return last


def save_segment(tx: WriteTx, topic: int, segment: Segment) -> None:
    tx.put(keys.segment_key(topic, segment.last), _encode(segment))


def load_segments(snap: Snapshot, topic: int, after: int = 0, through: int = keys.MAX_SEQ) -> Iterator[Segment]:
    """Returns the segments with events in after < position ≤ through, in order."""
    low, high = keys.segment_key(topic, after + 1), keys.topic_range(keys.SEGMENT, topic)[1]
    for _, value in snap.scan(low, high):
        segment = keys.stored(_decode_segment, value, "the record of a sealed file")
        if segment.first > through:
            return
        yield segment


def sealed_through(snap: Snapshot, topic: int, state: TopicState) -> int:
    """Returns the position through which every event is removed or in files, without a gap."""
    reached = max(state.sealed, state.trimmed)
    for segment in load_segments(snap, topic, reached, state.referred):
        if segment.first > reached + 1:
            break
        reached = segment.last
    return reached


def load_segments_back(snap: Snapshot, topic: int, after: int, through: int) -> Iterator[Segment]:
    """Yields the same segments from the newest back, each when it is asked for."""
    if after < through:
        yield from load_segments(snap, topic, through - 1, through)
        for _, value in snap.scan(keys.segment_key(topic, after + 1), keys.segment_key(topic, through), reverse=True):
            yield keys.stored(_decode_segment, value, "the record of a sealed file")


def sealed_files(snap: Snapshot, topic: int) -> frozenset[tuple[str, str]]:
    """Returns the lakes and paths of all files that hold sealed history."""
    return frozenset((one.lake, path) for one in load_segments(snap, topic) for path in one.paths)


def load_seals(snap: Snapshot, topic: int) -> Seals:
    value = snap.get(keys.seals_key(topic))
    return Seals() if value is None else keys.stored(_decode_seals, value, "the record of a topic's seals")


def save_seals(tx: WriteTx, topic: int, seals: Seals) -> None:
    tx.put(keys.seals_key(topic), _encode(seals))


def replace_segments(tx: WriteTx, topic: int, old: list[Segment], new: Segment) -> None:
    """Replaces several successive segments by one. The next seal deletes their files."""
    for segment in old:
        tx.delete(keys.segment_key(topic, segment.last))
    save_segment(tx, topic, new)
    _let_go(tx, topic, old)


def drop_segments(tx: WriteTx, topic: int, through: int) -> None:
    """Removes the records of segments whose events are all removed. The next seal deletes their files."""
    dropped = [segment for segment in load_segments(tx, topic, 0, through) if segment.last <= through]
    if not dropped:
        return
    tx.delete_range(keys.topic_range(keys.SEGMENT, topic)[0], keys.segment_key(topic, through + 1))
    _let_go(tx, topic, dropped)


def _let_go(tx: WriteTx, topic: int, segments: list[Segment]) -> None:
    seals = load_seals(tx, topic)
    gone = (*seals.gone, *((segment.lake, path) for segment in segments for path in segment.paths))
    save_seals(tx, topic, msgspec.structs.replace(seals, gone=gone))


# ── What a seal did, and what lies in a lake, with the line with which other programs read it ──


FILE_EVENTS = 1_000_000
"""The maximum number of events in one file."""


class SealReport(msgspec.Struct, frozen=True):
    """The result of a seal."""

    topic: str
    lake: str
    """The place of the files, without the options and credentials that its url may have."""
    events: int
    """The number of events that this call sealed."""
    files: int
    bytes: int
    through: int
    """The last position that is sealed now; all events before it are sealed too."""
    format: str = "parquet"
    """The format in which the files are registered."""
    unfit: int = 0
    """The number of payloads sealed by this call that do not fit the typed columns. Their JSON text is complete."""
    left: int = 0
    """The number of positions that were to be sealed and are not sealed yet. A server seals in steps."""


class LakeSummary(msgspec.Struct, frozen=True):
    """A topic's sealed history in one lake."""

    topic: str
    lake: str
    """The place of the lake, without the options and credentials that its url may have."""
    format: str
    columns: str
    """The typed columns beside the JSON text."""
    files: int
    events: int
    bytes: int
    through: int
    """The last position that is sealed there."""
    catalog: str = ""
    partition_by: str = ""
    """The column by whose values files are parted within their day."""
    by_reference: int = 0
    """The number of events in files that bulk writes made.

    Only the journal knows their positions and which of these files count.
    """

    def readers(self) -> dict[str, str]:
        """Returns, by program, the line that reads the table, if the files contain everything.

        DuckDB needs its extension `delta` for a Delta table.
        """
        if self.by_reference:
            return {}
        folder = f"{self.lake}/{self.topic}"
        files = f"{folder}/date=*/*/*.parquet" if self.partition_by else f"{folder}/date=*/*.parquet"
        if self.format == "delta":
            duckdb, polars = f"SELECT count(*) FROM delta_scan('{folder}')", f'polars.scan_delta("{folder}")'
        else:
            duckdb = f"SELECT count(*) FROM read_parquet('{files}', hive_partitioning=true)"
            polars = f'polars.scan_parquet("{files}", hive_partitioning=True)'
        return {"DuckDB": duckdb, "Polars": polars, "Spark": f'spark.read.parquet("{folder}")'}


class SealedFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sealed events that follow one another, and the Parquet files that hold them, for other readers of the lake."""

    first: int
    last: int
    count: int
    scheme: str
    """The scheme of the lake's url (`s3`); `file` for a folder."""
    paths: list[str]
    """The paths of the files. A path begins with the bucket, if there is one."""
    settings: list[str] = []
    """The options in the lake's url that a reader must supply itself: `endpoint`, `access key`."""
    binary: bool = False
    """True if some payloads are bytes. These payloads are in the column `payload_bytes`."""
    columns: dict[str, str] = {}
    """The typed columns, by name, with Arrow's names of their types. Empty when a payload did not fit all columns."""
    base_id: str = ""
    """The id of the first event, if the file has no positions, ids and recording time.

    The values of a row then follow from its index in the file. Empty when the file has these values.
    """
    recorded_ms: int = 0
    """The time when its events were recorded, if the file does not have it."""


def lake_summaries(snap: Snapshot, topic: str) -> Iterator[LakeSummary]:
    """Returns the lakes with sealed history of a topic, in the order in which its history begins there."""
    record = load_record(snap, topic)
    if record is None:
        return
    seals = load_seals(snap, record.topic_id)
    found: dict[str, list[int]] = {lake: [0, 0, 0, 0, 0] for lake in seals.tables}
    for segment in load_segments(snap, record.topic_id, load_state(snap, record.topic_id, topic).trimmed):
        numbers = found.setdefault(segment.lake, [0, 0, 0, 0, 0])
        numbers[:3] = numbers[0] + len(segment.files), numbers[1] + segment.count, numbers[2] + segment.size
        numbers[3] = segment.last
        numbers[4] += segment.count if segment.by_reference else 0
    for lake, (files, events, size, through, by_reference) in found.items():
        settings = seals.tables.get(lake, TableSettings())
        yield LakeSummary(
            topic,
            shown_url(lake),
            settings.format,
            settings.columns,
            files,
            events,
            size,
            through,
            settings.catalog,
            settings.partition_by,
            by_reference,
        )
