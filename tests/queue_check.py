"""Whether a queue's rows agree: every message is in one place, indexes and counters say what the rows say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.core.engine.contract import Snapshot
from penstock.core.journal.catalog import TopicRecord
from penstock.core.journal.reading import TopicView
from penstock.core.model.failure import DEAD_QUEUE
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueState
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import LISTED, RUN
from penstock.core.queue.state.records import FAILED, HELD, NEVER, READY, WAITING, MessageRow, read_message

_ORDERS = (keys.READY, keys.LANE, keys.TURN, keys.WAITING, keys.HELD)


def check_queue(snap: Snapshot, queue: QueueState) -> list[str]:
    """What is wrong with a queue's rows, a sentence each; none in a sound store."""
    return [
        f"queue {queue.name!r}, group {group.name or group.group_id}: {found}"
        for group in queue.all_groups(snap)
        for found in _GroupCheck(snap, group).problems()
    ] + [f"queue {queue.name!r}: {found}" for found in (*_letters(snap, queue), *_ticks(snap, queue))]


def letters_range(topic: int) -> tuple[bytes, bytes]:
    """All rows of dead letters."""
    unnamed = keys.letter_key(topic, "", 0)[:-10]
    return unnamed, unnamed[:-1] + b"m"


def _ticks(snap: Snapshot, queue: QueueState) -> Iterator[str]:
    """Every periodic message has one row of its next tick."""
    names = [keys.schedule_name(key) for key, _ in snap.scan(*keys.schedule_range(queue.topic))]
    rows = snap.scan(keys.tick_key(queue.topic, 1, ""), keys.tick_key(queue.topic, NEVER, ""))
    ticks = sorted(keys.split_tick(key)[1] for key, _ in rows)
    if ticks != sorted(names):
        yield f"there are ticks of {ticks}, and periodic messages {names}"


def _letters(snap: Snapshot, queue: QueueState) -> Iterator[str]:
    """Every dead letter that is not settled has its rows, and there are none of other messages."""
    view = TopicView(snap, queue.name, TopicRecord(queue.topic))
    rows = [(seq, block.headers(row)) for block in view.blocks(0, view.latest()) for row, seq in enumerate(block.seqs)]
    letters = {seq: headers.get(DEAD_QUEUE) for seq, headers in rows}
    stored = [row for row, _ in snap.scan(*letters_range(queue.topic))]
    named = {seq: ("", origin) for seq, origin in letters.items() if origin}
    expected = {seq: [keys.letter_key(queue.topic, name, seq) for name in names] for seq, names in named.items()}
    for seq, wanted in expected.items() if not queue.record.over_log else ():
        has = queue.find(snap, seq) or any(group.lease_of(snap, seq) for group in queue.all_groups(snap))
        yield from (f"dead letter {seq} has no row {row!r}" for row in wanted if has and row not in stored)
    for row in stored:
        if keys.tail_seq(row) in letters and row not in expected.get(keys.tail_seq(row), ()):
            yield f"row {row!r} leads to no dead letter"


