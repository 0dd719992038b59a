"""Rates as people write them: 100/s, 10/m, 1000/h, 5/30s."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.errors import ConfigError
from penstock.units import parse_duration

MOST = 1_000_000_000
LONGEST_PERIOD = 366 * 86_400.0


class Rate(msgspec.Struct, frozen=True):
    """At most `count` in any `period_ms`."""

    count: int
    period_ms: int


@lru_cache(256)
def read_rate(text: str) -> Rate:
    """What a rate says; ConfigError when it is none."""
    number, slash, period = text.replace(" ", "").replace("_", "").partition("/")
    if not slash or not number.isascii() or not number.isdigit() or not period:
        raise ConfigError(f"{text!r} is no rate: write a number and a period, like 100/s, 10/m, 1000/h or 5/30s")
    seconds = parse_duration(period if period[0].isdigit() else f"1{period}")
    count = int(number)
    if not 1 <= count <= MOST:
        raise ConfigError(f"{text!r} is no rate that can be used: the number must be from 1 to {MOST:,}")
    if not 0.001 <= seconds <= LONGEST_PERIOD:
        raise ConfigError(f"{text!r} is no rate that can be used: the period must be from 1 ms to a year")
    return Rate(count, round(seconds * 1000))


def check_rate(value: object, name: str) -> str | None:
    """A rate as a caller gave it, in the form in which it is stored."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f'{name} must be text like "100/s", not {value!r:.80}')
    try:
        read_rate(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return value.replace(" ", "").replace("_", "")
