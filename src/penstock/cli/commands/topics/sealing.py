"""Sealing from the command line."""

from __future__ import annotations

from datetime import datetime

from penstock.cli import values
from penstock.cli.command import argument, command, option
from penstock.cli.context import Run
from penstock.cli.failure import UsageError
from penstock.cli.progress import Progress
from penstock.units import show_size


@command(
    "seal",
    "Moves settled history into Parquet files, which reads then cross into unnoticed",
    argument("topic", "the topic"),
    option("--lake", "where the files go: a folder, s3://bucket/prefix, …", metavar="PLACE", env="PENSTOCK_LAKE"),
    option("--through", "seal everything through this position", metavar="POSITION", convert=values.position),
    option("--older-than", "seal what was recorded longer ago than this", metavar="TIME", convert=values.moment),
    option("--master", "let Spark write the files, with this master", metavar="MASTER"),
    example=(
        "penstock seal orders --lake /data/lake",
        "penstock seal orders --lake s3://bucket/lake --older-than 30d",
    ),
    details="""
    Without --through and --older-than, everything but the newest block is sealed. A file is read back and compared
    before the journal drops what it holds. Run it again to go on, also after it was interrupted.
    """,
)
def seal(
    run: Run, topic: str, lake: str | None, through: int | None, older_than: datetime | None, master: str | None
) -> None:
    if lake is None:
        raise UsageError("say where the files go: --lake, or PENSTOCK_LAKE")
    if through is not None and older_than is not None:
        raise UsageError("say one of --through, --older-than")
    from penstock.spark.sealing import seal as seal_topic

    with run.journal(read_only=True) as journal:  # a mistyped name makes no journal, and no mess
        run.existing(journal, topic)
    with run.journal() as journal:
        handle = journal.topic(topic)
        if older_than is not None:
            through = handle.position_at(older_than)
        with Progress(run, "sealed") as progress:
            report = seal_topic(journal, topic, lake=lake, through=through, master=master, progress=progress)
    record: dict[str, object] = {"topic": report.topic, "lake": report.lake, "events": report.events}
    record |= {"files": report.files, "size": report.bytes if run.json else show_size(report.bytes)}
    run.record({**record, "through": report.through})
