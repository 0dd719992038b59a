"""Replies: the headers with which a message asks that its outcome is kept, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.core.clock import LONGEST_SECONDS

REPLY: Final = "reply-to"
"""The topic of outcomes; behind a # the token of the outcome, where that is not the message's own id."""
KEEP: Final = "keep-result"
"""For how many seconds the outcome is kept."""
SUFFIX: Final = ".results"
"""The end of the name of a topic of outcomes."""


class WantedReply(NamedTuple):
    """The destination of a message's outcome."""

    topic: str
    token: str
    """The key of the outcome: the id that the message had when it was first pushed."""
    keep: float | None
    """Seconds for which the outcome is kept; None: as long as the topic keeps its events."""


def reply_headers(queue: str, keep: float | None) -> dict[str, str]:
    """The headers of a message of a queue whose outcome is to be kept."""
    return {REPLY: queue + SUFFIX, **({} if keep is None else {KEEP: f"{keep:g}"})}


def read_reply(headers: Mapping[str, str], id: str) -> WantedReply | None:
    """The reply that the message with this id wants; None: it wants none. Any producer may have written the headers."""
    given = headers.get(REPLY)
    if given is None:
        return None
    topic, _, token = given.partition("#")
    if not topic.endswith(SUFFIX) or topic == SUFFIX:
        return None
    return WantedReply(topic, token or id, read_keep(headers))


def read_keep(headers: Mapping[str, str]) -> float | None:
    """For how long an outcome is kept, as far as a header says so."""
    try:
        keep = float(headers.get(KEEP, ""))
    except ValueError:
        return None
    return keep if 0 < keep <= LONGEST_SECONDS else None


def keep_reply(headers: Mapping[str, str], id: str) -> dict[str, str]:
    """The headers of a message for a copy of it, which has an id of its own: the outcome stays that of this id."""
    wanted = read_reply(headers, id)
    return dict(headers) if wanted is None else {**headers, REPLY: f"{wanted.topic}#{wanted.token}"}
