"""The journal's record of sealed history: which Parquet files hold which events, and who is sealing.

    z topic last        a segment: a Parquet file with the events first … last, or one for each value of a column
    y topic             the topic's seals: whose turn it is, and which files await their removal

Sealing makes segments of hot blocks: they follow one another without a gap from the topic's beginning through
`TopicState.sealed`. A segment and the dropping of its blocks are one commit, made after the file was written and
verified. Every seal has a token, which is part of its files' names: two seals never write the same file, and only the
newest one may record segments.

A bulk write makes segments at the topic's end (see `referring`): its file was there before the commit that refers to
it, so that the file says neither positions nor ids nor the recording time. The segment says those of the first row, and
a row's own follow from its index in the file. Behind `sealed` such segments lie among hot blocks, through
`TopicState.referred`; sealing goes on around them.
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
"""The end of each piece of a file, and the CRC-32 of the piece's bytes. Readers check them.

A piece is a column of a row group, or several small ones, or a whole row group in older files; the last one is the
footer. Parquet's own checksums leave out the headers of pages and the footer.
"""


NO_PIECES = msgspec.Raw(b"\x90")
_decode_pieces = msgspec.msgpack.Decoder(Pieces).decode


def packed_pieces(pieces: Pieces) -> msgspec.Raw:
    """Returns the pieces of a file as the record of a segment has them: a reader of many records decodes no pieces."""
    return msgspec.Raw(_encode(pieces))


class SegmentPart(msgspec.Struct, frozen=True, array_like=True):
    """A file of a segment whose events are parted by a column."""

    folder: str
    """`region=eu`: the folder below the day's in which the file has the segment's name."""
    count: int
    size: int
    crc: int
    pieces: msgspec.Raw = NO_PIECES


class SegmentFile(msgspec.Struct, frozen=True):
    """A Parquet file of sealed events."""

    path: str
    """Its path in the lake."""
    count: int
    size: int
    crc: int
    """CRC-32 of the file's bytes."""
    pieces: msgspec.Raw

    def load_pieces(self) -> Pieces:
        """Returns its pieces."""
        return keys.stored(_decode_pieces, bytes(self.pieces), "the record of a sealed file")


class SegmentKeys(msgspec.Struct, frozen=True, array_like=True):
    """The summary of the keys of a bulk segment: the file of filters beside it, and the least and greatest key."""

    size: int
    """Bytes of the file, whose path is the segment's with `KEYS_SUFFIX`."""
    crc: int
    low: str
    high: str


KEYS_SUFFIX = ".keys"


def keys_beside(path: str) -> str:
    """Returns the path of the filters of the keys of a file that other programs see: they skip it."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/_{name}{KEYS_SUFFIX}"


class NewSegment(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file that a task has written, and that becomes a segment when a commit refers to it."""

    lake: str
    path: str
    count: int
    size: int
    crc: int
    binary: int
    unfit: int
    pieces: msgspec.Raw
    """As `Pieces`, encoded: the commit of many files looks at none of them."""
    kinds: tuple[str, ...] | None
    """The kinds of its events; None when they are many."""
    scopes: tuple[str, ...] | None
    occurred: tuple[int, int] | None
    """The producers' earliest and latest time, in milliseconds; None: no event has one."""
    keys: SegmentKeys | None = None
    columns: str = ""
    """Its typed columns."""


class PlacedSegments(msgspec.Struct, frozen=True):
    """Files that a job has written, which become events of a topic."""

    files: list[NewSegment]
    before: int = 0
    """The number of the commit's batches that come before the files."""


