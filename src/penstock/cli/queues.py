"""Queues: looking into them, repairing what failed, periodic messages, pauses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import CommandContext, Nothing, Record, command, queue_command
from penstock.cli.output import payload_text, safe, safe_lines
from penstock.cli.values import choice, condition, duration, json_value, number, position, queue_names, with_yes
from penstock.units import counted, show_duration

if TYPE_CHECKING:
    from penstock.documents.conditions import Where
    from penstock.observe.sample import FailedMessage
    from penstock.queue.inspect import MessageState
    from penstock.surface.failure import Attempt
    from penstock.surface.queue import Queue


WIDEST = 60
"""Characters of an error or a payload in a table's cell."""

one_by_one = click.option(
    "--attempts", is_flag=True, help="each failed attempt (when, who, how it ended), in place of the table"
)
with_traceback = click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
of_group = click.option("--group", help="this group only")
a_group = click.option("--group", default="default", help="of this group")
at_most = click.option("-n", "--limit", type=number, default="100", help="how many at the most")
limited = click.option("-n", "--limit", type=number, help="how many at the most")
conditional = click.option("--where", type=condition, help="only those for which this holds")
dry = click.option("--dry-run", is_flag=True, help="only count them")


def unless_dry(given: dict[str, Any]) -> bool:
    return not given["dry_run"]


@command("queues", "penstock queues", "penstock queues mail --json")
@click.argument("pattern", required=False, help="only queues whose name contains this")
def queues(context: CommandContext, pattern: str | None) -> None:
    """Lists the queues with what is ready, in flight, delayed, failed and dead, and which are paused.

    A message given up counts once, as dead, in the queue it comes from. The row of a dead-letter queue says how many
    dead letters it keeps; of those none counts as ready.
    """
    with context.journal(read_only=True) as journal:
        sample = journal.stats()
    rows: list[tuple[object, ...]] = []
    for one in (one for _, groups in sorted(sample.queues.items()) for one in groups):
        if pattern is not None and pattern not in one.name:
            continue
        counts = (one.name, one.group, one.ready, one.in_flight, one.delayed, one.failed, one.dead)
        if context.json:
            rows.append((*counts, one.oldest_age, one.letters, one.paused))
            continue
        notes = ["paused"] * one.paused
        notes += [f"keeps {counted(one.letters, 'dead letter')}"] if one.letters else []
        rows.append((*counts, show_duration(one.oldest_age), ", ".join(notes)))
    otherwise = "no queues yet: `penstock push QUEUE '{…}'` makes one"
    if pattern is not None:
        otherwise = f"no queue's name contains {pattern!r}"
    last = ("Letters", "Paused") if context.json else ("Note",)
    columns = ("Queue", "Group", "Ready", "In flight", "Delayed", "Failed", "Dead", "Oldest", *last)
    context.rows(columns, rows, otherwise=otherwise)


@queue_command("peek", "penstock peek emails -n 3")
@click.option("-n", "--limit", type=number, default="10", help="how many")
@a_group
def peek(context: CommandContext, queue: Queue, limit: int, group: str) -> None:
    """Shows the messages that would be taken next, without taking them."""
    for event in queue.peek(limit, group=group):
        context.event(event)


@queue_command("pending", "penstock pending emails")
@of_group
def pending(context: CommandContext, queue: Queue, group: str | None) -> None:
    """Shows the deliveries in flight: who holds what until when."""
    held = queue.pending(group)
    rows = [(one.seq, one.group, one.consumer, one.attempt, one.delivered_at, one.deadline, one.token) for one in held]
    columns = ("Seq", "Group", "Consumer", "Attempt", "Delivered at", "Deadline", "Token")
    context.rows(columns, rows, otherwise="nothing is in flight")


