"""Words of a command line as values: numbers, times, sizes, JSON, conditions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.units import parse_duration, parse_moment, parse_size

if TYPE_CHECKING:
    from penstock.conditions import Where

__all__ = ["count", "duration", "header", "json_value", "moment", "position", "size", "where"]

size = parse_size
duration = parse_duration


def moment(text: str) -> datetime:
    """A time: ISO, or how long ago."""
    return parse_moment(text, datetime.now(UTC))


def position(text: str) -> int:
    """A position in a topic."""
    if not text.isdigit():
        raise ValueError(f"a position is a whole number, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """How many."""
    plain = text.replace(",", "").replace("_", "")
    if not plain.isdigit():
        raise ValueError(f"a number of at least 0 was expected, not {text!r}")
    return int(plain)


def header(text: str) -> tuple[str, str]:
    """A header: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"a header is NAME=VALUE, not {text!r}")
    return name, value


def where(text: str) -> Where:
    """A condition on events."""
    from penstock.conditions import Where

    return Where(text)


def json_value(text: str) -> Any:
    """A payload as JSON."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"this is not JSON ({error}): {text[:60]!r}. A text needs quotes of its own ('\"like this\"'), or --text"
        ) from None
