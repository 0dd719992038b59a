"""Sealing from the command line."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.commands.topics.cursors import chosen_topics
from penstock.cli.context import CommandContext
from penstock.cli.progress import ProgressBar
from penstock.cli.values import any_topic, position, the_topic, time
from penstock.names import TABLE_FORMATS, TableFormat
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.journal.sealed.report import LakeSummary
    from penstock.surface.journal import Journal


@command(
    "seal",
    "penstock seal orders --lake /data/lake",
    "penstock seal orders --lake s3://bucket/lake --older-than 30d",
    "penstock seal orders --lake /data/lake --format delta --columns 'customer STRING, total DOUBLE'",
    "penstock seal orders --lake /data/lake --columns 'region STRING' --partition-by region",
    "penstock seal orders --url https://journal:7367 --lake s3://bucket/lake",
)
@the_topic
@click.option("--lake", metavar="PLACE", envvar="PENSTOCK_LAKE", help="where the files go: a folder, s3://…")
@click.option("--through", type=position, help="seal everything through this position")
@click.option("--older-than", type=time, help="seal what was recorded longer ago than this")
@click.option("--format", type=click.Choice(TABLE_FORMATS), help="register the files in a table as well")
@click.option(
    "--columns", metavar="COLUMNS", help="fields of the payload as typed columns: 'customer STRING, total DOUBLE'"
)
@click.option(
    "--partition-by", metavar="COLUMN", help="files by the values of a typed column, or of kind, within their day"
)
@click.option("--catalog", metavar="NAME", help="the Iceberg catalog: a name of ~/.pyiceberg.yaml, or a uri")
@click.option("--compact", is_flag=True, help="join small files of a day into one")
@click.option("--master", metavar="MASTER", help="let Spark write the files, with this master")
def seal(
    context: CommandContext,
    topic: str,
    lake: str | None,
    through: int | None,
    older_than: datetime | None,
    format: TableFormat | None,
    columns: str | None,
    partition_by: str | None,
    catalog: str | None,
    compact: bool,
    master: str | None,
) -> None:
    """Moves settled history into Parquet files, which reads then cross into unnoticed.

    PENSTOCK_LAKE stands in for --lake. Without --through and --older-than, everything but the newest block is sealed.
    A file is read back and compared before the journal drops what it holds. Run it again to go on, also after it was
    interrupted; later seals to a lake keep its format, columns and parting. `penstock lake` lists what is there. A
    served journal is sealed by its server, to a lake that it was started with (`penstock serve --lake`).
    """
    if lake is None:
        raise click.UsageError("say where the files go: --lake, or PENSTOCK_LAKE")
    if through is not None and older_than is not None:
        raise click.UsageError("say one of --through, --older-than")
    from penstock.spark.sealing import seal as seal_topic

    with context.journal(read_only=True) as journal:  # a mistyped name makes no journal, and no mess
        context.existing_topic(journal, topic)
    with context.journal() as journal:
        handle = journal.topic(topic)
        if older_than is not None:
            through = handle.position_at(older_than)
        with ProgressBar(context, "sealed") as progress:
            report = seal_topic(
                journal,
                topic,
                lake=lake,
                through=through,
                format=format,
                columns=columns,
                catalog=catalog,
                partition_by=partition_by,
                compact=compact,
                master=master,
                progress=progress,
            )
    record: dict[str, object] = {"topic": report.topic, "lake": report.lake, "events": report.events}
    record |= {"files": report.files, "size": report.bytes if context.json else show_size(report.bytes)}
    record |= {"through": report.through, "format": report.format}
    if report.unfit or context.json:
        record["unfit"] = report.unfit
    context.record(record)


@command("lake", "penstock lake", "penstock lake orders --json")
@any_topic
def lake(context: CommandContext, topic: str | None) -> None:
    """Lists sealed history: its lakes, tables, files, events and bytes, and how DuckDB, Polars and Spark read it."""
    import msgspec

    with context.journal(read_only=True) as journal:
        found = _lakes(journal, [handle.name for handle in chosen_topics(context, journal, topic)])
    if context.json:
        for one in found:
            context.document(msgspec.to_builtins(one) | {"readers": one.readers()})
        return
    rows = [
        (one.topic, one.lake, one.format, one.files, one.events, show_size(one.bytes), one.through) for one in found
    ]
    columns = ("Topic", "Lake", "Format", "Files", "Events", "Size", "Through")
    context.rows(columns, rows, otherwise="nothing is sealed: `penstock seal TOPIC --lake PLACE` begins")
    for one in found:
        context.line("")
        parted = f"; parted by {one.partition_by}" if one.partition_by else ""
        context.line(f"{one.topic}: {one.columns or 'no typed columns'}{parted}")
        for program, text in one.readers().items():
            context.line(f"  {program:<7} {text}")


def _lakes(journal: Journal, topics: list[str]) -> list[LakeSummary]:
    from penstock.api import local
    from penstock.remote.journal import RemoteJournal
    from penstock.remote.sealing import lakes_served

    if isinstance(journal, RemoteJournal):
        return lakes_served(journal, topics)
    from penstock.journal.sealed.report import lake_summaries

    with local(journal, "listing sealed history")._engine.read() as snap:
        return [one for name in topics for one in lake_summaries(snap, name)]
