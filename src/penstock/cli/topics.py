"""Topics and their events: append, list, read, follow, show, and the positions of consumers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli import values
from penstock.cli.command import DONE, FAILED, CommandContext, Nothing, command, topic_command
from penstock.cli.output import event_record, pretty_payload
from penstock.core.names import is_pattern
from penstock.core.units import in_parts, pluralize
from penstock.errors import ConfigError, Corrupt, UnknownTopic

if TYPE_CHECKING:
    from penstock import Draft, Event, Journal, JournalSubscription, Receipt, Topic
    from penstock.acts import Done


# ── Which events a command is about: the options `read`, `tail` and `export` share, and what they come to ──


F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--since", type=values.moment, help="only events recorded since a time (2024-05-01T12:00Z) or so long ago (1h)"
    ),
    click.option("--until", type=values.moment, help="only events recorded before a time"),
    click.option(
        "--kind",
        multiple=True,
        callback=lambda ctx, parameter, given: sorted(set(given)) or None,
        help="only events of this kind; may be given several times",
    ),
    click.option("--key", help="only events of this entity"),
    click.option("--key-prefix", help="only events whose key begins so"),
    click.option("--scope", help="only events of this scope"),
    click.option(
        "--where",
        type=values.condition,
        help="only events for which this holds: payload.total > 10 and has(payload.coupon)",
    ),
)


def selecting(function: F) -> F:
    """Gives a command the options that choose events. They are those of `Topic.read` and `Journal.read`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


# ── Topics and their events: list, read, follow, show ──


payload_only = click.option("--payload", is_flag=True, help="print payloads only, one a line")


@command("topics", "penstock topics", "penstock topics order --json")
@click.argument("pattern", required=False, help="only topics whose name contains this")
def topics(context: CommandContext, pattern: str | None) -> int:
    """Lists the topics with their ends and sizes. Exit code 1 when one of them is damaged."""
    rows: list[tuple[object, ...]] = []
    damaged = False
    with context.journal(read_only=True) as journal:
        for name in journal.topics():
            if pattern is None or pattern in name:
                try:
                    rows.append(_topic_row(journal.topic(name)))
                except Corrupt as error:
                    rows.append((name, None, None, None, None, None))
                    damaged = True
                    context.note(f"{name}: {error}; `penstock verify {name}` says what can be read")
    otherwise = "no topics yet: `penstock append TOPIC '{…}'` makes one"
    if pattern is not None:
        otherwise = f"no topic's name contains {pattern!r}"
    context.rows(("Topic", "Events", "Oldest", "Latest", "Newest", "Consumers"), rows, otherwise=otherwise)
    return FAILED if damaged else DONE


def _topic_row(topic: Topic) -> tuple[object, ...]:
    latest = topic.latest
    newest = topic.get(latest) if latest else None
    recorded = newest.recorded_at if newest else None
    return topic.name, len(topic), topic.oldest, latest, recorded, len(topic.cursors())


@command(
    "sql",
    'penstock sql "select kind, count(*) from orders group by 1"',
    "penstock sql \"select key, payload->>'total' as total from orders where seq > 1000\" --csv > totals.csv",
)
@click.argument("query", help="topics are its tables; one with a dash or dot in its name needs quotes")
@click.option("--csv", "as_csv", is_flag=True, help="comma-separated values, with a heading")
def sql(context: CommandContext, query: str, as_csv: bool) -> None:
    """Runs an SQL query over topics, with DuckDB."""
    with context.journal(read_only=True) as journal:
        try:
            found = journal.sql(query)
        except UnknownTopic as error:
            raise Nothing(str(error)) from error
        except ConfigError as error:  # unchanged, because the line below marks the place of a mistake
            raise click.UsageError(str(error)) from error
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    if as_csv:
        import csv

        writer = csv.writer(context.out, lineterminator="\n")
        writer.writerow(found.column_names)
        writer.writerows(rows)
    else:
        context.rows(found.column_names, [tuple(map(_number, row)) for row in rows], otherwise="no rows")


