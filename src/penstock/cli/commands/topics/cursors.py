"""Consumers' cursors."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED, Nothing
from penstock.cli.values import any_topic, number, the_topic, time
from penstock.cli.values import position as a_position

if TYPE_CHECKING:
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic

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
