"""The lanes of one group: messages that are delivered one after another by ordering key, or in turns with other lanes.

Runs of held messages: a million messages may wait behind one key. A take that skips such messages writes, for some
blocks of them, one row with their first and last position and the number of messages left (`p`), and for every key one
row with the position of its first message (`h`, with the run's end as its value). When the key is free again, its first
message leaves the run, and the key's row moves on to the next message.

Lanes, in a queue with fair share: messages are sorted by a header or by their key, and the lanes take turns. This is
start-time fair queuing: the first message of every lane has a turn, and the lowest turn is next. A lane that hands a
message out has its next turn one later; an empty lane begins with the group's current turn. A message that is removed
unhandled (discarded, moved, too old) leaves its turn to the next message of its lane. A message that was handed out
keeps its turn until it is settled. A take reads the first row of an index and searches nothing. A lane without ready
messages has no row: its next turn becomes the group's turn, so that it does not go before others when it gets a message
soon after.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.queue.state import keys
from penstock.core.queue.state.blocks import row_with_key
from penstock.core.queue.state.records import HELD, NEVER, MessageRow, blake2b
from penstock.core.queue.state.rows import GroupRows

LONGEST_LANE = 200
"""The bytes of a lane's name that are kept unchanged: a header may be longer than a row's key."""
TURN_STEP = 32
"""The number of messages with the same turn that a take checks together."""

_run = struct.Struct(">QQ")


class Lanes(GroupRows):
    """The rows of a group that put messages in order by ordering key and by lane."""

    __slots__ = ()

    # ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────
    def occupants(self, snap: Snapshot, key: str) -> list[int]:
        """Returns the positions of a key's messages that are under way: ready, waiting for a time, or in flight."""
        value = snap.get(keys.busy_key(self.prefix, key))
        return [] if value is None else keys.unpack_seqs(value)

    def is_busy(self, snap: Snapshot, key: str) -> bool:
        """Returns True if a message of a key must be settled before the next message may go."""
        value = snap.get(keys.busy_key(self.prefix, key))
        return value is not None and len(value) >= 8 * self.queue.record.policy.max_in_flight_per_key

    def occupy(self, commit: Commit, key: str, seqs: list[int]) -> None:
        """Stores which messages of a key are under way."""
        row = keys.busy_key(self.prefix, key)
        if seqs:
            commit.tx.put(row, keys.pack_seqs(seqs))
        else:
            commit.tx.delete(row)

    def first_held(self, snap: Snapshot, key: str) -> MessageRow | None:
        if self.record.held:
            for row, end in snap.scan(*keys.held_range(self.prefix, key)):
                seq = keys.tail_seq(row)
                return MessageRow(seq, HELD, key=key) if end else self.placed(snap, HELD, seq)
        return None

    def held_with_key(self, snap: Snapshot, key: str, after: int) -> Iterator[int]:
        """Yields the positions of a key's held messages beyond a position, ascending."""
        for row, end in snap.scan(*keys.held_range(self.prefix, key)):
            seq = keys.tail_seq(row)
            if end:
                yield from self._with_key(snap, key, max(seq, after + 1), keys.unpack_seq(end))
            elif seq > after:
                yield seq

    # ── runs of held messages ────────────────────────────────────────────────────────────────────────────────────────
    def hold_run(self, commit: Commit, start: int, end: int, count: int, firsts: Mapping[str | None, int]) -> None:
        """Holds `count` messages from the frontier to `end`; `firsts` has the first position of each key."""
        for key, seq in firsts.items():
            commit.tx.put(keys.held_key(self.prefix, key or "", seq), keys.pack_seq(end))
        commit.tx.put(self.row(keys.RUN, start), _run.pack(end, count))
        self.record.held += count
        self.record.runs += 1

    def runs(self, snap: Snapshot, through: int | None = None, after: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yields the runs, ascending: first position, last position, and the number of messages left.

        With `after`, begins with the last run that starts at or before this position.
        """
        if self.record.runs:
            low, high = self.rows(keys.RUN, 0, through)
            if after:
                stop = self.row(keys.RUN, after + 1)
                low = next((key for key, _ in snap.scan(low, stop, reverse=True)), stop)
            for key, value in snap.scan(low, high):
                yield keys.tail_seq(key), *_run.unpack(value)

    def run_members(self, snap: Snapshot, through: int | None = None, after: int = 0) -> Iterator[tuple[int, str]]:
        """Yields the messages of all runs, ascending, with their keys."""
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
        """Yields the ranges in which a key's messages are held in runs, ascending, from the range with `first` to
        the range with `last`.
        """
        low, begin = keys.held_range(self.prefix, key)[0], keys.held_key(self.prefix, key, first)
        low = next((row for row, _ in snap.scan(low, begin, reverse=True)), begin)
        for row, value in snap.scan(low, keys.held_key(self.prefix, key, last + 1)):
            if value:
                yield keys.tail_seq(row), keys.unpack_seq(value)

    def stretch_of(self, snap: Snapshot, seq: int) -> tuple[str, int, int] | None:
        """Returns the key of a message in a run, and the first and last position at which the run holds this key."""
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
        """Yields the positions of a key's messages between two positions, settled or not."""
        while (found := self.queue.blocks.find(snap, first, last)) is not None:
            block, row = found
            at = row_with_key(block, row, block.row_after(last), key)
            if at is not None:
                yield block.seq(at)
            first = (block.last if at is None else block.seq(at)) + 1

    def leave_run(self, commit: Commit, seq: int, key: str, first: int, last: int) -> None:
        """Removes a message from its run; earlier and later messages of the key stay in the run."""
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

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def next_in_turn(self, snap: Snapshot, latest: int, limit: int) -> list[int]:
        """Returns several messages with the lowest turn: after a take, the next message of the lane has a later
        turn.
        """
        found: list[int] = []
        present = 0
        for key, _ in snap.scan(*self.rows(keys.TURN)):
            turn, seq = keys.split_due(key)
            if (found and turn != present) or len(found) >= min(limit, TURN_STEP):
                break
            if seq <= latest:  # a message of this very commit has its row, but its event is not written yet
                present = turn
                found.append(seq)
        return found

    def lane_for(self, commit: Commit, message: MessageRow, lane: str | None) -> str | None:
        """Returns the lane in which a ready message waits for its turn; None when it needs no lane."""
        fair_by = self.queue.record.policy.fair_by
        if fair_by is None or message.turn:
            return None
        if lane is not None:
            return lane
        event = self.queue.blocks.event(commit.tx, message.seq)
        return lane_of(fair_by, message.key, None if event is None else event.headers)

    def join_lane(self, commit: Commit, lane: str, seq: int) -> None:
        """Adds a message to its lane; the first message of a lane gets the lane's turn."""
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

    def leave_lane(self, commit: Commit, lane: str, seq: int, spent: int = 0) -> int:
        """Removes a message from its lane, and gives its turn to the next message.

        A message that is handed out has `spent` its turn and keeps it: the next message gets the following turn.
        Returns the lane's earlier turn.
        """
        commit.tx.delete(keys.lane_key(self.prefix, lane, seq))
        turn, first = _read_lane(commit.tx, self._lane_row(lane))
        if first == seq:
            if not spent:
                commit.tx.delete(keys.turn_key(self.prefix, turn, seq))
            self._give_turn(commit, lane, turn + spent, seq)
        return turn

    def _give_turn(self, commit: Commit, lane: str, turn: int, after: int) -> None:
        """Gives the lane's turn to the first message of the lane after a position; removes an empty lane."""
        first = self._first_in_lane(commit.tx, lane, after)
        if first:
            commit.tx.put(keys.turn_key(self.prefix, turn, first), b"")
            commit.tx.put(self._lane_row(lane), keys.pack_seqs([turn, first]))
        else:
            commit.tx.delete(self._lane_row(lane))
            commit.touch(self)
            self.record.turn = max(self.record.turn, turn)

    def _first_in_lane(self, snap: Snapshot, lane: str, after: int) -> int:
        """Returns the first ready message of a lane after a position, 0 when there is none."""
        start = keys.lane_key(self.prefix, lane, after + 1)
        for key, _ in snap.scan(start, keys.lane_end(self.prefix, lane)):
            return keys.tail_seq(key)
        return 0

    def _lane_row(self, lane: str) -> bytes:
        return keys.flow_key(self.topic, self.group_id, b"t", lane)


def lane_of(fair_by: str, key: str | None, headers: Mapping[str, str] | None) -> str:
    """Returns the lane of a message; messages without the field share one lane."""
    if fair_by == "key":
        lane = key or ""
    elif fair_by.startswith("key:"):
        lane = (key or "").partition(fair_by[4:])[0]
    else:
        lane = (headers or {}).get(fair_by, "")
    text = lane.encode()
    return lane if len(text) <= LONGEST_LANE else blake2b(text, digest_size=32).hexdigest()


def _read_lane(snap: Snapshot, row: bytes) -> tuple[int, int]:
    """Returns a lane's turn, and the position of its first ready message, 0 for none."""
    value = snap.get(row)
    turn, first = (0, 0) if value is None else keys.unpack_seqs(value)
    return turn, first
