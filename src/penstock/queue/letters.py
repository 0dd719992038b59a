"""What a dead letter's headers say: why it was given up, where, and what it was before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.events import Event
from penstock.queue.options import DeliveryOptions
from penstock.queue.policy import MOST_ATTEMPTS
from penstock.queue.state import keys
from penstock.surface.failure import DEAD_QUEUE

REASON: Final = "dead-reason"
ERROR: Final = "dead-error"
TRACEBACK: Final = "dead-traceback"
GROUP: Final = "dead-group"
SEQ: Final = "dead-seq"
ID: Final = "dead-id"
ATTEMPTS: Final = "dead-attempts"
FIRST: Final = "dead-first-delivered-at"
LAST: Final = "dead-last-delivered-at"
TRIED: Final = "dead-failed-attempts"
PRIORITY: Final = "dead-priority"
BUDGET: Final = "dead-max-attempts"
BEFORE: Final = "dead-before"
"""Of a letter that was given up as a letter: these headers as they were, a JSON list, the last time last."""
HEADERS: Final = frozenset(
    (REASON, ERROR, TRACEBACK, DEAD_QUEUE, GROUP, SEQ, ID, ATTEMPTS, FIRST, LAST, TRIED, PRIORITY, BUDGET, BEFORE)
)
_NUMBER = re.compile("-?[0-9]{1,10}")
"""Headers are text that any producer may have written."""
_PLACE = re.compile("(.+)#([0-9]{1,18})")
_decode_deaths = msgspec.json.Decoder(list[dict[str, str]]).decode


class DeadLetterCursor(msgspec.Struct, frozen=True):
    """Where a list of dead letters goes on: behind this position of this queue."""

    queue: str
    seq: int

    @classmethod
    def of(cls, letter: Event) -> DeadLetterCursor:
        """The place of a dead letter."""
        return cls(letter.topic, letter.seq)

    @classmethod
    def read(cls, text: str) -> DeadLetterCursor | None:
        """The place that `str` wrote; None when this is none."""
        found = _PLACE.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.queue}#{self.seq}"


def original_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without those that dead-lettering added."""
    return {name: value for name, value in headers.items() if name not in HEADERS}


def former_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a letter had in the queue that gave it up; it may have been one there already."""
    deaths = _former_deaths(headers)
    found = {**original_headers(headers), **(deaths.pop() if deaths else {})}
    return {**found, BEFORE: _encode(deaths)} if deaths else found


def deaths_before(headers: Mapping[str, str], queue: str) -> str | None:
    """What the next letter keeps of this message, if it is one itself; None: it is none. `queue` gives it up now.

    Of a letter that goes round in circles, only how it came to the queue the first time.
    """
    if DEAD_QUEUE not in headers:
        return None
    own = {name: value for name, value in headers.items() if name in HEADERS and name != BEFORE}
    deaths = [*_former_deaths(headers), own]
    names = [death.get(DEAD_QUEUE) for death in deaths]
    kept = deaths[: names.index(queue)] if queue in names else deaths
    return _encode(kept) if kept else None


def _former_deaths(headers: Mapping[str, str]) -> list[dict[str, str]]:
    try:
        deaths = _decode_deaths(headers.get(BEFORE, "[]"))
    except msgspec.DecodeError:
        return []
    return [{name: value for name, value in death.items() if name in HEADERS} for death in deaths]


def _encode(deaths: list[dict[str, str]]) -> str:
    return msgspec.json.encode(deaths).decode()


def original_options(event: Event) -> DeliveryOptions:
    """The priority and the retry budget that a dead letter had when it was alive."""
    priority = _number(event.headers.get(PRIORITY, ""), keys.LOWEST_PRIORITY, keys.HIGHEST_PRIORITY)
    return DeliveryOptions(priority or 0, max_attempts=_number(event.headers.get(BUDGET, ""), 1, MOST_ATTEMPTS))


def _number(text: str, least: int, most: int) -> int | None:
    """What a header says; None when that is no number within these bounds."""
    number = int(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and least <= number <= most else None


def origin(event: Event) -> str | None:
    """The queue a dead letter comes from, or None when it is none."""
    return event.headers.get(DEAD_QUEUE)
