"""A whole journal from one place to another."""

from __future__ import annotations

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED
from penstock.cli.progress import ProgressBar
from penstock.units import show_size


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
    from penstock.cli.commands.topics.keeping import read_through

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
