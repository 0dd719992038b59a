"""What a journal is, and a copy of it."""

from __future__ import annotations

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.units import show_size


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
