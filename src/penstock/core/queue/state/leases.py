"""The leases of one group: the messages that consumers hold, their deadlines, and the tokens that name them."""

from __future__ import annotations

import heapq
import os
from base64 import b32decode, b32encode
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import msgspec

from penstock.core.clock import set_back
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.journal.keys import StoredPosition
from penstock.core.model.failure import AttemptEnd, cut_middle
from penstock.core.queue.state import keys
from penstock.core.queue.state.feed import DELIVERED, TOLD_TOGETHER, Change
from penstock.core.queue.state.places import Places
from penstock.core.queue.state.records import (
    NEVER,
    READY,
    TAKEN,
    AttemptRow,
    GroupRecord,
    MessageRow,
    blake2b,
    encode,
)
from penstock.limits import ATTEMPTS_KEPT, MAX_ATTEMPT_ERROR_BYTES

if TYPE_CHECKING:
    from penstock.core.queue.state.cache import QueueState

Holder = TypeVar("Holder", bound="Leases", covariant=True)


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
    """A bit for every message that the lease no longer holds."""
    messages: list[MessageRow] | None = None
    extended: dict[int, tuple[int, int]] | None = None
    """Messages with their own deadline: the deadline, and the time of the extension."""
    owner: str | None = None
    """The owner that must be alive for an endless lease to hold."""
    renewed_ms: int = 0
    """The time when the whole lease was last extended."""

    def set_back(self, now: int) -> None:
        """Adjusts to a clock that was set back: the lease began no later than now, and lasts no longer than before."""
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
        """Returns the stretches of neighbouring messages of a list: the index of the first message, and the first
        and last position.
        """
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
        """Returns the finite deadlines of the messages that the lease still holds."""
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
        """Returns the messages that are still held, one bit each."""
        return (1 << self.count) - 1 & ~int.from_bytes(self.settled, "little")

    def held(self) -> list[int]:
        """Returns the messages that are still held, by index."""
        return indexes_of(self.held_mask()) if self.settled else list(range(self.count))


def _deadline(since: int, deadline: int, now: int) -> int:
    return deadline if deadline == NEVER else set_back(since, deadline, now)[1]


LONGEST_LEASE = 1024
"""The most messages under one lease, because settling a message rewrites the lease's row."""
LISTED, RUN, SINGLE = 1 << 44, 2 << 44, 3 << 44


def indexes_of(mask: int) -> list[int]:
    """Returns the indexes of the bits that are set."""
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


read_lease = keys.row_decoder(Lease)


class HeldMessage(msgspec.Struct, Generic[Holder], eq=False):
    """A message that a lease still holds."""

    group: Holder
    lease_id: int
    lease: Lease
    index: int

    @property
    def seq(self) -> int:
        return self.lease.seq(self.index)

    def ended(self, now: int) -> bool:
        """Returns whether the lease has ended, even if no take has noticed it."""
        return self.lease.deadline_of(self.index) <= now


