"""What the parts of a condition are for an event: fields, comparisons, searches, functions.

`conditions` reads a text and puts it together out of these. None of them raises: what is not there is null, and what
does not compare is false.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.errors import PoisonMessage
from penstock.events import Event

Value = Callable[[Event], Any]
"""Something of a condition, for one event."""


class _Missing:
    """What is not there: null to everything but has()."""

    def __bool__(self) -> bool:
        return False


_MISSING = _Missing()


def truth(value: object) -> bool:
    """What counts as true."""
    return bool(value)


def field_at(name: str, steps: tuple[str | int, ...]) -> Value:
    """An event's field, or what lies inside it at the end of `steps`."""
    if name == "payload":
        return lambda event: _inside(_payload(event), steps)
    if name == "headers":
        return lambda event: _inside(dict(event.headers), steps)

    def field(event: Event) -> Any:
        return getattr(event, name)

    return field


def _payload(event: Event) -> Any:
    try:
        return event.payload
    except PoisonMessage:
        return _MISSING


def _inside(value: object, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return _MISSING
            value = value[step]
        else:
            if not isinstance(value, dict) or step not in value:
                return _MISSING
            value = value[step]
    return value


def _plain(value: object) -> Any:
    return None if value is _MISSING else value


def _like_with_like(left: object, right: object) -> tuple[Any, Any] | None:
    """Two values in a form that compares, or None when they do not."""
    left, right = _plain(left), _plain(right)
    if isinstance(left, datetime) and isinstance(right, str):
        right = _moment(right)
    elif isinstance(right, datetime) and isinstance(left, str):
        left = _moment(left)
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        return (left, right) if isinstance(left, bool) and isinstance(right, bool) else None
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left, right
    for kind in (str, datetime, list, dict):
        if isinstance(left, kind) and isinstance(right, kind):
            return left, right
    return None


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        return moment if moment.tzinfo else moment.astimezone()
    except (OverflowError, ValueError):  # at the edge of the years there are, no local time
        return moment.replace(tzinfo=UTC)


def same(left: object, right: object) -> bool:
    """Whether two values are equal; null equals what is not there."""
    pair = _like_with_like(left, right)
    if pair is None:
        return _plain(left) is None and _plain(right) is None
    return bool(pair[0] == pair[1])


def compared(sign: str, left: Value, right: Value) -> Value:
    """One side against the other."""
    if sign == "==":
        return lambda event: same(left(event), right(event))
    if sign == "!=":
        return lambda event: not same(left(event), right(event))

    def ordered(event: Event) -> bool:
        pair = _like_with_like(left(event), right(event))
        if pair is None or isinstance(pair[0], list | dict):
            return False
        one, other = pair
        if sign == "<":
            return bool(one < other)
        if sign == "<=":
            return bool(one <= other)
        return bool(one > other) if sign == ">" else bool(one >= other)

    return ordered


def searched(word: str, left: Value, right: Value) -> Value:
    """`contains`, `startswith` or `endswith`."""

    def search(event: Event) -> bool:
        whole, part = left(event), right(event)
        if isinstance(whole, str) and isinstance(part, str):
            if word == "startswith":
                return whole.startswith(part)
            return whole.endswith(part) if word == "endswith" else part in whole
        if word != "contains":
            return False
        if isinstance(whole, list):
            return any(same(item, part) for item in whole)
        return isinstance(whole, dict) and isinstance(part, str) and part in whole

    return search


def applied(name: str, inner: Value) -> Value:
    """`has`, `len` or `lower` of a value."""
    if name == "has":
        return lambda event: inner(event) is not _MISSING

    def length(event: Event) -> Any:
        value = inner(event)
        return len(value) if isinstance(value, str | list | dict | bytes) else None

    def lower(event: Event) -> Any:
        value = inner(event)
        return value.lower() if isinstance(value, str) else value

    return length if name == "len" else lower
