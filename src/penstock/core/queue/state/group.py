"""The state of a group of a queue: the messages in its places, lanes and leases, counted together."""

from __future__ import annotations

from itertools import islice

from penstock.core.engine.contract import Snapshot
from penstock.core.queue.state import keys
from penstock.core.queue.state.leases import Leases
from penstock.core.queue.state.places import UNFINISHED
from penstock.core.queue.state.records import NEVER


class Group(Leases):
    """The messages of a group."""

    __slots__ = ()

    def unsettled(self, latest: int) -> int:
        """Returns the number of messages that are ready, in flight or delayed."""
        record = self.record
        if record.until >= 0:
            latest = max(record.frontier, min(latest, record.until))
        untouched = latest - record.frontier - record.taken
        return untouched + record.ready + record.held + record.waiting + record.in_flight

    def overdue(self, snap: Snapshot, through: int) -> int:
        """Returns the number of messages up to a position that have outlived their ttl and are not in flight."""
        if not through:
            return 0
        unfinished = [state for state in UNFINISHED if self.count_in_state(state)]
        count = sum(1 for state in unfinished for _ in self.rows_of(snap, state, through, 0))
        for start, end, left in self.runs(snap, through):
            count += left if end <= through else sum(1 for _ in self.run_members(snap, through, start - 1))
        return count + sum(end - start + 1 for start, end in self.untouched(snap, through))

    def kept(self) -> int:
        """Returns the number of messages that the shared group of a fanout queue keeps for groups that may come."""
        record = self.record
        return max(0, self.unsettled(record.until) - record.in_flight + record.failed) if record.until >= 0 else 0

    def passed(self) -> int:
        """Returns the position up to which every message was handed out, or does not belong to the group."""
        frontier, until = self.record.frontier, self.record.until
        return frontier if until < 0 or frontier < until else NEVER

    def floor(self, snap: Snapshot) -> int:
        """Returns the position up to which every message is settled for this group."""
        floor = self.passed()
        for kind in (*keys.PLACES, keys.RUN):
            for key, _ in snap.scan(*self.rows(kind)):
                floor = min(floor, keys.tail_seq(key) - 1)
                break
        for held in self.in_flight(snap):
            return min(floor, held.seq - 1)
        return floor

    def under_way(self, snap: Snapshot, key: str, overdue: int) -> list[int]:
        """Returns the messages of a key that are under way after a take has given up unleased messages up to
        `overdue`.
        """
        occupants = self.occupants(snap, key)
        live = [seq for seq in occupants if seq > overdue or self.lease_of(snap, seq) is not None]
        if len(live) < len(occupants):
            live += islice(self.held_with_key(snap, key, overdue), self.queue.policy.max_in_flight_per_key - len(live))
        return live
