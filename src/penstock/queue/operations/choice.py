"""Choosing: which messages of a group come next when there is more to think of than a run of untouched ones.

Three things come before the choice: leases that have ended give their messages back, messages whose time has come
become ready, and delays and priorities pushed since the last take are sorted in. Then ready messages and the untouched
ones above the frontier are merged: by priority, then by position.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from penstock.errors import ConfigError
from penstock.events import Event, EventRows
from penstock.journal.commit.catalog import TopicRecord
from penstock.journal.commit.commit import Commit
from penstock.journal.reading import TopicView
from penstock.journal.storage.block import Block
from penstock.queue.delivery import LeaseHandle, LocalDelivery
from penstock.queue.flow.arriving import absorb, wake_due
from penstock.queue.flow.limiter import limiter_for
from penstock.queue.flow.sorting import sort_in
from penstock.queue.flow.turns import whose_turn
from penstock.queue.operations.settle import EXPIRED, expire, give_up, give_up_dead_owners
from penstock.queue.state import keys
from penstock.queue.state.blocks import DamagedBlock, Rows, has_keys
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import HELD, NEVER, READY, WAITING, Lease, MessageRow
from penstock.queue.state.runs import SHORTEST_RUN, HeldRun
from penstock.queue.token import new_secret

LEASE_MESSAGES = 1024
"""The most messages under one lease record: settling one of them rewrites the record."""
STEP = 256
"""How many messages one commit sorts in, walks past or takes back before it lets others have their turn."""
RUN_STEPS, ROWS_OF_A_STEP = 8, 1024
"""How many of them a block counts that is walked past as a whole, and how many of its messages count as one more."""


class Request(msgspec.Struct, eq=False):
    """What a take asks for."""

    limit: int
    label: str
    consumer: str | None
    lease_ms: int | None
    newest: bool
    owner: str
    host: str | None = None
    """The consumer's machine, where it is not this one."""
    since_ms: int = 0
    """When the consumer began, where this process cannot tell."""


class Taken(msgspec.Struct, eq=False):
    """What a take found; `more`: it stopped to let others have their turn; `next_ms`: when to look again."""

    deliveries: list[LocalDelivery]
    more: bool
    next_ms: int


