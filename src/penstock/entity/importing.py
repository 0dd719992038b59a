"""Exports back into a journal: events keep their positions, ids, times and causes.

What a topic holds already is compared and skipped, so an import that was interrupted is simply run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from penstock.clock import to_ms
from penstock.documents.events import EventDocument, decode_binary
from penstock.entity.exporting import (
    CopyFormat,
    ExportManifest,
    PartEntry,
    Progress,
    TopicEntry,
    as_text,
    check_file,
    file_format,
    load_manifest,
    parts_of,
    topic_file,
)
from penstock.errors import ConfigError, FenceActive
from penstock.events import parse_id
from penstock.journal.blocks import Columns
from penstock.journal.catalog import ended_topic, load_state
from penstock.journal.commit import Commit, Copies, adopt_topic, append_copies
from penstock.journal.log import TopicLog
from penstock.journal.reading import TopicView
from penstock.limits import BLOCK_BYTES, MAX_PAYLOAD_BYTES
from penstock.names import check_headers, check_kind, check_name, check_position, check_text

if TYPE_CHECKING:
    from penstock.journal.core import JournalCore


_BATCH_EVENTS = 4096


class ImportReport(msgspec.Struct, frozen=True):
    """What an import did."""

    topics: int
    imported: int
    present: int
    """Events that were there already, from an earlier run."""


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
    imported = present = 0
    for name in wanted:
        check_name(name)
        copying = _Import(core, name, manifest.topics[name], start_over)
        for batch in _batches(_rows(folder, manifest, name)):
            copying.add(batch)
            if progress is not None:
                progress(imported + present + copying.imported + copying.present, total)
        imported += copying.imported
        present += copying.present
    return ImportReport(len(wanted), imported, present)


def import_file(
    core: JournalCore, source: BinaryIO, topic: str, format: CopyFormat | None, *, name: str, start_over: bool = False
) -> ImportReport:
    """Reads one topic's file into a topic, which may have another name; `name` is the file's, for errors."""
    if format is None or format == "csv":
        what = "CSV does not say what of an event was missing or bytes" if format else f"{name} says no format"
        raise ConfigError(f"{what}: import .jsonl, .parquet or .arrow")
    rows = _line_rows(source, name, None) if format == "jsonl" else _arrow_rows(source, format, name, None)
    copying = _Import(core, check_name(topic), None, start_over)
    for batch in _batches(rows):
        copying.add(batch)
    return ImportReport(1, copying.imported, copying.present)


class _Import:
    """One topic being filled."""

    def __init__(self, core: JournalCore, name: str, entry: TopicEntry | None, start_over: bool) -> None:
        self._log = TopicLog(core, name)
        self._name = name
        self.imported = self.present = 0
        with core.engine.read() as snap:
            ended = None if start_over else ended_topic(snap, name)
        if ended is not None:
            raise ConfigError(
                f"a topic {name!r} was dropped at position {ended.last}, and one of its name begins after it: import "
                "with start_over=True (--start-over) to give its positions out again, or under another name"
            )
        # A file says nothing of settings: those that the topic has stay.
        self._run(lambda commit: adopt_topic(commit, name, None if entry is None else entry.settings, start_over))
        self._began, self._latest = self._log.ask(lambda view: (view.began(), view.latest()), (0, 0))

    def add(self, rows: Copies) -> None:
        if rows.seqs[0] <= self._began:
            raise ConfigError(
                f"topic {self._name!r} begins after {self._began}, where one of this name was dropped, and the import "
                f"has position {rows.seqs[0]}: import into a topic of another name, or drop this one and start over"
            )
        known = sum(1 for seq in rows.seqs if seq <= self._latest)
        if known:
            self._compare(rows, known)
            self.present += known
            rows.drop_first(known)
        if len(rows):
            latest = self._latest
            self._run(lambda commit: append_copies(commit, self._name, rows, latest))
            self._latest = rows.seqs[-1]
            self.imported += len(rows)

    def _compare(self, rows: Copies, known: int) -> None:
        """What is there must be the same history: it is enough to look at both ends of a batch, ids being unique."""
        for row in {0, known - 1}:
            if not self._log.ask(partial(_held, rows.seqs[row], rows.ids[row]), False):
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
    """Whether an event is at its position, or compaction has removed what was there: asked of one moment."""
    event = view.get(seq)
    if event is not None:
        return event._identity() == id
    return seq <= max(view.trimmed(), load_state(view.snap, view.number, view.name).compacted)


def _batches(rows: Iterator[Copies]) -> Iterator[Copies]:
    """Copies by the commit: of the usual size of a block."""
    gathered = Copies.none()
    size = 0
    for part in rows:
        gathered.extend(part)
        size += sum(part.columns.weights())
        if len(gathered) >= _BATCH_EVENTS or size >= BLOCK_BYTES:
            yield gathered
            gathered, size = Copies.none(), 0
    if len(gathered):
        yield gathered


def _rows(folder: Path, manifest: ExportManifest, name: str) -> Iterator[Copies]:
    entry = manifest.topics[name]
    if manifest.format == "parquet":
        for _, _, path in parts_of(folder / topic_file(name), entry):
            check_file(path, entry.parts[path.name])
            with path.open("rb") as part:
                yield from _arrow_rows(part, "parquet", str(path), name)
        return
    path = folder / topic_file(name, ".jsonl")
    if entry.synced:
        check_file(path, PartEntry(entry.synced, entry.crc))
        with path.open("rb", buffering=1 << 20) as lines:
            yield from _line_rows(_up_to(lines, entry.synced), str(path), name)


def _up_to(lines: BinaryIO, size: int) -> Iterator[bytes]:
    """The lines of a file's first bytes; what an interrupted export wrote after them comes with its next run."""
    for line in lines:
        size -= len(line)
        if size < 0:
            return
        yield line


