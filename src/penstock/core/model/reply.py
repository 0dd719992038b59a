"""Replies: the headers with which a message asks to keep its outcome, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.core.clock import LONGEST_SECONDS

REPLY: Final = "reply-to"
"""The topic of outcomes; a # precedes the token of the outcome, if it differs from the message's own id."""
KEEP: Final = "keep-result"
"""The header with the seconds for which the outcome is kept."""
SUFFIX: Final = ".results"
"""The end of the name of a topic of outcomes."""


class WantedReply(NamedTuple):
    """The destination of a message's outcome."""

    topic: str
    token: str
    """The key of the outcome: the message's id at its first push."""
    keep: float | None
    """The seconds for which the outcome is kept; None for as long as the topic keeps its events."""


def reply_headers(queue: str, keep: float | None) -> dict[str, str]:
    """Returns the headers of a message of a queue whose outcome is kept."""
    return {REPLY: queue + SUFFIX, **({} if keep is None else {KEEP: f"{keep:g}"})}


def read_reply(headers: Mapping[str, str], id: str) -> WantedReply | None:
    """Returns the wanted reply of the message with this id; None without a wanted reply.

    Any producer may have written the headers.
    """
    given = headers.get(REPLY)
    if given is None:
        return None
    topic, _, token = given.partition("#")
    if not topic.endswith(SUFFIX) or topic == SUFFIX:
        return None
    return WantedReply(topic, token or id, read_keep(headers))


def read_keep(headers: Mapping[str, str]) -> float | None:
    """Returns for how long an outcome is kept, as far as a header says so."""
    try:
        keep = float(headers.get(KEEP, ""))
    except ValueError:
        return None
    return keep if 0 < keep <= LONGEST_SECONDS else None


def keep_reply(headers: Mapping[str, str], id: str) -> dict[str, str]:
    """Returns the headers for a copy of a message.

    The copy has an id of its own, and its outcome keeps the first id.
    """
    wanted = read_reply(headers, id)
    return dict(headers) if wanted is None else {**headers, REPLY: f"{wanted.topic}#{wanted.token}"}