class Choice:
    """One take, inside its commit."""

    __slots__ = (
        "blocks", "commit", "deadline", "deliveries", "group", "hold", "latest", "limiter", "messages", "now", "owner",
        "queue", "request", "ttl_bound", "walked",
    )  # fmt: skip

    def __init__(self, commit: Commit, queue: QueueState, group: Group, request: Request, hold: LeaseHandle) -> None:
        self.commit = commit
        self.queue = queue
        self.group = group
        self.request = request
        self.hold = hold
        self.blocks = queue.blocks
        self.limiter = limiter_for(commit, queue, group)
        self.now = commit.now_ms
        self.latest = queue.latest(commit)
        self.deliveries: list[LocalDelivery] = []
        self.messages: list[tuple[MessageRow, Event]] = []
        self.walked = 0
        lease_ms = request.lease_ms if request.lease_ms is not None else round(queue.policy.lease * 1000)
        self.deadline = self.now + lease_ms if lease_ms else NEVER
        self.owner = None if lease_ms else request.owner
        ttl = queue.policy.ttl
        self.ttl_bound = None if ttl is None else self.now - round(ttl * 1000)

    # ── before the choice ────────────────────────────────────────────────────────────────────────────────────────────
    def catch_up(self) -> bool:
        """Takes back, wakes and sorts in; True when there is more of that than one commit should do."""
        group, record, now = self.group, self.group.record, self.now
        behind = False
        if record.next_deadline and record.next_deadline <= now:
            behind = expire(self.commit, self.queue, group, STEP)
        if record.endless:
            behind = give_up_dead_owners(self.commit, self.queue, group, self.request.owner, STEP) or behind
        if record.next_due and record.next_due <= now:
            behind = wake_due(self.commit, group, STEP) or behind
        if record.absorbed < self.queue.traits.special:
            behind = absorb(self.commit, self.queue, group, self.latest, STEP) or behind
        if self.queue.record.policy.fair_by is not None and not behind:
            sort_in(self.commit, self.queue, group, self.latest, STEP)
        return behind

    # ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────────
    def oldest(self, limit: int) -> None:
        """From the front: by priority, then position."""
        record = self.group.record
        ready: list[tuple[int, int]] = []
        while limit > 0 and self.walked < STEP:
            if record.ready and not ready:
                ready = self._ready(limit, reverse=False)
            first = record.frontier + 1
            untouched = first <= self.latest
            if ready:
                priority, seq = ready[-1]
                if priority > 0 or not untouched or (priority == 0 and seq < first):
                    ready.pop()
                    before = record.ready
                    if self._take_ready(seq):
                        limit -= 1
                    elif record.ready != before - 1 or self.queue.record.policy.fair_by is not None:
                        ready.clear()  # giving a message up has made another one ready, or given its turn to one
                    continue
                through = min(self.latest, seq - 1) if priority == 0 else self.latest
            elif untouched:
                through = self.latest
            else:
                break
            limit -= self._take_untouched(limit, through)
        self._lease_messages()

    def newest(self, limit: int) -> None:
        """From the other end: by position backwards, the lowest priority first."""
        if self.queue.record.policy.fair_by is not None:
            raise ConfigError(
                f"queue {self.queue.name!r} has fair_by, and its lanes take turns from the front: "
                "take(newest=True) would ignore them"
            )
        ready: list[tuple[int, int]] = []
        while limit > 0 and self.walked < STEP:
            if self.group.record.ready and not ready:
                ready = self._ready(limit, reverse=True)
            top = self._newest_untouched()
            if ready and (ready[-1][0] < 0 or top is None or (ready[-1][0] == 0 and ready[-1][1] > top)):
                limit -= self._take_ready(ready.pop()[1])
            elif top is not None:
                limit -= self._take_at(top)
            else:
                break
        self._lease_messages()

    def _ready(self, limit: int, *, reverse: bool) -> list[tuple[int, int]]:
        """Priorities and positions of the ready messages at one end, the next one last."""
        group = self.group
        rows = self.commit.tx.scan(*keys.rows(group.topic, group.number, b"y"), reverse=reverse)
        # What this very commit pushes has its row, but its event is not written yet.
        visible = (one for one in (keys.split_ready(key) for key, _ in rows) if one[1] <= self.latest)
        found = list(islice(visible, limit))
        if len(found) < limit and len(found) < group.record.ready:
            found += [(1, seq) for seq in whose_turn(self.commit.tx, group, self.latest, limit - len(found))]
        found.reverse()
        return found

    def _newest_untouched(self) -> int | None:
        top = self.latest
        for start, end in self.group.covers(self.commit.tx, reverse=True):
            if end < top:
                break
            top = start - 1
        return top if top > self.group.record.frontier else None

    def _take_at(self, seq: int) -> int:
        found = self.blocks.find(self.commit.tx, seq, seq)
        if found is None:
            self.walked += 1
            self.group.cover(self.commit, seq, seq)
            return 0
        event = Event(*found)
        if event.key is not None:
            raise ConfigError(
                f"message {seq} of queue {self.queue.name!r} has an ordering key: take(newest=True) would deliver it "
                "before earlier ones of its key"
            )
        self.group.cover(self.commit, seq, seq)
        if self._is_over(*found):
            self.walked += 1
            give_up(self.commit, self.queue, self.group, MessageRow(seq), EXPIRED, None)
            return 0
        self.messages.append((MessageRow(seq), event))
        return 1

    def _take_ready(self, seq: int) -> int:
        group, tx = self.group, self.commit.tx
        message = group.message(tx, seq)
        assert message is not None
        event = self.blocks.event(tx, seq)
        if event is None:
            self.walked += 1
            group.remove(self.commit, message)
            # Retention or a forced compaction has removed it: there is nothing to deliver any more.
            if message.key is not None:
                group.free(self.commit, message.key, seq)
            return 0
        if self._is_over(event._rows, event._row):
            self.walked += 1
            group.remove(self.commit, message)
            give_up(self.commit, self.queue, group, message, EXPIRED, None)
            return 0
        group.call_up(self.commit, message)
        if self._must_wait(message):
            return 0
        group.record.turn = max(group.record.turn, message.turn)
        self.messages.append((message, event))
        return 1

    def _take_untouched(self, limit: int, through: int) -> int:
        """A run of positions from the frontier on, no further than `through`; returns how many were taken."""
        group, record = self.group, self.group.record
        cover = group.next_cover(self.commit.tx)
        if cover is not None and cover[0] <= through:
            through = cover[0] - 1
        first = record.frontier + 1
        found = self.blocks.find(self.commit.tx, first, through)
        if found is None:
            self.walked += 1
            group.advance(self.commit, through)
            return 0
        rows, row = found
        if self.ttl_bound is not None and self._is_over(rows, row):
            self._drop_old(through)
            return 0
        if has_keys(rows):
            return self._take_keyed(rows, row, through)
        return self._take_run(rows, row, limit, through)

    def _take_run(self, rows: Rows, row: int, limit: int, through: int) -> int:
        """Plain messages: one lease over as many neighbouring positions as there are."""
        limit = min(limit, LEASE_MESSAGES)
        start = rows.seq(row)
        events: list[Event] = []
        while True:
            stop = min(rows.count, row + limit - len(events), rows.row_after(through))
            if rows.seq(stop - 1) - rows.seq(row) != stop - 1 - row:  # compaction left holes in this block
                stop = next(at for at in range(row + 1, stop + 1) if rows.seq(at) != rows.seq(at - 1) + 1)
            events.extend([Event(rows, at) for at in range(row, stop)])
            following = start + len(events)
            if len(events) >= limit or stop < rows.count or following > through:
                break
            found = self.blocks.find(self.commit.tx, following, following)
            if found is None:
                break
            if has_keys(found[0]):
                break
            rows, row = found
        self._lease_messages()
        count = len(events)
        lease = self._lease(start, count, None)
        number = self.group.add_lease(self.commit, lease)
        self.group.advance(self.commit, start + count - 1)
        hold = self.hold.under(self.group, number, lease)
        self.deliveries.extend([LocalDelivery(hold, index, event, 1) for index, event in enumerate(events)])
        return count

    def _take_keyed(self, rows: Rows, row: int, through: int) -> int:
        """Messages with ordering keys, one by one: those behind an unsettled one of the same key are set aside."""
        group, commit = self.group, self.commit
        seq = rows.seq(row)
        key = rows.key(row)
        occupants = [] if key is None else group.occupants(commit.tx, key)
        if len(occupants) >= self.queue.record.policy.max_in_flight_per_key:
            self._pass_blocked(rows, row, through)
            return 0
        group.advance(commit, seq)
        message = MessageRow(seq, key=key)
        if key is not None:
            if occupants and group.admit(commit, key, occupants):  # more may be in flight now than when it was blocked
                self.walked += 1
                group.seat(commit, message)
                return 0
            group.occupy(commit, key, [*occupants, seq])
            if self._must_wait(message):
                return 0
        self.messages.append((message, Event(rows, row)))
        return 1

    def _must_wait(self, message: MessageRow) -> bool:
        """Sets a message aside whose key has had as many deliveries as its rate allows; else counts this one."""
        due = 0 if self.limiter is None or message.key is None else self.limiter.take_key(message.key)
        if not due:
            return False
        self.walked += 2  # its rows and its key's: twice what walking past one costs
        message.state, message.due, message.since_ms = WAITING, due, self.now
        self.group.place(self.commit, message)
        return True

    def _pass_blocked(self, rows: Rows, row: int, through: int) -> None:
        """Sets messages aside whose keys are busy: many neighbours as one run, a few with a row each."""
        group, commit = self.group, self.commit
        assert isinstance(rows, Block)
        run = HeldRun(commit.tx, group)
        stop = min(rows.count, rows.row_after(through))
        free = run.first_free(rows, row, stop)
        if free - row < SHORTEST_RUN:
            for at in range(row, free):
                group.advance(commit, rows.seq(at))
                group.place(commit, MessageRow(rows.seq(at), HELD, key=rows.key(at)))
                self.walked += 1
            return
        # As many blocks as a step allows, because a run costs a row for every key in it.
        while True:
            run.add(rows, row, free)
            self.walked += RUN_STEPS + (free - row) // ROWS_OF_A_STEP
            if free < rows.count or self.walked >= STEP or run.is_full:
                break
            found = self.blocks.find(commit.tx, rows.last + 1, through)
            if found is None or not isinstance(found[0], Block) or not has_keys(found[0]):
                break
            rows, row = found[0], found[1]
            free = run.first_free(rows, row, min(rows.count, rows.row_after(through)))
            if free == row:
                break
        if run.is_full:
            self.walked = STEP
        run.store(commit)

    # ── leasing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _lease_messages(self) -> None:
        """One lease over the messages picked one by one so far."""
        picked, self.messages = self.messages, []
        for at in range(0, len(picked), LEASE_MESSAGES):
            part = picked[at : at + LEASE_MESSAGES]
            for message, _ in part:
                message.state = READY
                message.attempts += 1
                message.last_ms = self.now
                message.first_ms = message.first_ms or self.now
            lease = self._lease(part[0][0].seq, len(part), [message for message, _ in part])
            number = self.group.add_lease(self.commit, lease)
            hold = self.hold.under(self.group, number, lease)
            self.deliveries.extend(
                [LocalDelivery(hold, index, event, message.attempts) for index, (message, event) in enumerate(part)]
            )

    def _lease(self, start: int, count: int, messages: list[MessageRow] | None) -> Lease:
        return Lease(
            new_secret(),
            self.now,
            self.deadline,
            start,
            count,
            self.request.label,
            self.request.consumer,
            messages=messages,
            owner=self.owner,
        )

    # ── too old ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_over(self, rows: EventRows, row: int) -> bool:
        if self.ttl_bound is None or isinstance(rows, DamagedBlock):
            return False
        return rows.recorded_ms(row) <= self.ttl_bound

    def _drop_old(self, through: int) -> None:
        """Untouched messages that have outlived the queue's ttl, from the frontier on."""
        group, commit, queue = self.group, self.commit, self.queue
        assert self.ttl_bound is not None
        view = TopicView(commit.tx, queue.name, TopicRecord(queue.topic))
        last = min(view.position_before(self.ttl_bound + 1), through)
        if queue.policy.dead_letter is None and not queue.traits.replies:
            self.walked += 1
            group.advance(commit, max(last, group.record.frontier + 1))
            return
        while group.record.frontier < last and self.walked < STEP:
            self.walked += 1
            seq = group.record.frontier + 1
            event = self.blocks.event(commit.tx, seq)
            over = MessageRow(seq, key=None if event is None else event.key)
            covered = group.record.covered
            group.advance(commit, seq)
            if event is not None:
                give_up(commit, queue, group, over, EXPIRED, None, occupied=False)
            if covered != group.record.covered:
                break  # the frontier has jumped over covered positions
