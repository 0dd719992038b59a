"""Sealing from the command line."""

from __future__ import annotations

from datetime import datetime

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.progress import ProgressBar
from penstock.cli.values import position, the_topic, time
from penstock.units import show_size


@command(
    "seal", "penstock seal orders --lake /data/lake", "penstock seal orders --lake s3://bucket/lake --older-than 30d"
)
@the_topic
@click.option("--lake", metavar="PLACE", envvar="PENSTOCK_LAKE", help="where the files go: a folder, s3://…")
@click.option("--through", type=position, help="seal everything through this position")
@click.option("--older-than", type=time, help="seal what was recorded longer ago than this")
@click.option("--master", metavar="MASTER", help="let Spark write the files, with this master")
def seal(
    context: CommandContext,
    topic: str,
    lake: str | None,
    through: int | None,
    older_than: datetime | None,
    master: str | None,
) -> None:
    """Moves settled history into Parquet files, which reads then cross into unnoticed.

    PENSTOCK_LAKE stands in for --lake. Without --through and --older-than, everything but the newest block is sealed.
    A file is read back and compared before the journal drops what it holds. Run it again to go on, also after it was
    interrupted.
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
            report = seal_topic(journal, topic, lake=lake, through=through, master=master, progress=progress)
    record: dict[str, object] = {"topic": report.topic, "lake": report.lake, "events": report.events}
    record |= {"files": report.files, "size": report.bytes if context.json else show_size(report.bytes)}
    context.record({**record, "through": report.through})
