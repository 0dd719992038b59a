"""Consumers' cursors, and what a topic keeps."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.cli import values
from penstock.cli.command import argument, command, flag, option
from penstock.cli.context import Run
from penstock.cli.failure import DONE, FAILED, Nothing, UsageError
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic


def _chosen(run: Run, journal: Journal, topic: str | None) -> list[Topic]:
    if topic is not None:
        return [run.existing(journal, topic)]
    return [journal.topic(name) for name in journal.topics()]


@command(
    "cursors",
    "Shows how far consumers have come",
    argument("topic", "one topic only", required=False),
    example="penstock cursors orders",
)
def cursors(run: Run, topic: str | None) -> None:
    rows = []
    with run.journal(read_only=True) as journal:
        for handle in _chosen(run, journal, topic):
            latest = handle.latest
            for consumer, seq in sorted(handle.cursors().items()):
                event = handle.get(seq) if seq else None
                rows.append((handle.name, consumer, seq, latest, latest - seq, event.recorded_at if event else None))
    columns = ("Topic", "Consumer", "Position", "Latest", "Lag", "At")
    run.rows(columns, rows, otherwise="no consumer has committed a position")


@command(
    "lag",
    "Shows how far consumers are behind",
    argument("topic", "one topic only", required=False),
    option("--consumer", "one consumer only"),
    option(
        "--max",
        "fail (exit code 1) when a consumer is further behind than this",
        metavar="NUMBER",
        convert=values.count,
    ),
    example=("penstock lag", "penstock lag orders --consumer billing --max 1000"),
)
def lag(run: Run, topic: str | None, consumer: str | None, max: int | None) -> int:
    rows: list[tuple[str, str, int, float | None]] = []
    with run.journal(read_only=True) as journal:
        for handle in _chosen(run, journal, topic):
            latest = handle.latest
            for name, seq in sorted(handle.cursors().items()):
                if consumer is None or name == consumer:
                    rows.append((handle.name, name, latest - seq, _behind(journal, handle, seq, latest)))
    if consumer is not None and not rows:
        raise Nothing(f"no consumer {consumer!r} has committed a position{f' in {topic}' if topic else ''}")
    run.rows(("Topic", "Consumer", "Lag", "Seconds"), rows, otherwise="no consumer has committed a position")
    return FAILED if max is not None and any(row[2] > max for row in rows) else DONE


def _behind(journal: Journal, topic: Topic, seq: int, latest: int) -> float | None:
    """How long ago the first event was recorded that the consumer has not seen."""
    if seq >= latest:
        return 0.0
    first = next(topic.read(max(seq, topic.oldest - 1), 1), None)
    return None if first is None else round(journal.clock.now_ms() / 1000 - first.recorded_at.timestamp(), 3)


@command(
    "seek",
    "Moves a consumer's cursor to a position, a time, the start or the end",
    argument("topic", "the topic"),
    argument("consumer", "the consumer"),
    option("--to", "to this position: it goes on with the next one", metavar="POSITION", convert=values.position),
    option(
        "--to-time",
        "to this time (2024-05-01T12:00Z) or so long ago (1h): it goes on with what was recorded since",
        metavar="TIME",
        convert=values.moment,
    ),
    flag("--to-start", "to the start: everything stored comes again"),
    flag("--to-end", "to the end: only what comes from now on"),
    example=("penstock seek orders billing --to-time 1h", "penstock seek orders billing --to 1200"),
)
def seek(
    run: Run, topic: str, consumer: str, to: int | None, to_time: datetime | None, to_start: bool, to_end: bool
) -> None:
    if sum((to is not None, to_time is not None, to_start, to_end)) != 1:
        raise UsageError("say where to: one of --to, --to-time, --to-start, --to-end")
    with run.journal() as journal:
        handle = run.existing(journal, topic)
        before = handle.cursor(consumer)
        if to is not None:
            seq = to
        elif to_time is not None:
            seq = handle.position_at(to_time)
        else:
            seq = handle.latest if to_end else 0
        handle.seek(consumer, seq)
        left = handle.latest - seq
    if run.json:
        run.document({"topic": topic, "consumer": consumer, "before": before, "position": seq, "lag": left})
    else:
        came = "new here" if before is None else f"was at {before:,}"
        run.line(f"{consumer} is at {seq:,} of {topic} ({came}); {left:,} events lie ahead")


@command(
    "forget",
    "Drops a consumer's cursor, so that nothing waits for it",
    argument("topic", "the topic"),
    argument("consumer", "the consumer"),
    example="penstock forget orders old-report",
)
def forget(run: Run, topic: str, consumer: str) -> None:
    with run.journal() as journal:
        if not run.existing(journal, topic).forget(consumer):
            raise Nothing(f"topic {topic!r} has no consumer {consumer!r}")
    run.record({"topic": topic, "forgotten": consumer})


def _unless_none(convert: Any) -> Any:
    return lambda text: None if text == "none" else convert(text)


@command(
    "settings",
    "Shows or changes what a topic keeps and for how long",
    argument("topic", "the topic"),
    option(
        "--max-age",
        "remove events older than this (none: keep them)",
        metavar="DURATION",
        default=...,
        convert=_unless_none(values.duration),
    ),
    option(
        "--max-events",
        "keep about this many (none: all)",
        metavar="NUMBER",
        default=...,
        convert=_unless_none(values.count),
    ),
    option(
        "--max-bytes",
        "keep about this much (none: all)",
        metavar="SIZE",
        default=...,
        convert=_unless_none(values.size),
    ),
    option(
        "--dedup-window",
        "how long dedup keys are remembered (none: for ever)",
        metavar="DURATION",
        default=...,
        convert=_unless_none(values.duration),
    ),
    option(
        "--by-key", "keep only the newest event of every key in settled history", choices=("yes", "no"), default=...
    ),
    option(
        "--chained",
        "let every event carry the hash of its predecessor in its entity's stream",
        choices=("yes", "no"),
        default=...,
    ),
    example=("penstock settings orders", "penstock settings orders --max-age 30d --max-bytes 2GiB"),
)
def settings(run: Run, topic: str, by_key: Any, chained: Any, **given: Any) -> None:
    import msgspec

    changes = {name: value for name, value in given.items() if value is not ...}
    changes |= {name: value == "yes" for name, value in (("by_key", by_key), ("chained", chained)) if value is not ...}
    with run.journal(read_only=not changes) as journal:
        handle = journal.topic(topic) if changes else run.existing(journal, topic)
        kept = handle.configure(**changes) if changes else handle.settings
    run.record({"topic": topic, **msgspec.structs.asdict(kept)})


@command(
    "compact",
    "Removes history that nobody needs",
    argument("topic", "the topic"),
    option("--through", "remove everything through this position", metavar="POSITION", convert=values.position),
    option(
        "--before",
        "remove what was recorded before a time, or longer ago than this",
        metavar="TIME",
        convert=values.moment,
    ),
    flag("--keys", "keep the newest event of every key, remove the older ones"),
    flag("--force", "do not stop at the slowest consumer"),
    flag("--yes", "do not ask before --force"),
    example=("penstock compact orders --before 30d", "penstock compact orders --through 100000"),
)
def compact(
    run: Run, topic: str, through: int | None, before: datetime | None, keys: bool, force: bool, yes: bool
) -> None:
    if sum((through is not None, before is not None, keys)) != 1:
        raise UsageError("say what may go: one of --through, --before, --keys")
    with run.journal() as journal:
        handle = run.existing(journal, topic)
        if keys:
            removed = handle.compact_keys()
            run.record({"topic": topic, "removed": removed, "remaining": len(handle)})
            return
        end = through if through is not None else handle.position_at(before)  # type: ignore[arg-type]
        if force:
            run.confirm(f"Remove {topic} through {end:,}, whether or not consumers have read it?", yes)
        report = handle.compact(end, force=force)
    values_ = {"topic": topic, "removed": report.removed, "remaining": report.remaining, "latest": report.latest}
    if report.stopped_at is not None or run.json:
        values_["stopped_at"] = report.stopped_at
    run.record(values_)


@command(
    "verify",
    "Reads everything and checks that it is whole",
    argument("topic", "one topic only", required=False),
    example=("penstock verify", "penstock verify orders --json"),
    details="""
    Every block's checksum is computed again, and that of every sealed file; positions must follow each other,
    payloads must decode, and where a topic is chained every entity's hash chain must hold. Exit code 1 when something
    is damaged.
    """,
)
def verify(run: Run, topic: str | None) -> int:
    rows: list[tuple[str, int, str]] = []
    damaged = False
    with run.journal(read_only=True) as journal:
        for handle in _chosen(run, journal, topic):
            count, problem = _read_through(handle)
            if problem is None:
                problem = _chain_problem(handle)
            damaged = damaged or problem is not None
            rows.append((handle.name, count, problem or "whole"))
    run.rows(("Topic", "Events", "State"), rows, otherwise="no topics: nothing to verify")
    return FAILED if damaged else DONE


def _read_through(topic: Topic) -> tuple[int, str | None]:
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


def _chain_problem(topic: Topic) -> str | None:
    from penstock.api import LocalTopic

    if not isinstance(topic, LocalTopic):  # chains are verified where the store is
        return None
    try:
        report = topic.verify()
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return f"chain broken: {report.broken}" if report.broken else None
