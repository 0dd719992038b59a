"""What every command is given: where the journal is, how to show results, whom to ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from penstock.cli.failure import Nothing, did_you_mean
from penstock.cli.output import colored, event_line, paint, pairs, raw_payload, table

if TYPE_CHECKING:
    from penstock.events import Event, Receipt
    from penstock.surface.journal import Journal
    from penstock.surface.queue import Queue
    from penstock.surface.topic import Topic


class CommandContext:
    """One run of a command: `journal()`, and ways to say something."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.token: str | None = None
        self.takeover = False
        self.create = False
        self.json = False
        self.out: TextIO = sys.stdout
        self.err: TextIO = sys.stderr
        self.input: TextIO = sys.stdin

    @property
    def color(self) -> bool:
        """Whether results are shown in colour."""
        return not self.json and colored(self.out)

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def journal(self, *, read_only: bool = False, standby: bool = False) -> Iterator[Journal]:
        """The journal the command is about, closed at the end. Only --create makes one that is not there.

        `standby` waits for as long as another process writes a journal in an object store. At a terminal it says which
        journal it is.
        """
        from penstock.api import is_served, open
        from penstock.errors import NoStore

        takeover = self.takeover and not read_only
        try:
            if not read_only and not self.create and not is_served(self.place) and not self.place.startswith("memory:"):
                open(self.place, read_only=True).close()
            opened = open(self.place, read_only=read_only, token=self.token, takeover=takeover, standby=standby)
        except NoStore:
            ctx = click.get_current_context(silent=True)  # none while a shell completes names
            creates = ctx is not None and any(one.name == "create" for one in ctx.command.params)
            how = "--create makes one" if creates else "is --url right? `penstock append --create` makes one"
            raise NoStore(f"there is no journal at {self.shown_place}; {how}") from None
        try:
            if self.err.isatty() and not self.json:
                self.note(paint(self.shown_place, "dim", on=colored(self.err)))
            yield opened
        finally:
            opened.close()

    @property
    def place(self) -> str:
        """Where the journal is that the command is about, whether it is there or not."""
        from penstock.limits import DEFAULT_URL

        return self.url or os.environ.get("PENSTOCK_URL", "").strip() or DEFAULT_URL

    @property
    def shown_place(self) -> str:
        """The same for people: a path from the root, a url without its secrets."""
        from penstock.names import shown_url

        return shown_url(self.place) if ":" in self.place else str(Path(self.place).absolute())

    def existing_topic(self, journal: Journal, name: str) -> Topic:
        """A topic that is there; Nothing when it is not."""
        topic = journal.topic(name)
        if topic.latest == 0 and name not in journal.topics():
            raise Nothing(f"there is no topic {name!r} in {self.shown_place}{did_you_mean(name, journal.topics())}")
        return topic

    def existing_queue(self, journal: Journal, name: str) -> Queue:
        """A queue that is there, or that --create makes; Nothing when it is not."""
        from penstock.errors import UnknownQueue

        try:
            return journal.queue(name, create=self.create)
        except UnknownQueue:
            meant = did_you_mean(name, journal.queues()) or "; `penstock push` or `penstock configure` makes one"
            raise Nothing(f"there is no queue {name!r} in {self.shown_place}{meant}") from None

    # ── saying something ─────────────────────────────────────────────────────────────────────────────────────────────
    def line(self, text: str, style: str | None = None) -> None:
        """A line for people; nothing with --json."""
        if not self.json:
            self.out.write((paint(text, style, self.color) if style else text) + "\n")

    def note(self, text: str) -> None:
        """A remark beside the results, on the error stream."""
        self.err.write(text + "\n")
        self.err.flush()

    def document(self, value: object) -> None:
        """A line of JSON, for machines."""
        import msgspec

        self.out.write(msgspec.json.encode(value).decode() + "\n")

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, otherwise: str = "") -> None:
        """A table; with --json one object per row, its names the columns in lower case."""
        if self.json:
            names = [column.lower().replace(" ", "_") for column in columns]
            for row in rows:
                self.document(dict(zip(names, row, strict=True)))
            return
        text = table(columns, rows, color=self.color)
        if text:
            self.line(text)
        elif otherwise:
            self.note(f"{otherwise} ({self.shown_place})")

    def record(self, values: dict[str, object]) -> None:
        """A record, one field a line; with --json one object."""
        if self.json:
            self.document({name.replace(" ", "_"): value for name, value in values.items()})
        else:
            self.line(pairs(values, color=self.color))

    def event(self, event: Event, *, payload_only: bool = False, topic: bool = False) -> None:
        """An event on one line; with --json its document."""
        if payload_only:
            self.out.write(raw_payload(event) + "\n")
        elif self.json:
            from penstock.documents.events import event_json

            self.out.write(event_json(event).decode() + "\n")
        else:
            self.line(event_line(event, color=self.color, topic=topic))

    def receipt(self, receipt: Receipt, done: str) -> None:
        """What was written, where; `done` says how ("appended", "pushed")."""
        if self.json:
            from penstock.documents.events import receipt_document

            self.document(receipt_document(receipt))
        else:
            again = f" ({done} before: nothing new was written)" if receipt.duplicate else ""
            self.line(f"{receipt.topic}#{receipt.seq}  {receipt.id}{again}")

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def lines(self, what: str) -> Iterator[bytes]:
        """The lines of standard input, each a `what`; at a terminal it says so."""
        if self.input.isatty():
            self.note(f"reading from the keyboard, every line is a {what}; Ctrl-D ends it")
        return iter(self.input.buffer)

    def flush(self) -> None:
        self.out.flush()

    def confirm(self, question: str, yes: bool) -> None:
        """Asks before something that cannot be undone; UsageError without a terminal, or when the answer is no."""
        if yes:
            return
        if not self.input.isatty():
            raise click.UsageError(f"{question} There is no terminal to ask at: add --yes to mean it")
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        if self.input.readline().strip().lower() not in ("y", "yes"):
            raise click.UsageError("nothing was changed")