def _number(value: object) -> object:
    """Returns the value of a field that is shown as a number: sums are decimals."""
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return value


READ_LIMIT = 1000
"""The number of events that `read` shows without --limit."""


@topic_command(
    "read",
    "penstock read orders --since 1h --kind placed --where 'payload.total > 10'",
    "penstock read orders --after 1000 --limit 50 --json",
)
@click.option("--after", type=values.position, default="0", help="start after this position")
@click.option("--through", type=values.position, help="stop after this position")
@click.option(
    "-n",
    "--limit",
    type=values.or_none(values.number),
    default=str(READ_LIMIT),
    help="how many at the most (none: all)",
)
@click.option("--reverse", is_flag=True, help="newest first")
@selecting
@payload_only
def read(
    context: CommandContext,
    topic: Topic,
    after: int,
    through: int | None,
    limit: int | None,
    reverse: bool,
    payload: bool,
    **selection: Any,
) -> None:
    """Shows stored events, and says when it stopped at its limit."""
    last, shown = after, 0
    more = None if limit is None else limit + 1
    for event in topic.read(after, through=through, limit=more, reverse=reverse, **selection):
        if shown == limit:
            on = f"--through {last - 1}" if reverse else f"--after {last}"
            context.note(f"there is more: stopped at {pluralize(limit, 'event')}; {on} goes on, --limit none shows all")
            return
        context.event(event, payload_only=payload)
        last, shown = event.seq, shown + 1