@queue_command(
    "messages",
    "penstock messages emails",
    "penstock messages emails --state delayed --json",
    "penstock messages news --group search --after 1000",
    "penstock messages emails --state failed --attempts",
)
@choice("--state", "ready delayed in_flight failed", help="only those")
@of_group
@click.option("--after", type=position, default="0", help="from this position on")
@at_most
@one_by_one
def messages(
    context: CommandContext, queue: Queue, state: MessageState | None, limit: int, attempts: bool, **given: Any
) -> None:
    """Shows what is not settled: attempts, last error, due time, priority, who holds it.

    The next page begins --after the last position. With --json each message comes with its event.
    """
    import msgspec

    from penstock.documents.events import event_document

    found = queue.messages(state, limit=limit, **given)
    if context.json:
        for one in found:
            context.document({**msgspec.structs.asdict(one), "event": event_document(one.event)})
        return
    if attempts:
        for one in found:
            _say_attempts(context, f"{queue.name}#{one.seq}: {one.state.replace('_', ' ')}", one.failed_attempts)
    rows = [
        (
            *(one.seq, "blocked" if one.blocked else one.state.replace("_", " "), one.group),
            *(f"{one.attempts}/{one.max_attempts}", one.priority, one.key, one.due or one.deadline, one.consumer),
            *(_cut(safe(one.error or "–")), _cut(payload_text(one.event))),
        )
        for one in ([] if attempts else found)
    ]
    columns = ("Seq", "State", "Group", "Attempts", "Priority", "Key", "Until", "Consumer", "Error", "Payload")
    nothing = "nothing waits" if state is None else f"no message is {state.replace('_', ' ')}"
    context.rows(columns, rows, otherwise="" if found else nothing)
    if found and len({one.seq for one in found}) >= limit:
        context.note(f"there may be more: --after {found[-1].seq}")


@queue_command("failed", "penstock failed emails")
@a_group
@at_most
@with_traceback
@one_by_one
def failed(context: CommandContext, queue: Queue, group: str, **how: Any) -> None:
    """Shows messages that were given up and have no dead-letter queue to go to."""
    _say_failures(context, queue.failures(group), "nothing has failed", **how)


@queue_command("dead", "penstock dead emails", about="the queue they come from, or the dead-letter queue itself")
@at_most
@with_traceback
@one_by_one
def dead(context: CommandContext, queue: Queue, **how: Any) -> None:
    """Shows a queue's dead letters: which message each was, where it lies now, and why it was given up."""
    _say_failures(context, queue.dead_letters(), "no dead letters", **how)


def _say_attempts(context: CommandContext, heading: str, tried: list[Attempt]) -> None:
    context.line(heading, "bold")
    rows = [(one.number, one.delivered_at, one.ended_at, one.ended, one.consumer, one.host, one.error) for one in tried]
    columns = ("Attempt", "Delivered at", "Ended at", "Ended", "Consumer", "Host", "Error")
    context.rows(columns, rows, otherwise="none has failed")


def _say_failures(
    context: CommandContext,
    found: Iterator[FailedMessage],
    otherwise: str,
    *,
    limit: int,
    traceback: bool,
    attempts: bool,
) -> None:
    from penstock.documents.events import event_document

    rows: list[tuple[object, ...]] = []
    number_ = -1
    for number_, failure in enumerate(found):
        if number_ >= limit:
            context.note(f"… and more; --limit shows more than {limit}")
            break
        event = failure.event
        letter = f"{event.topic}#{event.seq}"
        was = f"{failure.queue}#{event.headers.get('dead-seq', '?')}" if event.topic != failure.queue else letter
        about = {"queue": failure.queue, "attempts": failure.attempts, "reason": failure.reason}
        if context.json:
            why = {"error": failure.error, "at": failure.at, "traceback": failure.traceback}
            about |= {"message": was, "letter": None if was == letter else letter}
            event_of = {"failed_attempts": failure.failed_attempts, "event": event_document(event)}
            context.document({**about, **why, **event_of})
            continue
        heading = safe(f"{was}: {failure.error or failure.reason}")
        if attempts:
            _say_attempts(context, heading, failure.failed_attempts)
        if traceback:
            context.line(heading, "bold")
            context.line(safe_lines(failure.traceback or "no traceback: it was not given up for an exception"))
        cells = _cut(safe(failure.error or "–")), _cut(payload_text(event))
        place = (was, letter) if was != letter else (was, None)
        rows.append((*place, failure.attempts, failure.reason, failure.at, *cells))
    if not context.json and not ((traceback or attempts) and number_ >= 0):
        columns = ("Message", "Dead letter", "Attempts", "Reason", "At", "Error", "Payload")
        context.rows(columns, rows, otherwise=otherwise)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


