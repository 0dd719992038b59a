"""The events of a queue's feed: what becomes of each of its messages."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.core.journal.blocks import Columns
from penstock.core.journal.commit import Commit
from penstock.core.model.failure import cut_middle
from penstock.core.queue.policy import FEED
from penstock.limits import MAX_ATTEMPT_ERROR_BYTES

Kind = Literal[
    "pushed", "delivered", "acked", "failed", "released", "retried", "dead", "expired", "redriven", "moved",
    "discarded", "purged",
]  # fmt: skip


class Change(msgspec.Struct, frozen=True):
    """A change of a message's state: every function that ends a lease or removes a message takes one."""

    kind: Kind
    reason: str | None = None
    error: str | None = None
    to: str | None = None
    """The queue it goes to."""


ACKED: Final = Change("acked")
DELIVERED: Final = Change("delivered")
TOLD_TOGETHER: Final = None
"""In the place of a change: the feed is told of many messages at once."""

_encode = msgspec.json.Encoder().encode


class FeedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an event of a feed; what does not apply is left out."""

    seq: int
    """The message's position; of a purge, up to where no message is left."""
    group: str | None = None
    attempt: int = 0
    consumer: str | None = None
    reason: str | None = None
    error: str | None = None
    to: str | None = None
    """The queue it went to."""


class QueueFeed:
    """Gathers what one commit does to a queue's messages, and appends it when the commit is written.

    An exclusive fence lets takes and acks through, so it lets these events through. A commit that fails drops the
    queue's cached state, and what is gathered here with it.
    """

    __slots__ = ("_kinds", "_payloads", "_positions", "topic")

    def __init__(self, queue: str) -> None:
        self.topic = queue + FEED
        self._kinds: list[str] = []
        self._positions: list[str | None] = []
        self._payloads: list[bytes] = []

    def note(
        self,
        commit: Commit,
        change: Change,
        seq: int,
        group: str | None = None,
        attempt: int = 0,
        consumer: str | None = None,
    ) -> None:
        """Adds what happened to one message, or, purged, to all up to a position."""
        error = None if change.error is None else cut_middle(change.error, MAX_ATTEMPT_ERROR_BYTES)
        commit.touch(self)
        self._kinds.append(change.kind)
        self._positions.append(None if change.kind == "purged" else str(seq))
        entry = FeedEntry(seq, group or None, attempt, consumer, change.reason, error, change.to)
        self._payloads.append(_encode(entry))

    def save(self, commit: Commit) -> None:
        """Appends what was gathered; see `Commit.touch`."""
        columns = Columns(self._kinds, self._payloads, None, self._positions)
        commit.add(commit.additions.get(self.topic) or commit.begin(self.topic), columns, sum(map(len, self._payloads)))
        self._kinds, self._positions, self._payloads = [], [], []
