"""One group's messages: where each of them is, and the one way from one place to another.

A message is untouched (above the frontier, and not marked as taken), or in a lease, or in a row of its own with the
index row of its state, or in a run of held messages, or settled. `Group.find` says where it is, unless a lease holds
it; `Group.move` takes it from there to elsewhere and changes rows, index and counters together. Many neighbours go at
once: `mark_taken` and `add_lease` for a take, `hold_run` for those behind busy keys.

Runs of held messages: a million messages may wait behind one key. A take that has to get past them writes, for some
blocks of them, one row that says from where to where they lie and how many are left (`p`), and for every key among
them one that says where its first one is (`h`, with the run's end as its value). When the key is free again its first
message leaves the run, and the key's row moves on to the next one.

Lanes, in a queue with fair share: messages are sorted by a header or by their key, and the lanes take turns. This is
start-time fair queuing: the first message of every lane has a turn, and the lowest turn is next. A lane that hands a
message out has its next turn one later; one that had nothing begins with the group's present turn. A message that goes
unhandled (discarded, moved, too old) leaves its turn to the next of its lane. One that was handed out keeps its turn
until it is settled. A take reads the first row of an index; it searches nothing. A lane that has nothing ready has no
row: the turn it would have had next becomes the group's, so that it does not come before others when it has something
soon after.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penstock.engine.contract import Snapshot
from penstock.journal.blocks import Columns
from penstock.journal.commit import Commit
from penstock.limits import ATTEMPTS_KEPT, MAX_ATTEMPT_ERROR_BYTES
from penstock.model.failure import AttemptEnd, cut_middle
from penstock.queue.policy import FEED
from penstock.queue.state import keys
from penstock.queue.state.blocks import row_with_key
from penstock.queue.state.records import (
    FAILED,
    HELD,
    LISTED,
    LONGEST_LEASE,
    NEVER,
    NO_TRAIL,
    READY,
    RUN,
    SINGLE,
    TAKEN,
    UNTOUCHED,
    WAITING,
    AttemptRow,
    FailureTrail,
    GroupRecord,
    Lease,
    MessageRow,
    blake2b,
    encode,
    indexes_of,
    read_lease,
    read_message,
    read_trail,
)  # fmt: skip

if TYPE_CHECKING:
    from penstock.queue.state.cache import QueueState


# ── feeds ────────────────────────────────────────────────────────────────────────────────────────────────────────────
Kind = Literal[
    "pushed", "delivered", "acked", "failed", "released", "retried", "dead", "expired", "redriven", "moved",
    "discarded", "purged",
]  # fmt: skip


class Change(msgspec.Struct, frozen=True):
    """What becomes of a message: every function that ends a lease or removes a message takes one."""

    kind: Kind
    reason: str | None = None
    error: str | None = None
    to: str | None = None
    """The queue it goes to."""


ACKED: Final = Change("acked")
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


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────
DELIVERED: Final = Change("delivered")
UNDER_WAY: Final = (READY, WAITING, TAKEN)
"""The states in which a message keeps others of its ordering key waiting."""
PARKED: Final = (READY, WAITING, HELD, FAILED)
"""The states in which a message has a row of its own, or, held, is in a run."""
UNFINISHED: Final = (READY, WAITING, HELD)
"""Those of them in which it may still be delivered."""
LONGEST_LANE = 200
"""Bytes of a lane's name that are kept as they are: a header may be longer than a row's key."""
TURN_STEP = 32
"""How many messages with the same turn a take looks at together."""

_run = struct.Struct(">QQ")


class HeldMessage(msgspec.Struct, eq=False):
    """A message that a lease still holds."""

    group: Group
    lease_id: int
    lease: Lease
    index: int

    @property
    def seq(self) -> int:
        return self.lease.seq(self.index)

    def ended(self, now: int) -> bool:
        """Returns whether the lease has ended, though no take may have noticed."""
        return self.lease.deadline_of(self.index) <= now


class Group:
    """One group's messages. Rows and counters always change together."""

    __slots__ = ("_leases", "group_id", "name", "prefix", "queue", "record", "topic")

    def __init__(self, queue: QueueState, group_id: int, name: str, record: GroupRecord) -> None:
        self.queue = queue
        self.topic = queue.topic
        self.group_id = group_id
        self.name = name
        self.record = record
        self._leases: dict[int, Lease] = {}
        self.prefix = keys.group_prefix(queue.topic, group_id, queue.record.purges)

    def save(self, commit: Commit) -> None:
        """Writes the record, when the commit ends: see `Commit.touch`."""
        if commit.now_ms > self.record.seen_ms:
            self.record.seen_ms = commit.now_ms
        commit.tx.keep()  # who holds what, for how long, at which attempt: told to a consumer, which may outlive us
        commit.tx.put(self.prefix + keys.RECORD, encode(self.record))

    def row(self, kind: bytes, seq: int) -> bytes:
        """The key of a row that is about one position, or one lease."""
        return self.prefix + kind + seq.to_bytes(8)

    def rows(self, kind: bytes, after: int = 0, through: int | None = None) -> tuple[bytes, bytes]:
        """The range of all rows of one kind, or of those of some positions."""
        low, high = self.prefix + kind, self.prefix + bytes([kind[0] + 1])
        return self.row(kind, after + 1) if after else low, high if through is None else self.row(kind, through + 1)

    def due_rows(self, now: int) -> tuple[bytes, bytes]:
        """The range of the index rows of messages whose time has come."""
        return self.prefix + keys.WAITING, keys.waiting_key(self.prefix, now + 1, 0)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def lease(self, snap: Snapshot, lease_id: int) -> Lease | None:
        """A lease by its id, or None when all its messages are settled."""
        lease = self._leases.get(lease_id)
        if lease is None and self.record.leases > len(self._leases):
            value = snap.get(self.prefix + keys.LEASE + lease_id.to_bytes(8))
            if value is not None:
                lease = self._leases[lease_id] = read_lease(value, self.queue.name)
        return lease

    def leases(self, snap: Snapshot, after: int = 0) -> Iterator[tuple[int, Lease]]:
        """Every lease with a higher id than `after`, the oldest first."""
        return self._read_leases(snap, *self.rows(keys.LEASE, after))

    def _read_leases(self, snap: Snapshot, low: bytes, high: bytes) -> Iterator[tuple[int, Lease]]:
        for key, value in snap.scan(low, high):
            lease_id = keys.tail_seq(key)
            lease = self._leases.get(lease_id)
            if lease is None:
                lease = self._leases[lease_id] = read_lease(value, self.queue.name)
            yield lease_id, lease

    def lease_of(self, snap: Snapshot, seq: int) -> HeldMessage | None:
        """A message under the lease that holds it; None when none does."""
        for lease_id, index in self._addresses(snap, seq) if self.record.in_flight else ():
            lease = self.lease(snap, lease_id)
            if lease is not None and lease.holds(index):
                return HeldMessage(self, lease_id, lease, index)
        return None

    def _addresses(self, snap: Snapshot, seq: int) -> Iterator[tuple[int, int]]:
        """Where a message may be held: the ids of leases, and its index there."""
        yield SINGLE | seq, 0
        for key, _ in snap.scan(self.row(keys.LEASE, RUN), self.row(keys.LEASE, RUN | seq + 1), reverse=True):
            yield keys.tail_seq(key), seq - (keys.tail_seq(key) ^ RUN)
            break
        low = keys.batch_key(self.prefix, max(0, seq - LONGEST_LEASE), 0)
        for key, value in snap.scan(low, keys.batch_key(self.prefix, seq + 1, 0), reverse=True):
            (first, lease_id), (last, index) = keys.split_due(key), keys.unpack_seqs(value)
            if seq <= last:
                yield lease_id, index + seq - first

    def in_flight(self, snap: Snapshot, after: int = 0) -> Iterator[HeldMessage]:
        """The messages beyond a position that leases hold, ascending, read as they are asked for."""
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

    def _held_of(self, snap: Snapshot, low: bytes, high: bytes, after: int) -> Iterator[HeldMessage]:
        for lease_id, lease in self._read_leases(snap, low, high):
            held = (HeldMessage(self, lease_id, lease, index) for index in lease.held())
            yield from (one for one in held if one.seq > after)

    def _held_in_lists(self, snap: Snapshot, after: int) -> Iterator[HeldMessage]:
        """Stretches of several lists may lie within each other: those that have begun are held side by side."""
        begun: list[tuple[int, HeldMessage]] = []
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
        """Stores a new lease over messages that are taken, and gives it its id.

        By the id the lease of a message is found: of one message, and of a run, it says the position it begins
        with, and no two at a time begin with the same. Of a list it counts up, and rows lead there from the messages.
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
                record.swept_deadline = lease.deadline  # the look under way may have passed its place
        self._leases[lease_id] = lease
        commit.tx.put(self.prefix + keys.LEASE + lease_id.to_bytes(8), encode(lease))
        commit.touch(self)
        if self.queue.feed is not None:
            self._tell_lease(commit, DELIVERED, lease, range(lease.count))
        return lease_id

    def save_lease(self, commit: Commit, lease_id: int, lease: Lease) -> None:
        commit.tx.put(self.prefix + keys.LEASE + lease_id.to_bytes(8), encode(lease))

    def release(self, commit: Commit, lease_id: int, lease: Lease, mask: int, change: Change | None) -> None:
        """Takes messages (a bit each, all of them held) out of a lease; the lease goes with its last message."""
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

    def take_back(
        self, commit: Commit, lease_id: int, lease: Lease, indexes: list[int], change: Change | None
    ) -> list[MessageRow]:
        """Takes messages out of a lease that go elsewhere, and returns them; `move` puts them there."""
        messages = [msgspec.structs.replace(lease.message(index), state=TAKEN) for index in indexes]
        if indexes:
            self.release(commit, lease_id, lease, sum(1 << index for index in indexes), change)
        return messages

    # ── what the queue's feed is told ────────────────────────────────────────────────────────────────────────────────
    def tell(self, commit: Commit, message: MessageRow, change: Change | None) -> None:
        """Says in the queue's feed, where it has one, what became of a message."""
        if self.queue.feed is not None and change is not TOLD_TOGETHER:
            self.queue.feed.note(commit, change, message.seq, self.name, message.attempts)

    def _tell_lease(self, commit: Commit, change: Change, lease: Lease, indexes: Iterable[int]) -> None:
        """The same for messages of a lease."""
        assert self.queue.feed is not None
        for message in (lease.message(index) for index in indexes):
            self.queue.feed.note(commit, change, message.seq, self.name, message.attempts, lease.consumer)

    # ── where a message is ───────────────────────────────────────────────────────────────────────────────────────────
    def find(self, snap: Snapshot, seq: int) -> MessageRow | None:
        """The message at a position and the place it is in; None when it is settled or a lease holds it."""
        for state in PARKED:
            if self.counted(state) and (message := self.placed(snap, state, seq)) is not None:
                return message
        if self.record.runs and (stretch := self._stretch(snap, seq)) is not None:
            return MessageRow(seq, HELD, key=stretch[0])
        return MessageRow(seq, UNTOUCHED) if self.is_untouched(snap, seq) else None

    def counted(self, state: int) -> int:
        """How many messages are in a state."""
        record = self.record
        return (record.ready, record.waiting, record.held, record.failed)[state]

    def placed(self, snap: Snapshot, state: int, seq: int) -> MessageRow | None:
        """The message at a position that has a row of its own in a state."""
        value = snap.get(self.prefix + keys.PLACES[state] + seq.to_bytes(8))
        return read_message(value, self.queue.name) if value else None

    def parked(
        self, snap: Snapshot, through: int | None = None, after: int = 0, states: Collection[int] = PARKED
    ) -> Iterator[MessageRow]:
        """Messages with a row of their own, and those of runs, ascending, read as they are asked for."""
        sources = [self._rows_of(snap, state, through, after) for state in states if self.counted(state)]
        if self.record.runs and HELD in states:
            sources.append(MessageRow(seq, HELD, key=key) for seq, key in self.run_members(snap, through, after))
        return heapq.merge(*sources, key=lambda message: message.seq) if len(sources) != 1 else iter(sources[0])

    def _rows_of(self, snap: Snapshot, state: int, through: int | None, after: int) -> Iterator[MessageRow]:
        """Messages that have a row of their own in a state."""
        scan = snap.scan(*self.rows(keys.PLACES[state], after, through))
        return (read_message(value, self.queue.name) for _, value in scan)

    def oldest(self, snap: Snapshot, through: int, after: int, states: Collection[int]) -> int:
        """The first position between two others whose message is untouched, or in one of these states; 0: none."""
        seqs = [start for start, _ in islice(self.untouched(snap, through, after), 1)]
        seqs += [message.seq for message in islice(self.parked(snap, through, after, states), 1)]
        return min(seqs, default=0)

    def is_untouched(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position waits untouched for this group."""
        record = self.record
        if seq <= record.frontier or 0 <= record.until < seq:
            return False
        if record.taken:
            for _, value in snap.scan(*self.rows(keys.TAKEN, 0, seq), reverse=True):
                return keys.unpack_seq(value) < seq
        return True

    def untouched(self, snap: Snapshot, latest: int, after: int = 0) -> Iterator[tuple[int, int]]:
        """The untouched positions beyond `after`, from where to where."""
        start = max(self.record.frontier, after) + 1
        if self.record.until >= 0:
            latest = min(latest, self.record.until)
        for low, high in self.taken_ranges(snap) if self.record.taken else ():
            if low > latest:
                break
            if start < low:
                yield start, low - 1
            start = max(start, high + 1)
        if start <= latest:
            yield start, latest

    def taken_ranges(self, snap: Snapshot, *, reverse: bool = False) -> Iterator[tuple[int, int]]:
        """The ranges above the frontier that are taken, ascending unless `reverse`."""
        if self.record.taken:
            for key, value in snap.scan(*self.rows(keys.TAKEN), reverse=reverse):
                yield keys.tail_seq(key), keys.unpack_seq(value)

    # ── from one place to another ────────────────────────────────────────────────────────────────────────────────────
    def move(self, commit: Commit, message: MessageRow, state: int, lane: str | None = None) -> None:
        """Moves a message from the place that its own state names to the place that `state` names.

        Its rows are found by its fields: a caller that changes its due time moves it to `TAKEN` first. A message that
        fails for good lets the next of its ordering key go. `lane`: its lane, in a queue with fair share, when its
        event is not written yet.
        """
        was = message.state
        if was == UNTOUCHED:
            self.mark_taken(commit, message.seq, message.seq)
        elif was != TAKEN:
            self._delete(commit, message)
        message.state = state
        if state != TAKEN:
            self._insert(commit, message, lane)
        if message.key is not None and state == FAILED and was in UNDER_WAY:
            self.unblock_key(commit, message.key, message.seq)

    def remove(self, commit: Commit, message: MessageRow, change: Change | None) -> None:
        """Settles a message that is in no lease, and lets the next of its ordering key go."""
        was = message.state
        self.move(commit, message, TAKEN)
        if message.traced:
            commit.tx.delete(self.row(keys.TRAIL, message.seq))
        if message.key is not None and was in UNDER_WAY:
            self.unblock_key(commit, message.key, message.seq)
        self.tell(commit, message, change)

    def discard(self, commit: Commit, seq: int, change: Change | None) -> None:
        """Settles a message that is not in flight, if this group has not."""
        message = self.find(commit.tx, seq)
        if message is not None:
            self.remove(commit, message, change)

    def settle(self, commit: Commit, message: MessageRow) -> None:
        """Settles a message that its lease has released: `remove`, with fewer steps, for every ack."""
        if message.traced:
            commit.tx.delete(self.row(keys.TRAIL, message.seq))
        if message.key is not None:
            self.unblock_key(commit, message.key, message.seq)

    def requeue(self, commit: Commit, message: MessageRow, due: int = 0, lane: str | None = None) -> None:
        """Makes a message ready, or has it wait until `due`.

        Of a key's messages that were not tried yet, the earliest goes first: it takes the place of a later one.
        """
        if message.state != TAKEN:
            self.move(commit, message, TAKEN)
        state, key, message.due = WAITING if due else READY, message.key, due
        if key is not None:
            occupants = self.occupants(commit.tx, key)
            if message.seq in occupants:
                first = None if message.attempts else self._first_held(commit.tx, key)
                if first is not None and first.seq < message.seq:
                    self.move(commit, first, READY)
                    self.occupy(commit, key, [first.seq if one == message.seq else one for one in occupants])
                    state = HELD
            elif len(occupants) < self.queue.record.policy.max_in_flight_per_key:
                self.occupy(commit, key, [*occupants, message.seq])
            else:
                last = self._last_untried(commit.tx, occupants)
                if last is None or last.seq < message.seq:
                    state = HELD
                else:
                    self.move(commit, last, HELD)
                    self.occupy(commit, key, [message.seq if one == last.seq else one for one in occupants])
        self.move(commit, message, state, lane)

    def dequeue(self, commit: Commit, message: MessageRow) -> None:
        """Takes a ready message out to hand it out, which is its lane's turn."""
        if message.lane is not None:
            message.turn, message.lane = self._spend_turn(commit, message.lane, message.seq), None
        self.move(commit, message, TAKEN)

    def mark_taken(self, commit: Commit, end: int, start: int = 0) -> None:
        """Marks the positions from `start` to `end` as taken; without `start`, all from the frontier on."""
        commit.touch(self)
        tx, record = commit.tx, self.record
        if not start or start == record.frontier + 1:
            record.frontier = end
            if record.taken and (value := tx.get(following := self.row(keys.TAKEN, end + 1))) is not None:
                tx.delete(following)
                record.frontier = keys.unpack_seq(value)
                record.taken -= record.frontier - end
            return
        record.taken += end - start + 1
        for key, value in tx.scan(*self.rows(keys.TAKEN, 0, start - 1), reverse=True):
            if keys.unpack_seq(value) == start - 1:
                start = keys.tail_seq(key)
            break
        if (value := tx.get(following := self.row(keys.TAKEN, end + 1))) is not None:
            tx.delete(following)
            end = keys.unpack_seq(value)
        tx.put(self.row(keys.TAKEN, start), keys.pack_seq(end))

    def mark_all_taken(self, commit: Commit, seqs: list[int]) -> None:
        """Marks positions, ascending, as taken; neighbours together."""
        for at, seq in enumerate(seqs):
            if not at or seqs[at - 1] != seq - 1:
                start = seq
            if at + 1 == len(seqs) or seqs[at + 1] != seq + 1:
                self.mark_taken(commit, seq, start)

    def _insert(self, commit: Commit, message: MessageRow, lane: str | None) -> None:
        commit.touch(self)
        record, state = self.record, message.state
        message.lane = self._lane_for(commit, message, lane) if state == READY else None
        message.due = message.due if state == WAITING else 0
        commit.tx.put(self.row(keys.PLACES[state], message.seq), encode(message))
        if message.lane is not None:
            self._join_lane(commit, message.lane, message.seq)
        elif state != FAILED:
            commit.tx.put(self.order_key(message), b"")
        self._count(state, 1)
        if state == WAITING and (not record.next_due or message.due < record.next_due):
            record.next_due = message.due
        if state in (READY, WAITING):
            commit.touched.setdefault(self.queue.name, 0)  # takes wait for it, or for a later time

    def _delete(self, commit: Commit, message: MessageRow) -> None:
        commit.touch(self)
        record, state = self.record, message.state
        if state == HELD and record.runs and (stretch := self._stretch(commit.tx, message.seq)) is not None:
            self._leave_run(commit, message.seq, *stretch)
        else:
            commit.tx.delete(self.row(keys.PLACES[state], message.seq))
            if message.lane is not None:
                self._leave_lane(commit, message.lane, message.seq)
            elif state != FAILED:
                commit.tx.delete(self.order_key(message))
        self._count(state, -1)
        if not record.waiting:
            record.next_due = 0

    def _count(self, state: int, by: int) -> None:
        record = self.record
        if state == READY:
            record.ready += by
        elif state == WAITING:
            record.waiting += by
        elif state == HELD:
            record.held += by
        else:
            record.failed += by

    def order_key(self, message: MessageRow) -> bytes:
        """The row that puts a message in order among those of its state; one that has failed has none."""
        if message.state == READY:
            if message.turn:
                return keys.turn_key(self.prefix, message.turn, message.seq)
            return keys.ready_key(self.prefix, message.priority, message.seq)
        if message.state == WAITING:
            return keys.waiting_key(self.prefix, message.due, message.seq)
        assert message.state == HELD
        return keys.held_key(self.prefix, message.key or "", message.seq)

    # ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────
    def occupants(self, snap: Snapshot, key: str) -> list[int]:
        """The positions of a key's messages that are under way: ready, waiting for a time, or in flight."""
        value = snap.get(keys.busy_key(self.prefix, key))
        return [] if value is None else keys.unpack_seqs(value)

    def is_busy(self, snap: Snapshot, key: str) -> bool:
        """Whether a message of a key has to be settled before the next one may go."""
        value = snap.get(keys.busy_key(self.prefix, key))
        return value is not None and len(value) >= 8 * self.queue.record.policy.max_in_flight_per_key

    def occupy(self, commit: Commit, key: str, seqs: list[int]) -> None:
        """Says which messages of a key are under way."""
        row = keys.busy_key(self.prefix, key)
        if seqs:
            commit.tx.put(row, keys.pack_seqs(seqs))
        else:
            commit.tx.delete(row)

    def unblock_key(self, commit: Commit, key: str, settled: int = 0) -> bool:
        """Makes held messages of a key ready, as many as may be under way at a time; True when it made any ready.
        `settled`: a message that is not under way any more."""
        occupants = [one for one in self.occupants(commit.tx, key) if one != settled]
        most, before = self.queue.record.policy.max_in_flight_per_key, len(occupants)
        while len(occupants) < most and (following := self._first_held(commit.tx, key)) is not None:
            self.move(commit, following, READY)
            occupants.append(following.seq)
        self.occupy(commit, key, occupants)
        return len(occupants) > before

    def _last_untried(self, snap: Snapshot, occupants: list[int]) -> MessageRow | None:
        """The last of a key's messages under way that has a row and has not been delivered yet."""
        for seq in sorted(occupants, reverse=True):
            message = self.find(snap, seq)
            if message is not None and not message.attempts:
                return message
        return None

    def _first_held(self, snap: Snapshot, key: str) -> MessageRow | None:
        if self.record.held:
            for row, end in snap.scan(*keys.held_range(self.prefix, key)):
                seq = keys.tail_seq(row)
                return MessageRow(seq, HELD, key=key) if end else self.placed(snap, HELD, seq)
        return None

    def under_way(self, snap: Snapshot, key: str, overdue: int) -> list[int]:
        """The messages of a key under way, once a take has given up those up to `overdue` that no lease holds."""
        occupants = self.occupants(snap, key)
        live = [seq for seq in occupants if seq > overdue or self.lease_of(snap, seq) is not None]
        if len(live) < len(occupants):
            live += islice(self._held_with_key(snap, key, overdue), self.queue.policy.max_in_flight_per_key - len(live))
        return live

    def _held_with_key(self, snap: Snapshot, key: str, after: int) -> Iterator[int]:
        """The positions of a key's held messages beyond another, ascending."""
        for row, end in snap.scan(*keys.held_range(self.prefix, key)):
            seq = keys.tail_seq(row)
            if end:
                yield from self._with_key(snap, key, max(seq, after + 1), keys.unpack_seq(end))
            elif seq > after:
                yield seq

    # ── runs of held messages ────────────────────────────────────────────────────────────────────────────────────────
    def hold_run(self, commit: Commit, start: int, end: int, count: int, firsts: Mapping[str | None, int]) -> None:
        """Holds the messages from the frontier to `end`, `count` of them, the first of each key as `firsts` says."""
        for key, seq in firsts.items():
            commit.tx.put(keys.held_key(self.prefix, key or "", seq), keys.pack_seq(end))
        commit.tx.put(self.row(keys.RUN, start), _run.pack(end, count))
        self.record.held += count
        self.record.runs += 1
        self.mark_taken(commit, end)

    def runs(self, snap: Snapshot, through: int | None = None, after: int = 0) -> Iterator[tuple[int, int, int]]:
        """The runs, ascending: first position, last position, how many messages are left.

        `after`: from the run on that begins last at or before this position.
        """
        if self.record.runs:
            low, high = self.rows(keys.RUN, 0, through)
            if after:
                stop = self.row(keys.RUN, after + 1)
                low = next((key for key, _ in snap.scan(low, stop, reverse=True)), stop)
            for key, value in snap.scan(low, high):
                yield keys.tail_seq(key), *_run.unpack(value)

    def run_members(self, snap: Snapshot, through: int | None = None, after: int = 0) -> Iterator[tuple[int, str]]:
        """The messages of all runs, ascending, with their keys."""
        for start, end, _ in self.runs(snap, through, after):
            first, last = max(start, after + 1), end if through is None else min(end, through)
            following: dict[str, Iterator[tuple[int, int]]] = {}
            stretch: dict[str, tuple[int, int]] = {}
            for block, row in self.queue.blocks.between(snap, first, last):
                seq, key = block.seq(row), block.key(row)
                if key is None:
                    continue
                if key not in following:
                    following[key] = self._stretches(snap, key, first, last)
                    stretch[key] = (0, 0)
                while stretch[key][1] < seq:
                    stretch[key] = next(following[key], (NEVER, NEVER))
                if stretch[key][0] <= seq:
                    yield seq, key

    def _stretches(self, snap: Snapshot, key: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges in which a key's messages are held in runs, ascending: from the one that holds `first` to the one
        that holds `last`."""
        low, begin = keys.held_range(self.prefix, key)[0], keys.held_key(self.prefix, key, first)
        low = next((row for row, _ in snap.scan(low, begin, reverse=True)), begin)
        for row, value in snap.scan(low, keys.held_key(self.prefix, key, last + 1)):
            if value:
                yield keys.tail_seq(row), keys.unpack_seq(value)

    def _stretch(self, snap: Snapshot, seq: int) -> tuple[str, int, int] | None:
        """The key of a message that is held in a run, and from where to where its key is held there."""
        run = next(iter(snap.scan(*self.rows(keys.RUN, 0, seq), reverse=True)), None)
        if run is None or _run.unpack(run[1])[0] < seq:
            return None
        event = self.queue.blocks.event(snap, seq)
        if event is None or event.key is None:
            return None
        low, _ = keys.held_range(self.prefix, event.key)
        stop = keys.held_key(self.prefix, event.key, seq + 1)
        row = next(iter(snap.scan(low, stop, reverse=True)), None)
        if row is None or not row[1] or keys.unpack_seq(row[1]) < seq:
            return None
        return event.key, keys.tail_seq(row[0]), keys.unpack_seq(row[1])

    def _with_key(self, snap: Snapshot, key: str, first: int, last: int) -> Iterator[int]:
        """The positions of a key's messages between two others, settled or not."""
        while (found := self.queue.blocks.find(snap, first, last)) is not None:
            block, row = found
            at = row_with_key(block, row, block.row_after(last), key)
            if at is not None:
                yield block.seq(at)
            first = (block.last if at is None else block.seq(at)) + 1

    def _leave_run(self, commit: Commit, seq: int, key: str, first: int, last: int) -> None:
        """Takes a message out of its run; the key's messages before and after it stay there."""
        tx = commit.tx
        own = keys.held_key(self.prefix, key, first)
        if first < seq:
            tx.put(own, keys.pack_seq(seq - 1))
        else:
            tx.delete(own)
        following = next(self._with_key(tx, key, seq + 1, last), None)
        if following is not None:
            tx.put(keys.held_key(self.prefix, key, following), keys.pack_seq(last))
        run, value = next(iter(tx.scan(*self.rows(keys.RUN, 0, seq), reverse=True)))
        end, left = _run.unpack(value)
        if left > 1:
            tx.put(run, _run.pack(end, left - 1))
        else:
            tx.delete(run)
            self.record.runs -= 1

    # ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def next_in_turn(self, snap: Snapshot, latest: int, limit: int) -> list[int]:
        """Some messages that have the lowest turn: once one is taken, the next of its lane has a later one."""
        found: list[int] = []
        present = 0
        for key, _ in snap.scan(*self.rows(keys.TURN)):
            turn, seq = keys.split_due(key)
            if (found and turn != present) or len(found) >= min(limit, TURN_STEP):
                break
            if seq <= latest:  # what this very commit pushes has its row, but its event is not written yet
                present = turn
                found.append(seq)
        return found

    def _lane_for(self, commit: Commit, message: MessageRow, lane: str | None) -> str | None:
        """The lane in which a ready message waits for its turn; None where it needs none."""
        fair_by = self.queue.record.policy.fair_by
        if fair_by is None or message.turn:
            return None
        if lane is not None:
            return lane
        event = self.queue.blocks.event(commit.tx, message.seq)
        return lane_of(fair_by, message.key, None if event is None else event.headers)

    def _join_lane(self, commit: Commit, lane: str, seq: int) -> None:
        """Adds a message to its lane; it has the lane's turn if it is the first."""
        tx, row = commit.tx, self._lane_row(lane)
        turn, first = _read_lane(tx, row)
        tx.put(keys.lane_key(self.prefix, lane, seq), b"")
        if first and first < seq:
            return
        if first:
            tx.delete(keys.turn_key(self.prefix, turn, first))
        else:
            turn = max(self.record.turn, 1)
        tx.put(keys.turn_key(self.prefix, turn, seq), b"")
        tx.put(row, keys.pack_seqs([turn, seq]))

    def _leave_lane(self, commit: Commit, lane: str, seq: int) -> None:
        """Takes a message out of its lane that is not handed out: its turn is the next one's."""
        commit.tx.delete(keys.lane_key(self.prefix, lane, seq))
        turn, first = _read_lane(commit.tx, self._lane_row(lane))
        if first == seq:
            commit.tx.delete(keys.turn_key(self.prefix, turn, seq))
            self._give_turn(commit, lane, turn, seq)

    def _spend_turn(self, commit: Commit, lane: str, seq: int) -> int:
        """Gives the first message of a lane the lane's turn, which it keeps, and the next one the turn after."""
        commit.tx.delete(keys.lane_key(self.prefix, lane, seq))
        turn, first = _read_lane(commit.tx, self._lane_row(lane))
        assert first == seq
        self._give_turn(commit, lane, turn + 1, seq)
        return turn

    def _give_turn(self, commit: Commit, lane: str, turn: int, after: int) -> None:
        """Gives the first message of a lane after a position the lane's turn; without one the lane goes."""
        first = self._first_in_lane(commit.tx, lane, after)
        if first:
            commit.tx.put(keys.turn_key(self.prefix, turn, first), b"")
            commit.tx.put(self._lane_row(lane), keys.pack_seqs([turn, first]))
        else:
            commit.tx.delete(self._lane_row(lane))
            commit.touch(self)
            self.record.turn = max(self.record.turn, turn)

    def _first_in_lane(self, snap: Snapshot, lane: str, after: int) -> int:
        """The first ready message of a lane after a position, 0 when there is none."""
        start = keys.lane_key(self.prefix, lane, after + 1)
        for key, _ in snap.scan(start, keys.lane_end(self.prefix, lane)):
            return keys.tail_seq(key)
        return 0

    def _lane_row(self, lane: str) -> bytes:
        return keys.flow_key(self.topic, self.group_id, b"t", lane)

    # ── failed attempts ──────────────────────────────────────────────────────────────────────────────────────────────
    def trail(self, snap: Snapshot, message: MessageRow) -> FailureTrail:
        """What a message's attempts left behind; nothing when none has failed."""
        value = snap.get(self.row(keys.TRAIL, message.seq)) if message.traced else None
        return NO_TRAIL if value is None else read_trail(value, self.queue.name)

    def save_trail(self, commit: Commit, message: MessageRow, trail: FailureTrail) -> None:
        """Writes what a message's attempts left behind, or removes what was there; `move` writes which of the two."""
        if trail.attempts or trail.traceback is not None:
            message.traced = True
            commit.tx.put(self.row(keys.TRAIL, message.seq), encode(trail))
        elif message.traced:
            message.traced = False
            commit.tx.delete(self.row(keys.TRAIL, message.seq))

    def ended_attempts(
        self, commit: Commit, lease: Lease, message: MessageRow, ended_ms: int, ended: AttemptEnd, error: str | None
    ) -> list[AttemptRow]:
        """A message's failed attempts with the one that ends now, under this lease; the newest ones."""
        who = lease.consumer
        known = None if who is None else self.queue.presence(commit.tx, lease.label, who)
        host = None if known is None else known.host or None
        error = None if error is None else cut_middle(error, MAX_ATTEMPT_ERROR_BYTES)
        attempt = AttemptRow(message.attempts, message.last_ms, ended_ms, ended, who, host, error)
        return [*self.trail(commit.tx, message).attempts, attempt][-ATTEMPTS_KEPT:]

    # ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def unsettled(self, latest: int) -> int:
        """Messages that are ready, in flight or delayed."""
        record = self.record
        if record.until >= 0:
            latest = max(record.frontier, min(latest, record.until))
        untouched = latest - record.frontier - record.taken
        return untouched + record.ready + record.held + record.waiting + record.in_flight

    def overdue(self, snap: Snapshot, through: int) -> int:
        """How many messages up to a position are neither in flight nor given up: those that outlived their ttl."""
        if not through:
            return 0
        unfinished = [state for state in UNFINISHED if self.counted(state)]
        count = sum(1 for state in unfinished for _ in self._rows_of(snap, state, through, 0))
        for start, end, left in self.runs(snap, through):
            count += left if end <= through else sum(1 for _ in self.run_members(snap, through, start - 1))
        return count + sum(end - start + 1 for start, end in self.untouched(snap, through))

    def kept(self) -> int:
        """How many messages the shared group of a fanout queue keeps for groups that may come."""
        record = self.record
        return max(0, self.unsettled(record.until) - record.in_flight + record.failed) if record.until >= 0 else 0

    def passed(self) -> int:
        """Every position up to here was handed out, or is not the group's business."""
        frontier, until = self.record.frontier, self.record.until
        return frontier if until < 0 or frontier < until else NEVER

    def floor(self, snap: Snapshot) -> int:
        """Every position up to here is settled for this group."""
        floor = self.passed()
        for kind in (*keys.PLACES, keys.RUN):
            for key, _ in snap.scan(*self.rows(kind)):
                floor = min(floor, keys.tail_seq(key) - 1)
                break
        for held in self.in_flight(snap):
            return min(floor, held.seq - 1)
        return floor


def lane_of(fair_by: str, key: str | None, headers: Mapping[str, str] | None) -> str:
    """The lane of a message; those that do not say share one."""
    if fair_by == "key":
        lane = key or ""
    elif fair_by.startswith("key:"):
        lane = (key or "").partition(fair_by[4:])[0]
    else:
        lane = (headers or {}).get(fair_by, "")
    text = lane.encode()
    return lane if len(text) <= LONGEST_LANE else blake2b(text, digest_size=32).hexdigest()


def _read_lane(snap: Snapshot, row: bytes) -> tuple[int, int]:
    """A lane's turn, and the position of its first ready message; 0: it has none."""
    value = snap.get(row)
    turn, first = (0, 0) if value is None else keys.unpack_seqs(value)
    return turn, first
