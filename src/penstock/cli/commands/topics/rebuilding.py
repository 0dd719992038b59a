"""Rebuilding projections from the command line."""

from __future__ import annotations

from penstock.cli.command import argument, command, flag
from penstock.cli.context import Run
from penstock.cli.failure import UsageError
from penstock.cli.loading import load_named
from penstock.cli.progress import Progress


@command(
    "rebuild",
    "Folds a topic's events anew with a projection of yours, and saves the states",
    argument("topic", "the topic"),
    argument("projection", "the class: module:Class"),
    flag("--whole", "one state over the whole topic instead of one for every entity"),
    example=("penstock rebuild orders shop.states:Order", "penstock rebuild orders shop.states:Totals --whole"),
    details="""
    The states are what `topic.project` starts from afterwards; those of other versions of the projection go. How far
    it is appears on the error stream. Interrupted, it changes nothing: run it again.
    """,
)
def rebuild(run: Run, topic: str, projection: str, whole: bool) -> None:
    from penstock import Projection

    found = load_named(projection, "a projection", "shop.states:Order")
    if not (isinstance(found, type) and issubclass(found, Projection)):
        raise UsageError(f"{projection} is no projection: declare it as a class that derives from penstock.Projection")
    with run.journal(read_only=True) as journal:  # a mistyped name makes no journal, and no mess
        run.existing(journal, topic)
    with run.journal() as journal, Progress(run, "folded") as progress:
        report = journal.topic(topic).rebuild(found, whole=whole, progress=progress)
    run.record({"topic": topic, "entities": report.entities, "events": report.events, "through": report.through})
