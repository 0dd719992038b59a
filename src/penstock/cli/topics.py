"""Topics and their events: list, read, follow, show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED, Nothing
from penstock.cli.values import any_topic, condition, number, position, some_topics, the_topic, time
from penstock.cli.values import position as a_position

if TYPE_CHECKING:
    from penstock.documents.conditions import Where
    from penstock.events import Event
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic


# ── Which events a command is about: the options `read`, `tail` and `export` share, and what they come to ──


F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--since", type=time, help="only events recorded since a time (2024-05-01T12:00Z) or so long ago (1h)"
    ),
    click.option("--until", type=time, help="only events recorded before a time"),
    click.option("--kind", multiple=True, help="only events of this kind; may be given several times"),
    click.option("--key", help="only events of this entity"),
    click.option("--key-prefix", help="only events whose key begins so"),
    click.option("--scope", help="only events of this scope"),
    click.option(
        "--where",
        type=condition,
        help="only events for which this holds: payload.total > 10 and has(payload.coupon)",
    ),
)


def selecting(function: F) -> F:
    """Gives a command the options that choose events; it passes them on to `EventSelection`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class EventSelection:
    """Which events are wanted, beyond positions."""

    def __init__(
        self,
        since: datetime | None,
        until: datetime | None,
        kind: Sequence[str],
        key: str | None,
        key_prefix: str | None,
        scope: str | None,
        where: Where | None,
    ) -> None:
        self.since = since
        self.until = until
        self.kinds = set(kind)
        self.key = key
        self.key_prefix = key_prefix
        self.scope = scope
        self.where = where

    def read(
        self,
        topic: Topic,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Event]:
        """The chosen events of a topic."""
        if self.until is not None:
            last = topic.position_at(self.until)
            through = last if through is None else min(last, through)
        return topic.read(after, limit, through=through, since=self.since, reverse=reverse, **self.filters())

    def filters(self) -> dict[str, Any]:
        """As `Topic.read` and `Topic.subscribe` take them."""
        given = {"key": self.key, "key_prefix": self.key_prefix, "scope": self.scope, "where": self.where}
        return {**given, "kind": sorted(self.kinds) or None}


# ── Topics and their events: list, read, follow, show ──


payload_only = click.option("--payload", is_flag=True, help="print payloads only, one a line")


@command("topics", "penstock topics", "penstock topics order --json")
@click.argument("pattern", required=False, help="only topics whose name contains this")
def topics(context: CommandContext, pattern: str | None) -> None:
    """Lists the topics with their ends and sizes."""
    with context.journal(read_only=True) as journal:
        names = [name for name in journal.topics() if pattern is None or pattern in name]
        rows = [_topic_row(journal.topic(name)) for name in names]
    otherwise = "no topics yet: `penstock append TOPIC '{…}'` makes one"
    if pattern is not None:
        otherwise = f"no topic's name contains {pattern!r}"
    context.rows(("Topic", "Events", "Oldest", "Latest", "Newest", "Consumers"), rows, otherwise=otherwise)


def _topic_row(topic: Topic) -> tuple[object, ...]:
    latest = topic.latest
    newest = topic.get(latest) if latest else None
    recorded = newest.recorded_at if newest else None
    return topic.name, len(topic), topic.oldest, latest, recorded, len(topic.cursors())


@command(
    "read",
    "penstock read orders --since 1h --kind placed --where 'payload.total > 10'",
    "penstock read orders --after 1000 --limit 50 --json",
)
@the_topic
@click.option("--after", type=position, default="0", help="start after this position")
@click.option("--through", type=position, help="stop after this position")
@click.option("-n", "--limit", type=number, help="show at most so many")
@click.option("--reverse", is_flag=True, help="newest first")
@selecting
@payload_only
def read(
    context: CommandContext,
    topic: str,
    after: int,
    through: int | None,
    limit: int | None,
    reverse: bool,
    payload: bool,
    **selection: Any,
) -> None:
    """Shows stored events."""
    chosen = EventSelection(**selection)
    with context.journal(read_only=True) as journal:
        handle = context.existing_topic(journal, topic)
        for event in chosen.read(handle, after, limit, through=through, reverse=reverse):
            context.event(event, payload_only=payload)


