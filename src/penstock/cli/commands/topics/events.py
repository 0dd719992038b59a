"""Topics and their events: list, read, follow, show."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command
from penstock.cli.commands.topics.selection import EventSelection, selecting
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.values import number, position, some_topics, the_topic

if TYPE_CHECKING:
    from penstock.events import Event
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic

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
        from penstock.cli.commands.topics.following import follow_topics

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
