"""How a queue delivers, and its periodic messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command, given_options
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.values import choice, duration, json_value, number, or_none, the_queue, with_create

if TYPE_CHECKING:
    from penstock.queue.retry import Retry


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
