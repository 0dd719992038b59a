"""Taking: the short way for a plain queue, the long way (`choice.py`) for everything else, and who was here."""

from __future__ import annotations

from penstock.events import Event
from penstock.journal.commit.commit import Commit
from penstock.queue.delivery import LeaseHandle, LocalDelivery
from penstock.queue.operations.choice import LEASE_MESSAGES, STEP, Choice, Request, Taken
from penstock.queue.state.blocks import DamagedBlock
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.presence import note_presence
from penstock.queue.state.records import NEVER, Lease
from penstock.queue.token import new_secret

FENCE_MS = 50
"""How soon a take looks again that an exclusive fence kept from giving messages up."""


def take(commit: Commit, queue: QueueState, group: Group, request: Request, hold: LeaseHandle) -> Taken:
    """Hands out up to `limit` messages."""
    if commit.catalog.reshaped != queue.blocks.reshaped:
        queue.blocks.refresh(commit)
    if request.consumer is not None:
        note_presence(commit, queue, request.label, request.consumer, request.host, request.since_ms)
    if queue.record.paused and queue.record.is_paused(request.label):
        return Taken([], False, 0)
    plain = _take_plainly(commit, queue, group, request, hold)
    if plain is not None:
        return plain
    if commit.fenced and _may_bury(queue, group, commit.now_ms):
        return Taken([], False, commit.now_ms + FENCE_MS)
    taking = Choice(commit, queue, group, request, hold)
    behind = taking.catch_up()
    cap = queue.policy.max_in_flight
    limit = request.limit if cap is None else min(request.limit, cap - group.record.in_flight)
    if taking.limiter is not None and not behind:
        limit = taking.limiter.room(limit)
    if limit > 0 and not behind:
        if request.newest:
            taking.newest(limit)
        else:
            taking.oldest(limit)
    next_ms = _next_ms(group)
    if taking.limiter is not None:
        taking.limiter.taken(taking.deliveries)
        next_ms = min(next_ms or NEVER, taking.limiter.next_ms) if taking.limiter.next_ms else next_ms
    return Taken(taking.deliveries, behind or (taking.walked >= STEP and not taking.deliveries), next_ms)


def _take_plainly(commit: Commit, queue: QueueState, group: Group, request: Request, hold: LeaseHandle) -> Taken | None:
    """The short way for the usual case: nothing to think of but a run of untouched messages in one block."""
    record, policy, now = group.record, queue.record.policy, commit.now_ms
    if (
        request.newest
        or record.ready
        or record.covered
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
    found = queue.blocks.find(commit.tx, first, latest)
    if found is None:
        return None
    rows, row = found
    if isinstance(rows, DamagedBlock) or rows.wire.key is not None or rows.wire.seqs is not None:
        return None
    count = min(request.limit, LEASE_MESSAGES, rows.count - row)
    if rows.first + row != first or (count < request.limit and first + count <= latest):
        return None
    lease_ms = round(policy.lease * 1000) if request.lease_ms is None else request.lease_ms
    lease = Lease(
        new_secret(),
        now,
        now + lease_ms if lease_ms else NEVER,
        first,
        count,
        request.label,
        request.consumer,
        owner=None if lease_ms else request.owner,
    )
    number = group.add_lease(commit, lease)
    under = LeaseHandle(  # as `hold.under` makes it, without the call
        hold.queue, hold.label, hold.consumer, group.topic, group.number, number, lease.secret, lease.deadline
    )
    record.frontier += count
    if count == 1:
        return Taken([LocalDelivery(under, 0, Event(rows, row), 1)], False, 0)
    return Taken([LocalDelivery(under, index, Event(rows, row + index), 1) for index in range(count)], False, 0)


def _may_bury(queue: QueueState, group: Group, now: int) -> bool:
    """Whether a take may have to append dead letters, which is refused while an exclusive fence is open."""
    policy, deadline = queue.policy, group.record.next_deadline
    appends = policy.dead_letter is not None or queue.traits.replies
    return appends and (policy.ttl is not None or 0 < deadline <= now)


def _next_ms(group: Group) -> int:
    """When something may become ready by the mere passing of time; 0: never."""
    due, deadline = group.record.next_due, group.record.next_deadline
    return min(due, deadline) if due and deadline else due or deadline
