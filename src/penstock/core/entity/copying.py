"""Topics to files, and back: a folder of JSON Lines or Parquet parts with a manifest; or one topic to one file.

    export.json               the manifest: format, and each topic's settings, what compaction had removed, checksums
    orders/1-262144.jsonl     a topic's part, named by the positions it covers: one event's document a line, in order
    orders/1-262144.parquet   the same as Parquet

Run again, an export goes on where the last one ended, interrupted or not: a part is there whole or not at all. It goes
on with the same journal only, whose id is in the manifest. Exported events stay when their topic is compacted or
dropped. A later topic of the same name follows them, because its positions go on. A path that ends with .jsonl,
.parquet, .arrow or .csv is one topic's file.

Imported events keep their positions, ids, times and causes. An import compares and skips events that the topic holds
already, so that an interrupted import is run again.
"""

from __future__ import annotations

import base64
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import msgspec

from penstock.core.clock import to_ms
from penstock.core.documents.events import EventDocument, base64_json, decode_binary, event_json
from penstock.core.durable import as_storage_error, copy_permissions, make_folder, move_into_place, replace_file
from penstock.core.events import EVENT_FIELDS, Event, parse_id
from penstock.core.journal import keys
from penstock.core.journal.blocks import ID_BYTES, Block, Columns, PlacedRows, low_bytes
from penstock.core.journal.catalog import Settings, ended_topic
from penstock.core.journal.commit import Commit, adopt_topic, append_copies, end_copies
from penstock.core.journal.log import TopicLog
from penstock.core.journal.reading import TopicView
from penstock.core.names import (
    check_headers,
    check_kind,
    check_name,
    check_position,
    check_text,
    stored_tags,
)
from penstock.core.units import Progress
from penstock.errors import ConfigError, Corrupt, FenceActive
from penstock.limits import BLOCK_BYTES, MAX_PAYLOAD_BYTES, MAX_POSITION

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.journal.core import JournalCore


MANIFEST = "export.json"
FORMAT = 4
_PART_EVENTS, _PART_BYTES = 262_144, 64 << 20
"""The approximate number of events, and of bytes, at which a part ends."""


class PartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of a part in a manifest: its bytes, and their CRC-32."""

    size: int
    crc: int


class TopicEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The entry of a topic in a manifest."""

    journal: str
    """The id of the topic's journal."""
    settings: Settings = Settings()
    trimmed: int = 0
    through: int = 0
    parts: dict[str, PartEntry] = {}
    """The parts by name; a part that is missing here was not finished, and is written again."""


class ExportManifest(msgspec.Struct, forbid_unknown_fields=True):
    """The manifest of an export."""

    penstock: int = FORMAT
    format: str = "jsonl"
    topics: dict[str, TopicEntry] = {}
    check: int = 0
    """The CRC-32 of the manifest with a 0 here."""

    @staticmethod
    def crc(text: bytes) -> int:
        """Returns the checksum of a manifest's JSON, whatever its layout, including fields of other versions."""
        return zlib.crc32(msgspec.json.encode({**msgspec.json.decode(text), "check": 0}))


class ExportReport(msgspec.Struct, frozen=True):
    """The result of an export."""

    topics: int
    events: int
    """The events that this run has written, without earlier events."""


def export(
    core: JournalCore,
    path: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None,
    format: CopyFormat | None,
    progress: Progress | None,
) -> ExportReport:
    """Writes topics into a folder, or one topic into a file."""
    target = Path(path)
    with as_storage_error(f"export to {target}"):
        names = core.topics() if topics is None else list(topics)
        ending = file_format(target)
        _check_arrow(format or ending)
        if ending is not None and not target.is_dir():
            return _export_file(core, target, names, format or ending, progress)
        return _FolderExport(core, target, format or "jsonl").run(names, progress)


def _check_arrow(format: CopyFormat | None) -> None:
    """Raises ConfigError when a format needs Arrow, which is not installed."""
    if format in ("parquet", "arrow"):
        import penstock.core.journal.to_arrow  # noqa: F401 - it says which extra brings Arrow


def _export_file(
    core: JournalCore, path: Path, names: list[str], format: CopyFormat, progress: Progress | None
) -> ExportReport:
    if len(names) != 1:
        raise ConfigError(f"{path} is one topic's file, and {len(names)} topics are to be exported: name a folder")
    if names[0] not in core.topics():
        raise ConfigError(f"there is no topic {names[0]!r} to export")
    log = TopicLog(core, names[0])
    meter = Meter(progress, log.ask(TopicView.count, 0))
    return ExportReport(1, write_file(log.read(), path, format, store=core.engine.location, meter=meter))


