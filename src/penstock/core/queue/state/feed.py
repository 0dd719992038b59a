"""The events of a queue's feed: the changes of its messages' states."""

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
    """A change of a message's state; every function that ends a lease or removes a message takes a change."""

    kind: Kind
    reason: str | None = None
    error: str | None = None
    to: str | None = None
    """The queue that receives the message."""


ACKED: Final = Change("acked")
DELIVERED: Final = Change("delivered")
TOLD_TOGETHER: Final = None
"""Replaces a change when the feed records many messages at once."""

_encode = msgspec.json.Encoder().encode


class FeedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an event of a feed; fields that do not apply are left out."""

    seq: int
    """The message's position; for a purge, the position up to which no message is left."""
    group: str | None = None
    attempt: int = 0
    consumer: str | None = None
    reason: str | None = None
    error: str | None = None
    to: str | None = None
    """The queue that received the message."""


class QueueFeed:
    """The changes of one commit to a queue's messages, which are appended when the commit is written.

    An exclusive fence allows takes and acks, so it allows these events too. A failed commit drops the queue's cached
    state together with these changes.
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
        """Adds a change of one message, or, for a purge, of all messages up to a position."""
        error = None if change.error is None else cut_middle(change.error, MAX_ATTEMPT_ERROR_BYTES)
        commit.touch(self)
        self._kinds.append(change.kind)
        self._positions.append(None if change.kind == "purged" else str(seq))
        entry = FeedEntry(seq, group or None, attempt, consumer, change.reason, error, change.to)
        self._payloads.append(_encode(entry))

    def save(self, commit: Commit) -> None:
        """Appends the gathered changes; see `Commit.touch`."""
        columns = Columns(self._kinds, self._payloads, None, self._positions)
        commit.add(commit.additions.get(self.topic) or commit.begin(self.topic), columns, sum(map(len, self._payloads)))
        self._kinds, self._positions, self._payloads = [], [], []
