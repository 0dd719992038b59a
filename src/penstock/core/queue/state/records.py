"""The records that queues store: the queue, its groups, leases, failed attempts, consumers, and messages that have a
row."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

try:
    from _blake2 import blake2b as blake2b  # what hashlib gives, without OpenSSL, which every start would wait for
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
"""Above the frontier, and not marked as taken; no row says so."""
TAKEN: Final = 5
"""In a lease, or on its way from one place to another; no row says so."""


class QueueRecord(msgspec.Struct, array_like=True):
    """A queue: its policy, its topic's id, and its groups by name."""

    policy: QueuePolicy
    topic: TopicId
    created_ms: int
    groups: dict[str, int] = {}
    next_group: int = 1
    paused: dict[str, int] = {}
    """Since when nothing is handed out, by group; of the whole queue, under the empty name."""
    over_log: bool = False
    """True if the topic had a history of its own when the queue was made: a queue removes no event of a log."""
    indexed: bool = True
    """Stored, and not read."""
    purges: int = 0
    """The number of purges: under this number lie the rows of its groups, and those under others are cleared in
    passing; see `keys.purged_ranges`."""

    def is_paused(self, group: str) -> bool:
        """Returns True if a group gets nothing for now."""
        return "" in self.paused or group in self.paused


class Traits(msgspec.Struct, array_like=True):
    """The features that pushes have used so far, so that queues pay only for these features."""

    special: StoredPosition = 0
    """The highest position pushed with a delay or a priority."""
    overridden: bool = False
    """True if anything was pushed with a retry budget of its own."""
    replies: bool = False
    """True if anything was pushed that wants a reply."""
    letters: bool = False
    """True if dead letters have come."""
    notes: bool = False
    """True if a handler has kept the result of a step, or its progress."""


class SpecialRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message pushed with a delay or a priority."""

    priority: int = 0
    due: int = 0
    key: str | None = None
    """The ordering key of one that waits for others of its key to take its place."""
    since_ms: int = 0
    """The time when its delay began; 0: it waits for a moment that its pusher named."""

    def row(self, seq: int) -> MessageRow:
        """The message as an untouched one."""
        return MessageRow(seq, UNTOUCHED, 0, self.priority, self.key, self.due, since_ms=self.since_ms)


LAYOUT: Final = 1
"""Messages with a row lie by their state."""


class GroupRecord(msgspec.Struct, array_like=True):
    """The position of a group, and the number of messages in each state."""

    frontier: StoredPosition = 0
    """Every position up to here was handed out; which of them are not settled, leases and messages say."""
    absorbed: StoredPosition = 0
    """Delays and priorities of positions up to here are known to the group."""
    taken: int = 0
    """Positions above the frontier that were handed out, or wait elsewhere, already."""
    ready: int = 0
    waiting: int = 0
    held: int = 0
    failed: int = 0
    in_flight: int = 0
    leases: int = 0
    next_lease: int = 1
    """The next id of a lease with a list of messages."""
    next_due: int = 0
    """No waiting message is due before this; 0: nothing waits."""
    next_deadline: int = 0
    """No lease ends before this; 0: there is none that ends."""
    endless: int = 0
    """Leases that last as long as their owner's process."""
    layout: int = LAYOUT
    """The layout of messages with a row; `QueueState.group` refuses any but this."""
    runs: int = 0
    """Runs of messages held behind busy ordering keys that have no rows of their own; see `runs`."""
    until: int = -1
    """Of the shared group in fanout mode: it keeps the unsettled messages up to this position, which no other group
    wanted; later ones are the groups'. -1: it has all messages."""
    swept: int = 0
    """Leases up to this id were looked at for those that have ended; 0: no such look is under way."""
    swept_deadline: int = 0
    """None of these ends before this; 0: none of them ends."""
    settle_times: dict[int, int] = {}
    """The number of messages took how long from delivery to acknowledgement: under n those that took less than 2**n
    milliseconds, and at least half of that."""
    turn: int = 0
    """The turn with which a lane begins that had nothing, in a queue with fair share."""
    seen_ms: int = 0
    """The latest time at which the group was changed: none of its leases, waits and limits began later."""
    failing: int = 0
    """Attempts that failed since a message was acknowledged."""


class MessageRow(msgspec.Struct, array_like=True):
    """A message that one row stands for: it was delivered before, waits, is held, or has a priority."""

    seq: StoredPosition
    state: int = READY
    attempts: int = 0
    """Deliveries so far; in a lease, that lease's own included."""
    priority: int = 0
    key: str | None = None
    due: int = 0
    first_ms: int = 0
    """The time when it was first delivered."""
    last_ms: int = 0
    """The time when its last delivery began."""
    error: str | None = None
    """Why its last attempt failed."""
    traced: bool = False
    """True if there is a row with its failed attempts; see `trail`."""
    turn: int = 0
    """The turn with which it was handed out, in a queue with fair share: it keeps it until it is settled. 0: none."""
    lane: str | None = None
    """The lane in which it is ready and waits for its turn."""
    since_ms: int = 0
    """Since when it waits until `due`; 0: it waits for a moment that its pusher named."""


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
        """The attempt as callers see it."""
        times = from_ms(self.delivered_ms), from_ms(self.ended_ms)
        return Attempt(self.number, *times, self.ended, self.consumer, self.host, self.error)


class FailureTrail(msgspec.Struct, array_like=True, frozen=True):
    """A message's failed attempts, and where the last of them failed."""

    attempts: list[AttemptRow] = []
    """The newest, the oldest of them first."""
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
    """The time when it first took something, as the process or the server that it asks knows; 0: not known."""
    host: str


def read_presence(value: bytes) -> Presence:
    seen, since = _times.unpack_from(value)
    return Presence(seen, since, value[_times.size :].decode())


def pack_presence(presence: Presence) -> bytes:
    return _times.pack(presence.seen_ms, presence.since_ms) + presence.host.encode()