class Leases(Places):
    """The leases of a group; a leased message is in no other place."""

    __slots__ = ("_leases",)

    def __init__(self, queue: QueueState, group_id: int, name: str, record: GroupRecord) -> None:
        super().__init__(queue, group_id, name, record)
        self._leases: dict[int, Lease] = {}

    def lease(self, snap: Snapshot, lease_id: int) -> Lease | None:
        """Returns a lease by its id, or None when all its messages are settled."""
        lease = self._leases.get(lease_id)
        if lease is None and self.record.leases > len(self._leases):
            value = snap.get(self.prefix + keys.LEASE + lease_id.to_bytes(8))
            if value is not None:
                lease = self._leases[lease_id] = read_lease(value, self.queue.name)
        return lease

    def leases(self, snap: Snapshot, after: int = 0) -> Iterator[tuple[int, Lease]]:
        """Returns every lease with a higher id than `after`, the oldest first."""
        return self._read_leases(snap, *self.rows(keys.LEASE, after))

    def _read_leases(self, snap: Snapshot, low: bytes, high: bytes) -> Iterator[tuple[int, Lease]]:
        for key, value in snap.scan(low, high):
            lease_id = keys.tail_seq(key)
            lease = self._leases.get(lease_id)
            if lease is None:
                lease = self._leases[lease_id] = read_lease(value, self.queue.name)
            yield lease_id, lease

    def lease_of(self, snap: Snapshot, seq: int) -> HeldMessage[Self] | None:
        """Returns a message under its lease; None for an unleased message."""
        for lease_id, index in self._addresses(snap, seq) if self.record.in_flight else ():
            lease = self.lease(snap, lease_id)
            if lease is not None and lease.holds(index):
                return HeldMessage(self, lease_id, lease, index)
        return None

    def _addresses(self, snap: Snapshot, seq: int) -> Iterator[tuple[int, int]]:
        """Yields the addresses under which a message may be held: the id of a lease, and the index in it."""
        yield SINGLE | seq, 0
        for key, _ in snap.scan(self.row(keys.LEASE, RUN), self.row(keys.LEASE, RUN | seq + 1), reverse=True):
            yield keys.tail_seq(key), seq - (keys.tail_seq(key) ^ RUN)
            break
        low = keys.batch_key(self.prefix, max(0, seq - LONGEST_LEASE), 0)
        for key, value in snap.scan(low, keys.batch_key(self.prefix, seq + 1, 0), reverse=True):
            (first, lease_id), (last, index) = keys.split_due(key), keys.unpack_seqs(value)
            if seq <= last:
                yield lease_id, index + seq - first

    def in_flight(self, snap: Snapshot, after: int = 0) -> Iterator[HeldMessage[Self]]:
        """Yields the leased messages beyond a position, ascending, read on demand."""
        if not self.record.in_flight:
            return iter(())
        runs, singles, end = (self.row(keys.LEASE, kind) for kind in (RUN, SINGLE, SINGLE + RUN))
        beyond = self.row(keys.LEASE, RUN | after + 1)
        first_run = next((key for key, _ in snap.scan(runs, beyond, reverse=True)), beyond)
        return heapq.merge(
            self._held_of(snap, self.row(keys.LEASE, SINGLE | after + 1), end, after),
            self._held_of(snap, first_run, singles, after),
            self._held_in_lists(snap, after),
            key=lambda held: held.seq,
        )

    def _held_of(self, snap: Snapshot, low: bytes, high: bytes, after: int) -> Iterator[HeldMessage[Self]]:
        for lease_id, lease in self._read_leases(snap, low, high):
            held = (HeldMessage(self, lease_id, lease, index) for index in lease.held())
            yield from (one for one in held if one.seq > after)

    def _held_in_lists(self, snap: Snapshot, after: int) -> Iterator[HeldMessage[Self]]:
        """Yields the messages of leases over lists.

        Stretches of several lists may overlap, so the stretches that have begun are merged.
        """
        begun: list[tuple[int, HeldMessage[Self]]] = []
        low = keys.batch_key(self.prefix, max(0, after - LONGEST_LEASE), 0)
        for key, value in snap.scan(low, self.rows(keys.BATCH)[1]):
            (first, lease_id), (last, index) = keys.split_due(key), keys.unpack_seqs(value)
            while begun and begun[0][0] < first:
                yield heapq.heappop(begun)[1]
            lease = self.lease(snap, lease_id)
            for seq in range(max(first, after + 1), last + 1):
                if lease is not None and lease.holds(index + seq - first):
                    heapq.heappush(begun, (seq, HeldMessage(self, lease_id, lease, index + seq - first)))
        yield from (held for _, held in sorted(begun, key=lambda one: one[0]))

    def add_lease(self, commit: Commit, lease: Lease) -> int:
        """Stores a new lease over taken messages, and assigns its id.

        The id leads from a message to its lease. For one message or a run, the id is the first position, and no two
        leases begin with the same position at a time. For a list, the id counts up, and rows lead from the messages to
        the lease.
        """
        record = self.record
        if lease.count == 1:
            lease_id = SINGLE | lease.start
        elif lease.messages is None:
            lease_id = RUN | lease.start
        else:
            lease_id = LISTED | record.next_lease
            record.next_lease += 1
            for index, first, last in lease.stretches():
                commit.tx.put(keys.batch_key(self.prefix, first, lease_id), keys.pack_seqs([last, index]))
        record.leases += 1
        record.in_flight += lease.count
        if lease.owner is not None:
            record.endless += 1
        else:
            if not record.next_deadline or lease.deadline < record.next_deadline:
                record.next_deadline = lease.deadline
            if record.swept and (not record.swept_deadline or lease.deadline < record.swept_deadline):
                record.swept_deadline = lease.deadline  # the sweep under way may have passed its place
        self._leases[lease_id] = lease
        commit.tx.put(self.prefix + keys.LEASE + lease_id.to_bytes(8), encode(lease))
        commit.touch(self)
        if self.queue.feed is not None:
            self._tell_lease(commit, DELIVERED, lease, range(lease.count))
        return lease_id

    def save_lease(self, commit: Commit, lease_id: int, lease: Lease) -> None:
        commit.tx.put(self.prefix + keys.LEASE + lease_id.to_bytes(8), encode(lease))

    def release(self, commit: Commit, lease_id: int, lease: Lease, mask: int, change: Change | None) -> None:
        """Removes held messages (one bit each) from a lease; the lease is deleted with its last message."""
        record = self.record
        if self.queue.feed is not None and change is not TOLD_TOGETHER:
            self._tell_lease(commit, change, lease, indexes_of(mask))
        commit.touch(self)
        record.in_flight -= mask.bit_count()
        if self.queue.record.policy.max_in_flight is not None:
            commit.touched.setdefault(self.queue.name, 0)  # a push may wait for room
        if lease.count > 1:
            mask |= int.from_bytes(lease.settled, "little")
        lease.settled = mask.to_bytes((lease.count + 7) // 8, "little")
        if mask != (1 << lease.count) - 1:
            self.save_lease(commit, lease_id, lease)
            return
        record.leases -= 1
        if lease.owner is not None:
            record.endless -= 1
        if not record.leases:
            record.next_deadline = 0
        self._leases.pop(lease_id, None)
        commit.tx.delete(self.prefix + keys.LEASE + lease_id.to_bytes(8))
        if LISTED <= lease_id < RUN:
            for _, first, _ in lease.stretches():
                commit.tx.delete(keys.batch_key(self.prefix, first, lease_id))

    def set_leases_back(self, commit: Commit) -> None:
        """Adjusts to a clock that was set back: no lease began later than now."""
        record = self.record
        record.next_deadline = record.swept = record.swept_deadline = 0
        for lease_id, lease in list(self.leases(commit.tx)):
            lease.set_back(commit.now_ms)
            self.save_lease(commit, lease_id, lease)
            for deadline in lease.deadlines():
                record.next_deadline = min(record.next_deadline or deadline, deadline)

    def take_back(
        self, commit: Commit, lease_id: int, lease: Lease, indexes: list[int], change: Change | None
    ) -> list[MessageRow]:
        """Removes messages from a lease and returns them; `move` gives them another place."""
        messages = [msgspec.structs.replace(lease.message(index), state=TAKEN) for index in indexes]
        if indexes:
            self.release(commit, lease_id, lease, sum(1 << index for index in indexes), change)
        return messages

    def _tell_lease(self, commit: Commit, change: Change, lease: Lease, indexes: Iterable[int]) -> None:
        """Records a change of messages of a lease in the feed."""
        assert self.queue.feed is not None
        for message in (lease.message(index) for index in indexes):
            self.queue.feed.note(commit, change, message.seq, self.name, message.attempts, lease.consumer)

    def ended_attempts(
        self, commit: Commit, lease: Lease, message: MessageRow, ended_ms: int, ended: AttemptEnd, error: str | None
    ) -> list[AttemptRow]:
        """Returns a message's newest failed attempts, including the attempt that ends now under this lease."""
        who = lease.consumer
        known = None if who is None else self.queue.presence(commit.tx, lease.label, who)
        host = None if known is None else known.host or None
        error = None if error is None else cut_middle(error, MAX_ATTEMPT_ERROR_BYTES)
        attempt = AttemptRow(message.attempts, message.last_ms, ended_ms, ended, who, host, error)
        return [*self.trail(commit.tx, message).attempts, attempt][-ATTEMPTS_KEPT:]


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_TOKEN_BODY_BYTES = 9
_TAG = 6
_SECRET = 8
_POOL = 512 * _SECRET

MAX_GROUP = (1 << 16) - 1
NUMBER_BITS, INDEX_BITS = 46, 10
"""The bits of a lease's number, and of a message's index in the lease."""


class Address(msgspec.Struct, frozen=True):
    """The address that a token names: a message of a lease of a group."""

    group: int
    lease_id: int
    index: int
    tag: bytes


_pool: list[bytes] = []


def new_secret() -> bytes:
    """Returns eight random bytes for a new lease; the system is asked for a few hundred at a time."""
    try:
        return _pool.pop()
    except IndexError:
        fresh = os.urandom(_POOL)
        _pool.extend([fresh[at : at + _SECRET] for at in range(0, _POOL, _SECRET)])
        return os.urandom(_SECRET)


os.register_at_fork(after_in_child=_pool.clear)  # a child must not use its parent's secrets


def make_token(topic: int, group: int, lease_id: int, index: int, secret: bytes) -> str:
    """Returns the token of a message of a lease."""
    body = _body(group, lease_id, index)
    tag = _tag(topic, body, secret)
    hidden = int.from_bytes(body) ^ _token_mask(tag)
    return b32encode(hidden.to_bytes(_TOKEN_BODY_BYTES) + tag).decode().lower()


def read_token(token: str) -> Address | None:
    """Returns the address that a token names, if it is a token; whether it still holds, `is_token_of` says."""
    if len(token) != 24 or not _ALPHABET.issuperset(token):
        return None
    raw = b32decode(token.upper())
    tag = raw[_TOKEN_BODY_BYTES:]
    body = int.from_bytes(raw[:_TOKEN_BODY_BYTES]) ^ _token_mask(tag)
    lease_id = body >> INDEX_BITS & ((1 << NUMBER_BITS) - 1)
    return Address(body >> NUMBER_BITS + INDEX_BITS, lease_id, body & ((1 << INDEX_BITS) - 1), tag)


def is_token_of(topic: int, address: Address, secret: bytes) -> bool:
    """Returns True if a token was made for the lease that has this secret."""
    return _tag(topic, _body(address.group, address.lease_id, address.index), secret) == address.tag


def _body(group: int, lease_id: int, index: int) -> bytes:
    return ((group << NUMBER_BITS | lease_id) << INDEX_BITS | index).to_bytes(_TOKEN_BODY_BYTES)


def _tag(topic: int, body: bytes, secret: bytes) -> bytes:
    return blake2b(body + topic.to_bytes(4), digest_size=_TAG, key=secret).digest()


def _token_mask(tag: bytes) -> int:
    return int.from_bytes(blake2b(tag, digest_size=_TOKEN_BODY_BYTES, person=b"penstock").digest())