class Meter:
    """A counter of the events of this run, and of earlier runs."""

    def __init__(self, progress: Progress | None = None, total: int = 0) -> None:
        self._progress = progress
        self._total = total
        self.written = 0
        self.skipped = 0

    def add(self, count: int, skipped: int = 0) -> None:
        self.written += count
        self.skipped += skipped
        if self._progress is not None:
            self._progress(self.written + self.skipped, self._total)


class _FolderExport:
    """An export of topics into a folder, whose files get the permissions of the store."""

    def __init__(self, core: JournalCore, folder: Path, format: str) -> None:
        if format not in ("jsonl", "parquet"):
            raise ConfigError(f'a folder is written as "jsonl" or "parquet", not {format!r}')
        if folder.is_file():
            raise ConfigError(f"{folder} is a file; an export is a folder: name another folder")
        self._core = core
        self._store = core.engine.location
        self._folder = folder
        if not folder.exists():
            make_folder(folder)
            copy_permissions(self._store, folder)
        manifest = load_manifest(folder)
        if manifest is None and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty and holds no export: name another folder")
        self._manifest = manifest or ExportManifest(format=format)
        if self._manifest.format != format:
            raise ConfigError(
                f"{folder} holds an export as {self._manifest.format}, not as {format}: name another folder"
            )
        self._meter = Meter()

    def run(self, names: list[str], progress: Progress | None) -> ExportReport:
        with self._core.engine.read() as snap:
            views = [view for name in names if (view := TopicView.open(snap, name)) is not None]
            for view in views:
                self._check_same_journal(view.name)
            self._meter = Meter(progress, sum(view.count() for view in views))
            self._save()  # an export of a journal without topics is valid too
            for view in views:
                state = view.state()
                entry = self._manifest.topics.setdefault(view.name, TopicEntry(self._core.id))
                entry.settings, entry.trimmed, entry.through = view.record.settings, state.trimmed, view.latest()
                self._save()
                self._write_parts(view, entry)
        return ExportReport(len(views), self._meter.written)

    def _check_same_journal(self, name: str) -> None:
        """Raises ConfigError when the folder holds a topic of another journal: positions of two journals do not
        continue each other.
        """
        entry = self._manifest.topics.get(name)
        if entry is not None and entry.journal != self._core.id:
            raise ConfigError(
                f"the export of {name!r} in {self._folder} is of another journal: export to an empty folder"
            )

    def _save(self) -> None:
        save_manifest(self._folder, self._manifest, self._store)

    def _skip(self, view: TopicView, after: int) -> None:
        """Counts the events of an earlier run."""
        if after > view.trimmed():
            self._meter.skipped += view.count_between(view.trimmed(), after)

    def _write_parts(self, view: TopicView, entry: TopicEntry) -> None:
        own = self._folder / topic_folder(view.name)
        make_folder(own)
        copy_permissions(self._store, own)
        parts = parts_of(own, entry)
        for _, _, path in parts:
            check_file(path, entry.parts[path.name])
        for path in own.iterdir():
            if path.name not in entry.parts:
                path.unlink()  # not finished
        after = parts[-1][1] if parts else 0
        self._skip(view, after)
        gathered: list[Block] = []
        count = size = 0
        for block in view.blocks(after, keys.MAX_SEQ):
            gathered.append(block)
            count, size = count + block.count, size + block.payload_size
            if count >= _PART_EVENTS or size >= _PART_BYTES:
                self._write_part(own, entry, gathered, after)
                after, gathered, count, size = block.last, [], 0, 0
        if gathered:
            self._write_part(own, entry, gathered, after)

    def _write_part(self, folder: Path, entry: TopicEntry, blocks: list[Block], after: int) -> None:
        partial, pieces = folder / ".partial", [(block, block.row_after(after)) for block in blocks]
        first = pieces[0][0].seq(pieces[0][1])
        with partial.open("wb", buffering=1 << 20) as out:
            copy_permissions(self._store, partial)  # before the file has content
            if self._manifest.format == "jsonl":
                for block, start in pieces:
                    out.writelines(event_json(event) + b"\n" for event in block.events(start))
            else:
                self._write_parquet(out, pieces)
        name = f"{first}-{blocks[-1].last}.{self._manifest.format}"
        found = _measured(partial, partial.stat().st_size)
        move_into_place(partial, folder / name)
        entry.parts[name] = found
        self._meter.add(sum(block.count - start for block, start in pieces))
        self._save()

    def _write_parquet(self, out: BinaryIO, pieces: list[tuple[Block, int]]) -> None:
        import pyarrow.parquet as pq

        schema = part_schema()
        with pq.ParquetWriter(out, schema, compression="zstd") as writer:
            for block, start in pieces:
                writer.write_batch(_part_batch(block, range(start, block.count), schema))


