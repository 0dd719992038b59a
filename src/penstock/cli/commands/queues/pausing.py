"""Stopping a queue for a while."""

from __future__ import annotations

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.output import safe
from penstock.cli.values import the_queue

of_group = click.option("--group", help="this group only")


@command("pause", "penstock pause emails", "penstock pause orders --group audit")
@the_queue
@of_group
def pause(context: CommandContext, queue: str, group: str | None) -> None:
    """Hands nothing out any more until `resume`, whatever process asks; pushes are taken in.

    What is in flight goes on. `penstock queues` shows what is paused, `penstock check` warns of it.
    """
    with context.journal() as journal:
        changed = context.existing_queue(journal, queue).pause(group)
    context.record({"queue": queue, "group": group, "paused": True, "changed": changed})


@command("resume", "penstock resume emails", "penstock resume orders --group audit")
@the_queue
@of_group
def resume(context: CommandContext, queue: str, group: str | None) -> None:
    """Ends a pause: workers and takes that wait go on at once.

    The pause of the whole queue and the pauses of its groups are ended each on its own.
    """
    with context.journal() as journal:
        handle = context.existing_queue(journal, queue)
        changed = handle.resume(group)
        left = handle.pauses()
    still = any(one.group is None or one.group == group for one in left)
    context.record({"queue": queue, "group": group, "paused": still, "changed": changed})
    for one in left:
        what = queue if one.group is None else f"group {one.group}"
        context.note(safe(f"still paused: {what}, since {one.since:%F %T} UTC"))
