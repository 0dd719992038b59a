"""What a topic keeps, and whether it is whole."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command, given_options
from penstock.cli.commands.topics.cursors import chosen_topics
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED
from penstock.cli.values import any_topic, duration, number, or_none, position, size, the_topic, time
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.surface.topic import Topic


@command("settings", "penstock settings orders", "penstock settings orders --max-age 30d --max-bytes 2GiB")
@the_topic
@click.option("--max-age", type=or_none(duration), help="remove events older than this (none: keep them)")
@click.option("--max-events", type=or_none(number), help="keep about this many (none: all)")
@click.option("--max-bytes", type=or_none(size), help="keep about this much (none: all)")
@click.option("--dedup-window", type=or_none(duration), help="how long dedup keys are remembered (none: for ever)")
@click.option("--by-key", type=bool, metavar="yes|no", help="keep only the newest event of a key in settled history")
@click.option("--verified", type=bool, metavar="yes|no", help="keep a hash of every event, for `penstock verify`")
def settings(context: CommandContext, topic: str, **_: object) -> None:
    """Shows or changes what a topic keeps and for how long."""
    import msgspec

    changes = given_options()
    with context.journal(read_only=not changes) as journal:
        handle = journal.topic(topic) if changes else context.existing_topic(journal, topic)
        kept = handle.configure(**changes) if changes else handle.settings
    context.record({"topic": topic, **msgspec.structs.asdict(kept)})


@command("compact", "penstock compact orders --before 30d", "penstock compact orders --through 100000")
@the_topic
@click.option("--through", type=position, help="remove everything through this position")
@click.option("--before", type=time, help="remove what was recorded before a time, or longer ago than this")
@click.option("--keys", is_flag=True, help="keep the newest event of every key, remove the older ones")
@click.option("--force", is_flag=True, help="do not stop at the slowest consumer")
@click.option("--yes", is_flag=True, help="do not ask before --force")
def compact(
    context: CommandContext,
    topic: str,
    through: int | None,
    before: datetime | None,
    keys: bool,
    force: bool,
    yes: bool,
) -> None:
    """Removes history that no consumer needs."""
    if sum((through is not None, before is not None, keys)) != 1:
        raise click.UsageError("say what may go: one of --through, --before, --keys")
    with context.journal() as journal:
        handle = context.existing_topic(journal, topic)
        if keys:
            removed = handle.compact_keys()
            context.record({"topic": topic, "removed": removed, "remaining": len(handle)})
            return
        end = handle.position_at(before) if before is not None else through or 0
        if force:
            context.confirm(f"Remove {topic} through {end:,}, whether or not consumers have read it?", yes)
        report = handle.compact(end, force=force)
    done: dict[str, object] = {"topic": topic, "removed": report.removed, "remaining": report.remaining}
    done["latest"] = report.latest
    if report.stopped_at is not None or context.json:
        done["stopped_at"] = report.stopped_at
    context.record(done)


@command("verify", "penstock verify", "penstock verify orders --json")
@any_topic
def verify(context: CommandContext, topic: str | None) -> int:
    """Reads everything and checks that it is whole.

    Every block's checksum is computed again, and that of every sealed file; positions must follow each other,
    payloads must decode, and where a topic is verified every event must be what was appended. Exit code 1 when
    something is damaged.
    """
    rows: list[tuple[str, int, str]] = []
    damaged = False
    with context.journal(read_only=True) as journal:
        for handle in chosen_topics(context, journal, topic):
            count, problem = read_through(handle)
            damaged = damaged or problem is not None
            rows.append((handle.name, count, problem or "whole"))
    context.rows(("Topic", "Events", "State"), rows, otherwise="no topics: nothing to verify")
    return FAILED if damaged else DONE


def read_through(topic: Topic) -> tuple[int, str | None]:
    """How many events were read, and what is wrong with them, their hashes and their sealed files, if anything is."""
    count, problem = _read_events(topic)
    return count, problem or _verify_problem(topic)


def _read_events(topic: Topic) -> tuple[int, str | None]:
    """How many events were read, and what stopped it."""
    count = last = 0
    expected = len(topic)
    latest = topic.latest
    try:
        for event in topic.read(through=latest):
            if event.seq <= last:
                return count, f"position {event.seq} comes after {last}"
            if not event.binary:
                event.payload  # noqa: B018 - asks whether it decodes
            last = event.seq
            count += 1
    except PenstockError as error:
        return count, f"{type(error).__name__} after position {last}: {error}"
    if count < expected:
        return count, f"{expected:,} events should be there"
    return count, None


def _verify_problem(topic: Topic) -> str | None:
    """What is wrong with a topic's hashes and sealed files."""
    from penstock.local.topic import LocalTopic

    if not isinstance(topic, LocalTopic):  # a topic is verified where its store is
        return None
    try:
        report = topic.verify()
    except ConfigError:
        raise  # a package is missing, which is no damage
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return report.broken.reason if report.broken else None
