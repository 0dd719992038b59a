"""Cron lines, as `cronsim` reads them: five fields, or six with the seconds first, in a time zone.

    [second] minute hour day-of-month month day-of-week

Debian's cron is the measure: when both day fields are restricted, a day that fits either counts; where clocks go
forward a tick that does not exist comes as soon as there is time again; where they go back it comes once, unless the
line runs every hour or every minute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from cronsim import CronSim

_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron:
    """A cron line in a time zone."""

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        self.line = " ".join(line.split())
        self._zone = find_zone(timezone)
        self._fields = _SHORTHANDS.get(self.line.lower(), self.line)
        if self._fields.startswith("@"):
            raise ConfigError(f"cron line {line!r} is none of {', '.join(_SHORTHANDS)}")
        if next(self._ticks(datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
            raise ConfigError(f"cron line {line!r} never comes true: no month has such a day")

    def next(self, after: datetime) -> datetime:
        """The first tick after a time, in UTC."""
        for tick in self._ticks(after):
            moment = tick.astimezone(UTC)
            if moment > after:  # where clocks go back, local times come twice
                return moment
        raise ConfigError(f"cron line {self.line!r} has no tick after {after.isoformat()}")

    def last(self, at: datetime) -> datetime | None:
        """The last tick at or before a time, in UTC."""
        for tick in self._ticks(at + timedelta(hours=3), reverse=True):
            moment = tick.astimezone(UTC)
            if moment <= at:
                return moment
        return None

    def _ticks(self, start: datetime, *, reverse: bool = False) -> CronSim:
        # Here: every start would pay for it, and few programs have schedules.
        from cronsim import CronSim, CronSimError

        try:
            return CronSim(self._fields, start.astimezone(self._zone), reverse)
        except CronSimError as error:
            raise ConfigError(
                f"cron line {self.line!r} cannot be read: {error}; a line has five fields (minute hour day-of-month "
                "month day-of-week), or six with the seconds first"
            ) from error


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
