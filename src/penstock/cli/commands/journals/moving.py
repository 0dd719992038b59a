"""A whole journal from one place to another."""

from __future__ import annotations

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.progress import ProgressBar
from penstock.units import show_size


@command(
    "copy",
    "penstock copy shop.db s3://bucket/shop",
    "penstock copy s3://bucket/shop lmdb:shop",
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
