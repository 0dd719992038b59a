"""Queues: list, look into, repair, configure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.cli import values
from penstock.cli.command import argument, command, flag, option, suggestion
from penstock.cli.context import Run
from penstock.cli.failure import Nothing, UsageError
from penstock.cli.output import safe
from penstock.cli.show import event_line, payload_text
from penstock.document import event_document, event_json
from penstock.errors import ConfigError
from penstock.units import show_duration

if TYPE_CHECKING:
    from penstock.conditions import Where
    from penstock.observe.sample import FailedMessage
    from penstock.surface.journal import Journal
    from penstock.surface.queue import Queue


def existing_queue(journal: Journal, name: str) -> Queue:
    """A queue that is there; Nothing when it is not."""
    names = journal.queues()
    if name not in names:
        raise Nothing(f"there is no queue {name!r}{suggestion(name, names)}; `penstock push` makes one")
    return journal.queue(name)


@command(
    "queues",
    "Lists the queues with what is ready, in flight, delayed and failed",
    argument("pattern", "only queues whose name contains this", required=False),
    example=("penstock queues", "penstock queues mail --json"),
)
def queues(run: Run, pattern: str | None) -> None:
    rows = []
    with run.journal(read_only=True) as journal:
        for name in journal.queues():
            if pattern is not None and pattern not in name:
                continue
            queue = journal.queue(name)
            fanout = queue.policy.mode == "fanout"
            for group in (queue.groups() or ["default"]) if fanout else ["default"]:
                stats = queue.stats(group)
                age = stats.oldest_age if run.json else show_duration(stats.oldest_age)
                rows.append((name, group, stats.ready, stats.in_flight, stats.delayed, stats.failed, age))
    columns = ("Queue", "Group", "Ready", "In flight", "Delayed", "Failed", "Oldest")
    run.rows(columns, rows, otherwise="no queues yet: `penstock push QUEUE '{…}'` makes one")


@command(
    "peek",
    "Shows the messages that would be taken next, without taking them",
    argument("queue", "the queue"),
    option("-n --limit", "how many", metavar="NUMBER", default=10, convert=values.count),
    option("--group", "for this group", default="default"),
    example="penstock peek emails -n 3",
)
def peek(run: Run, queue: str, limit: int, group: str) -> None:
    with run.journal(read_only=True) as journal:
        for event in existing_queue(journal, queue).peek(limit, group=group):
            if run.json:
                run.out.write(event_json(event).decode() + "\n")
            else:
                run.line(event_line(event, color=run.color))


@command(
    "pending",
    "Shows the deliveries in flight: who holds what until when",
    argument("queue", "the queue"),
    option("--group", "of this group only"),
    example="penstock pending emails",
)
def pending(run: Run, queue: str, group: str | None) -> None:
    with run.journal(read_only=True) as journal:
        held = existing_queue(journal, queue).pending(group)
    rows = [(one.seq, one.group, one.consumer, one.attempt, one.delivered_at, one.deadline, one.token) for one in held]
    columns = ("Seq", "Group", "Consumer", "Attempt", "Delivered at", "Deadline", "Token")
    run.rows(columns, rows, otherwise="nothing is in flight")


@command(
    "failed",
    "Shows messages that were given up and have no dead-letter queue to go to",
    argument("queue", "the queue"),
    option("--group", "of this group", default="default"),
    option("-n --limit", "how many", metavar="NUMBER", default=100, convert=values.count),
    example="penstock failed emails",
)
def failed(run: Run, queue: str, group: str, limit: int) -> None:
    with run.journal(read_only=True) as journal:
        handle = existing_queue(journal, queue)
        _say_failures(run, handle.failures(group), limit, "nothing has failed")


@command(
    "dead",
    "Shows a queue's dead letters with the reason each was given up for",
    argument("queue", "the queue they come from, or the dead-letter queue itself"),
    option("-n --limit", "how many", metavar="NUMBER", default=100, convert=values.count),
    example="penstock dead emails",
)
def dead(run: Run, queue: str, limit: int) -> None:
    with run.journal(read_only=True) as journal:
        handle = existing_queue(journal, queue)
        _say_failures(run, handle.dead_letters(), limit, "no dead letters")


def _say_failures(run: Run, found: Iterator[FailedMessage], limit: int, otherwise: str) -> None:
    rows: list[tuple[Any, ...]] = []
    for number, failure in enumerate(found):
        if number >= limit:
            run.note(f"… and more; --limit shows more than {limit}")
            break
        if run.json:
            run.document(
                {
                    "queue": failure.queue,
                    "attempts": failure.attempts,
                    "reason": failure.reason,
                    "error": failure.error,
                    "at": failure.at,
                    "event": event_document(failure.event),
                }
            )
            continue
        error = safe(failure.error or "–")
        payload = payload_text(failure.event)
        rows.append(
            (
                failure.event.seq,
                failure.queue,
                failure.attempts,
                failure.reason,
                failure.at,
                error if len(error) <= 60 else error[:59] + "…",
                payload if len(payload) <= 60 else payload[:59] + "…",
            )
        )
    if not run.json:
        run.rows(("Seq", "Queue", "Attempts", "Reason", "At", "Error", "Payload"), rows, otherwise=otherwise)


# ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _rate(text: str) -> float:
    """Messages a second: 100, 100/s, 20/m."""
    number, _, unit = text.partition("/")
    per = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}.get(unit)
    try:
        rate = float(number) / per if per else 0.0
    except ValueError:
        rate = 0.0
    if rate <= 0:
        raise ConfigError(f"a rate is messages a second, like 100/s or 30/m, not {text!r}")
    return rate


@command(
    "redrive",
    "Sends dead letters and failed messages back to their queue, with a fresh budget",
    argument("queue", "the queue whose messages failed, or a dead-letter queue"),
    option("--to", "send them to this queue instead", metavar="QUEUE"),
    option("-n --limit", "how many at the most", metavar="NUMBER", convert=values.count),
    option("--where", "only those for which this holds", metavar="CONDITION", convert=values.where),
    option("--rate", "no faster than this: 100/s, 30/m", metavar="RATE", convert=_rate),
    flag("--dry-run", "only count them"),
    example=("penstock redrive emails --dry-run", "penstock redrive emails --rate 50/s --where \"kind = 'invoice'\""),
)
def redrive(
    run: Run, queue: str, to: str | None, limit: int | None, where: Where | None, rate: float | None, dry_run: bool
) -> None:
    with run.journal(read_only=dry_run) as journal:
        handle = existing_queue(journal, queue)
        target = existing_queue(journal, to) if to is not None else None
        if dry_run:
            count: int = handle.redrive(to=target, limit=limit, where=where, dry_run=True)
        elif rate is None:
            count = handle.redrive(to=target, limit=limit, where=where)
        else:
            count = _redrive_slowly(handle, target, limit, where, rate)
    run.record({"queue": queue, "would_redrive" if dry_run else "redriven": int(count)})


def _redrive_slowly(queue: Queue, to: Queue | None, limit: int | None, where: Where | None, rate: float) -> int:
    """In small steps, so that whoever handles them is not overrun."""
    step = max(1, int(rate / 5))
    total = 0
    begun = time.monotonic()
    while limit is None or total < limit:
        wanted = step if limit is None else min(step, limit - total)
        moved = queue.redrive(to=to, limit=wanted, where=where)
        total += moved
        if moved < wanted:
            break
        time.sleep(max(0.0, begun + total / rate - time.monotonic()))
    return total


@command(
    "purge",
    "Removes every message of a queue, also those in flight",
    argument("queue", "the queue"),
    flag("--yes", "do not ask"),
    example="penstock purge emails --yes",
)
def purge(run: Run, queue: str, yes: bool) -> None:
    with run.journal() as journal:
        handle = existing_queue(journal, queue)
        run.confirm(f"Remove all {len(handle):,} messages of {queue}?", yes)
        run.record({"queue": queue, "removed": handle.purge()})


# ── policy ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _retry(text: str) -> Any:
    """How a retry is spelled: immediate, fixed:5s, linear:10s, exponential:1s:60s, schedule:5s,5m,30m, svix."""
    from penstock.queue.retry import Retry

    curve, _, given = text.partition(":")
    delays = [values.duration(part) for part in given.replace(",", ":").split(":") if part]
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
    raise ConfigError(
        f"{text!r} is no retry: write immediate, fixed:5s, linear:10s:5m, exponential:1s:60s, schedule:5s,5m,30m"
        " or svix"
    )


def _none_or(convert: Any) -> Any:
    return lambda text: None if text == "none" else convert(text)


@command(
    "configure",
    "Shows or changes how a queue delivers; makes it when it is not there",
    argument("queue", "the queue"),
    option("--mode", "each message to one consumer, or to every group", choices=("work", "fanout"), default=...),
    option(
        "--lease", "how long a consumer may hold a message", metavar="DURATION", default=..., convert=values.duration
    ),
    option(
        "--max-attempts", "deliveries before a message is given up", metavar="NUMBER", default=..., convert=values.count
    ),
    option(
        "--dead-letter",
        "where messages given up go (none: they stay, failed)",
        metavar="QUEUE",
        default=...,
        convert=_none_or(str),
    ),
    option(
        "--retry",
        "delay before the next attempt: immediate, fixed:5s, linear:10s:5m, exponential:1s:60s, schedule:5s,5m, svix",
        metavar="RETRY",
        default=...,
        convert=_retry,
    ),
    option(
        "--max-size",
        "unsettled messages it may hold (none: any)",
        metavar="NUMBER",
        default=...,
        convert=_none_or(values.count),
    ),
    option(
        "--max-in-flight",
        "messages a group may have in flight (none: any)",
        metavar="NUMBER",
        default=...,
        convert=_none_or(values.count),
    ),
    option(
        "--ttl",
        "messages older than this are not delivered (none: all are)",
        metavar="DURATION",
        default=...,
        convert=_none_or(values.duration),
    ),
    option("--priority", "whether messages have priorities", choices=("yes", "no"), default=...),
    option(
        "--dedup-window", "how long dedup keys are remembered", metavar="DURATION", default=..., convert=values.duration
    ),
    example=(
        "penstock configure emails",
        "penstock configure emails --lease 2m --max-attempts 5 --retry exponential:1s:60s --dead-letter emails.dead",
    ),
)
def configure(run: Run, queue: str, priority: Any, **given: Any) -> None:
    import msgspec

    changes = {name: value for name, value in given.items() if value is not ...}
    if priority is not ...:
        changes["priority"] = priority == "yes"
    with run.journal(read_only=not changes) as journal:
        if changes:
            handle = journal.queue(queue, **changes) if queue not in journal.queues() else journal.queue(queue)
            handle.configure(**changes)
        else:
            handle = existing_queue(journal, queue)
        policy = handle.policy
    run.record({"queue": queue, **msgspec.structs.asdict(policy), "retry": str(policy.retry)})


def check_count(number: int, name: str) -> int:
    if number < 1:
        raise UsageError(f"{name} must be at least 1")
    return number