@command(
    "tail",
    "penstock tail orders -f --since 1h --kind placed --where 'payload.total > 10'",
    "penstock tail orders -n 3",
    "penstock tail orders 'payments.*' -f",
)
@some_topics("TOPIC...", required=True, help="the topics, or patterns of names like 'orders.*'")
@click.option("-n", "--lines", type=number, help="how many of the newest to begin with")
@click.option("-f", "--follow", is_flag=True, help="go on with those that come")
@selecting
@payload_only
@click.option("--count", type=number, help="end after so many events")
def tail(
    context: CommandContext,
    topics: tuple[str, ...],
    lines: int | None,
    follow: bool,
    payload: bool,
    count: int | None,
    **selection: Any,
) -> None:
    """Shows the newest events, and with -f those that come.

    Begins with the newest 10 events; with --since, with all since then. --until ends it there. Events of several
    topics come in the order they were recorded in; a pattern also follows topics that are made later.
    """
    chosen = EventSelection(**selection)
    if follow and chosen.until is not None:
        raise click.UsageError("--until ends, --follow goes on: use one of them")
    several = len(topics) > 1 or _is_pattern(topics[0])
    with context.journal(read_only=True) as journal:
        found = _matching(context, journal, topics, must_be_there=not follow)
        # First of all: what comes while the newest are shown, it has.
        followed = {name: journal.topic(name).subscribe("latest", **chosen.filters()) for name in found if follow}
        positions = {name: followed[name].position if follow else journal.topic(name).latest for name in found}
        left = count
        for event in _newest(chosen, [(journal.topic(name), through) for name, through in positions.items()], lines):
            if left == 0:
                return
            context.event(event, payload_only=payload, topic=several)
            left = None if left is None else left - 1
        context.flush()
        if not follow or left == 0:
            return
        from penstock.cli.following import follow_topics

        patterns = [name for name in topics if _is_pattern(name)]

        def wanted(name: str) -> bool:
            return any(fnmatchcase(name, one) for one in patterns)

        for event in follow_topics(journal, followed, wanted, chosen.filters()):
            context.event(event, payload_only=payload, topic=several)
            context.flush()
            left = None if left is None else left - 1
            if left == 0:
                return


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _matching(context: CommandContext, journal: Journal, wanted: tuple[str, ...], *, must_be_there: bool) -> list[str]:
    """The topics that names and patterns stand for. Following may begin before a topic does."""
    there = journal.topics()
    found: dict[str, None] = {}
    for name in wanted:
        if _is_pattern(name):
            matching = [one for one in there if fnmatchcase(one, name)]
            if must_be_there and not matching:
                raise Nothing(f"no topic's name matches {name!r}")
            found |= dict.fromkeys(matching)
        else:
            if must_be_there:
                context.existing_topic(journal, name)
            found[name] = None
    return list(found)


def _newest(chosen: EventSelection, topics: list[tuple[Topic, int]], lines: int | None) -> list[Event]:
    """What a tail begins with, oldest first."""
    everything = lines is None and chosen.since is not None
    limit = 10 if lines is None else lines
    found: list[Event] = []
    for topic, through in topics:
        if through == 0:
            continue
        if everything:
            found += chosen.read(topic, through=through)
        else:
            found += list(chosen.read(topic, limit=limit, through=through, reverse=True))[::-1]
    if len(topics) > 1:
        found.sort(key=lambda event: event.recorded_at)  # stable: a topic's own order stays
    return found if everything else found[max(0, len(found) - limit) :]


@command("show", "penstock show orders 17")
@the_topic
@click.argument("event", help="its position, or its id")
def show(context: CommandContext, topic: str, event: str) -> None:
    """Shows one event with everything it has."""
    with context.journal(read_only=True) as journal:
        handle = context.existing_topic(journal, topic)
        found = handle.get(int(event)) if event.isdecimal() and len(event) < 40 else handle.find(event)
        if found is None:
            raise Nothing(f"topic {topic!r} has no event {event}; it holds {handle.oldest} to {handle.latest}")
        if context.json:
            context.event(found)
            return
        from penstock.cli.show import event_record, pretty_payload

        context.record(event_record(found))
        context.line(f"\n{pretty_payload(found)}")


# ── Consumers' cursors ──


the_consumer = click.argument("consumer", help="the consumer")


def chosen_topics(context: CommandContext, journal: Journal, topic: str | None) -> list[Topic]:
    """The topic a command names, or all of them."""
    if topic is not None:
        return [context.existing_topic(journal, topic)]
    return [journal.topic(name) for name in journal.topics()]


