"""Appending events: one from the command line, many from lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.values import count, json_value, position, the_headers, topic_names
from penstock.cli.values import time as moment
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.events import Draft, Receipt
    from penstock.surface.topic import Topic


LINES_ONLY = ("events", "kind_from", "key_from", "dedup_from")
BATCH_BYTES = 4 << 20
"""Bytes of lines after which a batch is committed, however few lines they are."""


@command(
    "append",
    """penstock append orders placed '{"id": 1, "total": 9.5}' --key 1""",
    "penstock append orders --file orders.jsonl --kind placed --key-from id",
)
@click.argument("topic", shell_complete=topic_names, help="the topic; it is made when it is not there")
@click.argument("words", nargs=-1, metavar="[KIND] [PAYLOAD]", help="kind, payload as JSON; - or nothing reads lines")
@click.option("--kind", help="the events' kind, if not `message`")
@click.option("--key", help="the entity the event belongs to")
@click.option("--scope", help="the events' scope")
@the_headers
@click.option("--dedup", help="append once only: a second event with this key gets the first one's receipt")
@click.option("--cause", metavar="ID", help="the id of the event that caused this one")
@click.option("--correlation", metavar="ID", help="what the whole chain has in common")
@click.option("--expect", type=position, help="refuse unless the entity's newest event is at this position")
@click.option("--occurred-at", type=moment, help="when it happened, if not now")
@click.option("--text", is_flag=True, help="the payload is text, not JSON")
@click.option("--file", type=click.Path(), help="append every line of a file of JSON Lines, with a progress bar")
@click.option("--events", is_flag=True, help="lines are whole events, as `read --json` prints them, not payloads")
@click.option("--kind-from", metavar="FIELD", help="take the kind from this field of the payload")
@click.option("--key-from", metavar="FIELD", help="take the key from this field of the payload")
@click.option("--dedup-from", metavar="FIELD", help="take the dedup key from this field (with --events: of the event)")
@click.option("--batch", type=count, default="1000", help="lines per commit")
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
    from penstock.events import Draft

    draft = Draft(payload=payload if text else _one_payload(payload, words), **shared)
    with context.journal() as journal:
        context.receipt(journal.topic(topic).append_many([draft])[0], "appended")


def _one_payload(payload: str, words: tuple[str, ...]) -> Any:
    try:
        return json_value(payload)
    except ConfigError as error:
        if len(words) == 2:
            raise
        raise ConfigError(f"{error}; a kind goes before the payload: `append TOPIC KIND PAYLOAD`") from None


class EventLines:
    """Turns lines of input into drafts."""

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
        """Drafts by the commit, with the bytes their lines were."""
        drafts: list[Draft] = []
        read = 0
        for number, line in enumerate(source, 1):
            read += len(line)
            try:
                draft = self._draft(line.strip(b"\r\n") if self._text else line.strip())
            except ValueError as error:
                raise click.UsageError(f"line {number}: {error}") from None
            if draft is not None:
                drafts.append(draft)
            if drafts and (len(drafts) >= size or read > BATCH_BYTES):
                yield drafts, read
                drafts, read = [], 0
        if drafts:
            yield drafts, read

    def _draft(self, line: bytes) -> Draft | None:
        """The draft of one line; None for an empty one."""
        from penstock.documents.events import draft_from_json
        from penstock.events import Draft

        if not line:
            return None
        if self._whole:
            draft = draft_from_json(line)
            if self._fields:
                draft.dedup = self._taken(json_value(line.decode()))["dedup"]
            return draft
        payload = line.decode() if self._text else json_value(line.decode())
        return Draft(payload=payload, **self._shared | self._taken(payload))

    def _taken(self, document: object) -> dict[str, str]:
        """What is taken from fields of a line's document, by the name it has in a draft."""
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
    """A progress bar on the error stream, where there is a terminal and a file of known size."""
    if file is None or context.json or not context.err.isatty():
        return nullcontext()
    return click.progressbar(length=Path(file).stat().st_size, label=Path(file).name, file=context.err)
