"""How a queue delivers and what a topic keeps: every field of their policy and settings as an option."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import CREATE, TAKEOVER, command, given_options
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing, did_you_mean
from penstock.cli.values import choice, duration, number, or_none, size, topic_names

if TYPE_CHECKING:
    from penstock.queue.retry import Retry


def retry(text: str) -> Retry | None:
    """How a retry is spelled."""
    from penstock.queue.retry import parse_retry

    return parse_retry(text)


QUEUE: dict[str, tuple[Any, str]] = {
    "mode": ("work fanout", "of a new queue: each message to one consumer, or to every group"),
    "lease": (duration, "how long a consumer may hold a message"),
    "max_attempts": (number, "deliveries before a message is given up"),
    "dead_letter": (or_none(str), "the queue that messages given up go to (none: they stay, failed)"),
    "retry": (retry, "when a message is tried again, like exponential:1s:60s"),
    "max_size": (or_none(number), "unsettled messages it may hold (none: any)"),
    "max_in_flight": (or_none(number), "messages a group may have in flight (none: any)"),
    "max_in_flight_per_key": (number, "messages of one key a group may have in flight"),
    "rate": (or_none(str), "messages a group is given, like 100/s (none: any)"),
    "rate_per_key": (or_none(str), "the same for each key (none: any)"),
    "fair_by": (or_none(str), "what takes turns: a HEADER, key, or key:/ (none: nothing)"),
    "throttle": (or_none(duration), "the first push of a key within this wins (none: all do)"),
    "debounce": (or_none(duration), "the newest push of a key within this wins (none: all do)"),
    "debounce_limit": (or_none(duration), "how long the newest push may be put off (none: any time)"),
    "breaker": (or_none(str), "failures that stop deliveries, like 5/1m (none: any)"),
    "breaker_pause": (duration, "how long they stop before one message is tried"),
    "ttl": (or_none(duration), "messages older than this are not delivered (none: all are)"),
    "retention": ("hold dead_letter", "what becomes of unsettled messages that the topic's retention passes"),
    "priority": (bool, "whether messages have priorities"),
    "dedup_window": (or_none(duration), "how long dedup keys are remembered (none: for ever)"),
}
"""A queue's policy: how each field is read, and what it means."""
TOPIC: dict[str, tuple[Any, str]] = {
    "max_age": (or_none(duration), "remove events older than this (none: keep them)"),
    "max_events": (or_none(number), "keep about this many events (none: all)"),
    "max_bytes": (or_none(size), "keep about this many bytes (none: all)"),
    "by_key": (bool, "keep only the newest event of each key in settled history"),
    "verified": (bool, "keep a hash of every event, for `penstock verify`"),
    "indexed": (bool, "look events up by key, cause and correlation in an index"),
}
"""A topic's settings; `dedup_window` is the topic's where there is no queue."""


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (kind, help) in reversed((QUEUE | TOPIC).items()):
        flag = f"--{name.replace('_', '-')}"
        if isinstance(kind, str):
            function = choice(flag, kind, help=help)(function)
        else:
            function = click.option(flag, type=kind, metavar="yes|no" if kind is bool else None, help=help)(function)
    return function


@command(
    "configure",
    "penstock configure orders --max-age 30d --max-bytes 2GiB",
    "penstock configure emails --lease 2m --max-attempts 5 --retry exponential:1s:60s --dead-letter emails.dead",
    also=(CREATE, TAKEOVER),
)
@click.argument("name", shell_complete=topic_names, help="the topic or queue")
@_options
def configure(context: CommandContext, name: str, **_: object) -> None:
    """Shows or changes what a topic keeps and how a queue delivers; makes the one or the other when it is not there.

    A queue is a topic, too: of a queue both are shown, and both can be changed. An option of queues, given for a topic,
    makes it a queue. RETRY is one of immediate, fixed:5s, linear:10s:5m, exponential:1s:60s, schedule:5s,5m,30m, svix,
    and default: what a worker fails with waits about 5 s, 30 s, 3 min, then 10 min, and what is given back by hand is
    ready at once.
    """
    import msgspec

    changes = given_options()
    with context.journal(read_only=not changes) as journal:
        is_queue = name in journal.queues()
        policy = {field: value for field, value in changes.items() if field in QUEUE}
        if not is_queue and set(policy) == {"dedup_window"}:
            policy = {}
        if policy and not is_queue:
            journal.queue(name, **policy)
        elif policy:
            journal.queue(name).configure(**policy)
        settings = {field: value for field, value in changes.items() if field not in policy}
        if not changes and not is_queue and name not in journal.topics():
            meant = did_you_mean(name, journal.topics())
            raise Nothing(f"there is no topic or queue {name!r} in {context.shown_place}{meant}")
        topic = journal.topic(name)
        kept = msgspec.structs.asdict(topic.configure(**settings) if settings else topic.settings)
        if not policy and not is_queue:
            context.record({"topic": name, **kept})
            return
        delivers = journal.queue(name).policy
    context.record(
        {"queue": name, **kept, **msgspec.structs.asdict(delivers), "retry": str(delivers.retry or "default")}
    )
