"""Topics: list, append, read, follow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock.cli import values
from penstock.cli.command import argument, command, flag, option
from penstock.cli.commands.topics.selection import CHOICES, Choice
from penstock.cli.context import Run
from penstock.cli.failure import Nothing, UsageError
from penstock.cli.show import event_line, event_record, pretty_payload
from penstock.document import draft_from_json, event_json, receipt_document
from penstock.errors import ConfigError
from penstock.events import Draft

if TYPE_CHECKING:
    from penstock.conditions import Where
    from penstock.events import Event, Receipt
    from penstock.surface.topic import Topic


@command(
    "topics",
    "Lists the topics with their ends and sizes",
    argument("pattern", "only topics whose name contains this", required=False),
    example=("penstock topics", "penstock topics order --json"),
)
def topics(run: Run, pattern: str | None) -> None:
    with run.journal(read_only=True) as journal:
        names = [name for name in journal.topics() if pattern is None or pattern in name]
        rows = [_topic_row(journal.topic(name)) for name in names]
    columns = ("Topic", "Events", "Oldest", "Latest", "Newest", "Consumers")
    run.rows(columns, rows, otherwise="no topics yet: `penstock append TOPIC '{…}'` makes one")


def _topic_row(topic: Topic) -> tuple[Any, ...]:
    latest = topic.latest
    newest = topic.get(latest) if latest else None
    recorded = newest.recorded_at if newest else None
    return topic.name, len(topic), topic.oldest, latest, recorded, len(topic.cursors())


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "append",
    "Appends events: one from the command line, many from standard input or a file",
    argument("topic", "the topic; it is made when it is not there"),
    argument("payload", "the payload as JSON; - (or nothing) reads JSON Lines from standard input", required=False),
    option("--kind", "the events' kind", default="message"),
    option("--key", "the entity the event belongs to"),
    option("--scope", "the events' scope"),
    option("--header", "a header", metavar="NAME=VALUE", many=True, convert=values.header),
    option("--dedup", "append once only: a second event with this key gets the first one's receipt"),
    option("--cause", "the id of the event that caused this one", metavar="ID"),
    option("--correlation", "what the whole chain has in common", metavar="ID"),
    option(
        "--expect",
        "refuse unless the entity's newest event is at this position",
        metavar="POSITION",
        convert=values.position,
    ),
    option("--occurred-at", "when it happened, if not now", metavar="TIME", convert=values.moment),
    flag("--text", "the payload is text, not JSON"),
    option(
        "--file",
        "append every line of a JSON Lines file (- for standard input), with a progress bar",
        metavar="FILE",
    ),
    flag("--events", "lines are whole events (kind, payload, key, …) as `read --json` prints them, not payloads"),
    option("--kind-from", "take the kind from this field of the payload", metavar="FIELD"),
    option("--key-from", "take the key from this field of the payload", metavar="FIELD"),
    option("--dedup-from", "take the dedup key from this field of the payload", metavar="FIELD"),
    option("--batch", "lines per commit", metavar="NUMBER", default=1000, convert=values.count),
    example=(
        """penstock append orders '{"id": 1, "total": 9.5}' --kind placed --key 1""",
        "penstock append orders --file orders.jsonl --kind placed --key-from id",
    ),
    details="""
    Without PAYLOAD and --file, every line of standard input is one payload. Many events go in batches; each batch is
    written completely or not at all, and the receipt of the last one says how far it came.
    """,
)
def append(run: Run, topic: str, payload: str | None, file: str | None, text: bool, batch: int, **given: Any) -> None:
    shared = _shared_fields(given)
    if file is not None and payload is not None:
        raise UsageError("give a payload or --file, not both")
    if file == "-":
        file = None
    if payload is not None and payload != "-":
        _refuse_line_options(given)
        value = payload if text else values.json_value(payload)
        draft = Draft(shared.pop("kind"), value, **shared)
        with run.journal() as journal:
            receipt = journal.topic(topic).append_many([draft])[0]
        _say_receipt(run, receipt)
        return
    if batch < 1:
        raise UsageError("--batch must be at least 1")
    lines = _Lines(shared, given, text=text)
    with run.journal() as journal:
        _append_lines(run, journal.topic(topic), lines, file, batch)


def _shared_fields(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": given["kind"],
        "key": given["key"],
        "scope": given["scope"],
        "headers": dict(given["header"]) or None,
        "dedup": given["dedup"],
        "cause": given["cause"],
        "correlation": given["correlation"],
        "expect": given["expect"],
        "occurred_at": given["occurred_at"],
    }


def _refuse_line_options(given: dict[str, Any]) -> None:
    for name in ("events", "kind_from", "key_from", "dedup_from"):
        if given[name]:
            raise UsageError(f"--{name.replace('_', '-')} is for lines from standard input or --file")


def _say_receipt(run: Run, receipt: Receipt) -> None:
    if run.json:
        run.document(receipt_document(receipt))
    else:
        again = " (appended before: nothing new was written)" if receipt.duplicate else ""
        run.line(f"{receipt.topic}#{receipt.seq}  {receipt.id}{again}")


class _Lines:
    """Turns lines of input into drafts."""

    def __init__(self, shared: dict[str, Any], given: dict[str, Any], *, text: bool) -> None:
        self._shared = shared
        self._whole = given["events"]
        self._text = text
        fields = {"kind": given["kind_from"], "key": given["key_from"], "dedup": given["dedup_from"]}
        self._fields = {name: field for name, field in fields.items() if field is not None}
        if self._whole and (text or self._fields):
            raise UsageError("--events takes everything from the lines themselves")
        if shared["expect"] is not None or shared["dedup"] is not None:
            raise UsageError("--expect and --dedup are for one event; for many use --dedup-from")

    def draft(self, line: bytes, number: int) -> Draft | None:
        """The draft of one line; None for an empty one."""
        line = line.strip(b"\r\n") if self._text else line.strip()
        if not line:
            return None
        try:
            if self._whole:
                return draft_from_json(line)
            payload = line.decode() if self._text else values.json_value(line.decode())
            return Draft(payload=payload, **self._fields_of(payload))
        except (ConfigError, ValueError) as error:
            raise UsageError(f"line {number}: {error}") from None

    def _fields_of(self, payload: Any) -> dict[str, Any]:
        taken = dict(self._shared)
        for name, field in self._fields.items():
            value = payload.get(field) if isinstance(payload, dict) else None
            if value is None:
                raise ConfigError(f"the payload has no field {field!r} to take the {name} from")
            taken[name] = value if isinstance(value, str) else str(value)
        return taken


def _append_lines(run: Run, topic: Topic, lines: _Lines, file: str | None, batch: int) -> None:
    started = time.perf_counter()
    total = duplicates = 0
    last: Receipt | None = None
    with _source(run, file) as source, _progress(run, file) as advance:
        for drafts, size in _batches(source, lines, batch):
            receipts = topic.append_many(drafts)
            total += len(receipts)
            duplicates += sum(receipt.duplicate for receipt in receipts)
            last = receipts[-1]
            advance(size)
    took = time.perf_counter() - started
    if run.json:
        run.document(
            {
                "topic": topic.name,
                "appended": total - duplicates,
                "duplicates": duplicates,
                "latest": last.seq if last else None,
                "seconds": round(took, 3),
            }
        )
        return
    again = f", {duplicates:,} of them known before" if duplicates else ""
    run.line(
        f"{total:,} events{again}; the last is {topic.name}#{last.seq if last else 0}"
        f" ({total / max(took, 1e-9):,.0f}/s)"
    )


def _batches(source: Iterable[bytes], lines: _Lines, batch: int) -> Iterator[tuple[list[Draft], int]]:
    drafts: list[Draft] = []
    size = 0
    for number, line in enumerate(source, 1):
        size += len(line)
        draft = lines.draft(line, number)
        if draft is not None:
            drafts.append(draft)
        if len(drafts) >= batch or size > 4 << 20:
            if drafts:
                yield drafts, size
            drafts, size = [], 0
    if drafts:
        yield drafts, size


class _source:
    """The lines of a file or of standard input."""

    def __init__(self, run: Run, file: str | None) -> None:
        self._file = file
        self._run = run
        self._opened: BinaryIO | None = None

    def __enter__(self) -> Iterable[bytes]:
        if self._file is None:
            buffer = getattr(self._run.input, "buffer", None)
            return buffer if buffer is not None else (line.encode() for line in self._run.input)
        self._opened = Path(self._file).open("rb")
        return self._opened

    def __exit__(self, *exc: object) -> None:
        if self._opened is not None:
            self._opened.close()


class _progress:
    """A progress bar on the error stream, where there is a terminal and a file of known size."""

    def __init__(self, run: Run, file: str | None) -> None:
        self._bar: Any = None
        if file is not None and run.err.isatty() and not run.json:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=Console(file=run.err),
                transient=True,
            )
            self._task = self._bar.add_task(Path(file).name, total=Path(file).stat().st_size)

    def __enter__(self) -> Any:
        if self._bar is None:
            return lambda size: None
        self._bar.start()
        return lambda size: self._bar.advance(self._task, size)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "read",
    "Shows stored events",
    argument("topic", "the topic"),
    option("--after", "start after this position", metavar="POSITION", default=0, convert=values.position),
    option("--through", "stop after this position", metavar="POSITION", convert=values.position),
    option("-n --limit", "show at most so many", metavar="NUMBER", convert=values.count),
    flag("--reverse", "newest first"),
    *CHOICES,
    flag("--payload", "print payloads only, one a line"),
    example=(
        "penstock read orders --since 1h --kind placed --where 'payload.total > 10'",
        "penstock read orders --after 1000 --limit 50 --json",
    ),
)
def read(
    run: Run,
    topic: str,
    after: int,
    through: int | None,
    limit: int | None,
    reverse: bool,
    payload: bool,
    **choice: Any,
) -> None:
    with run.journal(read_only=True) as journal:
        chosen = Choice(**choice)
        for event in chosen.read(run.existing(journal, topic), after, limit, through=through, reverse=reverse):
            _say_event(run, event, payload_only=payload)


@command(
    "tail",
    "Shows the newest events, and with -f those that come",
    argument("topic", "the topic"),
    option("-n --lines", "how many of the newest to begin with", metavar="NUMBER", convert=values.count),
    flag("-f --follow", "go on with those that come"),
    *CHOICES,
    flag("--payload", "print payloads only, one a line"),
    option("--count", "end after so many events", metavar="NUMBER", convert=values.count),
    example=(
        "penstock tail orders -f --since 1h --kind placed --where 'payload.total > 10'",
        "penstock tail orders -n 3",
    ),
    details="""
    Begins with the newest 10 events; with --since, with all since then. --until ends it there.
    """,
)
def tail(
    run: Run,
    topic: str,
    lines: int | None,
    follow: bool,
    payload: bool,
    count: int | None,
    since: datetime | None,
    until: datetime | None,
    where: Where | None,
    **choice: Any,
) -> None:
    chosen = Choice(since=since, until=until, where=where, **choice)
    if follow and until is not None:
        raise UsageError("--until ends, --follow goes on: use one of them")
    left = count
    with run.journal(read_only=True) as journal:
        # Following may begin before the topic does.
        handle = journal.topic(topic) if follow else run.existing(journal, topic)
        position = handle.latest
        for event in _newest(chosen, handle, position, lines):
            if left == 0:
                return
            _say_event(run, event, payload_only=payload)
            left = None if left is None else left - 1
        run.flush()
        if not follow or left == 0:
            return
        with handle.subscribe(position) as subscription:
            for event in subscription:
                if not chosen.wants(event):
                    continue
                _say_event(run, event, payload_only=payload)
                run.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return


def _newest(chosen: Choice, topic: Topic, through: int, lines: int | None) -> list[Event]:
    """What a tail begins with, oldest first."""
    if through == 0:
        return []
    if lines is None and chosen.since is not None:
        return list(chosen.read(topic, through=through))
    newest = list(chosen.read(topic, limit=10 if lines is None else lines, through=through, reverse=True))
    newest.reverse()
    return newest


def _say_event(run: Run, event: Event, *, payload_only: bool) -> None:
    if payload_only:
        raw = event.raw
        if not event.binary and b"\n" in raw:
            import msgspec

            raw = msgspec.json.format(raw, indent=-1)
        run.out.write(raw.decode("utf-8", "replace") + "\n")
    elif run.json:
        run.out.write(event_json(event).decode() + "\n")
    else:
        run.line(event_line(event, color=run.color))


@command(
    "show",
    "Shows one event with everything it has",
    argument("topic", "the topic"),
    argument("event", "its position, or its id"),
    example="penstock show orders 17",
)
def show(run: Run, topic: str, event: str) -> None:
    with run.journal(read_only=True) as journal:
        handle = run.existing(journal, topic)
        found = handle.get(int(event)) if event.isdigit() else handle.find(event)
        if found is None:
            raise Nothing(f"topic {topic!r} has no event {event}; it holds {handle.oldest} to {handle.latest}")
        if run.json:
            run.out.write(event_json(found).decode() + "\n")
            return
        run.record(event_record(found))
        run.line("")
        run.line(pretty_payload(found))
