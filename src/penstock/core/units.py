"""Durations, times and sizes as people write them (90s, 1h30m, 2024-05-01, 64MiB), things counted by size, and errors
that are alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from penstock.core.clock import parse_duration
from penstock.errors import ConfigError

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""A function that is called with the number of completed items and the number of all items."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[KMGT]i?)?B?)", re.IGNORECASE)
_SIZES = {"": 1} | {
    f"{unit}{i}": base**power for power, unit in enumerate("KMGT", 1) for base, i in ((1000, ""), (1024, "I"))
}


def in_parts(
    items: Iterable[T], size: Callable[[T], int], most_bytes: int, most_items: int | None = None
) -> Iterator[list[T]]:
    """Yields items in lists, each of which ends once it holds `most_bytes` bytes or `most_items` items."""
    part: list[T] = []
    total = 0
    for item in items:
        part.append(item)
        total += size(item)
        if total >= most_bytes or len(part) == most_items:
            yield part
            part, total = [], 0
    if part:
        yield part


def parse_moment(text: str, now: datetime) -> datetime:
    """Returns the moment of an ISO time (local unless it has a zone), of `now` or `today`, or of a duration before
    now.
    """
    plain = text.strip()
    if plain == "now":
        return now
    if plain == "today":
        return now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        try:
            return now - timedelta(seconds=parse_duration(plain))
        except ConfigError:
            raise ConfigError(
                f"{text!r} is no time: write 2024-05-01, 2024-05-01T12:30:00Z, today, or how long ago: 15m, 1h, 7d"
            ) from None
    try:
        return moment if moment.tzinfo else moment.astimezone()
    except (OverflowError, ValueError):
        raise ConfigError(f"{text!r} is no time that can be used: it is too far away") from None


def parse_size(text: str) -> int:
    """Returns the bytes in a text such as 1000, 64KiB, 2MB or 1.5G."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no size: write 1000, 64KiB, 2MB, 1.5GiB")
    try:
        return int(float(match[1]) * _SIZES[match[2].upper().removesuffix("B")])
    except OverflowError:
        raise ConfigError(f"{text[:40]!r}… is no size that can be used: it is too large") from None


def pluralize(count: int, one: str) -> str:
    """Returns a number with its noun: 1 message, 12 messages."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def show_duration(seconds: float | None) -> str:
    """Returns a duration in about two digits, for people: 3 ms, 12 s, 4 min, 2.5 h, 3 d."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{_two_figures(seconds / divisor)} {unit}"
    return f"{_two_figures(seconds / 86400)} d"


def show_past(seconds: float) -> str:
    """Returns how long ago a moment was, in words."""
    return "just now" if seconds < 1 else f"{show_duration(seconds)} ago"


def _two_figures(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def write_duration(seconds: float) -> str:
    """Returns a duration that `parse_duration` reads back without loss: 250ms, 90s, 5m, 1h30m, 7d."""
    left = round(seconds * 1000)
    if left == 0:
        return "0s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def write_size(count: int) -> str:
    """Returns bytes that `parse_size` reads back without loss: 1000, 64KiB, 2GiB."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def show_size(count: int) -> str:
    """Returns bytes as people read them: 712 B, 64.0 KiB, 1.2 GiB."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            return f"{size:.1f} {unit}"
    raise AssertionError("unreachable")


def show_moment(moment: datetime) -> str:
    """Returns a time in the reader's own zone; the date is left out when it is today's."""
    try:
        local = moment.astimezone()
    except (OverflowError, ValueError):  # no local time exists at the limits of the calendar
        local = moment
    today = datetime.now(UTC).astimezone().date()
    spelled = local.strftime("%H:%M:%S.%f")[:-3]
    return spelled if local.date() == today else f"{local:%Y-%m-%d} {spelled}"


_VARYING = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b|\d+", re.IGNORECASE)
GROUP_LENGTH = 200
"""Characters of an error that tell its group."""


def error_group(error: str | None) -> str:
    """Returns what errors of one cause have in common: the first line, with # for numbers and ids."""
    return _VARYING.sub("#", (error or "").partition("\n")[0][:GROUP_LENGTH])
