"""Cron lines of five fields: when is the next tick?

    minute hour day-of-month month day-of-week

Each field is `*`, a number, a name (jan, mon), a range (`9-17`), a list (`1,15`), or one of these with a step (`*/5`,
`9-17/2`). Sunday is 0 or 7. When both day fields are restricted, a day that fits either counts, as cron has it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from penstock.errors import ConfigError

_MONTHS = {
    name: at + 1
    for at, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split())  # noqa: SIM905
}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_HORIZON = timedelta(days=366 * 9)
"""29 February comes at least every eight years; a line without a tick for longer never has one."""

_SHIFT = timedelta(hours=3)
"""More than any zone's clocks go back at once."""


class Cron:
    """A cron line in a time zone."""

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        self.line = " ".join(line.split())
        self._zone = find_zone(timezone)
        fields = _SHORTHANDS.get(self.line.lower(), self.line).split()
        if len(fields) != len(_FIELDS):
            raise ConfigError(
                f"a cron line has five fields (minute hour day-of-month month day-of-week), not {len(fields)}: {line!r}"
            )
        sets = [_read(text, *spec, line) for text, spec in zip(fields, _FIELDS, strict=True)]
        self._minutes, self._hours, self._days, self._months = (sorted(found) for found in sets[:4])
        self._weekdays = {day % 7 for day in sets[4]}
        self._any_day, self._any_weekday = fields[2].startswith("*"), fields[4].startswith("*")
        self._every_hour = len(self._hours) == 24
        if self._next_local(datetime(2000, 1, 1)) is None:
            raise ConfigError(f"cron line {line!r} never comes true: no month has such a day")

    def next(self, after: datetime) -> datetime:
        """The first tick after a time, in UTC.

        When clocks go back an hour comes twice: what runs every hour runs in both, what names its hour runs once.
        """
        naive = after.astimezone(self._zone).replace(tzinfo=None, fold=0)
        best: datetime | None = None
        found = self._next_local(naive - _SHIFT if self._every_hour else naive)
        while found is not None:
            for fold in (0, 1) if self._every_hour else (0,):
                moment = found.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
                if moment > after and (best is None or moment < best):
                    best = moment
            if best is not None and (not self._every_hour or found > naive + _SHIFT):
                return best
            found = self._next_local(found)
        raise ConfigError(f"cron line {self.line!r} has no tick after {after.isoformat()}")

    def _next_local(self, after: datetime) -> datetime | None:
        """The next local time after one, clocks that go forward and back aside."""
        at = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
        end = after + _HORIZON
        while at < end:
            if at.month not in self._months:
                year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
                at = datetime(year, month, 1)
            elif not self._fits(at):
                at = datetime(at.year, at.month, at.day) + timedelta(days=1)
            elif at.hour not in self._hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self._minutes:
                at += timedelta(minutes=1)
            else:
                return at
        return None

    def _fits(self, at: datetime) -> bool:
        day = at.day in self._days
        weekday = (at.weekday() + 1) % 7 in self._weekdays
        if self._any_day or self._any_weekday:
            return day and weekday
        return day or weekday


def find_zone(name: str) -> tzinfo:
    """A time zone by name; UTC needs no database."""
    if name == "UTC":
        return UTC
    # Here: it brings the interpreter's build configuration along, which every start would pay for.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ConfigError(f"{name!r} is not a time zone this machine knows, such as 'Europe/Berlin'") from error


def _read(text: str, what: str, low: int, high: int, names: dict[str, int], line: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, what, 1, high or 1, {}, line) if slash else 1
        if span == "*":
            first, last = low, high
        else:
            start, dash, end = span.partition("-")
            first = _number(start, what, low, high, names, line)
            last = _number(end, what, low, high, names, line) if dash else high if slash else first
            if last < first:
                raise ConfigError(f"the {what} range {span!r} of cron line {line!r} goes backwards")
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, what: str, low: int, high: int, names: dict[str, int], line: str) -> int:
    value = names.get(text.lower())
    if value is None and text.isascii() and text.isdigit():
        value = int(text)
    if value is None or not low <= value <= high:
        raise ConfigError(f"{text!r} is no {what} from {low} to {high} in cron line {line!r}")
    return value
