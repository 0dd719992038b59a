"""Looking into queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.commands.operate.watching import sampler_of
from penstock.cli.context import CommandContext
from penstock.cli.output import safe, safe_lines
from penstock.cli.values import choice, number, position, queue_names, the_queue
from penstock.units import show_duration

if TYPE_CHECKING:
    from penstock.observe.sample import FailedMessage
    from penstock.queue.inspect import MessageState
    from penstock.surface.failure import Attempt

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
