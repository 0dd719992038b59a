"""Given-up messages, grouped by their errors; errors that differ only in numbers are the same error."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from penstock.core.observe.sample import FailedMessage
from penstock.core.units import GROUP_LENGTH, error_group


class ErrorGroup(msgspec.Struct):
    """Messages that were given up for similar errors."""

    error: str
    count: int
    since: datetime | None
    last: datetime | None
    where: str
    """The condition that chooses these messages."""


def by_error(found: Iterable[FailedMessage]) -> list[ErrorGroup]:
    """Groups messages by their errors, the most frequent error first."""
    groups: dict[str, ErrorGroup] = {}
    for one in found:
        name, error = error_group(one.error), (one.error or one.reason).partition("\n")[0][:GROUP_LENGTH]
        group = groups.setdefault(name, ErrorGroup(error, 0, one.at, one.at, f"error_group = {quoted(name)}"))
        if error != group.error:
            group.error = name  # they differ in numbers
        group.count += 1
        if one.at is not None:
            group.since = min(group.since or one.at, one.at)
            group.last = max(group.last or one.at, one.at)
    return sorted(groups.values(), key=lambda group: -group.count)


def quoted(text: str) -> str:
    """Returns a text in the notation of conditions."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
