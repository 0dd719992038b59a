"""Messages in and out of queues: push, take, settle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import NOTHING
from penstock.cli.values import (
    choice,
    count,
    duration,
    json_value,
    number,
    queue_names,
    the_headers,
    the_queue,
    time,
    with_create,
)
from penstock.errors import StaleDelivery

if TYPE_CHECKING:
    from penstock.surface.delivery import Delivery

BATCH = 1000
"""Lines pushed in one commit."""


@command(
    "push",
    """penstock push emails '{"to": "ada@example.com"}'""",
    """penstock push emails '{"to": "ada@example.com"}' --delay 10m --dedup welcome-ada""",
)
@click.argument("queue", shell_complete=queue_names, help="the queue; it is made when it is not there")
@click.argument("payload", required=False, help="the payload as JSON; - (or nothing) pushes lines of standard input")
@click.option("--kind", default="message", help="the message's kind")
@click.option("--key", help="its ordering key: messages of one key are delivered in order, one at a time")
@click.option("--priority", type=int, default=0, help="its priority, in a queue that has them")
@click.option("--front", is_flag=True, help="before everything that waits, in any queue")
@click.option("--delay", type=duration, default="0s", help="not before so much time has passed")
@click.option("--not-before", type=time, help="not before this time")
@click.option("--dedup", help="push once only within the queue's window")
@click.option("--max-attempts", type=number, help="its own number of deliveries")
@the_headers
@click.option("--cause", metavar="ID", help="the id of the event that caused it")
@click.option("--text", is_flag=True, help="the payload is text, not JSON")
def push(context: CommandContext, queue: str, payload: str | None, text: bool, headers: Any, **given: Any) -> None:
    """Pushes a message to a queue; makes the queue when it is not there."""
    given["headers"] = dict(headers) or None
    if given.pop("front"):
        if given["priority"]:
            raise click.UsageError("--front is a priority of its own: leave --priority out")
        given["priority"] = "front"
    if payload is not None and payload != "-":
        value = payload if text else json_value(payload)
        with context.journal() as journal:
            context.receipt(journal.queue(queue).push(value, **given), "pushed")
        return
    if given["dedup"] is not None:
        raise click.UsageError("--dedup is for one message")
    with context.journal() as journal:
        handle = journal.queue(queue)
        total = 0
        lines: list[Any] = []
        for at, line in enumerate(context.lines("message"), 1):
            if not line.strip():
                continue
            try:
                decoded = line.decode().rstrip("\r\n")
                lines.append(decoded if text else json_value(decoded))
            except ValueError as error:
                raise click.UsageError(f"line {at}: {error}") from None
            if len(lines) >= BATCH:
                total += len(handle.push_many(lines, **given))
                lines = []
        total += len(handle.push_many(lines, **given)) if lines else 0
    context.record({"queue": queue, "pushed": total})


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@command("take", "penstock take emails", "penstock take emails --wait 30s --settle ack --json")
@the_queue
@click.option("-n", "--limit", type=count, default="1", help="how many")
@click.option("--group", default="default", help="for this group")
@click.option("--consumer", help="under this name")
@click.option("--wait", type=duration, default="0s", help="how long to wait for one")
@click.option("--lease", type=duration, help="for how long")
@click.option("--newest", is_flag=True, help="from the other end")
@choice("--settle", "ack nack dead release none", help="what becomes of them; none: they stay leased")
@click.option("--error", help="the error to give with nack or dead")
@with_create
def take(
    context: CommandContext, queue: str, limit: int, settle: str | None, error: str | None, create: bool, **given: Any
) -> int | None:
    """Takes messages from a queue and settles them: asks what to do, or does what --settle says.

    At a terminal, each message is shown and you say what becomes of it: ack, nack (it comes again), dead (given up),
    extend (more time), release (given back, no attempt counted). Without a terminal --settle must say it. Exit code 3
    when there was no message.
    """
    if settle is None and (context.json or not context.input.isatty()):
        raise click.UsageError("there is no terminal to ask at: say with --settle what becomes of the messages")
    with context.journal() as journal:
        taken = context.existing_queue(journal, queue, create=create).take_many(limit, **given)
        if not taken:
            context.note("no message")
            return NOTHING
        left = list(taken)
        try:
            for delivery in taken:
                if settle is None:
                    _ask(context, delivery)
                else:
                    _say_delivery(context, delivery, settle)
                    context.flush()  # a message that was never shown must not be settled
                    _settle(delivery, settle, error)
                left.remove(delivery)
        finally:
            for delivery in left:
                delivery.release()
    return None


def _settle(delivery: Delivery, how: str, error: str | None) -> None:
    if how == "ack":
        delivery.ack()
    elif how in ("nack", "dead"):
        delivery.nack(error=error, dead=how == "dead")
    elif how == "release":
        delivery.release()


def _say_delivery(context: CommandContext, delivery: Delivery, settled: str | None = None) -> None:
    from penstock.cli.show import event_record, pretty_payload
    from penstock.documents.events import event_document

    held = {"attempt": delivery.attempt, "deadline": delivery.deadline}
    if context.json:
        about = {"group": delivery.group, "settled": settled, "event": event_document(delivery.event)}
        context.document({"token": delivery.token, **held, **about})
        return
    context.record({**event_record(delivery.event), **held, "token": delivery.token})
    context.line(pretty_payload(delivery.event))
    if settled is not None:
        context.line(f"→ {settled}", "dim")
    context.line("")


def _ask(context: CommandContext, delivery: Delivery) -> None:
    _say_delivery(context, delivery)
    answers = {"a": "ack", "n": "nack", "d": "dead", "e": "extend", "r": "release"}
    while True:
        context.err.write("[a]ck, [n]ack, [d]ead, [e]xtend, [r]elease? ")
        context.err.flush()
        line = context.input.readline()
        how = answers.get(line.strip().lower()[:1]) if line else "release"
        if how is None:
            continue
        try:
            if how == "extend":
                delivery.extend()
                context.note(f"yours until {delivery.deadline.astimezone():%H:%M:%S}")
                continue
            _settle(delivery, how, None)
        except StaleDelivery as error:
            context.note(f"too late: {error}")
        return


@command(
    "settle",
    "penstock settle emails TOKEN",
    "penstock settle emails TOKEN --as nack --error 'mailbox full' --delay 10m",
)
@the_queue
@click.argument("delivery", help="the delivery's token")
@choice("--as", "how", "ack nack dead release extend", default="ack", help="what becomes of it")
@click.option("--error", help="the error to give with nack or dead")
@click.option("--delay", type=duration, help="how long nack keeps it back, if not the policy's")
@click.option("--lease", type=duration, help="how long extend keeps it, if not the policy's")
def settle(
    context: CommandContext,
    queue: str,
    delivery: str,
    how: str,
    error: str | None,
    delay: float | None,
    lease: float | None,
) -> None:
    """Settles a delivery by the token that `take --settle none` printed."""
    with context.journal() as journal:
        held = context.existing_queue(journal, queue).delivery(delivery)
        if how == "extend":
            held.extend(lease)
        elif how == "nack":
            held.nack(delay=delay, error=error)
        else:
            _settle(held, how, error)
    outcome = {"deadline": held.deadline} if how == "extend" else {"settled": how}
    context.record({"queue": queue, "seq": held.seq, **outcome})