# ── Repairing queues: messages sent back, moved, removed ──


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


@queue_command(
    "redrive",
    "penstock redrive emails --dry-run",
    "penstock redrive emails --rate 50/s --where \"kind = 'invoice'\"",
    about="the queue whose messages failed, or a dead-letter queue",
    writes=unless_dry,
)
@click.option("--to", metavar="QUEUE", shell_complete=queue_names, help="send them to this queue instead")
@limited
@conditional
@click.option("--rate", "slowly", type=rate, help="no faster than this: 100/s, 30/m")
@dry
def redrive(
    context: CommandContext, queue: Queue, to: str | None, slowly: float | None, dry_run: bool, **which: Any
) -> Record:
    """Sends dead letters and failed messages back to their queue, with a fresh budget."""
    import msgspec

    from penstock.queue.operations.repair import Redriven

    target = context.existing_queue(queue.journal, to) if to is not None else None
    if slowly is None or dry_run:
        count = queue.redrive(to=target, dry_run=dry_run, **which)
    else:
        moved = _redrive_slowly(queue, target, which["limit"], which["where"], slowly)
        count = Redriven(moved, queue.redrive(to=target, where=which["where"], dry_run=True).left)
    for one in count.left:
        context.note(safe(f"{one.count:,} dead letters from {one.queue} stay: {one.reason}"))
    left = [msgspec.structs.asdict(one) for one in count.left]
    return {"would_redrive" if dry_run else "redriven": int(count), **({"left": left} if left and context.json else {})}


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


@queue_command("purge", "penstock purge emails --yes", writes=True)
@with_yes
def purge(context: CommandContext, queue: Queue, yes: bool) -> Record:
    """Removes every message of a queue, also those in flight."""
    context.confirm(f"Remove all {len(queue):,} messages of {queue.name}?", yes)
    return {"removed": queue.purge()}


@command("drop", "penstock drop old-emails --yes", "penstock drop old-orders --topic --yes")
@click.argument("queue", shell_complete=queue_names, help="the queue")
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
        users = [counted(cursors, "cursor")] if cursors else []
        users += ["its queue"] if name in journal.queues() else []
        also = f", {' and '.join(users)}" if users and force else ""
        context.confirm(f"Remove the topic {name} with {len(handle):,} events{also}? This cannot be undone.", yes)
        report = journal.drop_topic(name, force)
    context.record({"topic": name, "removed": report.events, **({"files": report.files} if context.json else {})})
    for file in report.files:
        context.note(f"sealed events stay in {file}")


@queue_command(
    "discard",
    "penstock discard emails 17 18",
    "penstock discard emails --where 'payload.test = true' --dry-run",
    writes=unless_dry,
)
@click.argument("positions", nargs=-1, type=position, help="the messages' positions")
@conditional
@limited
@dry
def discard(
    context: CommandContext,
    queue: Queue,
    positions: tuple[int, ...],
    where: Where | None,
    limit: int | None,
    dry_run: bool,
) -> Record:
    """Settles messages that are not in flight as if they had been handled: by position, or by a condition.

    Failed messages can be discarded too. Those in flight are left alone.
    """
    if bool(positions) == (where is not None):
        raise click.UsageError("say which: positions, or --where")
    held = {one.seq for one in queue.pending()}
    if where is not None:
        chosen = [event.seq for event in queue if event.seq not in held and where.matches(event)]
    else:
        chosen = [seq for seq in dict.fromkeys(positions) if not dry_run or seq not in held]
        chosen = [seq for seq in chosen if not dry_run or queue.get(seq) is not None]
    chosen = chosen[:limit]
    return {"would_discard": len(chosen)} if dry_run else {"discarded": queue.discard(chosen)}