def topic_folder(topic: str) -> str:
    """Returns the name of a topic's folder in an export: the topic's name, unless it is the manifest's name; then a
    ~ follows, which no topic's name has.
    """
    return f"{topic}~" if topic in (MANIFEST, f"{MANIFEST}.partial") else topic


def load_manifest(folder: Path) -> ExportManifest | None:
    """Returns the manifest of a folder, or None when it has none."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    try:
        manifest = msgspec.json.decode(text, type=ExportManifest)
        crc = manifest.crc(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{folder / MANIFEST} is not an export's manifest: {error}") from error
    if manifest.penstock != FORMAT:
        raise ConfigError(f"{folder} was exported in format {manifest.penstock}; this version reads format {FORMAT}")
    if manifest.check != crc:
        raise Corrupt("an export's manifest fails its checksum", file=str(folder / MANIFEST))
    return manifest


def save_manifest(folder: Path, manifest: ExportManifest, store: str | None = None) -> None:
    manifest.check = manifest.crc(msgspec.json.encode(manifest))
    replace_file(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    copy_permissions(store, folder / MANIFEST)


def check_file(path: Path, known: PartEntry) -> None:
    """Raises Corrupt when the beginning of a file differs from the manifest."""
    try:
        found = _measured(path, known.size)
    except FileNotFoundError as error:
        raise Corrupt("a file of an export is missing", file=str(path)) from error
    if found.size < known.size:
        raise Corrupt(f"a file of an export has {known.size - found.size:,} bytes too few", file=str(path))
    if found.crc != known.crc:
        raise Corrupt("a file of an export fails its checksum", file=str(path))


def _measured(path: Path, most: int) -> PartEntry:
    """Returns the number of bytes at the beginning of a file, up to a limit, and their CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(min(most - size, 1 << 20)):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return PartEntry(size, crc)


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def parts_of(folder: Path, entry: TopicEntry) -> list[tuple[int, int, Path]]:
    """Returns a topic's finished parts in order: first and last position, and the file."""
    found = []
    for name in entry.parts:
        first, _, last = name.partition(".")[0].partition("-")
        if not (first.isdecimal() and last.isdecimal()):
            raise Corrupt(f"an export names {name!r} as a part", file=str(folder))
        found.append((int(first), int(last), folder / name))
    return sorted(found)