@command(
    "tail",
    "penstock tail orders -f --since 1h --kind placed --where 'payload.total > 10'",
    "penstock tail orders -n 3",
    "penstock tail orders 'payments.*' -f",
    "penstock tail --all --since 1h",
)
@values.some_topics("TOPIC...", required=False, help="the topics, or patterns of names like 'orders.*'")
@click.option("--all", "every", is_flag=True, help="all topics but penstock's own")
@click.option("-n", "--lines", type=values.number, help="how many of the newest to begin with")
@click.option("-f", "--follow", is_flag=True, help="go on with those that come")
@selecting
@payload_only
@click.option("--count", type=values.number, help="end after so many events")
def tail(
    context: CommandContext,
    topics: tuple[str, ...],
    every: bool,
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
    if follow and selection["until"] is not None:
        raise click.UsageError("--until ends, --follow goes on: use one of them")
    if every == bool(topics):
        raise click.UsageError("name topics, or --all for all of them")
    several = every or len(topics) > 1 or is_pattern(topics[0])
    with context.journal(read_only=True) as journal:
        if not follow:
            _check_there(context, journal, topics)
        # The subscription begins first, so that it includes events that come while the newest events are shown.
        filters = {name: value for name, value in selection.items() if name not in ("since", "until")}
        followed = journal.subscribe(topics or None, "latest", **filters) if follow else None
        left = count
        for event in chain(_newest(journal, topics, selection, lines, followed), followed or ()):
            if left == 0:
                return
            context.event(event, payload_only=payload, topic=several)
            left = None if left is None else left - 1
            if left == 0:
                return
            if follow:
                context.flush()


def _check_there(context: CommandContext, journal: Journal, wanted: tuple[str, ...]) -> None:
    """Ends the command when a name or a pattern matches no topic.

    Following a topic may begin before the topic exists.
    """
    there = journal.topics()
    for name in wanted:
        if not is_pattern(name):
            context.existing_topic(journal, name)
        elif not any(fnmatchcase(one, name) for one in there):
            raise Nothing(f"no topic's name matches {name!r}")


def _newest(
    journal: Journal,
    topics: tuple[str, ...],
    selection: dict[str, Any],
    lines: int | None,
    followed: JournalSubscription | None,
) -> Iterator[Event]:
    """Returns the first events of a tail, oldest first. The subscription then yields only later events."""
    through = None if followed is None else followed.positions
    if lines is None and selection["since"] is not None:
        return journal.read(topics or None, through=through, **selection)
    limit = 10 if lines is None else lines
    newest = list(journal.read(topics or None, limit=limit, reverse=True, through=through, **selection))
    return iter(newest[::-1])


@topic_command("show", "penstock show orders 17")
@click.argument("event", help="its position, or its id")
def show(context: CommandContext, topic: Topic, event: str) -> None:
    """Shows one event with everything it has."""
    found = topic.get(int(event)) if event.isdecimal() and len(event) < 40 else topic.find(event)
    if found is None:
        raise Nothing(f"topic {topic.name!r} has no event {event}; it holds {topic.oldest} to {topic.latest}")
    if context.json:
        context.event(found)
        return
    context.record(event_record(found))
    context.line(f"\n{pretty_payload(found)}")


# ── Consumers' cursors ──


the_consumer = click.argument("consumer", help="the consumer")


def chosen_topics(context: CommandContext, journal: Journal, topic: str | None) -> list[Topic]:
    """Returns the topic that a command names, or all topics."""
    if topic is not None:
        return [context.existing_topic(journal, topic)]
    return [journal.topic(name) for name in journal.topics()]


@command("cursors", "penstock cursors orders")
@values.any_topic
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
@values.any_topic
@click.option("--consumer", help="one consumer only")
@click.option("--max", type=values.number, help="fail (exit code 1) when a consumer is further behind than this")
def lag(context: CommandContext, topic: str | None, consumer: str | None, max: int | None) -> int:
    """Shows how far consumers are behind."""
    rows: list[tuple[str, str, int, float | None]] = []
    with context.journal(read_only=True) as journal:
        for handle in chosen_topics(context, journal, topic):
            latest = handle.latest
            rows += [
                (handle.name, one.name, one.lag, _behind(journal, handle, one.position, latest))
                for one in handle.consumers()
                if consumer in (None, one.name)
            ]
    if consumer is not None and not rows:
        raise Nothing(f"no consumer {consumer!r} has committed a position{f' in {topic}' if topic else ''}")
    context.rows(("Topic", "Consumer", "Lag", "Seconds"), rows, otherwise="no consumer has committed a position")
    return FAILED if max is not None and any(row[2] > max for row in rows) else DONE


def _behind(journal: Journal, topic: Topic, seq: int, latest: int) -> float | None:
    """Returns the age of the first event that the consumer has not seen."""
    if seq >= latest:
        return 0.0
    first = next(topic.read(max(seq, topic.oldest - 1), 1), None)
    return None if first is None else round(journal.clock.now_ms() / 1000 - first.recorded_at.timestamp(), 3)


@topic_command("seek", "penstock seek orders billing 1200", "penstock seek orders billing --to-time 1h", writes=True)
@the_consumer
@click.argument("position", required=False, type=values.position, help="the position: it goes on with the next one")
@click.option(
    "--to-time", type=values.moment, help="to a time (2024-05-01T12:00Z) or so long ago (1h); what came since comes"
)
@click.option("--to-start", is_flag=True, help="to the start: everything stored comes again")
@click.option("--to-end", is_flag=True, help="to the end: only what comes from now on")
def seek(
    context: CommandContext,
    topic: Topic,
    consumer: str,
    position: int | None,
    to_time: datetime | None,
    to_start: bool,
    to_end: bool,
) -> Done:
    """Moves a consumer's cursor to a position, a time, the start or the end."""
    from penstock import acts

    if sum((position is not None, to_time is not None, to_start, to_end)) != 1:
        raise click.UsageError("say where to: POSITION, or one of --to-time, --to-start, --to-end")
    if position is None:
        position = 0 if to_start else topic.latest
        position = topic.position_at(to_time) if to_time is not None else position
    return context.perform(acts.MoveConsumer(topic, consumer, position))


@topic_command("forget", "penstock forget orders old-report", writes=True)
@the_consumer
def forget(context: CommandContext, topic: Topic, consumer: str) -> Done:
    """Drops a consumer's cursor, so that nothing waits for it."""
    from penstock import acts

    return context.perform(acts.ForgetConsumer(topic, consumer))


# ── Appending: one event from the command line, many from lines ──


LINES_ONLY = ("events", "kind_from", "key_from", "dedup_from")
BATCH_BYTES = 4 << 20
"""The bytes of lines after which a batch is committed, however few lines there are."""


@command(
    "append",
    """penstock append orders placed '{"id": 1, "total": 9.5}' --key 1""",
    "penstock append orders --file orders.jsonl --kind placed --key-from id",
    also="create takeover",
)
@click.argument("topic", shell_complete=values.topic_names, help="the topic; it is made when it is not there")
@click.argument("words", nargs=-1, metavar="[KIND] [PAYLOAD]", help="kind, payload as JSON; - or nothing reads lines")
@click.option("--kind", help="the events' kind, if not `message`")
@click.option("--key", help="the entity the event belongs to")
@click.option("--scope", help="the events' scope")
@values.the_headers
@click.option("--dedup", help="append once only: a second event with this key gets the first one's receipt")
@click.option("--cause", metavar="ID", help="the id of the event that caused this one")
@click.option("--correlation", metavar="ID", help="what the whole chain has in common")
@click.option("--expect", type=values.position, help="refuse unless the entity's newest event is at this position")
@click.option("--occurred-at", type=values.moment, help="when it happened, if not now")
@click.option("--text", is_flag=True, help="the payload is text, not JSON")
@click.option("--file", type=click.Path(), help="append every line of a file of JSON Lines, with a progress bar")
@click.option("--events", is_flag=True, help="lines are whole events, as `read --json` prints them, not payloads")
@click.option("--kind-from", metavar="FIELD", help="take the kind from this field of the payload")
@click.option("--key-from", metavar="FIELD", help="take the key from this field of the payload")
@click.option("--dedup-from", metavar="FIELD", help="take the dedup key from this field (with --events: of the event)")
@click.option("--batch", type=values.count, default="1000", help="lines per commit")
def append(
    context: CommandContext,
    topic: str,
    words: tuple[str, ...],
    kind: str | None,
    file: str | None,
    text: bool,
    batch: int,
    **given: Any,
) -> None:
    """Appends events: one from the command line, many from standard input or a file.

    Without PAYLOAD and --file, every line of standard input is one payload. Many events go in batches; each batch is
    written completely or not at all, and the receipt of the last one says how far it came.
    """
    if len(words) > 2:
        raise click.UsageError(f"after the kind and the payload, what is {words[2]!r} for?")
    if len(words) == 2 and kind is not None:
        raise click.UsageError("give the kind before the payload or as --kind, not both")
    payload = words[-1] if words and words[-1] != "-" else None
    of_lines = {name: given.pop(name) for name in LINES_ONLY}
    shared = {
        **given,
        "kind": kind or (words[0] if len(words) == 2 else "message"),
        "headers": dict(given["headers"]) or None,
    }
    if payload is None:
        lines = EventLines(shared, **of_lines, text=text)
        with context.journal() as journal:
            _append_lines(context, journal.topic(topic), lines, None if file == "-" else file, batch)
        return
    if file is not None:
        raise click.UsageError("give a payload or --file, not both")
    if unfit := next((name for name in LINES_ONLY if of_lines[name]), None):
        raise click.UsageError(f"--{unfit.replace('_', '-')} is for lines from standard input or --file")
    from penstock.core.events import Draft

    draft = Draft(payload=payload if text else _one_payload(payload, words), **shared)
    with context.journal() as journal:
        context.receipt(journal.topic(topic).append_many([draft])[0], "appended")


def _one_payload(payload: str, words: tuple[str, ...]) -> Any:
    try:
        return values.json_value(payload)
    except ConfigError as error:
        if len(words) == 2:
            raise
        raise ConfigError(f"{error}; a kind goes before the payload: `append TOPIC KIND PAYLOAD`") from None


class EventLines:
    """The conversion of input lines into drafts."""

    def __init__(
        self,
        shared: dict[str, Any],
        *,
        events: bool,
        kind_from: str | None,
        key_from: str | None,
        dedup_from: str | None,
        text: bool,
    ) -> None:
        self._shared = shared
        self._whole = events
        self._text = text
        fields = {"kind": kind_from, "key": key_from, "dedup": dedup_from}
        self._fields = {name: field for name, field in fields.items() if field is not None}
        if events and (text or kind_from or key_from):
            raise click.UsageError("--events takes kinds and keys from the lines themselves")
        if shared["expect"] is not None or shared["dedup"] is not None:
            raise click.UsageError("--expect and --dedup are for one event; for many use --dedup-from")

    def batches(self, source: Iterable[bytes], size: int) -> Iterator[tuple[list[Draft], int]]:
        """Yields the drafts of one commit at a time, with the number of bytes of their lines."""
        for part in in_parts(self._drafts(source), lambda one: one[1], BATCH_BYTES, size):
            yield [draft for draft, _ in part], sum(read for _, read in part)

    def _drafts(self, source: Iterable[bytes]) -> Iterator[tuple[Draft, int]]:
        for at, line in enumerate(source, 1):
            try:
                draft = self._draft(line.strip(b"\r\n") if self._text else line.strip())
            except ValueError as error:
                raise click.UsageError(f"line {at}: {error}") from None
            if draft is not None:
                yield draft, len(line)

    def _draft(self, line: bytes) -> Draft | None:
        """Returns the draft of a line; None for an empty line."""
        from penstock.core.documents.events import draft_from_json
        from penstock.core.events import Draft

        if not line:
            return None
        if self._whole:
            draft = draft_from_json(line)
            if self._fields:
                draft.dedup = self._taken(values.json_value(line.decode()))["dedup"]
            return draft
        payload = line.decode() if self._text else values.json_value(line.decode())
        return Draft(payload=payload, **self._shared | self._taken(payload))

    def _taken(self, document: object) -> dict[str, str]:
        """Returns the fields of a line's document that a draft accepts, by their names in a draft."""
        taken = {}
        for name, field in self._fields.items():
            value = document.get(field) if isinstance(document, dict) else None
            if value is None:
                raise ConfigError(f"there is no field {field!r} to take the {name} from")
            taken[name] = value if isinstance(value, str) else str(value)
        return taken


def _append_lines(context: CommandContext, topic: Topic, lines: EventLines, file: str | None, batch: int) -> None:
    started = time.perf_counter()
    total = duplicates = 0
    last: Receipt | None = None
    with ExitStack() as stack:
        source = stack.enter_context(Path(file).open("rb")) if file is not None else context.lines("payload")
        bar = stack.enter_context(_progress(context, file))
        for drafts, size in lines.batches(source, batch):
            receipts = topic.append_many(drafts)
            total += len(receipts)
            duplicates += sum(receipt.duplicate for receipt in receipts)
            last = receipts[-1]
            if bar is not None:
                bar.update(size)
    took = time.perf_counter() - started
    if context.json:
        done = {"topic": topic.name, "appended": total - duplicates, "duplicates": duplicates}
        context.document({**done, "latest": last.seq if last else None, "seconds": round(took, 3)})
        return
    if last is None:
        context.note("nothing was appended: no line came in")
        return
    again = f", {duplicates:,} of them known before" if duplicates else ""
    context.line(f"{total:,} events{again}; the last is {topic.name}#{last.seq} ({total / max(took, 1e-9):,.0f}/s)")


def _progress(context: CommandContext, file: str | None) -> Any:
    """Returns a progress bar on the error stream, if there is a terminal and a file of known size."""
    if file is None or context.json or not context.err.isatty():
        return nullcontext()
    return click.progressbar(length=Path(file).stat().st_size, label=Path(file).name, file=context.err)
