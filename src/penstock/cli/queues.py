"""Looking into queues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command, given_options
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.output import safe, safe_lines
from penstock.cli.values import (
    choice,
    condition,
    duration,
    json_value,
    number,
    or_none,
    position,
    queue_names,
    the_queue,
    with_create,
    with_yes,
)
from penstock.cli.watching import sampler_of
from penstock.units import show_duration

if TYPE_CHECKING:
    from penstock.documents.conditions import Where
    from penstock.observe.sample import FailedMessage
    from penstock.queue.inspect import MessageState
    from penstock.queue.retry import Retry
    from penstock.surface.failure import Attempt
    from penstock.surface.queue import Queue


WIDEST = 60
"""Characters of an error or a payload in a table's cell."""

one_by_one = click.option(
    "--attempts", is_flag=True, help="each failed attempt (when, who, how it ended), in place of the table"
)


@command("queues", "penstock queues", "penstock queues mail --json")
@click.argument("pattern", required=False, help="only queues whose name contains this")
def queues(context: CommandContext, pattern: str | None) -> None:
    """Lists the queues with what is ready, in flight, delayed, failed and dead, and which are paused.

    A message given up is dead where it came from, and in the dead-letter queue that keeps it: there it is not ready.
    """
    from penstock.errors import UnknownQueue

    rows = []
    with context.journal(read_only=True) as journal:
        found = {(one.name, one.group): one for groups in sampler_of(journal)().queues.values() for one in groups}
        for name in journal.queues():
            if pattern is not None and pattern not in name:
                continue
            try:
                queue = journal.queue(name, create=False)
                fanout = queue.policy.mode == "fanout"
                groups = (queue.groups() or ["default"]) if fanout else ["default"]
                counted = [(group, queue.stats(group)) for group in groups]
            except UnknownQueue:
                continue  # dropped this very moment
            for group, stats in counted:
                seen = found.get((name, group))
                letters = None if seen is None else seen.letters
                dead = letters if letters is not None else 0 if seen is None else seen.dead
                ready, oldest = (stats.ready, stats.oldest_age) if letters is None else (0, None)
                age = oldest if context.json else show_duration(oldest)
                paused = stats.paused if context.json else ("paused" if stats.paused else "")
                rows.append((name, group, ready, stats.in_flight, stats.delayed, stats.failed, dead, age, paused))
    otherwise = "no queues yet: `penstock push QUEUE '{…}'` makes one"
    if pattern is not None:
        otherwise = f"no queue's name contains {pattern!r}"
    columns = ("Queue", "Group", "Ready", "In flight", "Delayed", "Failed", "Dead", "Oldest", "Paused")
    context.rows(columns, rows, otherwise=otherwise)


@command("peek", "penstock peek emails -n 3")
@the_queue
@click.option("-n", "--limit", type=number, default="10", help="how many")
@click.option("--group", default="default", help="for this group")
def peek(context: CommandContext, queue: str, limit: int, group: str) -> None:
    """Shows the messages that would be taken next, without taking them."""
    with context.journal(read_only=True) as journal:
        for event in context.existing_queue(journal, queue).peek(limit, group=group):
            context.event(event)


@command("pending", "penstock pending emails")
@the_queue
@click.option("--group", help="of this group only")
def pending(context: CommandContext, queue: str, group: str | None) -> None:
    """Shows the deliveries in flight: who holds what until when."""
    with context.journal(read_only=True) as journal:
        held = context.existing_queue(journal, queue).pending(group)
    rows = [(one.seq, one.group, one.consumer, one.attempt, one.delivered_at, one.deadline, one.token) for one in held]
    columns = ("Seq", "Group", "Consumer", "Attempt", "Delivered at", "Deadline", "Token")
    context.rows(columns, rows, otherwise="nothing is in flight")


@command(
    "messages",
    "penstock messages emails",
    "penstock messages emails --state delayed --json",
    "penstock messages news --group search --after 1000",
    "penstock messages emails --state failed --attempts",
)
@the_queue
@choice("--state", "ready delayed in_flight failed", help="only those")
@click.option("--group", help="as this group has them")
@click.option("--after", type=position, default="0", help="from this position on")
@click.option("-n", "--limit", type=number, default="100", help="how many")
@one_by_one
def messages(
    context: CommandContext,
    queue: str,
    state: MessageState | None,
    group: str | None,
    after: int,
    limit: int,
    attempts: bool,
) -> None:
    """Shows what is not settled: attempts, last error, due time, priority, who holds it.

    The next page begins --after the last position. With --json each message comes with its event.
    """
    import msgspec

    from penstock.cli.show import payload_text
    from penstock.documents.events import event_document

    with context.journal(read_only=True) as journal:
        found = context.existing_queue(journal, queue).messages(state, group=group, after=after, limit=limit)
    if context.json:
        for one in found:
            context.document({**msgspec.structs.asdict(one), "event": event_document(one.event)})
        return
    if attempts:
        for one in found:
            _say_attempts(context, f"{queue}#{one.seq}: {one.state.replace('_', ' ')}", one.failed_attempts)
    rows = [
        (
            one.seq,
            "blocked" if one.blocked else one.state.replace("_", " "),
            one.group,
            f"{one.attempts}/{one.max_attempts}",
            one.priority,
            one.key,
            one.due or one.deadline,
            one.consumer,
            _cut(safe(one.error or "–")),
            _cut(payload_text(one.event)),
        )
        for one in ([] if attempts else found)
    ]
    columns = ("Seq", "State", "Group", "Attempts", "Priority", "Key", "Until", "Consumer", "Error", "Payload")
    nothing = "nothing waits" if state is None else f"no message is {state.replace('_', ' ')}"
    context.rows(columns, rows, otherwise="" if found else nothing)
    if found and len({one.seq for one in found}) >= limit:
        context.note(f"there may be more: --after {found[-1].seq}")


