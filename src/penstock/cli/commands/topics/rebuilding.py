"""Rebuilding projections from the command line."""

from __future__ import annotations

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED
from penstock.cli.loading import load_named
from penstock.cli.progress import ProgressBar
from penstock.cli.values import the_topic


@command(
    "rebuild",
    "penstock rebuild orders shop.states:Order",
    "penstock rebuild orders shop.states:Totals --whole",
    "penstock rebuild orders shop.states:Order --check",
    "penstock rebuild orders shop.states:Order --master 'local[4]'",
)
@the_topic
@click.argument("projection", help="the class: module:Class")
@click.option("--whole", is_flag=True, help="one state over the whole topic instead of one for every entity")
@click.option("--check", is_flag=True, help="change nothing: say which saved states are not what their events give")
@click.option("--master", metavar="MASTER", help="let Spark fold them, with this master")
def rebuild(context: CommandContext, topic: str, projection: str, whole: bool, check: bool, master: str | None) -> int:
    """Folds a topic's events anew with a projection of yours, and saves the states.

    The states are what `topic.project` starts from afterwards; those of other versions of the projection go. How far
    it is appears on the error stream. Interrupted, nothing but time is lost: run it again. With --check the exit code
    is 1 when a saved state is wrong.
    """
    from penstock import Projection

    if whole and master is not None:
        raise click.UsageError("one state over the whole topic is one fold, in order: leave --master out")
    if check and (whole or master is not None):
        raise click.UsageError("--check looks at every state that is saved, here: leave --whole and --master out")
    found = load_named(projection, "a projection", "shop.states:Order")
    if not (isinstance(found, type) and issubclass(found, Projection)):
        raise click.UsageError(
            f"{projection} is no projection: declare it as a class that derives from penstock.Projection"
        )
    with context.journal(read_only=True) as journal:  # a mistyped name makes no journal, and no mess
        existing = context.existing_topic(journal, topic)
        if check:
            wrong = existing.verify_states(found)
            context.record({"topic": topic, "wrong": [key or "the whole topic" for key in wrong]})
            return FAILED if wrong else DONE
    unit = "events" if master is None else "entities"
    with context.journal() as journal, ProgressBar(context, "folded", unit=unit) as progress:
        if master is None:
            report = journal.topic(topic).rebuild(found, whole=whole, progress=progress)
        else:
            from penstock.spark.projection.projecting import rebuild as rebuild_on_spark

            report = rebuild_on_spark(journal, topic, found, master=master, progress=progress)
    context.record({"topic": topic, "entities": report.entities, "events": report.events, "through": report.through})
    return DONE
