"""Repairing a queue: claim, redrive, move, purge, drop. All or nothing, each in one commit.

What a caller's `where` wants is found in a snapshot, in the caller's thread; the commit then takes what is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.writer import WriteRequest
from penstock.queue.delivery import Delivery, LeaseHandle
from penstock.queue.inspect import failures, flying_in, is_in_flight, looking, unsettled_positions
from penstock.queue.operations.choice import LEASE_MESSAGES, Request
from penstock.queue.operations.dead import as_batch, living_headers, origin
from penstock.queue.operations.groups import group_for
from penstock.queue.operations.push import push
from penstock.queue.operations.settle import expire_one, over_budget
from penstock.queue.run.upkeep import remove_through
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache, copy_columns
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import FAILED, NEVER, READY, WAITING, GroupRecord, Lease, MessageRow
from penstock.queue.token import new_secret

if TYPE_CHECKING:
    from penstock.queue.queue import Queue

Where = Callable[[Event], bool]


# ── claim ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def claim(queue: Queue, request: Request, idle_ms: int) -> list[Delivery]:
    return queue._writer.run(
        WriteRequest(lambda commit: _claim(commit, queue, queue._cache.state(commit, queue.name), request, idle_ms))
    )


def _claim(commit: Commit, queue: Queue, state: QueueState, request: Request, idle_ms: int) -> list[Delivery]:
    group = group_for(commit, state, request.label)
    now = commit.now_ms
    picked: list[tuple[MessageRow, Event]] = []
    returning: list[bool] = []
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
            group.let_go(commit, number, lease, 1 << index)
            message.attempts += 1
            message.last_ms = now
            picked.append((message, event))
            returning.append(lease.comes_back(index))
    lease_ms = request.lease_ms if request.lease_ms is not None else round(state.policy.lease * 1000)
    deliveries: list[Delivery] = []
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
            returns=_mask(returning[at : at + LEASE_MESSAGES]),
        )
        under = hold.under(group.number, group.add_lease(commit, taken), taken)
        deliveries.extend(
            [Delivery(under, index, event, message.attempts) for index, (message, event) in enumerate(part)]
        )
    return deliveries


def _mask(returning: list[bool]) -> bytes | None:
    """Which messages of a lease come back; None for all."""
    if all(returning):
        return None
    return sum(1 << index for index, comes_back in enumerate(returning) if comes_back).to_bytes(
        (len(returning) + 7) // 8, "little"
    )


# ── redrive ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def redrive(queue: Queue, to: Queue | None, limit: int | None, where: Where | None, dry_run: bool) -> int:
    left = limit
    failed = _choose(_failed_events(queue), left, where)
    left = None if left is None else left - len(failed)
    letters = [(queue, seq) for seq in _choose(_letters(queue, None), left, where)]
    left = None if left is None else left - len(letters)
    dead_letters = queue.policy.dead_letter
    if dead_letters is not None and queue._registry.record(dead_letters) is not None:
        dead = queue._registry.existing(dead_letters)
        letters += [(dead, seq) for seq in _choose(_letters(dead, queue.name), left, where)]
    if dry_run or not (failed or letters):
        return len(failed) + len(letters)

    def apply(commit: Commit) -> int:
        count = _revive(commit, queue, failed, to)
        for source in {id(source): source for source, _ in letters}.values():
            seqs = [seq for owner, seq in letters if owner is source]
            count += _send_back(commit, source, seqs, to)
        return count

    return queue._writer.run(WriteRequest(apply))


def _failed_events(queue: Queue) -> Iterator[Event]:
    with looking(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        seqs = {seq for group in state.everyone(snap) for seq in failures(snap, group)}
        for seq in sorted(seqs):
            event = blocks.event(snap, seq)
            if event is not None:
                yield event


def _letters(queue: Queue, of: str | None) -> Iterator[Event]:
    """Dead letters in a queue that nobody holds, of one queue or of all."""
    for event in _available(queue):
        source = origin(event)
        if source is not None and (of is None or source == of):
            yield event


def _available(queue: Queue) -> Iterator[Event]:
    """Messages that nobody holds and that have not failed, in order."""
    with looking(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        groups = state.everyone(snap)
        for seq in unsettled_positions(snap, state):
            if _is_free(snap, groups, seq):
                event = blocks.event(snap, seq)
                if event is not None:
                    yield event


def _is_free(snap: Snapshot, groups: list[Group], seq: int) -> bool:
    for group in groups:
        message = group.message(snap, seq)
        if message is not None and message.state == FAILED:
            return False
        if group.record.leases and is_in_flight(snap, group, seq):
            return False
    return True


def _choose(events: Iterator[Event], limit: int | None, where: Where | None) -> list[int]:
    chosen: list[int] = []
    for event in events:
        if limit is not None and len(chosen) >= limit:
            break
        if where is None or where(event):
            chosen.append(event.seq)
    return chosen


def _revive(commit: Commit, queue: Queue, seqs: list[int], to: Queue | None) -> int:
    """Failed messages become ready again, or go to another queue."""
    state = queue._cache.state(commit, queue.name)
    groups = state.everyone(commit.tx)
    revived: set[int] = set()
    if to is not None:
        still = [seq for seq in seqs if any(_has_failed(commit, group, seq) for group in groups)]
        _copy_over(commit, state, still, queue._cache.state(commit, to.name), strip=False)
    for seq in seqs:
        for group in groups:
            message = group.message(commit.tx, seq)
            if message is None or message.state != FAILED:
                continue
            group.remove(commit, message)
            revived.add(seq)
            if to is None:
                group.seat(commit, MessageRow(seq, READY, priority=message.priority, key=message.key))
    return len(revived)


def _has_failed(commit: Commit, group: Group, seq: int) -> bool:
    message = group.message(commit.tx, seq)
    return message is not None and message.state == FAILED


def _send_back(commit: Commit, source: Queue, seqs: list[int], to: Queue | None) -> int:
    """Dead letters go to the queues they come from."""
    state = source._cache.state(commit, source.name)
    still = _still_free(commit, state, seqs)
    targets: dict[str, list[int]] = {}
    for seq in still:
        event = state.blocks.event(commit.tx, seq)
        name = None if event is None else to.name if to is not None else origin(event)
        if name is not None:
            targets.setdefault(name, []).append(seq)
    states = {name: source._cache.state(commit, name) for name in targets}
    for name, chosen in targets.items():
        _copy_over(commit, state, chosen, states[name], strip=True)
        for seq in chosen:
            discard(commit, state, seq)
    return sum(map(len, targets.values()))


# ── move ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def move(queue: Queue, to: Queue, limit: int | None, where: Where | None) -> int:
    if to is queue:
        raise ConfigError(f"queue {queue.name!r} cannot be moved to itself")
    seqs = _choose(_available(queue), limit, where)

    def apply(commit: Commit) -> int:
        state = queue._cache.state(commit, queue.name)
        target = queue._cache.state(commit, to.name)
        still = _still_free(commit, state, seqs)
        _copy_over(commit, state, still, target, strip=False)
        for seq in still:
            discard(commit, state, seq)
        return len(still)

    return queue._writer.run(WriteRequest(apply)) if seqs else 0


def _still_free(commit: Commit, state: QueueState, seqs: list[int]) -> list[int]:
    groups = state.everyone(commit.tx)
    wanted = set(seqs)
    latest = state.latest(commit)
    unsettled = {
        seq for group in state.delivering(commit.tx) for seq in wanted if seq <= latest and _is_open(commit, group, seq)
    }
    return [seq for seq in seqs if seq in unsettled and _is_free(commit.tx, groups, seq)]


def _is_open(commit: Commit, group: Group, seq: int) -> bool:
    if seq > group.record.frontier and not group.is_covered(commit.tx, seq):
        return True
    return group.message(commit.tx, seq) is not None


def _copy_over(commit: Commit, state: QueueState, seqs: list[int], target: QueueState, *, strip: bool) -> None:
    """Pushes copies of messages; raises before anything is changed when the target cannot take them all."""
    columns = None
    for seq in seqs:
        event = state.blocks.event(commit.tx, seq)
        if event is None:
            continue
        copy = copy_columns(event)
        if strip:
            copy.headers = [living_headers(event.headers) or None]
        if columns is None:
            columns = copy
        else:
            columns.extend(copy)
    if columns is not None:
        push(commit, target, as_batch(columns), None)


def discard(commit: Commit, state: QueueState, seq: int) -> None:
    """Settles a message that nobody holds, for everybody."""
    for group in state.delivering(commit.tx):
        message = group.message(commit.tx, seq)
        if message is not None:
            group.remove(commit, message)
            if message.key is not None and message.state in (READY, WAITING):
                group.free(commit, message.key)
        elif seq > group.record.frontier and not group.is_covered(commit.tx, seq):
            group.cover(commit, seq, seq)


def discard_many(queue: Queue, seqs: list[int]) -> int:
    def apply(commit: Commit) -> int:
        state = queue._cache.state(commit, queue.name)
        latest = state.latest(commit)
        flying = {seq for group in state.everyone(commit.tx) for seq in flying_in(commit.tx, group)}
        gone = 0
        for seq in dict.fromkeys(seqs):
            groups = state.delivering(commit.tx)
            if 0 < seq <= latest and seq not in flying and any(_is_open(commit, group, seq) for group in groups):
                discard(commit, state, seq)
                gone += 1
        return gone

    count = queue._writer.run(WriteRequest(apply)) if seqs else 0
    queue._registry.upkeep.note(queue.name, count)
    return count


# ── emptying ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def purge(queue: Queue) -> int:
    return queue._writer.run(WriteRequest(lambda commit: _purge(commit, queue)))


def _purge(commit: Commit, queue: Queue) -> int:
    state = queue._cache.state(commit, queue.name)
    commit.flush()
    latest = commit.latest(queue.name)
    count = _count(commit, state, latest)
    for group in state.everyone(commit.tx):
        commit.tx.delete_range(*keys.group_range(state.topic, group.number))
        old = group.record
        fresh = Group(
            state,
            group.number,
            group.name,
            GroupRecord(frontier=latest, absorbed=latest, next_lease=old.next_lease, after=old.after),
        )
        state.adopt(fresh)
        commit.touch(fresh)
    remove_through(commit, state, latest, queue.journal)
    commit.touched.setdefault(queue.name, 0)
    return count


def _count(commit: Commit, state: QueueState, latest: int) -> int:
    """Messages that somebody has not settled, failed ones included."""
    groups = state.delivering(commit.tx)
    if len(groups) == 1 and not state.left_behind(commit.tx):
        return groups[0].unsettled(latest) + groups[0].record.failed
    return sum(1 for _ in unsettled_positions(commit.tx, state))


def drop(queue: Queue) -> int:
    def apply(commit: Commit) -> int:
        count = _purge(commit, queue)
        commit.flush()
        state = queue._cache.state(commit, queue.name)
        commit.tx.delete_range(*keys.groups_range(state.topic))
        commit.tx.delete_range(*keys.shared_range(state.topic))
        commit.tx.delete(keys.queue_key(queue.name))
        queue._cache.drop(queue.name)
        return count

    return queue._writer.run(WriteRequest(apply))
