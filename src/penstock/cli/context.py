"""One run of a command: where the journal is, how to show results, whom to ask."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from penstock.cli.failure import Nothing, UsageError
from penstock.cli.output import colored, paint, pairs, table

if TYPE_CHECKING:
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic


class Run:
    """What every command is given: `journal()`, and ways to say something."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        json: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
        input: TextIO | None = None,
    ) -> None:
        self.url = url
        self.token = token
        self.json = json
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.input = input or sys.stdin
        self.color = not json and colored(self.out)

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def journal(self, *, read_only: bool = False) -> Iterator[Journal]:
        """The journal the command is about, closed at the end; read-only for looking: a mistyped name makes no file."""
        from penstock.api import open

        opened = open(self.url, read_only=read_only, token=self.token)
        try:
            yield opened
        finally:
            opened.close()

    def existing(self, journal: Journal, name: str) -> Topic:
        """A topic that is there; Nothing when it is not."""
        topic = journal.topic(name)
        if topic.latest == 0 and name not in journal.topics():
            from penstock.cli.command import suggestion

            raise Nothing(f"there is no topic {name!r}{suggestion(name, journal.topics())}")
        return topic

    # ── saying something ─────────────────────────────────────────────────────────────────────────────────────────────
    def line(self, text: str, style: str | None = None) -> None:
        """A line for people; nothing with --json."""
        if not self.json:
            self.out.write((paint(text, style, self.color) if style else text) + "\n")

    def note(self, text: str) -> None:
        """A remark beside the results, on the error stream."""
        self.err.write(text + "\n")
        self.err.flush()

    def document(self, value: Any) -> None:
        """A line of JSON, for machines."""
        import msgspec

        self.out.write(msgspec.json.encode(value).decode() + "\n")

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, otherwise: str = "") -> None:
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
            self.note(otherwise)

    def record(self, values: dict[str, Any]) -> None:
        """A record, one field a line; with --json one object."""
        if self.json:
            self.document({name.replace(" ", "_"): value for name, value in values.items()})
        else:
            self.line(pairs(values, color=self.color))

    def flush(self) -> None:
        self.out.flush()

    def confirm(self, question: str, yes: bool) -> None:
        """Asks before something that cannot be undone; UsageError when nobody can answer or the answer is no."""
        if yes:
            return
        if not self.input.isatty():
            raise UsageError(f"{question} Nobody is here to be asked: add --yes to mean it")
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        if self.input.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was changed")