class BulkSegments(msgspec.Struct, frozen=True):
    """The events of a commit that lie in files already."""

    topic: str
    job: str
    """The job that wrote the files."""
    number: int
    """The micro-batch; 0 for a job that has only one."""
    placed: list[PlacedSegments]

    @property
    def files(self) -> list[NewSegment]:
        """All of them, in order."""
        return [file for one in self.placed for file in one.files]

    @property
    def once(self) -> bytes:
        """The name under which it is remembered that they are published."""
        from hashlib import md5  # most commands do without

        return md5(f"{self.topic} {self.job} {self.number}".encode(), usedforsecurity=False).digest()


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Sealed events that follow one another: a Parquet file, or one for each value of the lake's partition column."""

    first: int
    last: int
    count: int
    lake: str
    """The url or folder under which it lies."""
    path: str
    """Its path there; with parts, each has this path with its folder before the name."""
    size: int
    crc: int
    """CRC-32 of the file's bytes; each part has its own."""
    binary: int = 0
    """The number of its payloads that are bytes."""
    unfit: int = 0
    """The number of its payloads that did not fit the typed columns, which are empty in their rows."""
    parts: tuple[SegmentPart, ...] = ()
    """Its files, when they are parted by a column."""
    pieces: msgspec.Raw = NO_PIECES
    """Those of the file; each part has its own."""
    base_id: bytes = b""
    """The id of the first event, of a segment that a bulk write made; the others' count up. Empty: the file says it."""
    recorded_ms: int = 0
    """The time when its events were recorded; 0: the file says it."""
    keys: SegmentKeys | None = None
    """The summary of its keys; the index covers those of other segments."""
    columns: str = ""
    """The typed columns of a bulk segment, and of what bulk segments were joined to; the files of others say it."""

    @property
    def by_reference(self) -> bool:
        """True if a bulk write made it: its file has no positions, ids and recording times."""
        return bool(self.base_id)

    @property
    def filtered(self) -> bool:
        """True if its events came in bulk writes: its own filters find their keys, and no index does."""
        return self.by_reference or self.keys is not None

    @property
    def keys_path(self) -> str:
        """The path of the file of its filters, where it has filters."""
        return self.path + KEYS_SUFFIX if self.by_reference else keys_beside(self.path)

    def may_hold(self, key: str) -> bool:
        """Returns True if events of a filtered segment may have a key."""
        return self.keys is not None and self.keys.low <= key <= self.keys.high

    @property
    def paths(self) -> list[str]:
        """Everything that lies in the lake for it."""
        beside = [] if self.keys is None else [self.keys_path]
        return [*(file.path for file in self.files), *beside]

    @property
    def day(self) -> str:
        """The folder of its day; of a bulk segment, the folder of its job."""
        return self.path.rpartition("/")[0]

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        """Its Parquet files."""
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
    """"parquet" for plain files, "delta" or "iceberg" for files that a table lists as well."""
    columns: str = ""
    """Typed columns beside the JSON text, `customer STRING, total DOUBLE`."""
    catalog: str = ""
    """The Iceberg catalog; empty for the one beside the lake."""
    partition_by: str = ""
    """The column by whose values files are parted within their day; empty for one file per range."""


class Seals(msgspec.Struct, frozen=True, array_like=True):
    """The notes that a topic's seals leave for one another."""

    token: str = ""
    """The newest seal's."""
    markers: dict[str, str] = {}
    """By lake: the token of the last seal known to have signed the topic's folder there."""
    unfinished: tuple[tuple[str, str], ...] = ()
    """Lakes and tokens of seals that may have left files which are no segments."""
    gone: tuple[tuple[str, str], ...] = ()
    """Lakes and paths of files that are no segments any more: removed from the topic, or merged into others."""
    tables: dict[str, TableSettings] = {}
    """By lake: the table that its files are registered in, and their typed columns."""
    signed: tuple[tuple[str, str, int], ...] = ()
    """Lakes, tokens and times of the newest bulk writes that have signed the topic's folder: any of them may have been
    the last."""


class SealMarker(msgspec.Struct, frozen=True):
    """Whose history a folder holds, and which seal or bulk write was the last to work on it."""

    journal: str
    topic: str
    seal: str


MARKER = "_penstock.json"


