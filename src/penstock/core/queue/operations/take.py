"""Taking: a fast path for a plain queue, `TakeOperation` for all other takes.

Before the long way chooses, leases that have ended give their messages back, and messages whose time has come become
ready. Delays and priorities that were pushed since the last take are sorted in. Then the take merges ready messages
with untouched messages above the frontier: by priority, then by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.clock import set_back, to_ms
from penstock.core.consuming.delivery import Delivery
from penstock.core.events import Event
from penstock.core.journal.blocks import Block
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.index import OpenIndex, read_view
from penstock.core.journal.reading import TopicView
from penstock.core.model.query import EventQuery
from penstock.core.model.take import TakeRequest
from penstock.core.names import check_position, check_text, check_whole
from penstock.core.queue.flow import limiter_for
from penstock.core.queue.operations.groups import TOLERATED_MS, group_for
from penstock.core.queue.operations.settle import EXPIRED, LeaseHandle, expire, give_up_dead_owners, give_up_through
from penstock.core.queue.policy import QueuePolicy
from penstock.core.queue.state import keys
from penstock.core.queue.state.blocks import LONGEST_SCAN, DamagedBlock, first_free_row, first_rows
from penstock.core.queue.state.cache import note_presence
from penstock.core.queue.state.feed import Change
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import LONGEST_LEASE, Lease, new_secret
from penstock.core.queue.state.places import UNFINISHED
from penstock.core.queue.state.records import HELD, NEVER, READY, TAKEN, UNTOUCHED, WAITING, MessageRow, read_special
from penstock.errors import ConfigError, Corrupt

if TYPE_CHECKING:
    from penstock.core.queue.queue import LocalQueue

STEP = 256
"""The number of messages that one commit sorts in, skips or takes back before other callers get their turn."""
RUN_STEPS, ROWS_OF_A_STEP = 8, 1024
"""The number of messages in a block that is skipped as a whole, and the number of its messages that count as one
row.
"""


REMOVED: Final = Change("discarded", "removed")
"""The change of a message whose event was removed by retention or by a forced compaction."""
SHORTEST_RUN = 16
"""Fewer held messages than this get a row each."""


def check_take(wanted: TakeRequest) -> None:
    """Raises ConfigError when a take must not name a message by position or key, or has no time of its beginning."""
    if wanted.since is not None:
        to_ms(wanted.since, "since")
    if wanted.seq is None and wanted.key is None:
        return
    if wanted.limit != 1 or wanted.newest or (wanted.seq is not None and wanted.key is not None):
        raise ConfigError("a take names one message by seq= or by key=, not both, and without newest= or a limit")
    if wanted.seq is not None:
        check_position(check_whole(wanted.seq, "seq"), "seq")
    if wanted.key is not None:
        check_text(wanted.key, "key")


class Taken(msgspec.Struct, eq=False):
    """The result of a take. `more`: the take stopped so that others can commit. `next_ms`: when to try again."""

    deliveries: list[Delivery]
    more: bool
    next_ms: int


FENCE_MS = 50
"""The pause before a take checks an exclusive fence again that prevented it from giving messages up."""


def take(commit: Commit, taker: LocalQueue, wanted: TakeRequest) -> Taken:
    """Hands out up to `limit` messages."""
    queue = taker.cache.state(commit, taker.name)
    group = queue.group_named(commit.tx, wanted.group)
    if group is None or group.record.seen_ms - commit.now_ms >= TOLERATED_MS:
        group = group_for(commit, queue, wanted.group)
    if commit.catalog.reshaped != queue.blocks.reshaped:
        queue.blocks.refresh(commit)
    if wanted.consumer is not None:
        note_presence(commit, queue, wanted)
    if queue.record.paused and queue.record.is_paused(wanted.group):
        return Taken([], False, 0)
    plain = _take_plainly(commit, group, wanted, taker)
    if plain is not None:
        return plain
    if commit.fenced and _may_append(group, commit.now_ms):
        return Taken([], False, commit.now_ms + FENCE_MS)
    taking = TakeOperation(commit, group, wanted, taker)
    behind = taking.catch_up()
    cap = queue.policy.max_in_flight
    limit = wanted.limit if cap is None else min(wanted.limit, cap - group.record.in_flight)
    if taking.limiter is not None and not behind:
        limit = taking.limiter.room(limit)
    if limit > 0 and not behind:
        if wanted.seq is not None or wanted.key is not None:
            taking.named()
        elif wanted.newest:
            taking.newest(limit)
        else:
            taking.oldest(limit)
    next_ms = _next_ms(group)
    if taking.limiter is not None:
        taking.limiter.taken(taking.deliveries)
        next_ms = min(next_ms or NEVER, taking.limiter.next_ms) if taking.limiter.next_ms else next_ms
    return Taken(taking.deliveries, behind or (taking.walked >= STEP and not taking.deliveries), next_ms)


def take_timed(commit: Commit, taker: LocalQueue, wanted: TakeRequest) -> Taken:
    """Takes messages for a taker in another process; raises ConfigError for a lease that lasts as long as this
    process.
    """
    check_timed(taker.cache.state(commit, taker.name).policy, wanted.lease)
    return take(commit, taker, wanted)


def check_timed(policy: QueuePolicy, lease: float | None) -> None:
    """Raises ConfigError for a lease that lasts as long as the taker's process, when this process cannot be
    observed.
    """
    if lease == 0 or (lease is None and policy.lease == 0):
        raise ConfigError("a lease of 0 lasts as long as the taker's process, which a server cannot see: give seconds")


def _take_plainly(commit: Commit, group: Group, wanted: TakeRequest, taker: LocalQueue) -> Taken | None:
    """Takes neighbouring untouched messages of one block; returns None when the queue or the request needs
    `TakeOperation`.
    """
    queue = group.queue
    record, policy, now = group.record, queue.record.policy, commit.now_ms
    if (
        wanted.newest
        or wanted.seq is not None
        or wanted.key is not None
        or record.ready
        or record.taken
        or record.endless
        or 0 < record.next_deadline <= now
        or 0 < record.next_due <= now
        or record.absorbed < queue.traits.special
        or queue.shaped
    ):
        return None
    head = commit.head(queue.name)
    first, latest = record.frontier + 1, head.latest if head else 0
    if first > latest:
        return Taken([], False, _next_ms(group))
    blocks = queue.blocks
    if blocks.hot_first <= first <= blocks.hot_last and blocks.hot is not None:
        rows, row = blocks.hot, first - blocks.hot_first
    elif (found := blocks.find(commit.tx, first, latest)) is not None:
        rows, row = found
    else:
        return None
    if rows.wire.key is not None or rows.wire.seqs is not None:
        return None
    count = min(wanted.limit, LONGEST_LEASE, rows.count - row)
    if rows.first + row != first or (count < wanted.limit and first + count <= latest):
        return None
    lease_ms = round((policy.lease if wanted.lease is None else wanted.lease) * 1000)
    lease = Lease(
        new_secret(),
        now,
        now + lease_ms if lease_ms else NEVER,
        first,
        count,
        wanted.group,
        wanted.consumer,
        owner=None if lease_ms else taker.owner,
    )
    lease_id = group.add_lease(commit, lease)
    under = LeaseHandle(  # what `of` makes, without the call
        taker, wanted.group, wanted.consumer, group.topic, group.group_id, lease_id, lease.secret, lease.deadline
    )
    record.frontier += count
    if count == 1:
        return Taken([Delivery(under, 0, Event(rows, row), 1)], False, 0)
    return Taken([Delivery(under, index, Event(rows, row + index), 1) for index in range(count)], False, 0)


def _may_append(group: Group, now: int) -> bool:
    """Returns True if a take may have to append dead letters, which is refused while an exclusive fence is open."""
    queue = group.queue
    policy, deadline = queue.policy, group.record.next_deadline
    appends = policy.dead_letter is not None or queue.traits.replies
    return appends and (policy.ttl is not None or 0 < deadline <= now)


def _next_ms(group: Group) -> int:
    """Returns the time when a message may become ready by the passing of time alone; 0 for never."""
    due, deadline = group.record.next_due, group.record.next_deadline
    return min(due, deadline) if due and deadline else due or deadline


# ── the long way ──────────────────────────────────────────────────────────────────────────────────────────────────────
class TakeOperation:
    """A take, inside its commit."""

    __slots__ = (
        "blocks", "commit", "deadline", "deliveries", "group", "latest", "limiter", "messages", "now", "owner", "queue",
        "taker", "ttl_bound", "walked", "wanted",
    )  # fmt: skip

    def __init__(self, commit: Commit, group: Group, wanted: TakeRequest, taker: LocalQueue) -> None:
        queue = group.queue
        self.commit = commit
        self.queue = queue
        self.group = group
        self.wanted = wanted
        self.taker = taker
        self.blocks = queue.blocks
        self.limiter = limiter_for(commit, group)
        self.now = commit.now_ms
        self.latest = queue.latest(commit)
        self.deliveries: list[Delivery] = []
        self.messages: list[tuple[MessageRow, Event]] = []
        self.walked = 0
        lease_ms = round((queue.policy.lease if wanted.lease is None else wanted.lease) * 1000)
        self.deadline = self.now + lease_ms if lease_ms else NEVER
        self.owner = None if lease_ms else taker.owner
        ttl = queue.policy.ttl
        self.ttl_bound = 0 if ttl is None else self.now - round(ttl * 1000)

    # ── before the choice ────────────────────────────────────────────────────────────────────────────────────────────
    def catch_up(self) -> bool:
        """Takes back ended leases, wakes due messages, and sorts in new messages; returns True when work is left."""
        group, record, now = self.group, self.group.record, self.now
        behind = False
        if record.next_deadline and record.next_deadline <= now:
            behind = expire(self.commit, group, STEP)
        if record.endless:
            behind = give_up_dead_owners(self.commit, group, self.taker.owner, STEP) or behind
        if record.next_due and record.next_due <= now:
            behind = wake_due(self.commit, group, STEP) or behind
        if self.ttl_bound:
            behind = self._give_up_late() or behind
        if record.absorbed < self.queue.traits.special:
            behind = absorb(self.commit, group, self.latest, STEP) or behind
        if self.queue.record.policy.fair_by is not None and not behind:
            sort_in(self.commit, group, self.latest, STEP)
        return behind

    # ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────────
    def oldest(self, limit: int) -> None:
        """Takes from the front: by priority, then position."""
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
                        ready.clear()  # giving a message up has made another message ready, or given it the turn
                    continue
                through = min(self.latest, seq - 1) if priority == 0 else self.latest
            elif untouched:
                through = self.latest
            else:
                break
            limit -= self._take_untouched(limit, through)
        self.lease_messages()

    def newest(self, limit: int) -> None:
        """Takes from the other end: by position backwards, the lowest priority first."""
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
        self.lease_messages()

    def named(self) -> None:
        """Takes the named message, unless another message of its key must be settled first."""
        group, tx, seq, key = self.group, self.commit.tx, self.wanted.seq or 0, self.wanted.key
        while self.walked < STEP:
            if self.wanted.seq:
                event = self.blocks.event(tx, seq) if seq <= self.latest else None
                key = None if event is None else event.key
            if key is not None:
                seq = self._next_of_key(key)
            message = group.find(tx, seq) if 0 < seq <= self.latest else None
            if message is None or message.state not in (READY, UNTOUCHED) or self.wanted.seq not in (None, seq):
                return
            event = self.blocks.event(tx, seq)
            if event is None:
                self.walked += 1
                message.key = key
                group.remove(self.commit, message, REMOVED)
                continue
            if key is not None and message.state == UNTOUCHED:
                group.occupy(self.commit, key, [*group.occupants(tx, key), seq])
            group.move(self.commit, message, TAKEN)
            message.key, message.lane = key, None  # the message leaves its lane's turn to the next message
            if not self._must_wait(message):
                self.messages.append((message, event))
                self.lease_messages()
            return

    def _next_of_key(self, key: str) -> int:
        """Returns the position of the next message of a key that may be taken; 0 for none."""
        group, tx = self.group, self.commit.tx
        most = self.queue.record.policy.max_in_flight_per_key
        if group.record.held and len(group.occupants(tx, key)) < most:
            group.unblock_key(self.commit, key)  # more may be in flight now than when it was blocked
        occupants = sorted(group.occupants(tx, key))
        ready = next((seq for seq in occupants if group.placed(tx, READY, seq) is not None), 0)
        if ready or len(occupants) >= most:
            return ready
        index = self.taker.core.index
        later = keyed_positions(self.queue.view(tx), index.open_within, key, group.record.frontier)
        return next((seq for seq in later if group.is_untouched(tx, seq)), 0)

    def _ready(self, limit: int, *, reverse: bool) -> list[tuple[int, int]]:
        """Returns priorities and positions of the ready messages at one end, with the next message last."""
        group = self.group
        rows = self.commit.tx.scan(*group.rows(keys.READY), reverse=reverse)
        # A message of this very commit has its row, but its event is not written yet.
        visible = (one for one in (keys.split_ready(key) for key, _ in rows) if one[1] <= self.latest)
        found = list(islice(visible, limit))
        if len(found) < limit and len(found) < group.record.ready:
            found += [(1, seq) for seq in group.next_in_turn(self.commit.tx, self.latest, limit - len(found))]
        found.reverse()
        return found

    def _newest_untouched(self) -> int | None:
        top = self.latest
        for start, end in self.group.taken_ranges(self.commit.tx, reverse=True):
            if end < top:
                break
            top = start - 1
        return top if top > self.group.record.frontier else None

    def _take_at(self, seq: int) -> int:
        found = self.blocks.find(self.commit.tx, seq, seq)
        if found is None:
            self.walked += 1
            self.group.mark_taken(self.commit, seq, seq)
            return 0
        event, message = Event(*found), MessageRow(seq, UNTOUCHED)
        if event.key is not None:
            raise ConfigError(
                f"message {seq} of queue {self.queue.name!r} has an ordering key: take(newest=True) would deliver it "
                "before earlier ones of its key; take without newest"
            )
        self.group.move(self.commit, message, TAKEN)
        self.messages.append((message, event))
        return 1

    def _take_ready(self, seq: int) -> int:
        group, tx = self.group, self.commit.tx
        message = group.placed(tx, READY, seq)
        assert message is not None
        event = self.blocks.event(tx, seq)
        if event is None:
            self.walked += 1
            group.remove(self.commit, message, REMOVED)
            return 0
        group.dequeue(self.commit, message)
        if self._must_wait(message):
            return 0
        group.record.turn = max(group.record.turn, message.turn)
        self.messages.append((message, event))
        return 1

    def _take_untouched(self, limit: int, through: int) -> int:
        """Takes untouched messages from the frontier on, up to `through`; returns their number."""
        group = self.group
        first, through = next(group.untouched(self.commit.tx, through))
        found = self.blocks.find(self.commit.tx, first, through)
        if found is None:
            self.walked += 1
            group.mark_taken(self.commit, through)
            return 0
        rows, row = found
        if rows.wire.key is not None:
            return self._take_keyed(rows, row, through)
        return self._take_run(rows, row, limit, through)

    def _take_run(self, rows: Block, row: int, limit: int, through: int) -> int:
        """Takes messages without keys: one lease over as many neighbouring positions as possible."""
        limit = min(limit, LONGEST_LEASE)
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
            if found is None or found[0].wire.key is not None:
                break
            rows, row = found
        self.lease_messages()
        count = len(events)
        lease = self._lease(start, count, None)
        hold = LeaseHandle.of(self.taker, self.group, self.group.add_lease(self.commit, lease), lease)
        self.group.mark_taken(self.commit, start + count - 1)
        self.deliveries.extend([Delivery(hold, index, event, 1) for index, event in enumerate(events)])
        return count

    def _take_keyed(self, rows: Block, row: int, through: int) -> int:
        """Takes one message of a block with ordering keys; holds messages whose key is busy."""
        group, commit = self.group, self.commit
        seq = rows.seq(row)
        key = rows.key(row)
        occupants = [] if key is None else group.occupants(commit.tx, key)
        if len(occupants) >= self.queue.record.policy.max_in_flight_per_key:
            self._pass_blocked(rows, row, through)
            return 0
        group.mark_taken(commit, seq)
        message = MessageRow(seq, TAKEN, key=key)
        if key is not None:
            if occupants and group.unblock_key(commit, key):  # more may be in flight now than when it was blocked
                self.walked += 1
                group.requeue(commit, message)
                return 0
            group.occupy(commit, key, [*occupants, seq])
            if self._must_wait(message):
                return 0
        self.messages.append((message, Event(rows, row)))
        return 1

    def _must_wait(self, message: MessageRow) -> bool:
        """Returns True when the message's key has used up its rate, and the message waits.

        Otherwise counts this delivery.
        """
        due = 0 if self.limiter is None or message.key is None else self.limiter.take_key(message.key)
        if not due:
            return False
        self.walked += 2  # rows of the message and of its key: twice the cost of skipping a message
        message.due, message.since_ms = due, self.now
        self.group.move(self.commit, message, WAITING)
        return True

    def _pass_blocked(self, rows: Block, row: int, through: int) -> None:
        """Holds messages whose keys are busy: many neighbours as one run, few messages with a row each."""
        group, commit = self.group, self.commit
        known: dict[str | None, bool] = {None: False}

        def is_busy(key: str | None) -> bool:
            if key not in known:
                known[key] = group.is_busy(commit.tx, key or "")
            return known[key]

        free = first_free_row(rows, row, min(rows.count, rows.row_after(through)), is_busy)
        if free - row < SHORTEST_RUN:
            for at in range(row, free):
                group.mark_taken(commit, rows.seq(at))
                group.move(commit, MessageRow(rows.seq(at), TAKEN, key=rows.key(at)), HELD)
                self.walked += 1
            return
        # As many blocks as a step allows, because a run costs a row for every key in it.
        start, count = rows.seq(row), 0
        firsts: dict[str | None, int] = {}
        """The position of the first message of each key."""
        while True:
            firsts |= {key: rows.seq(at) for key, at in first_rows(rows, row, free, firsts).items()}
            count, end = count + free - row, rows.seq(free - 1)
            self.walked += RUN_STEPS + (free - row) // ROWS_OF_A_STEP
            if len(firsts) >= LONGEST_SCAN:  # the most keys that one commit should write rows for
                self.walked = STEP
            if free < rows.count or self.walked >= STEP:
                break
            found = self.blocks.find(commit.tx, rows.last + 1, through)
            if found is None or found[0].wire.key is None:
                break
            rows, row = found[0], found[1]
            free = first_free_row(rows, row, min(rows.count, rows.row_after(through)), is_busy)
            if free == row:
                break
        group.hold_run(commit, start, end, count, firsts)
        group.mark_taken(commit, end)

    # ── leasing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def lease_messages(self) -> None:
        """Leases the messages that were picked one by one so far."""
        picked, self.messages = self.messages, []
        for at in range(0, len(picked), LONGEST_LEASE):
            part = picked[at : at + LONGEST_LEASE]
            for message, _ in part:
                message.state = READY
                message.attempts += 1
                message.last_ms = self.now
                message.first_ms = message.first_ms or self.now
            lease = self._lease(part[0][0].seq, len(part), [message for message, _ in part])
            hold = LeaseHandle.of(self.taker, self.group, self.group.add_lease(self.commit, lease), lease)
            self.deliveries.extend(
                [Delivery(hold, index, event, message.attempts) for index, (message, event) in enumerate(part)]
            )

    def _lease(self, start: int, count: int, messages: list[MessageRow] | None) -> Lease:
        return Lease(
            new_secret(),
            self.now,
            self.deadline,
            start,
            count,
            self.wanted.group,
            self.wanted.consumer,
            messages=messages,
            owner=self.owner,
        )

    # ── too old ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _give_up_late(self) -> bool:
        """Gives up messages past their ttl, so that other messages of their keys can go; returns True when more are
        left.
        """
        tx, after = self.commit.tx, 0
        while oldest := self.group.oldest(tx, self.latest, after, UNFINISHED):
            rows, row = self.blocks.find(tx, oldest, oldest) or (None, 0)
            if rows is not None and not isinstance(rows, DamagedBlock):
                break
            after = oldest if rows is None else rows.last  # a removed or unreadable message has no known time
        if not oldest or rows is None or rows.recorded_ms(row) > self.ttl_bound:
            return False
        try:
            overdue = min(self.queue.overdue_through(tx, self.now), self.latest)
        except Corrupt:  # the search met a damaged block, which must not stop the queue: go on one position at a time
            overdue = oldest
        return give_up_through(self.commit, self.group, overdue, EXPIRED) or overdue == oldest


def keyed_positions(view: TopicView, open_index: OpenIndex, key: str, after: int) -> Iterator[int]:
    """Yields the positions of messages with a key beyond a position, settled or not, through the topic's index."""
    return (event.seq for event in read_view(view, EventQuery(after=max(after, view.trimmed()), key=key), open_index))


