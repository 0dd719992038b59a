"""Tables, lines and JSON on a terminal, without importing anything heavy."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from penstock.core.units import show_moment, show_size
from penstock.errors import PoisonMessage

if TYPE_CHECKING:
    from penstock import Event
    from penstock.cli.command import CommandContext

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def prepare_streams() -> None:
    """Prepares the standard streams.

    A closed stream is replaced by the null device, because a store's file must not get its number. Characters that the
    output's encoding lacks are escaped as in JSON, so JSON stays valid.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    codecs.register_error("penstock-spelled", _spelled)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="penstock-spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


def colored(stream: TextIO) -> bool:
    """Returns True if a stream is a terminal that wants colour."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def paint(text: str, style: str, on: bool) -> str:
    """Returns text in a style, if colour is wanted."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if on and text else text


def safe(text: str) -> str:
    """Returns text that cannot move the cursor or change the terminal's colours: control characters are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def safe_lines(text: str) -> str:
    """Does the same for text of several lines, and keeps the line ends."""
    return "\n".join(map(safe, text.splitlines()))


def shown(value: object) -> str:
    """Returns a value as a table's cell."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, datetime):
        return show_moment(value)
    return safe(str(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, color: bool) -> str:
    """Returns columns under headings; numbers are aligned to the right, text to the left."""
    values = [list(row) for row in rows]
    cells = [[shown(value) for value in row] for row in values]
    right = [
        any(isinstance(row[at], int | float) for row in values)
        and all(row[at] is None or isinstance(row[at], int | float) for row in values)
        for at in range(len(columns))
    ]
    if not cells:
        return ""
    widths = [max(len(column), *(len(row[at]) for row in cells)) for at, column in enumerate(columns)]
    lines = [paint(_line(columns, widths, right), "bold", color)]
    lines += [_line(row, widths, right) for row in cells]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    return "  ".join(
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ).rstrip()


def pairs(values: dict[str, object], *, color: bool) -> str:
    """Returns a record, one field per line."""
    lines = [(safe(name), shown(value)) for name, value in values.items()]  # a header may have any name
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{paint(name.ljust(width), 'bold', color)}  {value}" for name, value in lines)


# ── Events ──


WIDEST_PAYLOAD = 4000
"""The maximum number of payload characters on one line. `show` and --json print the whole payload."""


def payload_text(event: Event) -> str:
    """Returns a payload on one line."""
    raw = event.raw
    if event.binary:
        return f"<{show_size(len(raw))} of bytes> {raw[:32].hex(' ')}{' …' if len(raw) > 32 else ''}"
    text = safe(raw[: WIDEST_PAYLOAD * 4].decode("utf-8", "replace").replace("\n", " "))
    return text if len(text) <= WIDEST_PAYLOAD else f"{text[:WIDEST_PAYLOAD]} … ({show_size(len(raw))})"


def event_line(event: Event, *, color: bool, topic: bool = False) -> str:
    """Returns an event on one line: position, time, kind, key, payload."""
    parts = [
        paint(f"{event.topic}#{event.seq}" if topic else f"#{event.seq}", "cyan", color),
        paint(show_moment(event.recorded_at), "dim", color),
        paint(safe(event.kind), "bold", color),
    ]
    if event.key is not None:
        parts.append(paint(f"[{safe(event.key)}]", "yellow", color))
    parts.append(paint("(erased)", "dim", color) if event.erased else payload_text(event))
    return "  ".join(parts)


def event_record(event: Event) -> dict[str, object]:
    """Returns everything about an event except its payload, by name."""
    values: dict[str, object] = {"seq": event.seq, "topic": event.topic, "kind": event.kind, "id": event.id}
    optional = {
        "key": event.key,
        "scope": event.scope,
        "correlation": event.correlation_id,
        "caused by": event.causation_id,
        "tags": ", ".join(event.tags) or None,
    }
    values |= {name: value for name, value in optional.items() if value is not None}
    values |= {"recorded": event.recorded_at, "occurred": event.occurred_at}
    values |= {f"header {name}": value for name, value in event.headers.items()}
    return values


def pretty_payload(event: Event) -> str:
    """Returns a payload in a readable layout."""
    if event.binary:
        return payload_text(event)
    import msgspec

    try:
        event.payload  # noqa: B018 - asks whether it decodes
    except PoisonMessage as error:
        return f"{error}\n{payload_text(event)}"
    text = msgspec.json.format(event.raw, indent=2).decode("utf-8", "replace")
    return "\n".join(safe(line) for line in text.splitlines())


def raw_payload(event: Event) -> str:
    """Returns a payload as it is stored, on one line."""
    raw = event.raw
    if not event.binary and b"\n" in raw:
        import msgspec

        raw = msgspec.json.format(raw, indent=-1)
    return raw.decode("utf-8", "replace")


# ── How far a long command is ──


_BAR = 30


class ProgressBar:
    """A progress bar on the error stream if that is a terminal; otherwise a line for every tenth of the work and for
    every minute.

    The caller passes the number of finished events (or `unit`) and their total number.
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
