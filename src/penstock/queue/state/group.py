"""One group's deliveries: leases, messages set aside, covered positions, ordering keys; rows and counters together."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.engine.contract import Snapshot
from penstock.journal.commit.commit import Commit
from penstock.queue.flow.turns import join_lane, lane_for, leave_lane, spend_turn
from penstock.queue.state import keys, runs
from penstock.queue.state.records import (
    FAILED,
    HELD,
    NEVER,
    READY,
    WAITING,
    GroupRecord,
    Lease,
    MessageRow,
    encode,
    read_lease,
    read_message,
)

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

    def let_go(self, commit: Commit, number: int, lease: Lease, mask: int) -> None:
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
        return runs.member(snap, self, seq) if self.record.runs else None

    def messages(self, snap: Snapshot) -> Iterator[MessageRow]:
        for _, value in snap.scan(*keys.rows(self.topic, self.number, b"e")):
            yield read_message(value, self.queue.name)
        for seq, key in runs.members(snap, self):
            yield MessageRow(seq, HELD, key=key)

    def aside(self, snap: Snapshot, through: int | None = None, after: int = 0) -> Iterator[int]:
        """Positions of those messages, ascending, read as they are asked for."""
        low, high = keys.message_key(self.topic, self.number, after + 1), keys.rows(self.topic, self.number, b"e")[1]
        if through is not None:
            high = keys.message_key(self.topic, self.number, through + 1)
        rows = (keys.tail_seq(key) for key, _ in snap.scan(low, high))
        if not self.record.runs:
            return rows
        return heapq.merge(rows, (seq for seq, _ in runs.members(snap, self, through, after) if seq > after))

    def place(self, commit: Commit, message: MessageRow, lane: str | None = None) -> None:
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

    def call_up(self, commit: Commit, message: MessageRow) -> None:
        """Takes a ready message out to hand it out, which is its lane's turn."""
        if message.lane is not None:
            message.turn, message.lane = spend_turn(commit, self, message.lane, message.seq), None
        self.remove(commit, message)

    def remove(self, commit: Commit, message: MessageRow) -> None:
        """Takes a placed message out again."""
        if message.state == HELD and self.record.runs and runs.member(commit.tx, self, message.seq) is not None:
            runs.take_out(commit, self, message.seq)
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
    def next_cover(self, snap: Snapshot) -> tuple[int, int] | None:
        """The first covered range above the frontier."""
        if not self.record.covered:
            return None
        start = keys.cover_key(self.topic, self.number, self.record.frontier + 1)
        _, stop = keys.rows(self.topic, self.number, b"v")
        for key, value in snap.scan(start, stop):
            return keys.tail_seq(key), keys.unpack_seq(value)
        return None

    def covers(self, snap: Snapshot, *, reverse: bool = False) -> Iterator[tuple[int, int]]:
        if self.record.covered:
            for key, value in snap.scan(*keys.rows(self.topic, self.number, b"v"), reverse=reverse):
                yield keys.tail_seq(key), keys.unpack_seq(value)

    def is_covered(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position above the frontier is covered."""
        if not self.record.covered:
            return False
        low, _ = keys.rows(self.topic, self.number, b"v")
        for _, value in snap.scan(low, keys.cover_key(self.topic, self.number, seq + 1), reverse=True):
            return keys.unpack_seq(value) >= seq
        return False

    def is_past(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position was handed out, waits elsewhere, or was settled without a delivery."""
        return seq <= self.record.frontier or self.is_covered(snap, seq)

    def wants(self, snap: Snapshot, seq: int) -> bool:
        """Whether a position waits untouched for this group."""
        until = self.record.until
        return not self.is_past(snap, seq) and (until < 0 or seq <= until)

    def cover(self, commit: Commit, start: int, end: int) -> None:
        """Says that start … end, above the frontier and not covered yet, are handed out or wait elsewhere."""
        commit.touch(self)
        tx, topic, number, record = commit.tx, self.topic, self.number, self.record
        record.covered += end - start + 1
        low, _ = keys.rows(topic, number, b"v")
        for key, value in tx.scan(low, keys.cover_key(topic, number, start), reverse=True):
            if keys.unpack_seq(value) == start - 1:
                start = keys.tail_seq(key)
            break
        following = tx.get(keys.cover_key(topic, number, end + 1))
        if following is not None:
            tx.delete(keys.cover_key(topic, number, end + 1))
            end = keys.unpack_seq(following)
        if start == record.frontier + 1:
            tx.delete(keys.cover_key(topic, number, start))
            record.covered -= end - start + 1
            record.frontier = end
        else:
            tx.put(keys.cover_key(topic, number, start), keys.pack_seq(end))

    def advance(self, commit: Commit, frontier: int) -> None:
        """Moves the frontier, over nothing covered, and on over what is covered right after it."""
        commit.touch(self)
        record = self.record
        record.frontier = frontier
        if record.covered:
            key = keys.cover_key(self.topic, self.number, frontier + 1)
            value = commit.tx.get(key)
            if value is not None:
                end = keys.unpack_seq(value)
                commit.tx.delete(key)
                record.covered -= end - frontier
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
        self.admit(commit, key, [one for one in self.occupants(commit.tx, key) if one != seq])

    def admit(self, commit: Commit, key: str, occupants: list[int]) -> bool:
        """Makes as many of a key's held messages ready as may be under way beside others; True when there were any."""
        most, before = self.queue.record.policy.max_in_flight_per_key, len(occupants)
        while len(occupants) < most and (following := self._first_held(commit, key)) is not None:
            self._shift(commit, following, READY)
            occupants.append(following.seq)
        self.occupy(commit, key, occupants)
        return len(occupants) > before

    def seat(self, commit: Commit, message: MessageRow, lane: str | None = None) -> None:
        """Places a message that comes back, ready or waiting; of a key's untried messages the first goes first."""
        key = message.key
        if key is None:
            self.place(commit, message, lane)
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
        self.place(commit, message, lane)

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
                    return runs.unfold(commit, self, key, seq, seq, keys.unpack_seq(end))
                return self.message(commit.tx, seq)
        return None

    def _shift(self, commit: Commit, message: MessageRow, state: int) -> None:
        self.remove(commit, message)
        message.state = state
        self.place(commit, message)

    # ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def unsettled(self, latest: int) -> int:
        """Messages that are ready, in flight or delayed."""
        record = self.record
        if record.until >= 0:
            latest = max(record.frontier, min(latest, record.until))
        untouched = latest - record.frontier - record.covered
        return untouched + record.ready + record.held + record.waiting + record.in_flight

    def overdue(self, snap: Snapshot, through: int) -> int:
        """How many messages up to a position are neither in flight nor given up: those that outlived their ttl."""
        if not through:
            return 0
        stop = keys.message_key(self.topic, self.number, through + 1)
        low, _ = keys.rows(self.topic, self.number, b"e")
        count = sum(read_message(value, self.queue.name).state != FAILED for _, value in snap.scan(low, stop))
        for start, end, left in runs.runs(snap, self, through):
            count += left if end <= through else sum(seq >= start for seq, _ in runs.members(snap, self, through))
        last = through if self.record.until < 0 else min(through, self.record.until)
        untouched = max(0, last - self.record.frontier)
        for start, end in self.covers(snap) if untouched else ():
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
        for start, _, _ in runs.runs(snap, self):
            floor = min(floor, start - 1)
            break
        for _, lease in self.leases(snap):
            if lease.messages is None and not lease.settled:
                floor = min(floor, lease.start - 1)
            else:
                floor = min([floor, *(lease.seq(index) - 1 for index in lease.held())])
        return floor