# ── before a take ─────────────────────────────────────────────────────────────────────────────────────────────────────
def wake_due(commit: Commit, group: Group, step: int) -> bool:
    """Makes up to `step` due messages ready; returns True when more may be left."""
    tx = commit.tx
    due = list(islice(tx.scan(*group.due_rows(commit.now_ms)), step))
    for key, _ in due:
        message = group.placed(tx, WAITING, keys.tail_seq(key))
        assert message is not None
        group.requeue(commit, message)
    commit.touch(group)
    group.record.next_due = 0
    for key, _ in tx.scan(*group.rows(keys.WAITING)):
        group.record.next_due = keys.split_due(key)[0]
        break
    return len(due) == step


def absorb(commit: Commit, group: Group, latest: int, step: int) -> bool:
    """Sorts in messages that were pushed with a delay or a priority since the last take; returns True when more are
    left.
    """
    queue = group.queue
    tx, now = commit.tx, commit.now_ms
    start = keys.special_key(group.topic, group.record.absorbed + 1)
    rows = list(islice(tx.scan(start, keys.special_key(group.topic, latest + 1)), step))
    messages: list[MessageRow] = []
    for row, value in rows:
        seq, special = keys.tail_seq(row), read_special(value, queue.name)
        since, due = set_back(special.since_ms, special.due, now)
        due = due if due > now else 0
        # A message may be late enough to count as any other message, or discarded, or of another group. A message that
        # a debounce has held back always gets a row, so that no later message of its key passes it.
        if (due or special.priority or special.key is not None) and group.is_untouched(tx, seq):
            messages.append(MessageRow(seq, TAKEN, 0, special.priority, special.key, due, since_ms=since))
    group.mark_all_taken(commit, [message.seq for message in messages])
    for message in messages:
        if message.key is not None and not message.due:
            group.requeue(commit, message)
        else:
            group.move(commit, message, WAITING if message.due else READY)
    commit.touch(group)
    full = len(rows) == step
    group.record.absorbed = keys.tail_seq(rows[-1][0]) if full else latest
    return full


def sort_in(commit: Commit, group: Group, latest: int, step: int) -> None:
    """Sorts messages into lanes that no push has sorted, because they are older than the policy or the group, or
    were appended to the topic.
    """
    queue = group.queue
    for _ in range(step):
        if (stretch := next(group.untouched(commit.tx, latest), None)) is None:
            return
        first, through = stretch
        found = queue.blocks.find(commit.tx, first, through)
        if found is None:
            group.mark_taken(commit, through)
            continue
        rows, row = found
        group.mark_taken(commit, rows.seq(row))
        group.requeue(commit, MessageRow(rows.seq(row), TAKEN, key=rows.key(row)))
