"""What a journal is, and a copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import CREATE, command
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED
from penstock.cli.output import ProgressBar
from penstock.cli.topics import EventSelection, selecting
from penstock.cli.values import choice, position, some_topics
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.entity.copying import CopyFormat


@command("info", "penstock info --url shop.db")
def info(context: CommandContext) -> None:
    """Shows what the journal is: engine, place, size, durability."""
    with context.journal(read_only=True) as journal:
        described = journal.describe()
        pressure = journal.pressure()
    context.record(
        {
            "engine": described.engine,
            "location": described.location,
            "size": described.size_bytes if context.json else show_size(described.size_bytes),
            "durability": described.durability,
            "topics": len(described.topics),
            "queues": len(described.queues),
            "writer capacity": described.writer_capacity,
            "writer queued": pressure.queued,
            **({"objects": sum(described.objects.values())} if described.objects else {}),
            **({"written by": described.writer} if described.writer else {}),
        }
    )


@command(
    "backup", "penstock backup /backups/shop-monday.db", "penstock backup s3://bucket/monday --url s3://bucket/shop"
)
@click.argument(
    "destination", type=click.Path(), help="a path that does not exist yet; of a journal in a bucket also a url in it"
)
def backup(context: CommandContext, destination: str) -> None:
    """Writes a consistent copy of the journal while it is in use."""
    with context.journal(read_only=True) as journal:
        journal.backup(destination)
    context.record({"copied_to": destination})


# ── Topics to files and back ──


FORMATS = ("jsonl", "parquet", "arrow", "csv")
format_option = choice("--format", " ".join(FORMATS), help="the format; without it, the file's ending says it")


@command(
    "export",
    "penstock export orders orders.jsonl",
    "penstock export orders week.parquet --since 7d --where 'payload.total > 10'",
    "penstock export /backups/shop --format parquet",
)
@some_topics("[TOPIC]...", help="all, if none is named")
@click.argument("place", type=click.Path(), help="a file for one topic, a folder for several; - for standard output")
@format_option
@click.option("--after", type=position, help="start after this position")
@click.option("--through", type=position, help="stop after this position")
@selecting
@click.option("--replace", is_flag=True, help="replace the file when it is there")
def export(
    context: CommandContext,
    topics: tuple[str, ...],
    place: str,
    format: CopyFormat | None,
    after: int | None,
    through: int | None,
    replace: bool,
    **selection: Any,
) -> None:
    """Writes a topic's events to a file (JSON Lines, Parquet, Arrow, CSV), or topics to a folder.

    A file is written beside its place and moved there when it is complete. A folder takes JSON Lines or Parquet of
    whole topics, and what the topics' settings are; run again, an export to a folder goes on where the last one ended.
    `import` reads both, except CSV, with all positions, ids and times.
    """
    from penstock.entity.copying import file_format, write_events, write_file

    path = Path(place)
    kind = format or ("jsonl" if place == "-" else file_format(path))
    if place != "-" and (path.is_dir() or not path.suffix):
        if replace or after is not None or through is not None or any(selection.values()):
            raise click.UsageError(
                "a folder takes whole topics: name a file, like orders.jsonl, to choose among events"
            )
        _export_folder(context, topics, place, format)
        return
    if kind is None:
        raise click.UsageError(
            f"{path.suffix} is no format: end the file's name with .{', .'.join(FORMATS)}, or give --format"
        )
    if len(topics) != 1:
        raise click.UsageError("a file takes one topic: name one topic and the file, or a folder for several topics")
    if place == "-" and kind not in ("jsonl", "csv"):
        raise click.UsageError("standard output takes JSON Lines or CSV")
    if path.exists() and not replace:
        raise click.UsageError(f"{place} is there already: choose another name, or --replace it")
    chosen = EventSelection(**selection)
    with context.journal(read_only=True) as journal:
        events = chosen.read(context.existing_topic(journal, topics[0]), after or 0, through=through)
        if place == "-":
            write_events(events, context.out.buffer, kind)
            return
        count = write_file(events, path, kind)
    context.record({"topic": topics[0], "events": count, "file": place, "size": path.stat().st_size})


def _export_folder(context: CommandContext, topics: tuple[str, ...], place: str, format: CopyFormat | None) -> None:
    from penstock.api import local

    with context.journal(read_only=True) as opened, ProgressBar(context, "exported") as progress:
        journal = local(opened, "exporting to a folder")
        names = [context.existing_topic(opened, name).name for name in topics] or None
        report = journal.export(place, topics=names, format=format, progress=progress)
    context.record({"topics": report.topics, "events": report.events, "folder": place})


@command(
    "import",
    "penstock import /backups/shop",
    "penstock import orders orders.jsonl",
    "penstock import copy orders.parquet",
    also=(CREATE,),
)
@some_topics("[TOPIC]...", help="all, if none is named")
@click.argument("place", type=click.Path(), help="the file or folder that `export` wrote; - for standard input")
@format_option
@click.option("--start-over", is_flag=True, help="give out again the positions of a name whose topic was dropped")
def import_(
    context: CommandContext, topics: tuple[str, ...], place: str, format: CopyFormat | None, start_over: bool
) -> None:
    """Reads what `export` wrote, with all positions, ids, times and causes.

    A file goes to the topic you name, a folder to topics of the same names. Events that are there already are skipped,
    so an import that was interrupted is simply run again. A topic that holds other events is refused: to add events to
    it under new ids, use `penstock append TOPIC --file FILE --events --dedup-from id`.
    """
    from penstock.api import local
    from penstock.entity.copying import file_format, import_file

    path = Path(place)
    if place != "-" and not path.exists():
        raise FileNotFoundError(2, "No such file or directory", place)
    if (place == "-" or path.is_file()) and len(topics) != 1:
        raise click.UsageError("a file's events go to one topic: name it before the file")
    with context.journal() as opened, ProgressBar(context, "imported") as progress:
        journal = local(opened, "importing")
        core = journal._core
        if place == "-":
            source, named = context.input.buffer, "standard input"
            report = import_file(core, source, topics[0], format or "jsonl", name=named, start_over=start_over)
        elif path.is_file():
            with path.open("rb") as source:
                kind = format or file_format(path)
                report = import_file(core, source, topics[0], kind, name=place, start_over=start_over)
        else:
            report = journal.import_(place, topics=topics or None, progress=progress, start_over=start_over)
    context.record({"topics": report.topics, "imported": report.imported, "known_before": report.present})


# ── A whole journal from one place to another ──


@command(
    "copy",
    "penstock copy shop.db s3://bucket/shop",
    "penstock copy s3://bucket/shop sqlite:shop.db",
)
@click.argument("source", help="the journal to copy: a path or an engine's url")
@click.argument("target", help="a new place, on any engine")
def copy(context: CommandContext, source: str, target: str) -> None:
    """Copies a whole journal to a new place on any engine, while it is in use, and compares every row.

    Positions, ids, cursors, queues, snapshots and marks come along. Until the copy is complete its place cannot be
    opened; one that was interrupted goes on when the same command is run again.
    """
    from penstock.api import copy as copy_journal

    with ProgressBar(context, "copied", unit="bytes") as progress:
        report = copy_journal(source, target, progress=progress)
    context.record(
        {
            "copied to": target,
            "rows": report.rows,
            "size": report.size_bytes if context.json else show_size(report.size_bytes),
            "written": report.written,
        }
    )


@command(
    "restore",
    "penstock restore /backups/monday.db --url shop.db",
    "penstock restore s3://bucket/monday --url s3://bucket/shop-again",
)
@click.argument("backup", help="what `penstock backup` wrote: a path or an engine's url")
def restore(context: CommandContext, backup: str) -> int:
    """Makes the journal again out of a backup, on any engine, and reads all of it.

    It goes where --url says, and overwrites nothing: move the journal that is there away first, or restore to a new
    place. The backup stays as it is. Restoring that was interrupted goes on when the same command is run again. Exit
    code 1 when the backup is damaged.
    """
    from penstock.api import copy as copy_journal
    from penstock.cli.keeping import read_through

    with ProgressBar(context, "restored", unit="bytes") as progress:
        report = copy_journal(backup, context.place, progress=progress)
    events, damaged = 0, {}
    with context.journal(read_only=True) as journal:
        for name in journal.topics():
            count, problem = read_through(journal.topic(name))
            events += count
            if problem is not None:
                damaged[name] = problem
        queues = len(journal.queues())
        topics = len(journal.topics())
    context.record(
        {
            "restored to": context.place,
            "topics": topics,
            "queues": queues,
            "events": events,
            "rows": report.rows,
            "size": report.size_bytes if context.json else show_size(report.size_bytes),
            **({"damaged": damaged if context.json else "; ".join(map(": ".join, damaged.items()))} if damaged else {}),
        }
    )
    return FAILED if damaged else DONE