class _GroupCheck:
    """One group's rows, all of them read."""

    def __init__(self, snap: Snapshot, group: Group) -> None:
        self._snap = snap
        self._group = group
        self._record = group.record
        self._placed = list(self._own_rows())
        self._rows = {message.seq: message for message in self._placed}
        self._runs = dict(group.run_members(snap))
        self._leases = dict(group.leases(snap))
        self._flying = {held.seq: held.lease.message(held.index) for held in group.in_flight(snap)}

    def problems(self) -> Iterator[str]:
        yield from self._places()
        yield from self._counters()
        yield from self._indexes()
        yield from self._lists()
        yield from self._keys()
        yield from self._lanes()
        yield from self._trails()

    def _own_rows(self) -> Iterator[MessageRow]:
        for kind in keys.PLACES:
            yield from (read_message(value, self._group.queue.name) for _, value in self._scan(kind))

    def _scan(self, tag: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._snap.scan(*self._group.rows(tag)))

    def _places(self) -> Iterator[str]:
        """Every message is in one place: untouched, in a lease, in a row of its own, or in a run."""
        held = [lease.seq(index) for lease in self._leases.values() for index in lease.held()]
        found = Counter([*held, *(message.seq for message in self._placed), *self._runs])
        yield from (f"message {seq} is in {count} places" for seq, count in found.items() if count > 1)
        latest = TopicView(self._snap, self._group.queue.name, TopicRecord(self._group.topic)).latest()
        for seq in found:
            if self._group.is_untouched(self._snap, seq):
                yield f"message {seq} has a place, and is untouched as well"
            if seq > latest:
                yield f"message {seq} was never pushed: the queue ends at {latest}"
        frontier = self._record.frontier
        for start, end in self._group.taken_ranges(self._snap):
            if not frontier + 1 < start <= end:
                yield f"the taken range {start} to {end} does not lie apart from what is taken up to {frontier}"
            frontier = end

    def _counters(self) -> Iterator[str]:
        record, rows = self._record, Counter(message.state for message in self._rows.values())
        runs = list(self._group.runs(self._snap))
        leases = self._leases.values()
        counted = {
            "ready": (record.ready, rows[READY]),
            "waiting": (record.waiting, rows[WAITING]),
            "held": (record.held, rows[HELD] + len(self._runs)),
            "failed": (record.failed, rows[FAILED]),
            "in_flight": (record.in_flight, len(self._flying)),
            "leases": (record.leases, len(self._leases)),
            "endless": (record.endless, sum(lease.owner is not None for lease in leases)),
            "taken": (record.taken, sum(end - start + 1 for start, end in self._group.taken_ranges(self._snap))),
            "runs": (record.runs, sum(1 for _ in self._scan(keys.RUN))),
            "left in runs": (sum(left for _, _, left in runs), len(self._runs)),
        }
        yield from (f"{name} is {said}, counted {is_so}" for name, (said, is_so) in counted.items() if said != is_so)
        dues = [message.due for message in self._rows.values() if message.state == WAITING]
        deadlines = [one for lease in leases for one in lease.deadlines() if one != NEVER]
        for name, said, times in ("due", record.next_due, dues), ("deadline", record.next_deadline, deadlines):
            if times and not 0 < said <= min(times):
                yield f"next_{name} is {said}, and one is at {min(times)}"

    def _indexes(self) -> Iterator[str]:
        """Every message with a row of its own has the rows of its state, and there are no others."""
        expected: dict[bytes, bytes] = {}
        for message in self._rows.values():
            if message.lane is not None:
                expected[keys.lane_key(self._group.prefix, message.lane, message.seq)] = b""
            elif message.state != FAILED:
                expected[self._group.order_key(message)] = b""
            if self._group.placed(self._snap, message.state, message.seq) != message:
                yield f"message {message.seq} does not lie where its state {message.state} says"
        firsts = {first for _, (_, first) in self._lane_rows()}
        stored = {row: value for tag in _ORDERS for row, value in self._scan(tag)}
        for row in expected.keys() - stored.keys():
            yield f"message {keys.tail_seq(row)} has no index row {row!r}"
        for row in stored.keys() - expected.keys():
            is_turn = row.startswith(self._group.prefix + keys.TURN)
            in_run = stored[row] and self._runs.get(keys.tail_seq(row)) is not None
            if not in_run and not (is_turn and keys.tail_seq(row) in firsts):
                yield f"index row {row!r} leads to no message"

    def _lists(self) -> Iterator[str]:
        """From every message in flight there is a way to its lease, and none leads elsewhere."""
        for lease_id, lease in self._leases.items():
            for index in lease.held():
                found = self._group.lease_of(self._snap, lease.seq(index))
                if found is None or (found.lease_id, found.index) != (lease_id, index):
                    yield f"message {lease.seq(index)} is in lease {lease_id}, and is not found there"
        said = {keys.split_due(row): tuple(keys.unpack_seqs(value)) for row, value in self._scan(keys.BATCH)}
        lists = [(lease_id, lease) for lease_id, lease in self._leases.items() if LISTED <= lease_id < RUN]
        stretches = {
            (first, lease_id): (last, at) for lease_id, lease in lists for at, first, last in lease.stretches()
        }
        if said != stretches:
            yield f"stretches of leases are {said}, and should be {stretches}"

    def _keys(self) -> Iterator[str]:
        """Of an ordering key, those that are under way are listed, and the others wait behind one of them."""
        group, snap = self._group, self._snap
        low, high = group.rows(keys.BUSY)
        busy = {key[len(low) + 2 :].decode(): keys.unpack_seqs(value) for key, value in snap.scan(low, high)}
        for key, seqs in busy.items():
            for seq in seqs:
                message = self._flying.get(seq) or self._rows.get(seq)
                is_under_way = seq in self._flying or (message is not None and message.state in (READY, WAITING))
                if not is_under_way or message is None or message.key != key:
                    yield f"key {key!r} is busy with message {seq}, which is not under way"
        for seq, message in [*self._flying.items(), *self._rows.items()]:
            must = seq in self._flying or message.state == READY or (message.state == WAITING and message.attempts > 0)
            if message.key is not None and must and seq not in busy.get(message.key, []):
                yield f"message {seq} is under way, and its key {message.key!r} is not busy with it"
        blocked = [(seq, one.key) for seq, one in self._rows.items() if one.state == HELD] + [*self._runs.items()]
        most = group.queue.policy.max_in_flight_per_key
        for seq, blocker in blocked:
            under_way = busy.get(blocker or "", [])
            if len(under_way) < most:
                yield f"message {seq} waits behind its key {blocker!r}, of which {len(under_way)} are under way"
            for later in under_way:
                if later > seq and later in self._rows and not self._rows[later].attempts:
                    yield f"message {later} goes before message {seq} of its key {blocker!r}"

    def _lane_rows(self) -> Iterator[tuple[str, tuple[int, int]]]:
        low, high = keys.flow_rows(self._group.topic, self._group.group_id, b"t")
        for row, value in self._snap.scan(low, high):
            turn, first = keys.unpack_seqs(value)
            yield row[len(low) :].decode(), (turn, first)

    def _lanes(self) -> Iterator[str]:
        """Every lane has the turn of its first ready message."""
        firsts: dict[str, int] = {}
        for message in self._rows.values():
            if message.lane is not None:
                firsts[message.lane] = min(message.seq, firsts.get(message.lane, message.seq))
        lanes = dict(self._lane_rows())
        if {lane: first for lane, (_, first) in lanes.items()} != firsts:
            yield f"lanes are {lanes}, and their first messages {firsts}"
        for turn, first in lanes.values():
            if self._snap.get(keys.turn_key(self._group.prefix, turn, first)) is None:
                yield f"message {first} is the first of its lane, and has no turn {turn}"

    def _trails(self) -> Iterator[str]:
        """Every row of failed attempts is that of a message."""
        traced = {seq for seq, one in [*self._flying.items(), *self._rows.items()] if one.traced}
        stored = {keys.tail_seq(row) for row, _ in self._scan(keys.TRAIL)}
        yield from (f"message {seq} has failed attempts, and no row of them" for seq in traced - stored)
        yield from (f"failed attempts of message {seq}, which is settled" for seq in stored - traced)
