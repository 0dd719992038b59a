"""One group's deliveries: leases, messages, marks, ordering keys, lanes; rows and counters together."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.engine.contract import Snapshot
from penstock.journal.commit.commit import Commit
from penstock.journal.storage.block import Block
from penstock.journal.storage.columns import CodedText, unpack_ints
from penstock.limits import ATTEMPTS_KEPT, MAX_ATTEMPT_ERROR_BYTES
from penstock.queue.state import keys
from penstock.queue.state.keys import flow_key
from penstock.queue.state.records import (
    FAILED,
    HELD,
    NEVER,
    NO_TRAIL,
    READY,
    WAITING,
    AttemptRow,
    FailureTrail,
    GroupRecord,
    Lease,
    MessageRow,
    decode_trail,
    encode,
    read_lease,
    read_message,
    read_presence,
)
from penstock.queue.token import blake2b
from penstock.surface.failure import AttemptEnd, cut_middle

if TYPE_CHECKING:
    from penstock.queue.state.cache import QueueState


class Group:
    """One group's deliveries. Rows and counters always change together."""

    __slots__ = ("_lease_prefix", "_leases", "_record_key", "name", "number", "queue", "record", "topic")

    def __init__(self, queue: QueueState, number: int, name: str, record: GroupRecord) -> None:
        self.queue = queue
        self.topic = queue.topic
        self.number = number
        self.name = name
        self.record = record
        self._leases: dict[int, Lease] = {}
        # Every take and every settlement needs both.
        self._record_key = keys.record_key(queue.topic, number)
        self._lease_prefix, _ = keys.rows(queue.topic, number, b"l")

    def save(self, commit: Commit) -> None:
        """Writes the record, when the commit ends: see `Commit.touch`."""
        if commit.now_ms > self.record.seen_ms:
            self.record.seen_ms = commit.now_ms
        commit.tx.keep()  # who holds what, for how long, at which attempt: told to a consumer, which may outlive us
        commit.tx.put(self._record_key, encode(self.record))

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def lease(self, snap: Snapshot, number: int) -> Lease | None:
        """A lease by its number, or None when all its messages are settled."""
        lease = self._leases.get(number)
        if lease is None and self.record.leases > len(self._leases):
            value = snap.get(self._lease_prefix + number.to_bytes(8))
            if value is not None:
                lease = self._leases[number] = read_lease(value, self.queue.name)
        return lease

    def leases(self, snap: Snapshot, after: int = 0) -> Iterator[tuple[int, Lease]]:
        """Every lease with a higher number than `after`, the oldest first."""
        _, stop = keys.rows(self.topic, self.number, b"l")
        for key, value in snap.scan(keys.lease_key(self.topic, self.number, after + 1), stop):
            number = keys.tail_seq(key)
            lease = self._leases.get(number)
            if lease is None:
                lease = self._leases[number] = read_lease(value, self.queue.name)
            yield number, lease

    def add_lease(self, commit: Commit, lease: Lease) -> int:
        """Stores a new lease and gives it its number."""
        record = self.record
        number = record.next_lease
        record.next_lease += 1
        record.leases += 1
        record.in_flight += lease.count
        if lease.owner is not None:
            record.endless += 1
        elif not record.next_deadline or lease.deadline < record.next_deadline:
            record.next_deadline = lease.deadline
        self._leases[number] = lease
        commit.tx.put(self._lease_prefix + number.to_bytes(8), encode(lease))
        commit.touch(self)
        return number

    def save_lease(self, commit: Commit, number: int, lease: Lease) -> None:
        commit.tx.put(self._lease_prefix + number.to_bytes(8), encode(lease))

    def release_lease(self, commit: Commit, number: int, lease: Lease, mask: int) -> None:
        """Takes messages (a bit each, all of them held) out of a lease; the lease goes with its last message."""
        record = self.record
        commit.touch(self)
        record.in_flight -= mask.bit_count()
        if self.queue.record.policy.max_in_flight is not None:
            commit.touched.setdefault(self.queue.name, 0)  # a push may wait for room
        if lease.count > 1:
            mask |= int.from_bytes(lease.settled, "little")
        lease.settled = mask.to_bytes((lease.count + 7) // 8, "little")
        if mask != (1 << lease.count) - 1:
            self.save_lease(commit, number, lease)
            return
        record.leases -= 1
        if lease.owner is not None:
            record.endless -= 1
        if not record.leases:
            record.next_deadline = 0
        self._leases.pop(number, None)
        commit.tx.delete(self._lease_prefix + number.to_bytes(8))

    # ── messages that are not where a plain queue would have them ────────────────────────────────────────────────────
    def message(self, snap: Snapshot, seq: int) -> MessageRow | None:
        value = snap.get(keys.message_key(self.topic, self.number, seq))
        if value is not None:
            return read_message(value, self.queue.name)
        return member(snap, self, seq) if self.record.runs else None

    def messages(self, snap: Snapshot) -> Iterator[MessageRow]:
        for _, value in snap.scan(*keys.rows(self.topic, self.number, b"e")):
            yield read_message(value, self.queue.name)
        for seq, key in members(snap, self):
            yield MessageRow(seq, HELD, key=key)

    def parked(self, snap: Snapshot, through: int | None = None, after: int = 0) -> Iterator[int]:
        """Positions of those messages, ascending, read as they are asked for."""
        low, high = keys.message_key(self.topic, self.number, after + 1), keys.rows(self.topic, self.number, b"e")[1]
        if through is not None:
            high = keys.message_key(self.topic, self.number, through + 1)
        rows = (keys.tail_seq(key) for key, _ in snap.scan(low, high))
        if not self.record.runs:
            return rows
        return heapq.merge(rows, (seq for seq, _ in members(snap, self, through, after) if seq > after))

    def insert(self, commit: Commit, message: MessageRow, lane: str | None = None) -> None:
        """Puts a message where its state says; its position must be at or below the frontier, or covered. `lane`: the
        one it has in a queue with fair share, where its event is not written yet."""
        commit.touch(self)
        tx, topic, number, record = commit.tx, self.topic, self.number, self.record
        message.lane = lane_for(commit, self, message, lane) if message.state == READY else None
        tx.put(keys.message_key(topic, number, message.seq), encode(message))
        if message.lane is not None:
            join_lane(commit, self, message.lane, message.seq)
        else:
            tx.put(self._index_key(message), b"")
        if message.state == READY:
            record.ready += 1
            commit.touched.setdefault(self.queue.name, 0)
        elif message.state == WAITING:
            record.waiting += 1
            if not record.next_due or message.due < record.next_due:
                record.next_due = message.due
            # Those who wait for a later time must look again.
            commit.touched.setdefault(self.queue.name, 0)
        elif message.state == HELD:
            record.held += 1
        else:
            record.failed += 1

    def dequeue(self, commit: Commit, message: MessageRow) -> None:
        """Takes a ready message out to hand it out, which is its lane's turn."""
        if message.lane is not None:
            message.turn, message.lane = spend_turn(commit, self, message.lane, message.seq), None
        self.remove(commit, message)

    def remove(self, commit: Commit, message: MessageRow) -> None:
        """Takes a placed message out again."""
        if message.state == HELD and self.record.runs and member(commit.tx, self, message.seq) is not None:
            take_out(commit, self, message.seq)
        commit.touch(self)
        tx, record = commit.tx, self.record
        tx.delete(keys.message_key(self.topic, self.number, message.seq))
        if message.lane is not None:
            leave_lane(commit, self, message.lane, message.seq)
        else:
            tx.delete(self._index_key(message))
        if message.state == READY:
            record.ready -= 1
        elif message.state == WAITING:
            record.waiting -= 1
            if not record.waiting:
                record.next_due = 0
        elif message.state == HELD:
            record.held -= 1
        else:
            record.failed -= 1

    def _index_key(self, message: MessageRow) -> bytes:
        if message.state == READY:
            if message.turn:
                return keys.turn_key(self.topic, self.number, message.turn, message.seq)
            return keys.ready_key(self.topic, self.number, message.priority, message.seq)
        if message.state == WAITING:
            return keys.waiting_key(self.topic, self.number, message.due, message.seq)
        if message.state == HELD:
            return keys.held_key(self.topic, self.number, message.key or "", message.seq)
        assert message.state == FAILED
        return keys.failed_key(self.topic, self.number, message.seq)

    # ── positions above the frontier that are covered ─────────────────────────────────────────────────────────────
    def next_taken(self, snap: Snapshot) -> tuple[int, int] | None:
        """The first covered range above the frontier."""
        if not self.record.taken:
            return None
        start = keys.taken_key(self.topic, self.number, self.record.frontier + 1)
        _, stop = keys.rows(self.topic, self.number, b"v")
        for key, value in snap.scan(start, stop):
            return keys.tail_seq(key), keys.unpack_seq(value)
        return None

    def taken_ranges(self, snap: Snapshot, *, reverse: bool = False) -> Iterator[tuple[int, int]]:
        if self.record.taken:
            for key, value in snap.scan(*keys.rows(self.topic, self.number, b"v"), reverse=reverse):
                yield keys.tail_seq(key), keys.unpack_seq(value)

    def is_taken(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position above the frontier is covered."""
        if not self.record.taken:
            return False
        low, _ = keys.rows(self.topic, self.number, b"v")
        for _, value in snap.scan(low, keys.taken_key(self.topic, self.number, seq + 1), reverse=True):
            return keys.unpack_seq(value) >= seq
        return False

    def is_past(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position was handed out, waits elsewhere, or was settled without a delivery."""
        return seq <= self.record.frontier or self.is_taken(snap, seq)

    def wants(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position waits untouched for this group."""
        until = self.record.until
        return not self.is_past(snap, seq) and (until < 0 or seq <= until)

    def mark_taken(self, commit: Commit, start: int, end: int) -> None:
        """Says that start … end, above the frontier and not covered yet, are handed out or wait elsewhere."""
        commit.touch(self)
        tx, topic, number, record = commit.tx, self.topic, self.number, self.record
        record.taken += end - start + 1
        low, _ = keys.rows(topic, number, b"v")
        for key, value in tx.scan(low, keys.taken_key(topic, number, start), reverse=True):
            if keys.unpack_seq(value) == start - 1:
                start = keys.tail_seq(key)
            break
        following = tx.get(keys.taken_key(topic, number, end + 1))
        if following is not None:
            tx.delete(keys.taken_key(topic, number, end + 1))
            end = keys.unpack_seq(following)
        if start == record.frontier + 1:
            tx.delete(keys.taken_key(topic, number, start))
            record.taken -= end - start + 1
            record.frontier = end
        else:
            tx.put(keys.taken_key(topic, number, start), keys.pack_seq(end))

    def advance(self, commit: Commit, frontier: int) -> None:
        """Moves the frontier, over nothing covered, and on over what is covered right after it."""
        commit.touch(self)
        record = self.record
        record.frontier = frontier
        if record.taken:
            key = keys.taken_key(self.topic, self.number, frontier + 1)
            value = commit.tx.get(key)
            if value is not None:
                end = keys.unpack_seq(value)
                commit.tx.delete(key)
                record.taken -= end - frontier
                record.frontier = end

    # ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────
    def occupants(self, snap: Snapshot, key: str) -> list[int]:
        """The positions of a key's messages that are under way: ready, waiting for a time, or in flight."""
        value = snap.get(keys.busy_key(self.topic, self.number, key))
        return [] if value is None else keys.unpack_seqs(value)

    def is_busy(self, snap: Snapshot, key: str) -> bool:
        """Whether a message of a key has to be settled before the next one may go."""
        value = snap.get(keys.busy_key(self.topic, self.number, key))
        return value is not None and len(value) >= 8 * self.queue.record.policy.max_in_flight_per_key

    def occupy(self, commit: Commit, key: str, seqs: list[int]) -> None:
        """Says which messages of a key are under way."""
        row = keys.busy_key(self.topic, self.number, key)
        if seqs:
            commit.tx.put(row, keys.pack_seqs(seqs))
        else:
            commit.tx.delete(row)

    def free(self, commit: Commit, key: str, seq: int) -> None:
        """A message that occupied a key is settled: the next one of the key may go, else the key is free."""
        self.unblock_key(commit, key, [one for one in self.occupants(commit.tx, key) if one != seq])

    def unblock_key(self, commit: Commit, key: str, occupants: list[int]) -> bool:
        """Makes as many of a key's held messages ready as may be under way beside others; True when there were any."""
        most, before = self.queue.record.policy.max_in_flight_per_key, len(occupants)
        while len(occupants) < most and (following := self._first_held(commit, key)) is not None:
            self._shift(commit, following, READY)
            occupants.append(following.seq)
        self.occupy(commit, key, occupants)
        return len(occupants) > before

    def requeue(self, commit: Commit, message: MessageRow, lane: str | None = None) -> None:
        """Places a message that comes back, ready or waiting; of a key's untried messages the first goes first."""
        key = message.key
        if key is None:
            self.insert(commit, message, lane)
            return
        occupants = self.occupants(commit.tx, key)
        if message.seq in occupants:
            first = None if message.attempts else self._first_held(commit, key)
            if first is not None and first.seq < message.seq:
                self._shift(commit, first, READY)
                self.occupy(commit, key, [first.seq if one == message.seq else one for one in occupants])
                message.state = HELD
        elif len(occupants) < self.queue.record.policy.max_in_flight_per_key:
            self.occupy(commit, key, [*occupants, message.seq])
        else:
            last = self._last_untried(commit, occupants)
            if last is None or last.seq < message.seq:
                message.state = HELD
            else:
                self._shift(commit, last, HELD)
                self.occupy(commit, key, [message.seq if one == last.seq else one for one in occupants])
        self.insert(commit, message, lane)

    def _last_untried(self, commit: Commit, occupants: list[int]) -> MessageRow | None:
        """The last of a key's messages under way that has not been delivered yet."""
        for seq in sorted(occupants, reverse=True):
            message = self.message(commit.tx, seq)
            if message is not None and not message.attempts:
                return message
        return None

    def _first_held(self, commit: Commit, key: str) -> MessageRow | None:
        if self.record.held:
            for row, end in commit.tx.scan(*keys.held_range(self.topic, self.number, key)):
                seq = keys.tail_seq(row)
                if end:
                    return unfold(commit, self, key, seq, seq, keys.unpack_seq(end))
                return self.message(commit.tx, seq)
        return None

    def _shift(self, commit: Commit, message: MessageRow, state: int) -> None:
        self.remove(commit, message)
        message.state = state
        self.insert(commit, message)

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
        stop = keys.message_key(self.topic, self.number, through + 1)
        low, _ = keys.rows(self.topic, self.number, b"e")
        count = sum(read_message(value, self.queue.name).state != FAILED for _, value in snap.scan(low, stop))
        for start, end, left in held_runs(snap, self, through):
            count += left if end <= through else sum(seq >= start for seq, _ in members(snap, self, through))
        last = through if self.record.until < 0 else min(through, self.record.until)
        untouched = max(0, last - self.record.frontier)
        for start, end in self.taken_ranges(snap) if untouched else ():
            if start > last:
                break
            untouched -= min(end, last) - start + 1
        return count + untouched

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
        for key, _ in snap.scan(*keys.rows(self.topic, self.number, b"e")):
            floor = min(floor, keys.tail_seq(key) - 1)
            break
        for start, _, _ in held_runs(snap, self):
            floor = min(floor, start - 1)
            break
        for _, lease in self.leases(snap):
            if lease.messages is None and not lease.settled:
                floor = min(floor, lease.start - 1)
            else:
                floor = min([floor, *(lease.seq(index) - 1 for index in lease.held())])
        return floor


# ── settling without a delivery ───────────────────────────────────────────────────────────────────────────────────────
def is_open(snap: Snapshot, group: Group, seq: int) -> bool:
    """Whether a group has neither settled a message nor handed it out."""
    return group.wants(snap, seq) or group.message(snap, seq) is not None


def discard(commit: Commit, state: QueueState, seq: int) -> None:
    """Settles a message that is not in flight, for all groups."""
    for group in state.all_groups(commit.tx):
        discard_for(commit, group, seq)


def discard_for(commit: Commit, group: Group, seq: int) -> None:
    """The same for one group."""
    message = group.message(commit.tx, seq)
    if message is not None:
        group.remove(commit, message)
        if message.traced:
            forget_trail(commit, group, seq)
        if message.key is not None and message.state in (READY, WAITING):
            group.free(commit, message.key, seq)
    elif group.wants(commit.tx, seq):
        group.mark_taken(commit, seq, seq)


# ── failed attempts ───────────────────────────────────────────────────────────────────────────────────────────────────
def read_trail(snap: Snapshot, group: Group, message: MessageRow) -> FailureTrail:
    """What a message's attempts left behind; nothing when none has failed."""
    value = snap.get(keys.trail_key(group.topic, group.number, message.seq)) if message.traced else None
    return NO_TRAIL if value is None else decode_trail(value, group.queue.name)


def keep_trail(commit: Commit, message: MessageRow, group: Group, trail: FailureTrail) -> None:
    """Writes what a message's attempts left behind, or removes what was there."""
    if trail.attempts or trail.traceback is not None:
        message.traced = True
        commit.tx.put(keys.trail_key(group.topic, group.number, message.seq), encode(trail))
    elif message.traced:
        message.traced = False
        forget_trail(commit, group, message.seq)


def forget_trail(commit: Commit, group: Group, seq: int) -> None:
    commit.tx.delete(keys.trail_key(group.topic, group.number, seq))


def tried_again(
    commit: Commit, group: Group, lease: Lease, message: MessageRow, ended_ms: int, ended: AttemptEnd, error: str | None
) -> list[AttemptRow]:
    """A message's attempts with the one that ends now, under this lease."""
    attempt = AttemptRow(
        message.attempts,
        message.last_ms,
        ended_ms,
        ended,
        lease.consumer,
        None if lease.consumer is None else _host(commit, group, lease.label, lease.consumer),
        None if error is None else cut_middle(error, MAX_ATTEMPT_ERROR_BYTES),
    )
    return [*read_trail(commit.tx, group, message).attempts, attempt][-ATTEMPTS_KEPT:]


def _host(commit: Commit, group: Group, label: str, consumer: str) -> str | None:
    """The machine of a consumer, as far as it is still listed."""
    queue = group.queue
    number = queue.record.groups.get(label, 0)
    known = queue.seen.get((number, consumer))
    if known is None:
        row = commit.tx.get(keys.presence_key(queue.topic, number, consumer))
        known = None if row is None else read_presence(row)
    return None if known is None else known.host or None


# ── lanes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
LONGEST_LANE = 200
"""Bytes of a lane's name that are kept as they are: a header may be longer than a row's key."""
TURN_STEP = 32
"""How many messages with the same turn a take looks at together."""


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


def lane_for(commit: Commit, group: Group, message: MessageRow, lane: str | None) -> str | None:
    """The lane in which a ready message waits for its turn; None where it needs none. `lane`: the one a push knows."""
    fair_by = group.queue.record.policy.fair_by
    if fair_by is None or message.turn:
        return None
    if lane is not None:
        return lane
    event = group.queue.blocks.event(commit.tx, message.seq)
    return lane_of(fair_by, message.key, None if event is None else event.headers)


def join_lane(commit: Commit, group: Group, lane: str, seq: int) -> None:
    """A message becomes ready: it has its place in its lane, and the lane's turn if it is the first."""
    tx = commit.tx
    row = flow_key(group.topic, group.number, b"t", lane)
    turn, first = _read_lane(tx, row)
    tx.put(keys.lane_key(group.topic, group.number, lane, seq), b"")
    if first and first < seq:
        return
    if first:
        tx.delete(keys.turn_key(group.topic, group.number, turn, first))
    else:
        turn = max(group.record.turn, 1)
    tx.put(keys.turn_key(group.topic, group.number, turn, seq), b"")
    tx.put(row, keys.pack_seqs([turn, seq]))


def leave_lane(commit: Commit, group: Group, lane: str, seq: int) -> None:
    """A message leaves its lane without having been handed out: its turn is the next one's."""
    tx = commit.tx
    tx.delete(keys.lane_key(group.topic, group.number, lane, seq))
    row = flow_key(group.topic, group.number, b"t", lane)
    turn, first = _read_lane(tx, row)
    if first == seq:
        tx.delete(keys.turn_key(group.topic, group.number, turn, seq))
        _call(commit, group, lane, row, turn, seq)


def spend_turn(commit: Commit, group: Group, lane: str, seq: int) -> int:
    """The first message of a lane is handed out: it has the lane's turn to itself, and the next one the turn after."""
    tx = commit.tx
    tx.delete(keys.lane_key(group.topic, group.number, lane, seq))
    row = flow_key(group.topic, group.number, b"t", lane)
    turn, first = _read_lane(tx, row)
    assert first == seq
    _call(commit, group, lane, row, turn + 1, seq)
    return turn


def whose_turn(snap: Snapshot, group: Group, latest: int, limit: int) -> list[int]:
    """Some messages that have the lowest turn: once one is taken, the next of its lane has a later one."""
    found: list[int] = []
    present = 0
    for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"z")):
        turn, seq = keys.split_turn(key)
        if (found and turn != present) or len(found) >= min(limit, TURN_STEP):
            break
        if seq <= latest:  # what this very commit pushes has its row, but its event is not written yet
            present = turn
            found.append(seq)
    return found


def in_turn(snap: Snapshot, group: Group, overdue: int) -> Iterator[int]:
    """Ready messages with a turn, or a place in a lane, in the order in which they would be taken; without those up to
    `overdue`, which have outlived their ttl."""
    following: list[tuple[int, int]] = []
    rows = (keys.split_turn(key) for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"z")))
    row = next(rows, None)
    while row is not None or following:
        if row is None or (following and following[0] < row):
            turn, seq = heapq.heappop(following)
        else:
            (turn, seq), row = row, next(rows, None)
        message = group.message(snap, seq)
        if message is not None and message.lane is not None:
            is_over = seq <= overdue
            after = _first_after(snap, group, message.lane, overdue if is_over else seq)
            if after:
                heapq.heappush(following, (turn if is_over else turn + 1, after))
        if seq > overdue:
            yield seq


