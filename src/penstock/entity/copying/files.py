"""One topic's events in one file: JSON Lines, Parquet, Arrow, or (for looking at, not for importing) CSV."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import msgspec

from penstock.documents.events import event_json
from penstock.durable import move_into_place
from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.events import Event

CopyFormat = Literal["jsonl", "parquet", "arrow", "csv"]
Progress = Callable[[int, int], None]
"""Told how many of how many events are done."""

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
    *("correlation_id", "causation_id", "headers", "payload"),
)


def file_format(path: Path) -> CopyFormat | None:
    """The format a file's ending says; None when it says none."""
    return _ENDINGS.get(path.suffix.lower())


def write_file(
    events: Iterable[Event],
    path: Path,
    format: CopyFormat,
    *,
    progress: Progress | None = None,
    total: int = 0,
    made: Callable[[Path], None] | None = None,
) -> int:
    """Writes events to a file, which appears when all of it is written; returns how many.

    `made` is told of the file before it has anything in it: to make it as private as the store.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb", buffering=1 << 20) as out:
            if made is not None:
                made(partial)
            count = write_events(events, out, format, progress=progress, total=total)
        move_into_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def write_events(
    events: Iterable[Event], out: BinaryIO, format: CopyFormat, *, progress: Progress | None = None, total: int = 0
) -> int:
    """Writes events to a stream; returns how many."""
    writers = {"jsonl": _write_lines, "csv": _write_csv, "parquet": _write_parquet, "arrow": _write_arrow}
    if format not in writers:
        raise ConfigError(f"an export is written as {', '.join(writers)}, not {format!r}")
    done = 0

    def batches() -> Iterator[list[Event]]:
        nonlocal done
        source = iter(events)
        while batch := list(islice(source, _BATCH)):
            yield batch
            done += len(batch)
            if progress is not None:
                progress(done, total)

    writers[format](batches(), out)
    return done


def _write_lines(batches: Iterator[list[Event]], out: BinaryIO) -> None:
    for batch in batches:
        out.writelines(event_json(event) + b"\n" for event in batch)


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
        msgspec.json.encode(dict(event.headers)).decode() if event.headers else None,
        base64.b64encode(event.raw).decode() if payload is None else payload,
    ]


def _write_parquet(batches: Iterator[list[Event]], out: BinaryIO) -> None:
    import pyarrow.parquet as pq

    schema = part_schema()
    with pq.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in batches:
            writer.write_batch(_event_batch(batch, schema))


def _write_arrow(batches: Iterator[list[Event]], out: BinaryIO) -> None:
    import pyarrow as pa

    schema = part_schema()
    with pa.ipc.new_file(out, schema) as writer:
        for batch in batches:
            writer.write_batch(_event_batch(batch, schema))


def part_schema() -> pa.Schema:
    """The columns of Parquet and Arrow files: those of `read_arrow`, with bytes besides."""
    import pyarrow as pa

    from penstock.journal.storage.to_arrow import arrow_schema

    return arrow_schema().append(pa.field("payload_bytes", pa.binary())).append(pa.field("binary", pa.bool_()))


def as_text(raw: bytes) -> str | None:
    """A payload as text; None when it is none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _event_batch(events: list[Event], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    texts = [None if event.binary else as_text(event.raw) for event in events]
    columns = {
        "seq": [event.seq for event in events],
        "topic": [event.topic for event in events],
        "kind": [event.kind for event in events],
        "key": [event.key for event in events],
        "scope": [event.scope for event in events],
        "payload": texts,
        "headers": [list(event.headers.items()) for event in events],
        "occurred_at": [event.occurred_at for event in events],
        "recorded_at": [event.recorded_at for event in events],
        "id": [event.id for event in events],
        "correlation_id": [event.correlation_id for event in events],
        "causation_id": [event.causation_id for event in events],
        "payload_bytes": [event.raw if text is None else None for event, text in zip(events, texts, strict=True)],
        "binary": [event.binary for event in events],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