@queue_command("run-now", "penstock run-now emails 17 18", writes=True)
@click.argument("positions", nargs=-1, required=True, type=position, help="the messages' positions")
@of_group
def run_now(context: CommandContext, queue: Queue, positions: tuple[int, ...], group: str | None) -> Record:
    """Makes delayed messages ready at once, also those that wait for their retry."""
    return {"made_ready": queue.run_now(positions, group=group)}


@queue_command(
    "move",
    "penstock move emails emails.later --where 'payload.total > 100'",
    "penstock move emails slow -n 50",
    writes=True,
)
@click.argument("to", shell_complete=queue_names, help="the queue they go to")
@limited
@conditional
def move(context: CommandContext, queue: Queue, to: str, **which: Any) -> Record:
    """Moves messages that are not in flight to the end of another queue, all or nothing."""
    return {"to": to, "moved": queue.move(context.existing_queue(queue.journal, to), **which)}


# ── Periodic messages, and stopping a queue for a while ──


def _changes_schedule(given: dict[str, Any]) -> bool:
    return bool(given["remove"]) or given["every"] is not None or given["cron"] is not None


@queue_command(
    "schedule",
    "penstock schedule reports",
    "penstock schedule reports daily --cron '0 6 * * mon-fri' --timezone Europe/Zurich",
    "penstock schedule reports daily --remove",
    writes=_changes_schedule,
    also="create",
)
@click.argument("name", required=False, help="the periodic message's name")
@click.option("--every", type=duration, help="push every so often")
@click.option("--cron", metavar="LINE", help="push by a cron line of five fields")
@click.option("--timezone", default="UTC", help="the cron line's time zone")
@click.option("--payload", metavar="JSON", default="null", help="the payload as JSON")
@click.option("--kind", default="message", help="the messages' kind")
@choice("--missed", "all last none", default="last", help="which ticks are made up for that no program was there for")
@click.option("--remove", is_flag=True, help="remove it")
def schedule(
    context: CommandContext,
    queue: Queue,
    name: str | None,
    every: float | None,
    cron: str | None,
    payload: str,
    remove: bool,
    **given: Any,
) -> Record | None:
    """Shows, adds or removes a queue's periodic messages."""
    if every is not None and cron is not None:
        raise click.UsageError("give --every or --cron, not both")
    interval = every if every is not None else cron
    if name is None and (remove or interval is not None):
        raise click.UsageError("NAME is missing: periodic messages have names")
    if interval is not None:
        queue.every(interval, json_value(payload), name=str(name), **given)
    if remove:
        if not queue.unschedule(str(name)):
            raise Nothing(f"queue {queue.name!r} has no periodic message {name!r}")
        return {"removed": name}
    found = [one for one in queue.schedules() if name is None or one.name == name]
    rows = [
        (one.name, one.cron or f"every {one.interval:g} s", one.timezone, one.next_tick, one.last_tick) for one in found
    ]
    context.rows(("Name", "When", "Timezone", "Next", "Last"), rows, otherwise="no periodic messages")
    return None


@queue_command("pause", "penstock pause emails", "penstock pause orders --group audit", writes=True)
@of_group
def pause(context: CommandContext, queue: Queue, group: str | None) -> Record:
    """Hands nothing out any more until `resume`, whatever process asks; pushes are taken in.

    What is in flight goes on. `penstock queues` shows what is paused, `penstock check` warns of it.
    """
    return {"group": group, "paused": True, "changed": queue.pause(group)}


@queue_command("resume", "penstock resume emails", "penstock resume orders --group audit", writes=True)
@of_group
def resume(context: CommandContext, queue: Queue, group: str | None) -> Record:
    """Ends a pause: workers and takes that wait go on at once.

    The pause of the whole queue and the pauses of its groups are ended each on its own.
    """
    changed = queue.resume(group)
    left = queue.pauses()
    for one in left:
        what = queue.name if one.group is None else f"group {one.group}"
        context.note(safe(f"still paused: {what}, since {one.since:%F %T} UTC"))
    still = any(one.group is None or one.group == group for one in left)
    return {"group": group, "paused": still, "changed": changed}