def _read_lane(snap: Snapshot, row: bytes) -> tuple[int, int]:
    """A lane's turn, and the position of its first ready message; 0: it has none."""
    value = snap.get(row)
    turn, first = (0, 0) if value is None else keys.unpack_seqs(value)
    return turn, first


def _call(commit: Commit, group: Group, lane: str, row: bytes, turn: int, after: int) -> None:
    """Gives the first message of a lane after a position the lane's turn; without one the lane goes."""
    first = _first_after(commit.tx, group, lane, after)
    if first:
        commit.tx.put(keys.turn_key(group.topic, group.number, turn, first), b"")
        commit.tx.put(row, keys.pack_seqs([turn, first]))
    else:
        commit.tx.delete(row)
        commit.touch(group)
        group.record.turn = max(group.record.turn, turn)


def _first_after(snap: Snapshot, group: Group, lane: str, after: int) -> int:
    """The first ready message of a lane after a position, 0 when there is none."""
    start = keys.lane_key(group.topic, group.number, lane, after + 1)
    for key, _ in snap.scan(start, keys.lane_end(group.topic, group.number, lane)):
        return keys.tail_seq(key)
    return 0


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
SHORTEST_RUN = 16
"""Fewer messages than this get a row each."""
LONGEST_SCAN = 512
"""Rows scanned one by one, where a block has too many keys to search its bytes; and about as many keys of a run."""
_value = struct.Struct(">QQ")


