"""The records that queues store: the queue, its groups, leases, failed attempts, consumers, and messages that have a
row."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

try:
    # the same function as in hashlib, without OpenSSL, which would slow every start
    from _blake2 import blake2b as blake2b
except ImportError:
    from hashlib import blake2b as blake2b

from penstock.core.clock import from_ms
from penstock.core.consuming.delivery import NEVER as NEVER
from penstock.core.journal.keys import StoredPosition, TopicId
from penstock.core.model.failure import Attempt, AttemptEnd
from penstock.core.queue.policy import QueuePolicy
from penstock.core.queue.state import keys

READY: Final = 0
WAITING: Final = 1
HELD: Final = 2
FAILED: Final = 3
UNTOUCHED: Final = 4
"""The state of a message above the frontier that is not marked as taken; no row holds this state."""
TAKEN: Final = 5
"""The state of a leased message, or of a message between two places; no row holds this state."""


class QueueRecord(msgspec.Struct, array_like=True):
    """A queue: its policy, its topic's id, and its groups by name."""

    policy: QueuePolicy
    topic: TopicId
    created_ms: int
    groups: dict[str, int] = {}
    next_group: int = 1
    paused: dict[str, int] = {}
    """The time since which a group is paused, by name; the empty name stands for the whole queue."""
    over_log: bool = False
    """True if the topic had its own history when the queue was made: a queue removes no event of a log."""
    indexed: bool = True
    """A stored field that is not read."""
    purges: int = 0
    """The number of purges.

    The rows of the queue's groups are under this number; rows under other numbers are cleared in the background; see
    `keys.purged_ranges`.
    """

    def is_paused(self, group: str) -> bool:
        """Returns True if a group is paused."""
        return "" in self.paused or group in self.paused


class Traits(msgspec.Struct, array_like=True):
    """The features that pushes have used so far, so that queues pay only for these features."""

    special: StoredPosition = 0
    """The highest position pushed with a delay or a priority."""
    overridden: bool = False
    """True if a message was pushed with its own retry budget."""
    replies: bool = False
    """True if a message was pushed that wants a reply."""
    letters: bool = False
    """True if the queue has received dead letters."""
    notes: bool = False
    """True if a handler has kept the result of a step, or its progress."""


class SpecialRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message pushed with a delay or a priority."""

    priority: int = 0
    due: int = 0
    key: str | None = None
    """The ordering key of a debounced message, which further pushes of its key may replace."""
    since_ms: int = 0
    """The time when the delay began; 0 when the message waits for a named moment."""

    def row(self, seq: int) -> MessageRow:
        """Returns the message as an untouched one."""
        return MessageRow(seq, UNTOUCHED, 0, self.priority, self.key, self.due, since_ms=self.since_ms)


LAYOUT: Final = 1
"""The layout in which messages with a row are stored by state."""


class GroupRecord(msgspec.Struct, array_like=True):
    """The position of a group, and the number of messages in each state."""

    frontier: StoredPosition = 0
    """The position up to which every message was handed out; leases and rows hold the unsettled messages among them."""
    absorbed: StoredPosition = 0
    """The position up to which the group has sorted in delays and priorities."""
    taken: int = 0
    """The number of positions above the frontier that were handed out, or have a row, already."""
    ready: int = 0
    waiting: int = 0
    held: int = 0
    failed: int = 0
    in_flight: int = 0
    leases: int = 0
    next_lease: int = 1
    """The next id of a lease with a list of messages."""
    next_due: int = 0
    """A time before which no waiting message is due; 0 without waiting messages."""
    next_deadline: int = 0
    """A time before which no lease ends; 0 without leases that end."""
    endless: int = 0
    """The number of leases that last as long as their owner's process."""
    layout: int = LAYOUT
    """The layout of messages with a row; `QueueState.group` refuses any but this."""
    runs: int = 0
    """The number of runs of messages behind busy ordering keys, which have no rows of their own; see `runs`."""
    until: int = -1
    """For the shared group in fanout mode: the position up to which it keeps unsettled messages that no other group
    wanted; later messages belong to the groups. -1 when it has all messages.
    """
    swept: int = 0
    """The id up to which the sweep under way has checked leases; 0 without a sweep."""
    swept_deadline: int = 0
    """A time before which none of these leases ends; 0 when none of them ends."""
    settle_times: dict[int, int] = {}
    """The number of messages by time from delivery to acknowledgement: n counts messages that took less than 2**n
    milliseconds, and at least half of this time.
    """
    turn: int = 0
    """The turn with which an empty lane begins, in a queue with fair share."""
    seen_ms: int = 0
    """The latest time at which the group was changed: none of its leases, waits and limits began later."""
    failing: int = 0
    """The number of attempts that failed since the last acknowledgement."""