def check_marker(seals: Seals, lake: str, marker: SealMarker | None, folder: str, *, known: bool) -> None:
    """Raises when a folder is not as this journal left it; `known`: it has files of this journal.

    A seal of this journal may have been the last to sign it, the last one or any cut off, or a bulk write.
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
    """Saves a file that a bulk write made as a segment; returns its last position.

    `place`: the first position, the id of the first event, and the recording time.
    """
    first, base_id, recorded_ms = place
    last = first + made.count - 1
    what = made.count, made.lake, made.path, made.size, made.crc, made.binary, made.unfit
    record = first, last, *what, (), made.pieces, base_id, recorded_ms, made.keys, made.columns
    tx.put(keys.segment_key(topic, last), _encode(record))  # as a `Segment` is, whose pieces are encoded already
    return last


def save_segment(tx: WriteTx, topic: int, segment: Segment) -> None:
    tx.put(keys.segment_key(topic, segment.last), _encode(segment))


def load_segments(snap: Snapshot, topic: int, after: int = 0, through: int = keys.MAX_SEQ) -> Iterator[Segment]:
    """The segments with events in after < position ≤ through, in order."""
    low, high = keys.segment_key(topic, after + 1), keys.topic_range(keys.SEGMENT, topic)[1]
    for _, value in snap.scan(low, high):
        segment = keys.stored(_decode_segment, value, "the record of a sealed file")
        if segment.first > through:
            return
        yield segment


def sealed_through(snap: Snapshot, topic: int, state: TopicState) -> int:
    """Through which position everything is removed or in files, without a gap."""
    reached = max(state.sealed, state.trimmed)
    for segment in load_segments(snap, topic, reached, state.referred):
        if segment.first > reached + 1:
            break
        reached = segment.last
    return reached


def load_segments_back(snap: Snapshot, topic: int, after: int, through: int) -> Iterator[Segment]:
    """Does the same from the newest back, each when it is asked for."""
    if after < through:
        yield from load_segments(snap, topic, through - 1, through)
        for _, value in snap.scan(keys.segment_key(topic, after + 1), keys.segment_key(topic, through), reverse=True):
            yield keys.stored(_decode_segment, value, "the record of a sealed file")


def sealed_files(snap: Snapshot, topic: int) -> frozenset[tuple[str, str]]:
    """The lakes and paths of all files that hold sealed history."""
    return frozenset((one.lake, path) for one in load_segments(snap, topic) for path in one.paths)


def load_seals(snap: Snapshot, topic: int) -> Seals:
    value = snap.get(keys.seals_key(topic))
    return Seals() if value is None else keys.stored(_decode_seals, value, "the record of a topic's seals")


def save_seals(tx: WriteTx, topic: int, seals: Seals) -> None:
    tx.put(keys.seals_key(topic), _encode(seals))


def replace_segments(tx: WriteTx, topic: int, old: list[Segment], new: Segment) -> None:
    """Puts one file in the place of several that follow one another; the next seal deletes theirs."""
    for segment in old:
        tx.delete(keys.segment_key(topic, segment.last))
    save_segment(tx, topic, new)
    _let_go(tx, topic, old)


def drop_segments(tx: WriteTx, topic: int, through: int) -> None:
    """Forgets the segments whose events are all removed; their files wait for the next seal, which deletes them."""
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
"""Events in one file, at the most."""


class SealReport(msgspec.Struct, frozen=True):
    """The result of a seal."""

    topic: str
    lake: str
    """The place of the files; without the options and credentials that its url may have."""
    events: int
    """Events sealed by this call."""
    files: int
    bytes: int
    through: int
    """Everything at or before this position is sealed now."""
    format: str = "parquet"
    """The format in which the files are registered."""
    unfit: int = 0
    """Payloads sealed by this call that do not fit the typed columns; their JSON text is whole."""
    left: int = 0
    """Positions that were to be sealed and were not yet: a server seals in steps."""


class LakeSummary(msgspec.Struct, frozen=True):
    """A topic's sealed history in one lake."""

    topic: str
    lake: str
    """The place of the lake; without the options and credentials that its url may have."""
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
    """Events in files that bulk writes made: only the journal knows which of these count, and the positions."""

    def readers(self) -> dict[str, str]:
        """By program: the line that reads it, where files alone say everything. DuckDB needs its extension `delta` for
        a Delta table."""
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
    """The paths of the files: their bucket, if any, and the path in it."""
    settings: list[str] = []
    """The settings in the lake's url beside the place, which a reader has to know for itself: `endpoint`, `access key`.
    """
    binary: bool = False
    """True if some payloads are bytes: those are in the column `payload_bytes`."""
    columns: dict[str, str] = {}
    """The typed columns, with Arrow's names of their types; none when a payload did not fit all of them."""
    base_id: str = ""
    """The id of the first event, where the file does not say positions, ids and the recording time: those of a row
    follow from its index in the file. Empty: the file says them."""
    recorded_ms: int = 0
    """The time when its events were recorded, where the file does not say it."""


def lake_summaries(snap: Snapshot, topic: str) -> Iterator[LakeSummary]:
    """The lakes that a topic is sealed in, in the order in which its history begins there."""
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
