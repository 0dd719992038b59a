"""The headers of a dead letter: they say why its queue gave the message up, and hold what is needed to send it back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.core.clock import from_ms
from penstock.core.events import Event
from penstock.core.model.failure import DEAD_QUEUE, Attempt, FailureText
from penstock.core.model.reply import keep_reply
from penstock.core.observe.sample import FailedMessage
from penstock.core.queue.operations.push import DeliveryOptions
from penstock.core.queue.policy import MOST_ATTEMPTS
from penstock.core.queue.state import keys
from penstock.core.queue.state.records import (
    AttemptRow,
    MessageRow,
)
from penstock.limits import ATTEMPTS_KEPT

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
"""The earlier dead-letter headers of a message that was given up again as a dead letter: a JSON list, the newest
last.
"""
HEADERS: Final = frozenset(
    (REASON, ERROR, TRACEBACK, DEAD_QUEUE, GROUP, SEQ, ID, ATTEMPTS, FIRST, LAST, TRIED, PRIORITY, BUDGET, BEFORE)
)
_NUMBER = re.compile("-?[0-9]{1,10}")
"""The pattern of a number in a header, which any producer may have written."""
_CURSOR = re.compile("(.+)#([0-9]{1,18})")
_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode
_decode_deaths = msgspec.json.Decoder(list[dict[str, str]]).decode


class DeadLetterCursor(msgspec.Struct, frozen=True):
    """The place where a list of dead letters continues: behind this position of this queue."""

    queue: str
    seq: int

    @classmethod
    def of(cls, letter: Event) -> DeadLetterCursor:
        """Returns the cursor behind a dead letter."""
        return cls(letter.topic, letter.seq)

    @classmethod
    def read(cls, text: str) -> DeadLetterCursor | None:
        """Reads what `str` wrote; None when this is no cursor."""
        found = _CURSOR.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.queue}#{self.seq}"


def dead_headers(
    event: Event, queue: str, message: MessageRow, reason: str, failure: FailureText, tried: list[AttemptRow]
) -> dict[str, str]:
    """Returns the headers with which a message goes from its queue to the dead letters; `tried`: its failed
    attempts.
    """
    found = {
        REASON: reason,
        DEAD_QUEUE: queue,
        SEQ: str(message.seq),
        ID: event.id,
        ATTEMPTS: str(message.attempts),
        ERROR: failure.error,
        TRACEBACK: failure.traceback,
        FIRST: from_ms(message.first_ms).isoformat() if message.first_ms else None,
        LAST: from_ms(message.last_ms).isoformat() if message.first_ms else None,
        TRIED: msgspec.json.encode([attempt.shown() for attempt in tried]).decode() if tried else None,
        PRIORITY: str(message.priority) if message.priority else None,
        BEFORE: deaths_before(event.headers, queue),
    }
    return {
        **original_headers(keep_reply(event.headers, event.id)),
        **{name: text for name, text in found.items() if text},
    }


def original_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers without the headers that dead-lettering added."""
    return {name: value for name, value in headers.items() if name not in HEADERS}


def former_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that a letter had in the queue that gave it up; it may already have been a letter there."""
    deaths = _former_deaths(headers)
    found = {**original_headers(headers), **(deaths.pop() if deaths else {})}
    return {**found, BEFORE: _encode(deaths)} if deaths else found


def deaths_before(headers: Mapping[str, str], queue: str) -> str | None:
    """Returns the headers of earlier deaths that the next letter keeps, if this message is a letter itself, else None.

    `queue` gives the message up now.

    A letter that moves in circles keeps only the headers of its first arrival in a queue.
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
    """Returns the priority and the retry budget that a dead letter had in its original queue."""
    priority = _number(event.headers.get(PRIORITY, ""), keys.LOWEST_PRIORITY, keys.HIGHEST_PRIORITY)
    return DeliveryOptions(priority or 0, max_attempts=_number(event.headers.get(BUDGET, ""), 1, MOST_ATTEMPTS))


def _number(text: str, least: int, most: int) -> int | None:
    """Returns the number in a header; None for anything but a number within these bounds."""
    number = int(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and least <= number <= most else None


def origin(event: Event) -> str | None:
    """Returns the queue that a dead letter comes from, or None for any other message."""
    return event.headers.get(DEAD_QUEUE)


def letter(event: Event) -> FailedMessage:
    """Returns a dead letter with the facts in its headers.

    Any producer may push such headers, so unreadable headers are left out.
    """
    headers = event.headers
    return FailedMessage(
        event,
        headers.get(DEAD_QUEUE, ""),
        _count(headers.get(ATTEMPTS, "")),
        headers.get(REASON, ""),
        headers.get(ERROR),
        _time(headers.get(LAST, "")),
        headers.get(TRACEBACK),
        _attempts(headers.get(TRIED, "")),
    )


def _attempts(text: str) -> list[Attempt]:
    try:
        return _decode_attempts(text)[:ATTEMPTS_KEPT] if text else []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
