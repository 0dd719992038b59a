"""Topics to files and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command
from penstock.cli.commands.topics.selection import EventSelection, selecting
from penstock.cli.context import CommandContext
from penstock.cli.progress import ProgressBar
from penstock.cli.values import choice, position, some_topics

if TYPE_CHECKING:
    from penstock.entity.exporting import CopyFormat

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
    from penstock.entity.exporting import file_format, write_events, write_file

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
    from penstock.entity.exporting import file_format
    from penstock.entity.importing import import_file

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
