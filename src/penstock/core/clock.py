"""Time as an injectable value: wall-clock milliseconds for records, monotonic seconds for waiting."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

from penstock.errors import ConfigError

Duration = float | str | timedelta
"""A length of time: seconds, text ("30s", "5m", "1h30m", "7d"), or a timedelta."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""The largest milliseconds since 1970 that a datetime can hold."""


@runtime_checkable
class Clock(Protocol):
    """The clock that penstock needs. Give your own clock to `penstock.open(clock=…)` in tests."""

    def now_ms(self) -> int:
        """Returns the wall-clock milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never go back, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's own time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def check_clock(clock: Clock | None) -> Clock:
    """Returns a clock that was given, or the machine's own."""
    if clock is not None and not isinstance(clock, Clock):
        raise ConfigError(f"a clock has now_ms() and monotonic(), as penstock.ManualClock has; {clock!r:.80} has not")
    return clock or SystemClock()


class ManualClock:
    """A clock that moves only when told to: for tests of leases, delays, retention and schedules.

    >>> clock = ManualClock()
    >>> clock.advance(30)
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        if not isinstance(start_ms, int) or not FIRST_MS <= start_ms <= LAST_MS:
            raise ConfigError(f"start_ms must be milliseconds since 1970, in the years 1 to 9999, not {start_ms!r:.80}")
        self._ms = start_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: Duration) -> None:
        """Moves both times forward (or, with a negative value, the wall clock alone back)."""
        step = seconds(by, "by", minimum=None)
        self._ms += round(step * 1000)
        self._monotonic += max(step, 0.0)


LONGEST_SECONDS = 100 * 365 * 86_400.0
"""The longest duration that can be added to a time."""


_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_duration(text: str) -> float:
    """Returns the seconds in a text such as 90, 90s, 1.5h, 1h30m or 250ms."""
    plain = text.strip().lower().replace(" ", "")
    try:
        seconds = float(plain)
    except ValueError:
        parts = _PART.findall(plain)
        if not parts or "".join(number + unit for number, unit in parts) != plain:
            raise ConfigError(f"{text!r} is no duration: write 90s, 15m, 1h30m, 7d") from None
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 <= seconds < 1e10:
        raise ConfigError(f"{text!r} is no duration that can be used: it must not be negative, nor centuries")
    return seconds


def seconds(value: Duration, name: str, *, minimum: float | None = 0.0) -> float:
    """Returns a duration as float seconds; raises ConfigError when the value is no duration, or too small."""
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        try:
            result = parse_duration(value)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value) if abs(value) <= LONGEST_SECONDS else math.inf
    else:
        raise ConfigError(f"{name} must be seconds, text like '30s' or '1h30m', or a timedelta, not {value!r:.80}")
    if not abs(result) <= LONGEST_SECONDS:
        raise ConfigError(f"{name} must be a number of seconds, of a hundred years at most, not {value!r:.80}")
    if minimum is not None and result < minimum:
        raise ConfigError(f"{name} must be at least {minimum:g} seconds, not {value!r}")
    return result


def set_back(since_ms: int, until_ms: int, now_ms: int) -> tuple[int, int]:
    """Returns the beginning and the end of a stored span of time, which begins no later than now.

    When the clock was set back before the beginning of a span, beginning and end move back, so that the span lasts no
    longer than intended. The caller must store the new span, because it begins at the moment of this call.
    """
    back = max(0, since_ms - now_ms)
    return since_ms - back, until_ms - back


def to_ms(moment: datetime, name: str) -> int:
    """Returns an aware datetime as milliseconds since 1970; ConfigError when it has no time zone."""
    if not isinstance(moment, datetime):
        raise ConfigError(f"{name} must be a datetime, not {moment!r}")
    if moment.tzinfo is None:
        raise ConfigError(f"{name} must be an aware datetime (with a time zone), not {moment!r}")
    ms = (moment - _EPOCH) // _MILLISECOND
    if not FIRST_MS <= ms <= LAST_MS:
        raise ConfigError(f"{name} must be in the years 1 to 9999 of UTC, not {moment!r}")
    return ms


def from_ms(ms: int) -> datetime:
    """Milliseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)