class MessageRow(msgspec.Struct, array_like=True):
    """A message with a row of its own: it was delivered before, waits, is held, or has a priority."""

    seq: StoredPosition
    state: int = READY
    attempts: int = 0
    """The number of deliveries so far; for a leased message, including the lease's delivery."""
    priority: int = 0
    key: str | None = None
    due: int = 0
    first_ms: int = 0
    """The time when it was first delivered."""
    last_ms: int = 0
    """The time when its last delivery began."""
    error: str | None = None
    """The error of the last attempt."""
    traced: bool = False
    """True if a row holds the failed attempts; see `trail`."""
    turn: int = 0
    """The turn with which the message was handed out, in a queue with fair share, which it keeps until it is
    settled; 0 for none.
    """
    lane: str | None = None
    """The lane in which the ready message waits for its turn."""
    since_ms: int = 0
    """The time since which the message waits until `due`; 0 when it waits for a named moment."""


read_queue = keys.row_decoder(QueueRecord)
read_traits = keys.row_decoder(Traits)
read_special = keys.row_decoder(SpecialRow)
read_group = keys.row_decoder(GroupRecord)
read_message = keys.row_decoder(MessageRow)
encode = keys.encode


# ── failed attempts ───────────────────────────────────────────────────────────────────────────────────────────────────
class AttemptRow(msgspec.Struct, array_like=True, frozen=True):
    """A failed attempt, as it is stored."""

    number: int
    delivered_ms: int
    ended_ms: int
    ended: AttemptEnd
    consumer: str | None = None
    host: str | None = None
    error: str | None = None

    def shown(self) -> Attempt:
        """Returns the attempt as callers see it."""
        times = from_ms(self.delivered_ms), from_ms(self.ended_ms)
        return Attempt(self.number, *times, self.ended, self.consumer, self.host, self.error)


class FailureTrail(msgspec.Struct, array_like=True, frozen=True):
    """A message's failed attempts, and where the last of them failed."""

    attempts: list[AttemptRow] = []
    """The newest failed attempts, in order."""
    traceback: str | None = None

    def shown(self) -> list[Attempt]:
        return [attempt.shown() for attempt in self.attempts]


class LastFailure(msgspec.Struct, array_like=True, frozen=True):
    """A consumer's newest failed attempt, and the message it was about."""

    seq: StoredPosition
    attempt: AttemptRow


NO_TRAIL = FailureTrail()
read_trail = keys.row_decoder(FailureTrail)
read_last_failure = keys.row_decoder(LastFailure)


# ── consumers ─────────────────────────────────────────────────────────────────────────────────────────────────────────
_times = struct.Struct(">QQ")


class Presence(msgspec.Struct, frozen=True):
    """A consumer as its row has it."""

    seen_ms: int
    since_ms: int
    """The time of the consumer's first take, as far as this process or the server knows; 0 when unknown."""
    host: str


def read_presence(value: bytes) -> Presence:
    seen, since = _times.unpack_from(value)
    return Presence(seen, since, value[_times.size :].decode())


def pack_presence(presence: Presence) -> bytes:
    return _times.pack(presence.seen_ms, presence.since_ms) + presence.host.encode()
