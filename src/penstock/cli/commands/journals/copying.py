"""Whole journals and topics to files and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import values
from penstock.cli.command import argument, command, flag, option
from penstock.cli.commands.topics.selection import CHOICES, Choice
from penstock.cli.context import Run
from penstock.cli.failure import UsageError
from penstock.document import DraftDocument, draft_from_json, event_json
from penstock.errors import ConfigError
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.events import Draft

FORMATS = ("jsonl", "arrow", "parquet")


@command("info", "Shows what the journal is: engine, place, size, durability", example="penstock info --url shop.db")
def info(run: Run) -> None:
    with run.journal(read_only=True) as journal:
        described = journal.describe()
        pressure = journal.pressure()
    record: dict[str, Any] = {
        "engine": described.engine,
        "location": described.location,
        "size": described.size_bytes if run.json else show_size(described.size_bytes),
        "durability": described.durability,
        "topics": len(described.topics),
        "queues": len(described.queues),
        "writer capacity": described.writer_capacity,
        "writer queued": pressure.queued,
    }
    run.record(record)


@command(
    "backup",
    "Writes a consistent copy of the journal while it is in use",
    argument("destination", "a path that does not exist yet"),
    example="penstock backup /backups/shop-monday.db",
)
def backup(run: Run, destination: str) -> None:
    with run.journal(read_only=True) as journal:
        journal.backup(destination)
    run.record({"copied_to": destination})


@command(
    "export",
    "Writes a topic's events to a file: JSON Lines, Arrow or Parquet",
    argument("topic", "the topic"),
    argument("file", "where to; - for standard output (JSON Lines)"),
    option("--format", "the file's format; without it, the file's ending says it", choices=FORMATS),
    option("--after", "start after this position", metavar="POSITION", default=0, convert=values.position),
    option("--through", "stop after this position", metavar="POSITION", convert=values.position),
    *CHOICES,
    flag("--replace", "replace the file when it is there"),
    example=("penstock export orders orders.jsonl", "penstock export orders orders.parquet --since 7d"),
    details="""
    The file is written beside its place and moved there when it is complete. Arrow and Parquet take positions and
    times; --kind, --key, --scope and --where need JSON Lines.
    """,
)
def export(
    run: Run, topic: str, file: str, format: str | None, after: int, through: int | None, replace: bool, **choice: Any
) -> None:
    chosen = Choice(**choice)
    kind = format or _format_of(file)
    if file == "-":
        if kind != "jsonl":
            raise UsageError("standard output takes JSON Lines only")
        with run.journal(read_only=True) as journal:
            for event in chosen.read(run.existing(journal, topic), after, through=through):
                run.out.write(event_json(event).decode() + "\n")
        return
    if kind != "jsonl" and (chosen.kinds or chosen.key or chosen.scope or chosen.where):
        raise UsageError("--kind, --key, --scope and --where need the format jsonl")
    path = Path(file)
    if path.exists() and not replace:
        raise UsageError(f"{file} is there already: choose another name, or --replace it")
    partial = path.with_name(path.name + ".partial")
    with run.journal(read_only=True) as journal:
        handle = run.existing(journal, topic)
        try:
            if kind == "jsonl":
                count = _write_lines(chosen.read(handle, after, through=through), partial)
            else:
                if chosen.since is not None:
                    after = max(after, handle.position_at(chosen.since))
                if chosen.until is not None:
                    last = handle.position_at(chosen.until)
                    through = last if through is None else min(last, through)
                count = _write_batches(handle.read_arrow(after, through=through), partial, kind)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    partial.replace(path)
    run.record({"topic": topic, "events": count, "file": file, "size": path.stat().st_size})


def _format_of(file: str) -> str:
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".arrow": "arrow", ".parquet": "parquet"}
    return endings.get(Path(file).suffix.lower(), "jsonl")


def _write_lines(events: Iterator[Any], path: Path) -> int:
    count = 0
    with path.open("wb", buffering=1 << 20) as out:
        for event in events:
            out.write(event_json(event) + b"\n")
            count += 1
    return count


def _write_batches(batches: Iterator[Any], path: Path, kind: str) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.journal.storage.to_arrow import arrow_schema

    count = 0
    schema = arrow_schema()
    with pa.OSFile(str(path), "wb") as out:
        writer = (
            pq.ParquetWriter(out, schema, compression="zstd") if kind == "parquet" else pa.ipc.new_file(out, schema)
        )
        with writer:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
    return count


@command(
    "import",
    "Appends what `export` wrote",
    argument("topic", "the topic to append to"),
    argument("file", "the file; - for standard input (JSON Lines)"),
    option("--format", "the file's format; without it, the file's ending says it", choices=FORMATS),
    option("--source", "a name for where the events come from: importing the same ones again appends nothing"),
    option("--batch", "events per commit", metavar="NUMBER", default=1000, convert=values.count),
    example=("penstock import orders orders.jsonl", "penstock import orders shop2.parquet --source shop2"),
    details="""
    Kinds, payloads, keys, scopes, headers, times of occurrence, causes and correlations are kept; positions and ids are
    new. With --source every event is deduplicated by the source's name and its old id, so an interrupted import can
    simply be run again.
    """,
)
def import_(run: Run, topic: str, file: str, format: str | None, source: str | None, batch: int) -> None:
    if batch < 1:
        raise UsageError("--batch must be at least 1")
    kind = format or _format_of(file)
    if file == "-" and kind != "jsonl":
        raise UsageError("standard input takes JSON Lines only")
    drafts = _drafts_of_lines(run, file, source) if kind == "jsonl" else _drafts_of_batches(Path(file), kind, source)
    total = known = 0
    with run.journal() as journal:
        handle = journal.topic(topic)
        for some in _grouped(drafts, batch):
            receipts = handle.append_many(some)
            total += len(receipts)
            known += sum(receipt.duplicate for receipt in receipts)
        run.record({"topic": topic, "appended": total - known, "known_before": known, "latest": handle.latest})


def _grouped(drafts: Iterator[Draft], size: int) -> Iterator[list[Draft]]:
    group: list[Draft] = []
    for draft in drafts:
        group.append(draft)
        if len(group) >= size:
            yield group
            group = []
    if group:
        yield group


def _drafts_of_lines(run: Run, file: str, source: str | None) -> Iterator[Draft]:
    lines = (line.encode() for line in run.input) if file == "-" else Path(file).open("rb")  # noqa: SIM115
    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                draft = draft_from_json(line)
            except ConfigError as error:
                raise UsageError(f"{file}, line {number}: {error}") from None
            if source is not None:
                draft.dedup = _origin(source, _old_id(line), f"line {number}")
            yield draft
    finally:
        if lines is not sys.stdin and hasattr(lines, "close"):
            lines.close()


def _old_id(line: bytes) -> str | None:
    import msgspec

    found = msgspec.json.decode(line).get("id")
    return found if isinstance(found, str) else None


def _origin(source: str, id: str | None, where: str) -> str:
    if id is None:
        raise UsageError(f"{where} has no id, which --source needs")
    return f"{source}/{id}"


def _drafts_of_batches(path: Path, kind: str, source: str | None) -> Iterator[Draft]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "parquet":
        batches = pq.ParquetFile(path).iter_batches()
    else:
        reader = pa.ipc.open_file(str(path))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    for batch in batches:
        for row in batch.to_pylist():
            yield _draft_of_row(row, source)


def _draft_of_row(row: dict[str, Any], source: str | None) -> Draft:
    import msgspec

    headers = row.get("headers") or None
    payload = row.get("payload")
    document = DraftDocument(
        kind=row["kind"],
        payload=msgspec.json.decode(payload) if isinstance(payload, str) else payload,
        key=row.get("key"),
        scope=row.get("scope"),
        headers=dict(headers) if headers else None,
        occurred_at=row.get("occurred_at"),
        causation_id=row.get("causation_id"),
        correlation_id=row.get("correlation_id"),
    )
    draft = document.draft()
    if source is not None:
        draft.dedup = _origin(source, row.get("id"), f"row {row.get('seq')}")
    return draft