@command("failed", "penstock failed emails")
@the_queue
@click.option("--group", default="default", help="of this group")
@click.option("-n", "--limit", type=number, default="100", help="how many")
@click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
@one_by_one
def failed(context: CommandContext, queue: str, group: str, limit: int, traceback: bool, attempts: bool) -> None:
    """Shows messages that were given up and have no dead-letter queue to go to."""
    with context.journal(read_only=True) as journal:
        handle = context.existing_queue(journal, queue)
        _say_failures(context, handle.failures(group), limit, "nothing has failed", traceback, attempts)


@command("dead", "penstock dead emails")
@click.argument("queue", shell_complete=queue_names, help="the queue they come from, or the dead-letter queue itself")
@click.option("-n", "--limit", type=number, default="100", help="how many")
@click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
@one_by_one
def dead(context: CommandContext, queue: str, limit: int, traceback: bool, attempts: bool) -> None:
    """Shows a queue's dead letters with the reason each was given up for."""
    with context.journal(read_only=True) as journal:
        handle = context.existing_queue(journal, queue)
        _say_failures(context, handle.dead_letters(), limit, "no dead letters", traceback, attempts)


def _say_attempts(context: CommandContext, heading: str, tried: list[Attempt]) -> None:
    context.line(heading, "bold")
    rows = [(one.number, one.delivered_at, one.ended_at, one.ended, one.consumer, one.host, one.error) for one in tried]
    context.rows(
        ("Attempt", "Delivered at", "Ended at", "Ended", "Consumer", "Host", "Error"), rows, otherwise="none has failed"
    )


def _say_failures(
    context: CommandContext,
    found: Iterator[FailedMessage],
    limit: int,
    otherwise: str,
    traceback: bool,
    attempts: bool,
) -> None:
    from penstock.cli.show import payload_text
    from penstock.documents.events import event_document

    rows: list[tuple[object, ...]] = []
    number_ = -1
    for number_, failure in enumerate(found):
        if number_ >= limit:
            context.note(f"… and more; --limit shows more than {limit}")
            break
        about = {"queue": failure.queue, "attempts": failure.attempts, "reason": failure.reason}
        if context.json:
            event = event_document(failure.event)
            why = {"error": failure.error, "at": failure.at, "traceback": failure.traceback}
            context.document({**about, **why, "failed_attempts": failure.failed_attempts, "event": event})
            continue
        heading = safe(f"{failure.queue}#{failure.event.seq}: {failure.error or failure.reason}")
        if attempts:
            _say_attempts(context, heading, failure.failed_attempts)
        if traceback:
            context.line(heading, "bold")
            context.line(safe_lines(failure.traceback or "no traceback: it was not given up for an exception"))
        if traceback or attempts:
            continue
        cells = _cut(safe(failure.error or "–")), _cut(payload_text(failure.event))
        rows.append((failure.event.seq, *about.values(), failure.at, *cells))
    if not context.json and not ((traceback or attempts) and number_ >= 0):
        context.rows(("Seq", "Queue", "Attempts", "Reason", "At", "Error", "Payload"), rows, otherwise=otherwise)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


# ── Repairing queues: messages sent back, moved, removed ──


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


# ── How a queue delivers, and its periodic messages ──


def retry(text: str) -> Retry | None:
    """How a retry is spelled: default, immediate, svix, fixed:5s, linear:9s, exponential:1s:60s, schedule:5s,5m,30m."""
    from penstock.queue.retry import Retry

    if text == "default":
        return None
    curve, _, given = text.partition(":")
    delays = [duration(part) for part in given.replace(",", ":").split(":") if part]
    if curve == "immediate" and not delays:
        return Retry.immediate()
    if curve == "svix" and not delays:
        return Retry.SVIX
    if curve == "fixed" and len(delays) == 1:
        return Retry.fixed(delays[0])
    if curve == "linear" and delays:
        return Retry.linear(delays[0], cap=delays[1] if len(delays) > 1 else None)
    if curve == "exponential" and delays:
        return Retry.exponential(delays[0], cap=delays[1] if len(delays) > 1 else None)
    if curve == "schedule" and delays:
        return Retry.schedule(*delays)
    raise ValueError(
        f"{text!r} is no retry: write default, immediate, fixed:5s, linear:10s:5m, exponential:1s:60s,"
        " schedule:5s,5m,30m or svix"
    )