# ── in a block ─────────────────────────────────────────────────────────────────────────────────────────────────────
def first_free(block: Block, row: int, stop: int, is_busy: Callable[[str | None], bool]) -> int:
    """The first row from `row` on whose key is free (or that has none); `stop` when all before it are busy."""
    values, codes = _coded(block)
    if isinstance(codes, int):
        return stop if is_busy(values[codes]) else row
    if codes is not None and len(codes) == block.count:
        free = bytes([not is_busy(value) for value in values])
        if 1 not in free and row == 0 and stop == block.count:
            return stop
        found = codes.translate(free.ljust(256, b"\1")).find(1, row, stop)
        return stop if found < 0 else found
    last = min(stop, row + LONGEST_SCAN)
    return next((at for at in range(row, last) if not is_busy(block.key(at))), last)


def first_rows(block: Block, row: int, stop: int, known: Container[str | None] = ()) -> dict[str | None, int]:
    """Every key among some rows that is not known yet, and its first row."""
    values, codes = _coded(block)
    found: dict[str | None, int] = {}
    if isinstance(codes, int):
        if values[codes] not in known:
            found[values[codes]] = row
    elif codes is not None and len(codes) == block.count:
        for code, value in enumerate(values):
            if value not in known and (at := codes.find(code, row, stop)) >= 0:
                found[value] = at
    else:
        for at in range(row, stop):
            key = block.key(at)
            if key not in known:
                found.setdefault(key, at)
    return found


