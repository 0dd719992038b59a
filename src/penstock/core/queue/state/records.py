"""The records that queues store: the queue, its groups, leases, failed attempts, consumers, and messages that have a
row."""

from __future__ import annotations

import os
import struct
from base64 import b32decode, b32encode
from typing import Final

import msgspec

from penstock.core.clock import from_ms, set_back
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


class Lease(msgspec.Struct, array_like=True):
    """A take: a run of positions, or a list of messages, handed to one consumer until a deadline."""

    secret: bytes
    delivered_ms: int
    deadline: int
    start: StoredPosition
    count: int
    label: str
    consumer: str | None = None
    settled: bytes = b""
    """A bit for every message of the lease that is no longer held by it."""
    messages: list[MessageRow] | None = None
    extended: dict[int, tuple[int, int]] | None = None
    """Messages with another deadline than the lease's: deadline and the time of the extension."""
    owner: str | None = None
    """Who must be alive for an endless lease to hold."""
    renewed_ms: int = 0
    """The time when the whole lease was last extended."""

    def set_back(self, now: int) -> None:
        """Follows a clock that was set back: nothing of the lease began later than now, or lasts longer than before."""
        self.deadline = _deadline(self.renewed_ms or self.delivered_ms, self.deadline, now)
        self.renewed_ms, self.delivered_ms = min(self.renewed_ms, now), min(self.delivered_ms, now)
        if self.extended:
            extended = self.extended.items()
            self.extended = {index: (_deadline(at, until, now), min(at, now)) for index, (until, at) in extended}

    def message(self, index: int) -> MessageRow:
        """Returns the lease's record of one of its messages."""
        if self.messages is not None:
            return self.messages[index]
        return MessageRow(self.start + index, READY, 1, first_ms=self.delivered_ms, last_ms=self.delivered_ms)

    def seq(self, index: int) -> int:
        return self.start + index if self.messages is None else self.messages[index].seq

    def stretches(self) -> list[tuple[int, int, int]]:
        """Returns the stretches of a list whose messages are neighbours: the index of the first, and from where to
        where they lie."""
        begins: list[tuple[int, int]] = []
        following = 0
        for index, message in enumerate(self.messages or ()):
            if message.seq != following:
                begins.append((index, message.seq))
            following = message.seq + 1
        ends = [*(index for index, _ in begins[1:]), self.count]
        return [(index, first, first + end - index - 1) for (index, first), end in zip(begins, ends, strict=False)]

    def deadline_of(self, index: int) -> int:
        if self.extended is not None and index in self.extended:
            return self.extended[index][0]
        return self.deadline

    def deadlines(self) -> list[int]:
        """The deadlines of what the lease still holds, those that end."""
        held = self.held()
        found = {self.deadline_of(index) for index in held} if self.extended else {self.deadline} if held else set()
        return [deadline for deadline in found if deadline != NEVER]

    def touched_ms(self, index: int) -> int:
        """Returns the time when the message was delivered or last extended."""
        if self.extended is not None and index in self.extended:
            return self.extended[index][1]
        return self.renewed_ms or self.delivered_ms

    def holds(self, index: int) -> bool:
        """Returns True if the message is still held by this lease."""
        if not 0 <= index < self.count:
            return False
        byte = index >> 3
        return byte >= len(self.settled) or not self.settled[byte] >> (index & 7) & 1

    def held_mask(self) -> int:
        """The messages still held, a bit each."""
        return (1 << self.count) - 1 & ~int.from_bytes(self.settled, "little")

    def held(self) -> list[int]:
        """The messages still held, by index."""
        return indexes_of(self.held_mask()) if self.settled else list(range(self.count))


def _deadline(since: int, deadline: int, now: int) -> int:
    return deadline if deadline == NEVER else set_back(since, deadline, now)[1]


LONGEST_LEASE = 1024
"""The most messages under one lease: settling one of them rewrites its row."""
LISTED, RUN, SINGLE = 1 << 44, 2 << 44, 3 << 44


def indexes_of(mask: int) -> list[int]:
    """The places of the bits that are set."""
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


read_queue = keys.reader(QueueRecord)
read_traits = keys.reader(Traits)
read_special = keys.reader(SpecialRow)
read_group = keys.reader(GroupRecord)
read_message = keys.reader(MessageRow)
read_lease = keys.reader(Lease)
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
read_trail = keys.reader(FailureTrail)
read_last_failure = keys.reader(LastFailure)


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


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────
try:
    from _blake2 import blake2b as blake2b  # what hashlib gives, without OpenSSL, which every start would wait for
except ImportError:
    from hashlib import blake2b as blake2b

_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_TOKEN_BODY_BYTES = 9
_TAG = 6
_SECRET = 8
_POOL = 512 * _SECRET

MAX_GROUP = (1 << 16) - 1
NUMBER_BITS, INDEX_BITS = 46, 10
"""Of a lease's number, and of a message's index in it."""


class Address(msgspec.Struct, frozen=True):
    """The address that a token names: a message of a lease of a group."""

    group: int
    lease_id: int
    index: int
    tag: bytes


_pool: list[bytes] = []


def new_secret() -> bytes:
    """Eight random bytes for a new lease; asked of the system a few hundred at a time."""
    try:
        return _pool.pop()
    except IndexError:
        fresh = os.urandom(_POOL)
        _pool.extend([fresh[at : at + _SECRET] for at in range(0, _POOL, _SECRET)])
        return os.urandom(_SECRET)


os.register_at_fork(after_in_child=_pool.clear)  # a child must not hand out its parent's secrets


def make_token(topic: int, group: int, lease_id: int, index: int, secret: bytes) -> str:
    """The token of a message of a lease."""
    body = _body(group, lease_id, index)
    tag = _tag(topic, body, secret)
    hidden = int.from_bytes(body) ^ _stream(tag)
    return b32encode(hidden.to_bytes(_TOKEN_BODY_BYTES) + tag).decode().lower()


def read_token(token: str) -> Address | None:
    """Returns the address that a token names, if it is a token; whether it still holds, `fits` says."""
    if len(token) != 24 or not _ALPHABET.issuperset(token):
        return None
    raw = b32decode(token.upper())
    tag = raw[_TOKEN_BODY_BYTES:]
    body = int.from_bytes(raw[:_TOKEN_BODY_BYTES]) ^ _stream(tag)
    lease_id = body >> INDEX_BITS & ((1 << NUMBER_BITS) - 1)
    return Address(body >> NUMBER_BITS + INDEX_BITS, lease_id, body & ((1 << INDEX_BITS) - 1), tag)


def fits(topic: int, address: Address, secret: bytes) -> bool:
    """Returns True if a token was made for the lease that has this secret."""
    return _tag(topic, _body(address.group, address.lease_id, address.index), secret) == address.tag


def _body(group: int, lease_id: int, index: int) -> bytes:
    return ((group << NUMBER_BITS | lease_id) << INDEX_BITS | index).to_bytes(_TOKEN_BODY_BYTES)


def _tag(topic: int, body: bytes, secret: bytes) -> bytes:
    return blake2b(body + topic.to_bytes(4), digest_size=_TAG, key=secret).digest()


def _stream(tag: bytes) -> int:
    return int.from_bytes(blake2b(tag, digest_size=_TOKEN_BODY_BYTES, person=b"penstock").digest())
