"""The place of each message of a group, and the only way from one place to another.

A message is untouched (above the frontier, and not marked as taken), or in a lease, or in a row of its own with the
index row of its state, or in a run of held messages, or settled. `Places.find` finds the place of an unleased message.
`Places.move` moves a message to another place and changes rows, index and counters together. Many neighbours move at
once: `mark_taken` and `add_lease` for a take, `hold_run` for messages behind busy keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from penstock.core.clock import set_back
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.queue.state import keys
from penstock.core.queue.state.feed import Change
from penstock.core.queue.state.lanes import Lanes
from penstock.core.queue.state.records import (
    FAILED,
    HELD,
    READY,
    TAKEN,
    UNTOUCHED,
    WAITING,
    MessageRow,
    encode,
    read_message,
)

UNDER_WAY: Final = (READY, WAITING, TAKEN)
"""The states in which a message keeps others of its ordering key waiting."""
PARKED: Final = (READY, WAITING, HELD, FAILED)
"""The states in which a message has a row of its own, or, held, is in a run."""
UNFINISHED: Final = (READY, WAITING, HELD)
"""The states of a parked message that may still be delivered."""


class Places(Lanes):
    """The places of the messages of a group, unless a lease holds them. Rows and counters always change together."""

    __slots__ = ()

    # ── where a message is ───────────────────────────────────────────────────────────────────────────────────────────
    def find(self, snap: Snapshot, seq: int) -> MessageRow | None:
        """Returns the message at a position with its place; None for a settled or leased message."""
        for state in PARKED:
            if self.count_in_state(state) and (message := self.placed(snap, state, seq)) is not None:
                return message
        if self.record.runs and (stretch := self.stretch_of(snap, seq)) is not None:
            return MessageRow(seq, HELD, key=stretch[0])
        return MessageRow(seq, UNTOUCHED) if self.is_untouched(snap, seq) else None

    def parked(
        self, snap: Snapshot, through: int | None = None, after: int = 0, states: Collection[int] = PARKED
    ) -> Iterator[MessageRow]:
        """Yields the messages with a row of their own and the messages of runs, ascending, read on demand."""
        sources = [self.rows_of(snap, state, through, after) for state in states if self.count_in_state(state)]
        if self.record.runs and HELD in states:
            sources.append(MessageRow(seq, HELD, key=key) for seq, key in self.run_members(snap, through, after))
        return heapq.merge(*sources, key=lambda message: message.seq) if len(sources) != 1 else iter(sources[0])

    def rows_of(self, snap: Snapshot, state: int, through: int | None, after: int) -> Iterator[MessageRow]:
        """Yields the messages that have a row of their own in a state."""
        scan = snap.scan(*self.rows(keys.PLACES[state], after, through))
        return (read_message(value, self.queue.name) for _, value in scan)

    def oldest(self, snap: Snapshot, through: int, after: int, states: Collection[int]) -> int:
        """Returns the first position between two positions whose message is untouched, or in one of these states; 0
        for none.
        """
        seqs = [start for start, _ in islice(self.untouched(snap, through, after), 1)]
        seqs += [message.seq for message in islice(self.parked(snap, through, after, states), 1)]
        return min(seqs, default=0)

    def is_untouched(self, snap: Snapshot, seq: int) -> bool:
        """Returns True if a position waits untouched for this group."""
        record = self.record
        if seq <= record.frontier or 0 <= record.until < seq:
            return False
        if record.taken:
            for _, value in snap.scan(*self.rows(keys.TAKEN, 0, seq), reverse=True):
                return keys.unpack_seq(value) < seq
        return True

    def untouched(self, snap: Snapshot, latest: int, after: int = 0) -> Iterator[tuple[int, int]]:
        """Yields the ranges of untouched positions beyond `after`."""
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
        """Yields the ranges above the frontier that are taken, ascending unless `reverse`."""
        if self.record.taken:
            for key, value in snap.scan(*self.rows(keys.TAKEN), reverse=reverse):
                yield keys.tail_seq(key), keys.unpack_seq(value)

    # ── from one place to another ────────────────────────────────────────────────────────────────────────────────────
    def move(self, commit: Commit, message: MessageRow, state: int, lane: str | None = None) -> None:
        """Moves a message from the place of its own state to the place of `state`.

        The message's rows are found by its fields, so a caller that changes the due time first moves the message to
        `TAKEN`. A message that fails permanently releases the next message of its ordering key. `lane` is its lane, in
        a queue with fair share, when its event is not written yet.
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
        """Settles an unleased message, and releases the next message of its ordering key."""
        was = message.state
        self.move(commit, message, TAKEN)
        if message.traced:
            commit.tx.delete(self.row(keys.TRAIL, message.seq))
        if self.queue.traits.notes:
            self.forget_notes(commit, message.seq)
        if message.key is not None and was in UNDER_WAY:
            self.unblock_key(commit, message.key, message.seq)
        self.tell(commit, message, change)

    def discard(self, commit: Commit, seq: int, change: Change | None) -> None:
        """Settles a message that is not in flight, if this group has not."""
        message = self.find(commit.tx, seq)
        if message is not None:
            self.remove(commit, message, change)

    def settle(self, commit: Commit, message: MessageRow) -> None:
        """Settles a message that its lease has released: like `remove`, with fewer steps, for every ack."""
        if message.traced:
            commit.tx.delete(self.row(keys.TRAIL, message.seq))
        if message.key is not None:
            self.unblock_key(commit, message.key, message.seq)

    def forget_notes(self, commit: Commit, seq: int) -> None:
        """Removes the results of a message's steps, and its progress."""
        commit.tx.delete_range(*self.rows(keys.STEP, seq - 1, seq))
        commit.tx.delete(self.row(keys.PROGRESS, seq))

    def requeue(self, commit: Commit, message: MessageRow, due: int = 0, lane: str | None = None) -> None:
        """Makes a message ready, or lets it wait until `due`.

        The earliest untried message of a key goes first: it takes the place of a later message.
        """
        if message.state != TAKEN:
            self.move(commit, message, TAKEN)
        state, key, message.due = WAITING if due else READY, message.key, due
        if key is not None:
            occupants = self.occupants(commit.tx, key)
            if message.seq in occupants:
                first = None if message.attempts else self.first_held(commit.tx, key)
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

    def set_waits_back(self, commit: Commit) -> None:
        """Adjusts to a clock that was set back: no message began to wait later than now."""
        for message in list(self.rows_of(commit.tx, WAITING, None, 0)):
            if message.since_ms > commit.now_ms:
                self.move(commit, message, TAKEN)
                message.since_ms, message.due = set_back(message.since_ms, message.due, commit.now_ms)
                self.move(commit, message, WAITING)

    def dequeue(self, commit: Commit, message: MessageRow) -> None:
        """Removes a ready message to hand it out, which uses its lane's turn."""
        if message.lane is not None:
            message.turn, message.lane = self.leave_lane(commit, message.lane, message.seq, spent=1), None
        self.move(commit, message, TAKEN)

    def unblock_key(self, commit: Commit, key: str, settled: int = 0) -> bool:
        """Makes held messages of a key ready, as many as may be under way at a time; returns True when it made a
        message ready. `settled` is a message that is no longer under way.
        """
        occupants = [one for one in self.occupants(commit.tx, key) if one != settled]
        most, before = self.queue.record.policy.max_in_flight_per_key, len(occupants)
        while len(occupants) < most and (following := self.first_held(commit.tx, key)) is not None:
            self.move(commit, following, READY)
            occupants.append(following.seq)
        self.occupy(commit, key, occupants)
        return len(occupants) > before

    def _last_untried(self, snap: Snapshot, occupants: list[int]) -> MessageRow | None:
        """Returns the last of a key's messages under way that has a row and has not been delivered yet."""
        for seq in sorted(occupants, reverse=True):
            message = self.find(snap, seq)
            if message is not None and not message.attempts:
                return message
        return None

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
        message.lane = self.lane_for(commit, message, lane) if state == READY else None
        message.due = message.due if state == WAITING else 0
        commit.tx.put(self.row(keys.PLACES[state], message.seq), encode(message))
        if message.lane is not None:
            self.join_lane(commit, message.lane, message.seq)
        elif state != FAILED:
            commit.tx.put(self.order_key(message), b"")
        self._count(state, 1)
        if state == WAITING and (not record.next_due or message.due < record.next_due):
            record.next_due = message.due
        if state in (READY, WAITING):
            commit.touched.setdefault(self.queue.name, 0)  # takes wait for this message, or for a later time

    def _delete(self, commit: Commit, message: MessageRow) -> None:
        commit.touch(self)
        record, state = self.record, message.state
        if state == HELD and record.runs and (stretch := self.stretch_of(commit.tx, message.seq)) is not None:
            self.leave_run(commit, message.seq, *stretch)
        else:
            commit.tx.delete(self.row(keys.PLACES[state], message.seq))
            if message.lane is not None:
                self.leave_lane(commit, message.lane, message.seq)
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
        """Returns the key of the row that orders a message within its state; a failed message has no such row."""
        if message.state == READY:
            if message.turn:
                return keys.turn_key(self.prefix, message.turn, message.seq)
            return keys.ready_key(self.prefix, message.priority, message.seq)
        if message.state == WAITING:
            return keys.waiting_key(self.prefix, message.due, message.seq)
        assert message.state == HELD
        return keys.held_key(self.prefix, message.key or "", message.seq)