def next_row(block: Block, row: int, stop: int, key: str) -> int | None:
    """The first row from `row` on that has a key."""
    values, codes = _coded(block)
    if row >= stop:
        return None
    if isinstance(codes, int):
        return row if values[codes] == key else None
    if codes is not None:
        if key not in values:
            return None
        code = values.index(key)
        if len(codes) == block.count:
            at = codes.find(code, row, stop)
            return None if at < 0 else at
        numbers = unpack_ints(codes, block.count)
        return next((at for at in range(row, stop) if numbers[at] == code), None)
    return next((at for at in range(row, stop) if block.key(at) == key), None)


def _coded(block: Block) -> tuple[list[str | None], int | bytes | None]:
    """A block's keys and which row has which; None where they are not in that form."""
    column = block.wire.key
    return (column.values, column.codes) if isinstance(column, CodedText) else ([], None)


# ── in a group ─────────────────────────────────────────────────────────────────────────────────────────────────────
class HeldRun:
    """A run in the making: messages of neighbouring blocks, right above the frontier, whose keys are all busy."""

    __slots__ = ("_blocked", "_count", "_end", "_firsts", "_group", "_snap", "_start")

    def __init__(self, snap: Snapshot, group: Group) -> None:
        self._snap = snap
        self._group = group
        self._blocked: dict[str | None, bool] = {None: False}
        self._firsts: dict[str | None, int] = {}
        self._start = self._end = self._count = 0

    def _is_busy(self, key: str | None) -> bool:
        known = self._blocked.get(key)
        if known is None:
            known = self._blocked[key] = self._group.is_busy(self._snap, key or "")
        return known

    def first_free(self, block: Block, row: int, stop: int) -> int:
        """The first row from `row` on that does not belong to the run."""
        return first_free(block, row, stop, self._is_busy)

    def add(self, block: Block, row: int, stop: int) -> None:
        """Takes in some rows of a block."""
        for key, at in first_rows(block, row, stop, self._firsts).items():
            self._firsts[key] = block.seq(at)
        self._start = self._start or block.seq(row)
        self._end = block.seq(stop - 1)
        self._count += stop - row

    @property
    def is_full(self) -> bool:
        """Whether it has as many keys, each of which is a row, as one step should write."""
        return len(self._firsts) >= LONGEST_SCAN

    def store(self, commit: Commit) -> None:
        """Writes the run down, and moves the frontier to its end."""
        tx, group = commit.tx, self._group
        for key, seq in self._firsts.items():
            tx.put(keys.held_key(group.topic, group.number, key or "", seq), keys.pack_seq(self._end))
        tx.put(keys.run_key(group.topic, group.number, self._start), _value.pack(self._end, self._count))
        group.record.held += self._count
        group.record.runs += 1
        group.advance(commit, self._end)