@command(
    "configure",
    "penstock configure emails",
    "penstock configure emails --lease 2m --max-attempts 5 --retry exponential:1s:60s --dead-letter emails.dead",
)
@the_queue
@choice("--mode", "work fanout", help="of a new queue: each message to one consumer, or to every group")
@click.option("--lease", type=duration, help="how long a consumer may hold a message")
@click.option("--max-attempts", type=number, help="deliveries before a message is given up")
@click.option("--dead-letter", metavar="QUEUE", type=or_none(str), help="where those given up go (none: nowhere)")
@click.option("--retry", type=retry, help="when it is tried again, like exponential:1s:60s")
@click.option("--max-size", type=or_none(number), help="unsettled messages it may hold (none: any)")
@click.option("--max-in-flight", type=or_none(number), help="messages a group may have in flight (none: any)")
@click.option("--max-in-flight-per-key", type=number, help="messages of one key a group may have in flight")
@click.option("--rate", type=or_none(str), metavar="RATE", help="messages a group is given, like 100/s (none: any)")
@click.option("--rate-per-key", type=or_none(str), metavar="RATE", help="the same for each key (none: any)")
@click.option("--fair-by", type=or_none(str), metavar="HEADER|key|key:/", help="what takes turns (none: nothing)")
@click.option("--throttle", type=or_none(duration), help="the first push of a key within this wins (none: all do)")
@click.option("--debounce", type=or_none(duration), help="the newest push of a key within this wins (none: all do)")
@click.option("--debounce-limit", type=or_none(duration), help="and is delivered at the latest after this")
@click.option("--breaker", type=or_none(str), metavar="RATE", help="failures that stop deliveries, like 5/1m")
@click.option("--breaker-pause", type=duration, help="after which one message is tried")
@click.option("--ttl", type=or_none(duration), help="messages older than this are not delivered (none: all are)")
@click.option("--priority", type=bool, metavar="yes|no", help="whether messages have priorities")
@choice("--retention", "hold dead_letter", help="what becomes of unsettled messages that the topic's retention passes")
@click.option("--dedup-window", type=or_none(duration), help="how long dedup keys are remembered (none: for ever)")
def configure(context: CommandContext, queue: str, **_: object) -> None:
    """Shows or changes how a queue delivers; makes it when it is not there.

    RETRY is one of immediate, fixed:5s, linear:10s:5m, exponential:1s:60s, schedule:5s,5m,30m, svix, and default: what
    a worker fails with waits about 5 s, 30 s, 3 min, then 10 min, and what is given back by hand is ready at once.
    """
    import msgspec

    changes = given_options()
    with context.journal(read_only=not changes) as journal:
        if changes:
            handle = journal.queue(queue, **changes) if queue not in journal.queues() else journal.queue(queue)
            handle.configure(**changes)
        else:
            handle = context.existing_queue(journal, queue)
        policy = handle.policy
    context.record({"queue": queue, **msgspec.structs.asdict(policy), "retry": str(policy.retry or "default")})


@command(
    "schedule",
    "penstock schedule reports",
    "penstock schedule reports daily --cron '0 6 * * mon-fri' --timezone Europe/Zurich",
    "penstock schedule reports daily --remove",
)
@the_queue
@click.argument("name", required=False, help="the periodic message's name")
@click.option("--every", type=duration, help="push every so often")
@click.option("--cron", metavar="LINE", help="push by a cron line of five fields")
@click.option("--timezone", default="UTC", help="the cron line's time zone")
@click.option("--payload", metavar="JSON", default="null", help="the payload as JSON")
@click.option("--kind", default="message", help="the messages' kind")
@choice("--missed", "all last none", default="all", help="what to do about ticks while no program was there")
@click.option("--remove", is_flag=True, help="remove it")
@with_create
def schedule(
    context: CommandContext,
    queue: str,
    name: str | None,
    every: float | None,
    cron: str | None,
    payload: str,
    remove: bool,
    create: bool,
    **given: Any,
) -> None:
    """Shows, adds or removes a queue's periodic messages."""
    if every is not None and cron is not None:
        raise click.UsageError("give --every or --cron, not both")
    interval = every if every is not None else cron
    if name is None and (remove or interval is not None):
        raise click.UsageError("NAME is missing: periodic messages have names")
    value = json_value(payload)
    with context.journal(read_only=interval is None and not remove) as journal:
        handle = context.existing_queue(journal, queue, create=create and interval is not None)
        if interval is not None:
            handle.every(interval, value, name=str(name), **given)
        if remove:
            if not handle.unschedule(str(name)):
                raise Nothing(f"queue {queue!r} has no periodic message {name!r}")
            context.record({"queue": queue, "removed": name})
            return
        found = [one for one in handle.schedules() if name is None or one.name == name]
    rows = [
        (one.name, one.cron or f"every {one.interval:g} s", one.timezone, one.next_tick, one.last_tick) for one in found
    ]
    context.rows(("Name", "When", "Timezone", "Next", "Last"), rows, otherwise="no periodic messages")


# ── Stopping a queue for a while ──


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