def _part_batch(block: Block, rows: range, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    from penstock.core.journal.to_arrow import record_batch

    batch = record_batch(block, "binary").slice(rows.start, len(rows))
    own = _payload_columns((bytes(block.raw_payload(row)), block.is_binary(row)) for row in rows)
    columns = [
        pa.array(own[field.name], field.type) if field.name in own else batch.column(field.name) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# ── One topic's events in one file: JSON Lines, Parquet, Arrow, or (for looking at, not for importing) CSV ──


CopyFormat = Literal["jsonl", "parquet", "arrow", "csv"]
_ENDINGS: dict[str, CopyFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
}
_BATCH = 8192
_CSV_COLUMNS = (
    *("seq", "topic", "kind", "id", "recorded_at", "occurred_at", "key", "scope"),
    *("correlation_id", "causation_id", "tags", "headers", "payload"),
)


def file_format(path: Path) -> CopyFormat | None:
    """Returns the format of a file's ending; None for another ending."""
    return _ENDINGS.get(path.suffix.lower())


def write_file(
    events: Iterable[Event], path: Path, format: CopyFormat, *, store: str | None = None, meter: Meter | None = None
) -> int:
    """Writes events to a file, which appears when it is complete, with the permissions of the store; returns the
    number of events.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb", buffering=1 << 20) as out:
            copy_permissions(store, partial)  # before the file has content
            count = write_events(events, out, format, meter)
        move_into_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def write_events(events: Iterable[Event], out: BinaryIO, format: CopyFormat, meter: Meter | None = None) -> int:
    """Writes events to a stream; returns their number."""
    if format not in get_args(CopyFormat):
        raise ConfigError(f"an export is written as {', '.join(get_args(CopyFormat))}, not {format!r}")
    meter = meter or Meter()
    batches = _in_batches(iter(events), meter)
    if format == "jsonl":
        for batch in batches:
            out.writelines(event_json(event) + b"\n" for event in batch)
    elif format == "csv":
        _write_csv(batches, out)
    else:
        _write_columns(batches, out, format)
    return meter.written


def _in_batches(events: Iterator[Event], meter: Meter) -> Iterator[list[Event]]:
    while batch := list(islice(events, _BATCH)):
        yield batch
        meter.add(len(batch))


def _write_csv(batches: Iterator[list[Event]], out: BinaryIO) -> None:
    import csv

    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    table = csv.writer(text)
    table.writerow(_CSV_COLUMNS)
    for batch in batches:
        table.writerows(_csv_row(event) for event in batch)
    text.detach()


def _csv_row(event: Event) -> list[str | int | None]:
    payload = None if event.binary else as_text(event.raw)
    return [
        *(event.seq, event.topic, event.kind, event.id),
        *(moment.isoformat().replace("+00:00", "Z") for moment in (event.recorded_at, event.occurred_at)),
        *(event.key, event.scope, event.correlation_id, event.causation_id),
        msgspec.json.encode(event.tags).decode() if event.tags else None,
        msgspec.json.encode(dict(event.headers)).decode() if event.headers else None,
        base64.b64encode(event.raw).decode() if payload is None else payload,
    ]


def _write_columns(batches: Iterator[list[Event]], out: BinaryIO, format: CopyFormat) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = part_schema()
    with (
        pq.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True)
        if format == "parquet"
        else pa.ipc.new_file(out, schema)
    ) as writer:
        for batch in batches:
            writer.write_batch(_event_batch(batch, schema))


def part_schema() -> pa.Schema:
    """Returns the columns of Parquet and Arrow files: the columns of `read_arrow`, and a column for bytes."""
    import pyarrow as pa

    from penstock.core.journal.to_arrow import arrow_schema

    return arrow_schema().append(pa.field("payload_bytes", pa.binary())).append(pa.field("binary", pa.bool_()))


def as_text(raw: bytes) -> str | None:
    """Returns a payload as text; None for a payload that is no text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _event_batch(events: list[Event], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = _payload_columns((event.raw, event.binary) for event in events)
    columns["headers"] = [list(event.headers.items()) for event in events]
    columns["tags"] = [list(event.tags) or None for event in events]
    for name in EVENT_FIELDS:
        if name not in columns:
            columns[name] = [getattr(event, name) for event in events]
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _payload_columns(payloads: Iterable[tuple[bytes, bool]]) -> dict[str, list[Any]]:
    """Returns columns of stored payloads, as text where possible, else as bytes, and whether each was appended as
    bytes.
    """
    texts: list[str | None] = []
    others: list[bytes | None] = []
    binary: list[bool] = []
    for raw, is_binary in payloads:
        text = None if is_binary else as_text(raw)
        texts.append(text)
        others.append(raw if text is None else None)
        binary.append(is_binary)
    return {"payload": texts, "payload_bytes": others, "binary": binary}


# ── Exports back into a journal ──


_BATCH_EVENTS = 4096


class ImportReport(msgspec.Struct, frozen=True):
    """The result of an import."""

    topics: int
    imported: int
    present: int
    """The events that existed already, from an earlier run."""


_decode = msgspec.json.Decoder(EventDocument).decode


def import_(
    core: JournalCore,
    path: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None,
    progress: Progress | None,
    start_over: bool,
) -> ImportReport:
    """Reads an export's folder into topics of the same names, or one file into a topic."""
    folder = Path(path)
    with as_storage_error(f"import from {folder}"):
        if folder.is_file():
            names = [] if topics is None else list(topics)
            if len(names) != 1:
                raise ConfigError(f"{folder} is a file: name the one topic its events go to")
            with folder.open("rb") as source:
                return import_file(core, source, names[0], file_format(folder), name=str(folder), start_over=start_over)
        manifest = load_manifest(folder)
    if manifest is None:
        raise ConfigError(f"{folder} holds no export: there is no {folder / 'export.json'}")
    wanted = list(manifest.topics) if topics is None else list(topics)
    unknown = [name for name in wanted if name not in manifest.topics]
    if unknown:
        raise ConfigError(f"the export in {folder} has no topic {unknown[0]!r}")
    total = sum(max(0, manifest.topics[name].through - manifest.topics[name].trimmed) for name in wanted)
    meter = Meter(progress, total)
    for name in wanted:
        entry = manifest.topics[name]
        filling = _Import(core, check_name(name), entry, start_over, meter)
        filling.run(_rows(folder, manifest, name))
        filling.end(entry.through)
    return ImportReport(len(wanted), meter.written, meter.skipped)


def import_file(
    core: JournalCore, source: BinaryIO, topic: str, format: CopyFormat | None, *, name: str, start_over: bool = False
) -> ImportReport:
    """Reads one topic's file into a topic, which may have another name; `name` is the file's name, for errors."""
    if format is None or format == "csv":
        what = "CSV does not say what of an event was missing or bytes" if format else f"{name} says no format"
        raise ConfigError(f"{what}: import .jsonl, .parquet or .arrow")
    rows = _line_rows(source, name, None) if format == "jsonl" else _arrow_rows(source, format, name, None)
    meter = Meter()
    _Import(core, check_name(topic), None, start_over, meter).run(rows)
    return ImportReport(1, meter.written, meter.skipped)


class _Import:
    """A topic that an import fills."""

    def __init__(self, core: JournalCore, name: str, entry: TopicEntry | None, start_over: bool, meter: Meter) -> None:
        self._log = TopicLog(core, name)
        self._name = name
        self._trimmed = MAX_POSITION if entry is None else entry.trimmed
        self._meter = meter
        with core.engine.read() as snap:
            ended = None if start_over else ended_topic(snap, name)
        if ended is not None:
            raise ConfigError(
                f"a topic {name!r} was dropped at position {ended.last}, and one of its name begins after it: import "
                "with start_over=True (--start-over) to give its positions out again, or under another name"
            )
        # A file has no settings, so the topic keeps its settings.
        self._run(lambda commit: adopt_topic(commit, name, None if entry is None else entry.settings, start_over))
        self._began, self._latest = self._log.ask(lambda view: (view.began(), view.latest()), (0, 0))

    def run(self, rows: Iterator[PlacedRows]) -> None:
        """Adds the events that the topic does not have yet."""
        for batch in _batches(rows):
            self._add(batch)

    def end(self, through: int) -> None:
        """Ends the topic where the exported topic ended, because its newest events may have been compacted away."""
        latest = self._latest
        if through > max(latest, self._began):
            self._run(lambda commit: end_copies(commit, self._name, through, latest))
            self._latest = through

    def _add(self, rows: PlacedRows) -> None:
        if rows.seqs[0] <= self._began:
            raise ConfigError(
                f"topic {self._name!r} begins after {self._began}, where one of this name was dropped, and the import "
                f"has position {rows.seqs[0]}: import into a topic of another name, or drop this one and start over"
            )
        known = sum(1 for seq in rows.seqs if seq <= self._latest)
        if known:
            self._compare(rows, known)
            rows = rows.slice(known, len(rows))
        if len(rows):
            latest = self._latest
            self._run(lambda commit: append_copies(commit, self._name, rows, latest, self._trimmed))
            self._latest = rows.seqs[-1]
        self._meter.add(len(rows), known)

    def _compare(self, rows: PlacedRows, known: int) -> None:
        """Raises ConfigError when the topic has another history.

        Both ends of a batch are enough for this check, because ids are unique.
        """
        for row in {0, known - 1}:
            if not self._log.ask(partial(_held, rows.seqs[row], rows.id(row)), False):
                raise ConfigError(
                    f"topic {self._name!r} holds other events than the export (at position {rows.seqs[row]}): "
                    "import it into a topic that is not there yet, or append it with new ids: "
                    "`penstock append TOPIC --file FILE --events --dedup-from id`"
                )

    def _run(self, apply: Callable[[Commit], object]) -> None:
        def unless_fenced(commit: Commit) -> None:
            if commit.fenced:
                raise FenceActive("an exclusive fence is open: nothing can be imported until it has ended")
            apply(commit)

        self._log.core.run(unless_fenced)


def _held(seq: int, id: int, view: TopicView) -> bool:
    """Returns True if the event with this id is at its position, or was removed from it by compaction."""
    event = view.get(seq)
    if event is not None:
        return event._identity() == id
    return seq <= max(view.trimmed(), view.state().compacted)


def _batches(rows: Iterator[PlacedRows]) -> Iterator[PlacedRows]:
    """Yields batches of rows for a commit, of the usual size of a block."""
    gathered = PlacedRows()
    size = 0
    for part in rows:
        gathered.extend(part)
        size += sum(part.columns.weights())
        if len(gathered) >= _BATCH_EVENTS or size >= BLOCK_BYTES:
            yield gathered
            gathered, size = PlacedRows(), 0
    if len(gathered):
        yield gathered


def _rows(folder: Path, manifest: ExportManifest, name: str) -> Iterator[PlacedRows]:
    entry = manifest.topics[name]
    for _, _, path in parts_of(folder / topic_folder(name), entry):
        check_file(path, entry.parts[path.name])
        with path.open("rb", buffering=1 << 20) as part:
            if manifest.format == "jsonl":
                yield from _line_rows(part, str(path), name)
            else:
                yield from _arrow_rows(part, "parquet", str(path), name)


def _line_rows(lines: Iterable[bytes], file: str, topic: str | None) -> Iterator[PlacedRows]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _row(_decode(line), topic)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error


def _row(copy: EventDocument, topic: str | None) -> PlacedRows:
    if topic is not None and copy.topic != topic:
        raise ConfigError(f"an event of topic {copy.topic!r} among those of {topic!r}")
    number = parse_id(copy.id)
    if number is None:
        raise ConfigError(f"{copy.id!r} is no event's id")
    encoded = bytes(copy.payload)
    if copy.binary:
        encoded = decode_binary(msgspec.json.decode(encoded))
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise ConfigError(f"a payload of {len(encoded):,} bytes is too large; at most {MAX_PAYLOAD_BYTES:,}")
    columns = Columns([check_kind(copy.kind)], [encoded])
    if copy.binary and (not copy.poison or as_text(encoded) is None):  # every value except bytes is read as text
        columns.binary = [True]
    recorded, occurred = to_ms(copy.recorded_at, "recorded_at"), to_ms(copy.occurred_at, "occurred_at")
    if occurred != recorded:
        columns.occurred = [occurred]
    texts = {"key": copy.key, "scope": copy.scope, "correlation": copy.correlation_id, "causation": copy.causation_id}
    for field, value in texts.items():
        if value is not None:
            setattr(columns, field, [check_text(value, field)])
    if copy.tags:
        columns.tags = [stored_tags(copy.tags)]
    if copy.headers:
        columns.headers = [check_headers(copy.headers)]
    if number >> 8 * ID_BYTES != recorded:
        raise ConfigError(f"event {copy.seq} was recorded at another time than its id says")
    return PlacedRows(columns, [check_position(copy.seq, "seq")], [low_bytes(number)], [recorded])


def _arrow_rows(source: BinaryIO, format: str, file: str, topic: str | None) -> Iterator[PlacedRows]:
    _check_arrow("arrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if format == "parquet":
            batches = pq.ParquetFile(source, page_checksum_verification=True).iter_batches(batch_size=_BATCH_EVENTS)
        else:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        for batch in batches:
            batch.validate(full=True)  # Arrow would follow offsets that lead out of the file
            for row in batch.to_pylist():
                yield _row(_copy_of(row), topic)
    except (pa.ArrowException, KeyError, OSError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{file} is not what an export writes: {error}") from error


_AS_THEY_ARE = (
    *("seq", "topic", "kind", "id", "recorded_at", "occurred_at"),
    *("key", "scope", "correlation_id", "causation_id"),
)
"""The columns of a file that are fields of an event's document."""


def _copy_of(row: dict[str, Any]) -> EventDocument:
    text, other = row["payload"], row["payload_bytes"]
    return EventDocument(
        **{name: row[name] for name in _AS_THEY_ARE},
        payload=msgspec.Raw(text.encode()) if text is not None else base64_json(other or b""),
        headers=dict(row["headers"] or ()),
        tags=tuple(row.get("tags") or ()),
        binary=text is None,
        poison=text is None and not row["binary"],
    )