def held_runs(
    snap: Snapshot, group: Group, through: int | None = None, after: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Where each run begins and ends, and how many messages are left in it, ascending.

    Those from the one on that begins last at or before the position `after`.
    """
    if group.record.runs:
        low, high = keys.rows(group.topic, group.number, b"p")
        if after:
            stop = keys.run_key(group.topic, group.number, after + 1)
            low = next((key for key, _ in snap.scan(low, stop, reverse=True)), stop)
        if through is not None:
            high = keys.run_key(group.topic, group.number, through + 1)
        for key, value in snap.scan(low, high):
            yield keys.tail_seq(key), *_value.unpack(value)


def members(snap: Snapshot, group: Group, through: int | None = None, after: int = 0) -> Iterator[tuple[int, str]]:
    """The messages of all runs, ascending, with their keys; see `held_runs` for what is left out."""
    for start, end, _ in held_runs(snap, group, through, after):
        yield from _members_of(snap, group, start, end if through is None else min(end, through))


def _members_of(snap: Snapshot, group: Group, start: int, end: int) -> Iterator[tuple[int, str]]:
    parts: dict[str | None, list[tuple[int, int]]] = {}
    at = start
    while (found := group.queue.blocks.find(snap, at, end)) is not None:
        block, begin = found
        for row in range(begin, block.row_after(end)):
            seq, key = block.seq(row), block.key(row)
            if key not in parts:
                parts[key] = [] if key is None else _parts(snap, group, key, seq, end)
            if key is not None and any(first <= seq <= last for first, last in parts[key]):
                yield seq, key
        at = block.last + 1


def _parts(snap: Snapshot, group: Group, key: str, start: int, end: int) -> list[tuple[int, int]]:
    """The stretches of one run in which a key's messages are held."""
    low = keys.held_key(group.topic, group.number, key, start)
    stop = keys.held_key(group.topic, group.number, key, end + 1)
    return [(keys.tail_seq(row), keys.unpack_seq(value)) for row, value in snap.scan(low, stop) if value]


def member(snap: Snapshot, group: Group, seq: int) -> MessageRow | None:
    """A message that is held in a run, or None."""
    found = _stretch(snap, group, seq)
    return None if found is None else MessageRow(seq, HELD, key=found[0])


def take_out(commit: Commit, group: Group, seq: int) -> None:
    """Gives a message of a run a row of its own."""
    found = _stretch(commit.tx, group, seq)
    assert found is not None
    unfold(commit, group, found[0], seq, found[1], found[2])


def _stretch(snap: Snapshot, group: Group, seq: int) -> tuple[str, int, int] | None:
    """The key of a message that is held in a run, and from where to where its key is held there."""
    low, _ = keys.rows(group.topic, group.number, b"p")
    run = next(iter(snap.scan(low, keys.run_key(group.topic, group.number, seq + 1), reverse=True)), None)
    if run is None or _value.unpack(run[1])[0] < seq:
        return None
    event = group.queue.blocks.event(snap, seq)
    key = None if event is None else event.key
    if key is None:
        return None
    low, _ = keys.held_range(group.topic, group.number, key)
    stop = keys.held_key(group.topic, group.number, key, seq + 1)
    row = next(iter(snap.scan(low, stop, reverse=True)), None)
    if row is None or not row[1] or keys.unpack_seq(row[1]) < seq:
        return None
    return key, keys.tail_seq(row[0]), keys.unpack_seq(row[1])


def unfold(commit: Commit, group: Group, key: str, seq: int, first: int, last: int) -> MessageRow:
    """Gives a message of a run a row of its own; the key's messages before and after it stay in the run."""
    tx = commit.tx
    if first < seq:
        tx.put(keys.held_key(group.topic, group.number, key, first), keys.pack_seq(seq - 1))
    following = _next(tx, group, key, seq + 1, last)
    if following is not None:
        tx.put(keys.held_key(group.topic, group.number, key, following), keys.pack_seq(last))
    _shrink(commit, group, seq)
    group.record.held -= 1
    message = MessageRow(seq, HELD, key=key)
    group.insert(commit, message)
    return message


def _next(snap: Snapshot, group: Group, key: str, start: int, end: int) -> int | None:
    """The next position of a key in a part of a run."""
    while (found := group.queue.blocks.find(snap, start, end)) is not None:
        block, row = found
        if isinstance(block, Block):
            at = next_row(block, row, block.row_after(end), key)
            if at is not None:
                return block.seq(at)
        start = block.last + 1
    return None


def _shrink(commit: Commit, group: Group, seq: int) -> None:
    """One message less in the run that holds a position."""
    low, _ = keys.rows(group.topic, group.number, b"p")
    for row, value in commit.tx.scan(low, keys.run_key(group.topic, group.number, seq + 1), reverse=True):
        end, left = _value.unpack(value)
        if left > 1:
            commit.tx.put(row, _value.pack(end, left - 1))
        else:
            commit.tx.delete(row)
            group.record.runs -= 1
        break
