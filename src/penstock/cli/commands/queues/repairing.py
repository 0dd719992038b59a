"""Repairing queues: messages sent back, moved, removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.output import safe
from penstock.cli.values import condition, number, position, queue_names, the_queue, with_yes

if TYPE_CHECKING:
    from penstock.documents.conditions import Where
    from penstock.surface.queue import Queue

limited = click.option("-n", "--limit", type=number, help="how many at the most")
conditional = click.option("--where", type=condition, help="only those for which this holds")


def rate(text: str) -> float:
    """Messages a second: 100, 100/s, 20/m."""
    amount, _, unit = text.partition("/")
    per = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}.get(unit)
    try:
        found = float(amount) / per if per else 0.0
    except ValueError:
        found = 0.0
    if found <= 0:
        raise ValueError(f"a rate is messages a second, like 100/s or 30/m, not {text!r}")
    return found


@command(
    "redrive", "penstock redrive emails --dry-run", "penstock redrive emails --rate 50/s --where \"kind = 'invoice'\""
)
@click.argument("queue", shell_complete=queue_names, help="the queue whose messages failed, or a dead-letter queue")
@click.option("--to", metavar="QUEUE", shell_complete=queue_names, help="send them to this queue instead")
@limited
@conditional
@click.option("--rate", "slowly", type=rate, help="no faster than this: 100/s, 30/m")
@click.option("--dry-run", is_flag=True, help="only count them")
def redrive(
    context: CommandContext,
    queue: str,
    to: str | None,
    limit: int | None,
    where: Where | None,
    slowly: float | None,
    dry_run: bool,
) -> None:
    """Sends dead letters and failed messages back to their queue, with a fresh budget."""
    import msgspec

    from penstock.queue.operations.repair import Redriven

    with context.journal(read_only=dry_run) as journal:
        handle = context.existing_queue(journal, queue)
        target = context.existing_queue(journal, to) if to is not None else None
        if slowly is None or dry_run:
            count = handle.redrive(to=target, limit=limit, where=where, dry_run=dry_run)
        else:
            moved = _redrive_slowly(handle, target, limit, where, slowly)
            count = Redriven(moved, handle.redrive(to=target, where=where, dry_run=True).left)
    left = [msgspec.structs.asdict(one) for one in count.left]
    shown = {"left": left} if left and context.json else {}
    context.record({"queue": queue, "would_redrive" if dry_run else "redriven": int(count), **shown})
    for one in count.left:
        context.note(safe(f"{one.count:,} dead letters from {one.queue} stay: {one.reason}"))


def _redrive_slowly(queue: Queue, to: Queue | None, limit: int | None, where: Where | None, rate: float) -> int:
    """In small steps, so that the workers that handle them are not overrun.

    As many as there are now: what fails again meanwhile lies behind them, and is not sent back for ever.
    """
    step = max(1, int(rate / 5))
    total = 0
    there = queue.redrive(to=to, limit=limit, where=where, dry_run=True)
    begun = time.monotonic()
    while total < there:
        wanted = min(step, there - total)
        moved = queue.redrive(to=to, limit=wanted, where=where)
        total += moved
        if moved < wanted or total >= there:
            break
        time.sleep(max(0.0, begun + total / rate - time.monotonic()))
    return total


@command("purge", "penstock purge emails --yes")
@the_queue
@with_yes
def purge(context: CommandContext, queue: str, yes: bool) -> None:
    """Removes every message of a queue, also those in flight."""
    with context.journal() as journal:
        handle = context.existing_queue(journal, queue)
        context.confirm(f"Remove all {len(handle):,} messages of {queue}?", yes)
        context.record({"queue": queue, "removed": handle.purge()})


@command("drop", "penstock drop old-emails --yes", "penstock drop old-orders --topic --yes")
@the_queue
@click.option("--topic", is_flag=True, help="remove the topic of this name, with everything that belongs to it")
@click.option("--force", is_flag=True, help="with --topic: also when it has cursors, sealed files or a queue")
@with_yes
def drop(context: CommandContext, queue: str, topic: bool, force: bool, yes: bool) -> None:
    """Removes a queue with its messages, groups and schedules; or, with --topic, a whole topic.

    The topic of a queue's name stays, and with it the count of positions: a queue made again goes on from there. With
    --topic nothing stays but where it ended: a topic made again under this name goes on after it.
    """
    if topic:
        _drop_topic(context, queue, force, yes)
        return
    if force:
        raise click.UsageError("--force is for --topic: a queue is dropped whatever is in it")
    with context.journal() as journal:
        if queue not in journal.queues() and queue in journal.topics():
            raise Nothing(f"there is no queue {queue!r}; there is a topic: `penstock drop {queue} --topic`")
        handle = context.existing_queue(journal, queue)
        context.confirm(f"Remove the queue {queue} with {len(handle):,} messages, its groups and schedules?", yes)
        context.record({"queue": queue, "removed": handle.drop()})


def _drop_topic(context: CommandContext, name: str, force: bool, yes: bool) -> None:
    with context.journal() as journal:
        handle = context.existing_topic(journal, name)
        cursors = len(handle.cursors())
        users = [f"{cursors:,} cursor{'' if cursors == 1 else 's'}"] if cursors else []
        users += ["its queue"] if name in journal.queues() else []
        also = f", {' and '.join(users)}" if users and force else ""
        context.confirm(f"Remove the topic {name} with {len(handle):,} events{also}? This cannot be undone.", yes)
        report = journal.drop_topic(name, force)
    context.record({"topic": name, "removed": report.events, **({"files": report.files} if context.json else {})})
    for file in report.files:
        context.note(f"sealed events stay in {file}")


@command("discard", "penstock discard emails 17 18", "penstock discard emails --where 'payload.test = true' --dry-run")
@the_queue
@click.argument("positions", nargs=-1, type=position, help="the messages' positions")
@conditional
@limited
@click.option("--dry-run", is_flag=True, help="only count them")
def discard(
    context: CommandContext,
    queue: str,
    positions: tuple[int, ...],
    where: Where | None,
    limit: int | None,
    dry_run: bool,
) -> None:
    """Settles messages that are not in flight as if they had been handled: by position, or by a condition.

    Failed messages can be discarded too. Those in flight are left alone.
    """
    if bool(positions) == (where is not None):
        raise click.UsageError("say which: positions, or --where")
    with context.journal(read_only=dry_run) as journal:
        handle = context.existing_queue(journal, queue)
        held = {one.seq for one in handle.pending()}
        if where is not None:
            chosen = [event.seq for event in handle if event.seq not in held and where.matches(event)]
        else:
            chosen = [seq for seq in dict.fromkeys(positions) if not dry_run or seq not in held]
            chosen = [seq for seq in chosen if not dry_run or handle.get(seq) is not None]
        chosen = chosen[:limit]
        count = len(chosen) if dry_run else handle.discard(chosen)
    context.record({"queue": queue, "would_discard" if dry_run else "discarded": count})


@command("run-now", "penstock run-now emails 17 18")
@the_queue
@click.argument("positions", nargs=-1, required=True, type=position, help="the messages' positions")
@click.option("--group", help="for this group only")
def run_now(context: CommandContext, queue: str, positions: tuple[int, ...], group: str | None) -> None:
    """Makes delayed messages ready at once, also those that wait for their retry."""
    with context.journal() as journal:
        count = context.existing_queue(journal, queue).run_now(positions, group=group)
    context.record({"queue": queue, "made_ready": count})


@command("move", "penstock move emails emails.later --where 'payload.total > 100'", "penstock move emails slow -n 50")
@the_queue
@click.argument("to", shell_complete=queue_names, help="the queue they go to")
@limited
@conditional
def move(context: CommandContext, queue: str, to: str, limit: int | None, where: Where | None) -> None:
    """Moves messages that are not in flight to the end of another queue, all or nothing."""
    with context.journal() as journal:
        handle = context.existing_queue(journal, queue)
        count = handle.move(context.existing_queue(journal, to), limit=limit, where=where)
    context.record({"queue": queue, "to": to, "moved": count})