def _line_rows(lines: Iterable[bytes], place: str, topic: str | None) -> Iterator[Copies]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _row(_decode(line), topic)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(f"{place}, line {number}: {error}") from error


def _row(copy: EventDocument, topic: str | None) -> Copies:
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
    if copy.binary and (not copy.poison or as_text(encoded) is None):  # all that is not bytes is read as text
        columns.binary = [True]
    recorded, occurred = to_ms(copy.recorded_at, "recorded_at"), to_ms(copy.occurred_at, "occurred_at")
    if occurred != recorded:
        columns.occurred = [occurred]
    texts = {"key": copy.key, "scope": copy.scope, "correlation": copy.correlation_id, "causation": copy.causation_id}
    for field, value in texts.items():
        if value is not None:
            setattr(columns, field, [check_text(value, field)])
    if copy.headers:
        columns.headers = [check_headers(copy.headers)]
    return Copies([check_position(copy.seq, "seq")], [number], [recorded], columns)


def _arrow_rows(source: BinaryIO, format: str, place: str, topic: str | None) -> Iterator[Copies]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if format == "parquet":
            batches = pq.ParquetFile(source, page_checksum_verification=True).iter_batches(batch_size=_BATCH_EVENTS)
        else:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        for batch in batches:
            batch.validate(full=True)  # offsets that lead out of the file would be followed
            for row in batch.to_pylist():
                yield _row(_copy_of(row), topic)
    except (pa.ArrowException, KeyError, OSError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{place} is not what an export writes: {error}") from error


def _copy_of(row: dict[str, Any]) -> EventDocument:
    import base64

    text, other = row["payload"], row["payload_bytes"]
    payload = text.encode() if text is not None else b'"' + base64.b64encode(other or b"") + b'"'
    return EventDocument(
        row["seq"],
        row["topic"],
        row["kind"],
        row["id"],
        row["recorded_at"],
        row["occurred_at"],
        msgspec.Raw(payload),
        row["key"],
        row["scope"],
        dict(row["headers"] or ()),
        row["correlation_id"],
        row["causation_id"],
        text is None,
        text is None and not row["binary"],
    )
