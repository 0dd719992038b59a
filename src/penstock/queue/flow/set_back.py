"""A clock that was set back makes nothing of a group last longer: neither leases nor waits, rates nor breakers.

All of them are kept as times of the clock, and none began after `GroupRecord.seen_ms`. The first take (or claim) that
finds the clock behind that has whatever would begin later begin now.
"""

from __future__ import annotations

from penstock.clock import set_back_ms
from penstock.journal.commit.commit import Commit
from penstock.queue.flow.circuit import load_breaker, save_breaker
from penstock.queue.flow.rows import decode_row, encode_row, flow_key, flow_rows
from penstock.queue.flow.window import Window
from penstock.queue.state import keys
from penstock.queue.state.group import Group
from penstock.queue.state.records import NEVER, Lease

TOLERATED_MS = 1000
"""A clock that went back by less makes things last longer by that much: looking at all of them costs more."""


def follow_clock(commit: Commit, group: Group) -> None:
    """Sets what a group keeps as times back with the clock; for callers that found it more than tolerably behind."""
    record, now = group.record, commit.now_ms
    commit.touch(group)
    record.seen_ms = now
    _set_leases_back(commit, group, now)
    _set_waits_back(commit, group, now)
    _set_limits_back(commit, group, now)
    commit.touched.setdefault(group.queue.name, 0)  # takes that wait for a later time must look again


def _set_leases_back(commit: Commit, group: Group, now: int) -> None:
    record = group.record
    record.next_deadline = record.swept = record.swept_deadline = 0
    for number, lease in list(group.leases(commit.tx)):
        if _set_lease_back(lease, now):
            group.save_lease(commit, number, lease)
        for deadline in lease.deadlines():
            record.next_deadline = min(record.next_deadline or deadline, deadline)


def _set_lease_back(lease: Lease, now: int) -> bool:
    before = lease.deadline, lease.renewed_ms, lease.delivered_ms, lease.extended
    back = set_back_ms(lease.renewed_ms or lease.delivered_ms, now)
    lease.deadline -= 0 if lease.deadline == NEVER else back
    lease.renewed_ms -= back if lease.renewed_ms else 0
    lease.delivered_ms -= set_back_ms(lease.delivered_ms, now)
    if lease.extended:
        lease.extended = {
            index: (deadline if deadline == NEVER else deadline - set_back_ms(at, now), at - set_back_ms(at, now))
            for index, (deadline, at) in lease.extended.items()
        }
    return before != (lease.deadline, lease.renewed_ms, lease.delivered_ms, lease.extended)


def _set_waits_back(commit: Commit, group: Group, now: int) -> None:
    for key, _ in list(commit.tx.scan(*keys.rows(group.topic, group.number, b"w"))):
        message = group.message(commit.tx, keys.tail_seq(key))
        assert message is not None
        back = set_back_ms(message.since_ms, now)
        if back:
            group.remove(commit, message)
            message.due, message.since_ms = message.due - back, message.since_ms - back
            group.place(commit, message)


def _set_limits_back(commit: Commit, group: Group, now: int) -> None:
    queue, tx = group.queue, commit.tx
    own = flow_key(group.topic, group.number, b"q")
    windows = list(tx.scan(own, own + b"\0")) + list(tx.scan(*flow_rows(group.topic, group.number, b"r")))
    for row, value in windows:
        window = decode_row(value, Window, queue.name)
        if window.set_back(now):
            tx.put(row, encode_row(window))
    if queue.policy.breaker is not None:
        breaker = load_breaker(tx, group)
        if breaker.failures.set_back(now):  # of one that is open, `Limiter.room` shortens the pause
            save_breaker(commit, group, breaker)