@command("cursors", "penstock cursors orders")
@any_topic
def cursors(context: CommandContext, topic: str | None) -> None:
    """Shows how far consumers have come, and when each last moved."""
    rows = []
    with context.journal(read_only=True) as journal:
        for handle in chosen_topics(context, journal, topic):
            latest = handle.latest
            for one in handle.consumers():
                event = handle.get(one.position) if one.position else None
                at = event.recorded_at if event else None
                rows.append((handle.name, one.name, one.position, latest, one.lag, at, one.moved_at))
    columns = ("Topic", "Consumer", "Position", "Latest", "Lag", "At", "Moved")
    context.rows(columns, rows, otherwise="no consumer has committed a position")


@command("lag", "penstock lag", "penstock lag orders --consumer billing --max 1000")
@any_topic
@click.option("--consumer", help="one consumer only")
@click.option("--max", type=number, help="fail (exit code 1) when a consumer is further behind than this")
def lag(context: CommandContext, topic: str | None, consumer: str | None, max: int | None) -> int:
    """Shows how far consumers are behind."""
    rows: list[tuple[str, str, int, float | None]] = []
    with context.journal(read_only=True) as journal:
        for handle in chosen_topics(context, journal, topic):
            latest = handle.latest
            for name, seq in sorted(handle.cursors().items()):
                if consumer is None or name == consumer:
                    rows.append((handle.name, name, latest - seq, _behind(journal, handle, seq, latest)))
    if consumer is not None and not rows:
        raise Nothing(f"no consumer {consumer!r} has committed a position{f' in {topic}' if topic else ''}")
    context.rows(("Topic", "Consumer", "Lag", "Seconds"), rows, otherwise="no consumer has committed a position")
    return FAILED if max is not None and any(row[2] > max for row in rows) else DONE


def _behind(journal: Journal, topic: Topic, seq: int, latest: int) -> float | None:
    """How long ago the first event was recorded that the consumer has not seen."""
    if seq >= latest:
        return 0.0
    first = next(topic.read(max(seq, topic.oldest - 1), 1), None)
    return None if first is None else round(journal.clock.now_ms() / 1000 - first.recorded_at.timestamp(), 3)


@command("seek", "penstock seek orders billing 1200", "penstock seek orders billing --to-time 1h")
@the_topic
@the_consumer
@click.argument("position", required=False, type=a_position, help="the position: it goes on with the next one")
@click.option("--to-time", type=time, help="to a time (2024-05-01T12:00Z) or so long ago (1h); what came since comes")
@click.option("--to-start", is_flag=True, help="to the start: everything stored comes again")
@click.option("--to-end", is_flag=True, help="to the end: only what comes from now on")
def seek(
    context: CommandContext,
    topic: str,
    consumer: str,
    position: int | None,
    to_time: datetime | None,
    to_start: bool,
    to_end: bool,
) -> None:
    """Moves a consumer's cursor to a position, a time, the start or the end."""
    if sum((position is not None, to_time is not None, to_start, to_end)) != 1:
        raise click.UsageError("say where to: POSITION, or one of --to-time, --to-start, --to-end")
    with context.journal() as journal:
        handle = context.existing_topic(journal, topic)
        before = handle.cursor(consumer)
        if position is None:
            position = 0 if to_start else handle.latest
            position = handle.position_at(to_time) if to_time is not None else position
        handle.seek(consumer, position)
        left = handle.latest - position
    if context.json:
        context.document({"topic": topic, "consumer": consumer, "before": before, "position": position, "lag": left})
    else:
        came = "new here" if before is None else f"was at {before:,}"
        ahead = "1 event lies ahead" if left == 1 else f"{left:,} events lie ahead"
        context.line(f"{consumer} is at {position:,} of {topic} ({came}); {ahead}")


@command("forget", "penstock forget orders old-report")
@the_topic
@the_consumer
def forget(context: CommandContext, topic: str, consumer: str) -> None:
    """Drops a consumer's cursor, so that nothing waits for it."""
    with context.journal() as journal:
        if not context.existing_topic(journal, topic).forget(consumer):
            raise Nothing(f"topic {topic!r} has no consumer {consumer!r}")
    context.record({"topic": topic, "forgotten": consumer})
