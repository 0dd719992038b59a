"""How far a long command is."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.cli.context import CommandContext

_BAR = 30


class ProgressBar:
    """A bar on the error stream where that is a terminal; else a line for every tenth and every minute.

    Called with how many of how many events (or `unit`) are done.
    """

    def __init__(self, context: CommandContext, done: str, *, unit: str = "events") -> None:
        self._unit = unit
        self._context = context
        self._done = done
        self._terminal = context.err.isatty()
        self._told = 0.0
        self._at = datetime.now(UTC)
        self._open = False

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, done: int, total: int) -> None:
        share = done / total if total else 1.0
        text = f"{done:,} of {total:,} {self._unit} {self._done}"
        if self._terminal:
            self._context.err.write(f"\r{'━' * int(share * _BAR):{_BAR}} {text}")
            self._context.err.flush()
            self._open = True
            return
        now = datetime.now(UTC)
        if share - self._told >= 0.1 or (now - self._at).total_seconds() >= 60:
            self._context.note(text)
            self._told, self._at = share, now

    def __exit__(self, *_: object) -> None:
        if self._open:
            self._context.err.write("\n")
