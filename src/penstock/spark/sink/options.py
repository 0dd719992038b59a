"""Columns that say how a row is to be written and delivered, judged as `append` and `push` judge their arguments.

dedup          text: a row whose dedup key the topic remembers, or that repeats one of this write, is not written again
expect         a whole number: the position of the newest event of the row's key
priority       a whole number, or text: "front"                   ┐
delay          seconds from the commit on, or an interval         │ only for queues
not_before     a time                                             │
max_attempts   a whole number                                     ┘
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
import pyarrow as pa

from penstock.clock import to_ms
from penstock.errors import ConfigError
from penstock.names import check_position, check_text
from penstock.queue.options import read_delivery_options
from penstock.queue.policy import duration_ms
from penstock.queue.state.keys import FRONT

DELIVERY = ("priority", "delay", "not_before", "max_attempts")
"""What only a queue understands."""
OPTIONS = ("dedup", "expect", *DELIVERY)

_WHOLE = "a whole number"
_KINDS = {
    "dedup": "text",
    "expect": _WHOLE,
    "priority": 'a whole number, or text: "front"',
    "delay": "seconds (a number) or an interval of days to seconds",
    "not_before": "a timestamp",
    "max_attempts": _WHOLE,
}


def option_words(name: str, kind: pa.DataType) -> str | None:
    """What an option's column must be; None when it is."""
    is_number = pa.types.is_integer(kind)
    if name == "dedup":
        fits = kind == pa.string()
    elif name == "priority":
        fits = is_number or kind == pa.string()
    elif name == "delay":
        fits = is_number or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind)
    elif name == "not_before":
        fits = pa.types.is_timestamp(kind) and kind.tz is not None
    else:
        fits = is_number
    return None if fits or pa.types.is_null(kind) else _KINDS[name]


class _Now(msgspec.Struct, frozen=True):
    """The task's time: good enough to judge by; times count from the commit."""

    ms: int

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class RowWishes:
    """The options of a record batch's rows."""

    def __init__(self, given: dict[str, pa.Array], kinds: pa.Array, keys: pa.Array | None, count: int) -> None:
        self._given = {name: given[name].to_pylist() for name in OPTIONS if name in given}
        self._kinds, self._keys, self._count = kinds, keys, count

    def columns(self) -> dict[str, pa.Array]:
        """The columns that blocks are made of; ConfigError names the first row that asks for what cannot be."""
        if not self._given:
            return {}
        self._judge()
        made = {}
        for name, values in self._given.items():
            plain = [None if value is None else _plain(name, value) for value in values]
            made[name] = pa.array(plain, pa.string() if name == "dedup" else pa.int64())
        return made

    def _judge(self) -> None:
        keys = [None] * self._count if self._keys is None else self._keys.to_pylist()
        now, known = _Now(time.time_ns() // 1_000_000), set()
        for row, (dedup, expect, *delivery) in enumerate(self._rows()):
            key = keys[row]
            asked = (key is None, *delivery)
            try:
                if dedup is not None:
                    check_text(dedup, "dedup")
                if expect is not None:
                    check_position(expect, "expect")
                    if key is None:
                        raise ConfigError("expect= needs key=: it is the position of the entity's newest event")
                if asked not in known:
                    _judge_delivery(now, key, *delivery)
                    known.add(asked)
            except ConfigError as error:
                said = f"a row of kind {self._kinds[row].as_py()!r}" + ("" if key is None else f" with key {key!r}")
                raise ConfigError(f"{error} ({said})") from None

    def _rows(self) -> Iterator[Sequence[Any]]:
        none = [None] * self._count
        return zip(*(self._given.get(name, none) for name in OPTIONS), strict=True)


def _judge_delivery(
    now: _Now,
    key: str | None,
    priority: int | Literal["front"] | None,
    delay: object,
    not_before: datetime | None,
    max_attempts: int | None,
) -> None:
    rank = 0 if priority is None else priority
    read_delivery_options(now, key, rank, 0 if delay is None else _seconds(delay), not_before, max_attempts)


def _seconds(delay: Any) -> float | timedelta:
    return delay if isinstance(delay, timedelta | int | float) else float(delay)  # a Decimal is no number to a push


def _plain(name: str, value: Any) -> Any:
    """An option as it travels: text, whole numbers, milliseconds."""
    match name:
        case "priority":
            return FRONT if value == "front" else value
        case "delay":
            return duration_ms(_seconds(value), "delay")
        case "not_before":
            return to_ms(value, "not_before")
        case _:
            return value
