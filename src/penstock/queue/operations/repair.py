"""Repairing a queue: claim, discard, purge, drop. All or nothing, each in one commit. See also `moving`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.events import Event
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.queue.delivery import LeaseHandle, LocalDelivery
from penstock.queue.flow.rows import flow_of_queue, flow_rows
from penstock.queue.inspect.positions import flying_in, has_failed, unsettled_positions
from penstock.queue.operations.choice import LEASE_MESSAGES, Request
from penstock.queue.operations.groups import group_for
from penstock.queue.operations.settle import expire_one, over_budget
from penstock.queue.results.removal import DISCARDED, answer_removed, answer_taken
from penstock.queue.run.upkeep import remove_through
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueState
from penstock.queue.state.discarding import discard, is_open
from penstock.queue.state.group import Group
from penstock.queue.state.records import NEVER, GroupRecord, Lease, MessageRow
from penstock.queue.state.trail import FailureTrail, keep_trail, tried_again
from penstock.queue.token import new_secret

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue


# ── claim ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def claim(queue: LocalQueue, request: Request, idle_ms: int) -> list[LocalDelivery]:
    return queue._writer.run(
        WriteRequest(lambda commit: _claim(commit, queue, queue._cache.state(commit, queue.name), request, idle_ms))
    )


def _claim(commit: Commit, queue: LocalQueue, state: QueueState, request: Request, idle_ms: int) -> list[LocalDelivery]:
    group = group_for(commit, state, request.label)
    if state.record.is_paused(request.label):
        return []
    now = commit.now_ms
    picked: list[tuple[MessageRow, Event]] = []
    for number, lease in list(group.leases(commit.tx)):
        if lease.label != request.label:
            continue
        for index in lease.held():
            if len(picked) >= request.limit:
                break
            if now - lease.touched_ms(index) < idle_ms:
                continue
            message = msgspec.structs.replace(lease.message(index))
            event = state.blocks.event(commit.tx, message.seq)
            if event is None or over_budget(commit, state, message):
                expire_one(commit, state, group, number, lease, index)
                continue
            tried = tried_again(commit, group, lease, message, now, "claimed", None)
            keep_trail(commit, message, group, FailureTrail(tried))
            group.let_go(commit, number, lease, 1 << index)
            message.attempts += 1
            message.last_ms = now
            picked.append((message, event))
    lease_ms = request.lease_ms if request.lease_ms is not None else round(state.policy.lease * 1000)
    deliveries: list[LocalDelivery] = []
    hold = LeaseHandle(queue, request.label, request.consumer)
    for at in range(0, len(picked), LEASE_MESSAGES):
        part = picked[at : at + LEASE_MESSAGES]
        taken = Lease(
            new_secret(),
            now,
            now + lease_ms if lease_ms else NEVER,
            part[0][0].seq,
            len(part),
            request.label,
            request.consumer,
            messages=[message for message, _ in part],
            owner=None if lease_ms else request.owner,
        )
        under = hold.under(group, group.add_lease(commit, taken), taken)
        deliveries.extend(
            [LocalDelivery(under, index, event, message.attempts) for index, (message, event) in enumerate(part)]
        )
    return deliveries


# ── discarding ───────────────────────────────────────────────────────────────────────────────────────────────────────
def still_free(commit: Commit, state: QueueState, seqs: list[int]) -> list[int]:
    """Those of some messages that are not settled, that have not failed and that are not in flight."""
    groups = state.all_groups(commit.tx)
    flying = {seq for group in groups for seq in flying_in(commit.tx, group)}
    latest = state.latest(commit)
    return [
        seq
        for seq in dict.fromkeys(seqs)
        if seq <= latest
        and seq not in flying
        and any(is_open(commit.tx, group, seq) for group in groups)
        and not has_failed(commit.tx, groups, seq)
    ]


def discard_many(queue: LocalQueue, seqs: list[int]) -> int:
    def apply(commit: Commit) -> int:
        state = queue._cache.state(commit, queue.name)
        latest = state.latest(commit)
        groups = state.all_groups(commit.tx)
        flying = {seq for group in groups for seq in flying_in(commit.tx, group)}
        overdue = state.overdue_through(commit.tx, commit.now_ms)
        gone = 0
        for seq in dict.fromkeys(seqs):
            if not 0 < seq <= latest or seq in flying or not any(is_open(commit.tx, group, seq) for group in groups):
                continue
            # What has outlived its ttl is gone already, for every count.
            gone += seq > overdue or has_failed(commit.tx, groups, seq)
            answer_taken(commit, state, [seq], DISCARDED)
            discard(commit, state, seq)
        return gone

    count = queue._writer.run(WriteRequest(apply)) if seqs else 0
    queue._registry.upkeep.note(queue.name, count)
    return count


# ── emptying ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def purge(queue: LocalQueue) -> int:
    count = queue._writer.run(WriteRequest(lambda commit: _purge(commit, queue)))
    if count:
        queue._writer.reclaim()
    return count


def _purge(commit: Commit, queue: LocalQueue) -> int:
    state = queue._cache.state(commit, queue.name)
    commit.flush()
    latest = commit.latest(queue.name)
    count = _count(commit, state, latest)
    answer_removed(commit, state, latest)
    for group in state.all_groups(commit.tx):
        commit.tx.delete_range(*keys.group_range(state.topic, group.number))
        commit.tx.delete_range(*flow_rows(state.topic, group.number, b"t"))
        old = group.record
        fresh = Group(
            state,
            group.number,
            group.name,
            GroupRecord(latest, latest, next_lease=old.next_lease, until=old.until, seen_ms=old.seen_ms),
        )
        state.adopt(fresh)
        commit.touch(fresh)
    remove_through(commit, state, latest, queue._core)
    commit.touched.setdefault(queue.name, 0)
    return count


def _count(commit: Commit, state: QueueState, latest: int) -> int:
    """Messages that some group has not settled, failed ones included."""
    groups = state.all_groups(commit.tx)
    if len(groups) == 1:
        overdue = groups[0].overdue(commit.tx, state.overdue_through(commit.tx, commit.now_ms))
        return groups[0].unsettled(latest) + groups[0].record.failed - overdue
    return sum(1 for _ in unsettled_positions(commit.tx, state, commit.now_ms))


def drop(queue: LocalQueue) -> int:
    def apply(commit: Commit) -> int:
        count = _purge(commit, queue)
        commit.flush()
        state = queue._cache.state(commit, queue.name)
        commit.tx.delete_range(*keys.groups_range(state.topic))
        commit.tx.delete_range(*keys.shared_range(state.topic))
        commit.tx.delete_range(*flow_of_queue(state.topic))
        # Cursors may keep the topic's history: what was here is not delivered again if the queue is made anew.
        left = keys.pack_dropped(commit.latest(queue.name), state.record.over_log)
        commit.tx.put(keys.dropped_key(state.topic), left)
        commit.tx.delete(keys.queue_key(queue.name))
        queue._cache.drop(queue.name)
        return count

    return queue._writer.run(WriteRequest(apply))
