"""Messages given up without a delivery: those that have outlived their queue's ttl, or that retention passes."""

from __future__ import annotations

from itertools import islice

from penstock.journal.commit import Commit
from penstock.queue.operations.settle import EXPIRED, RETIRED, Reason, give_up
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import PARKED, UNFINISHED, Group
from penstock.queue.state.records import UNTOUCHED, MessageRow, read_special
from penstock.surface.failure import FailureText

GIVE_UP_STEP = 64
"""How many messages one commit gives up, so that no caller waits long behind it."""
LOOK_STEP = 512
"""How many it looks at for that: failed ones may lie before them, and stay."""

Looked = dict[int, int]
"""Up to where a group's messages with a row of their own were looked at, by the group's number."""


def give_up_through(
    commit: Commit, queue: QueueState, group: Group, through: int, reason: Reason, looked: Looked
) -> bool:
    """Gives up some of a group's messages up to a position that are not in flight; True when there may be more.
    `looked`: where the call before this one stopped."""
    left, more = _give_up_placed(commit, queue, group, through, reason, looked)
    return more or _give_up_untouched(commit, queue, group, through, reason, left) <= 0


def _give_up_placed(
    commit: Commit, queue: QueueState, group: Group, through: int, reason: Reason, looked: Looked
) -> tuple[int, bool]:
    """Those that have a row of their own; returns how many more may be given up, and whether there are more to see."""
    step = GIVE_UP_STEP
    states = PARKED if reason == RETIRED else UNFINISHED
    parked = group.parked(commit.tx, through, looked.get(group.number, 0), states)
    seen = [message.seq for message in islice(parked, LOOK_STEP)]
    for seq in seen:
        looked[group.number] = seq
        message = group.find(commit.tx, seq)  # giving up others may have made it ready
        if message is None:
            continue
        failure = FailureText(message.error, group.trail(commit.tx, message).traceback)
        give_up(commit, queue, group, message, reason, failure)
        step -= 1
        if step <= 0:
            return step, True
    return step, len(seen) == LOOK_STEP


def _give_up_untouched(commit: Commit, queue: QueueState, group: Group, through: int, reason: Reason, step: int) -> int:
    """Those above the frontier."""
    tx, record = commit.tx, group.record
    through = min(through, queue.latest(commit), through if record.until < 0 else record.until)
    while record.frontier < through and step > 0:
        seq = record.frontier + 1
        event = queue.blocks.event(tx, seq)
        priority = 0
        if seq > record.absorbed and queue.traits.special >= seq:
            value = tx.get(keys.special_key(group.topic, seq))
            priority = 0 if value is None else read_special(value, queue.name).priority
        step -= 1
        told = queue.policy.dead_letter is not None or queue.traits.replies
        if event is not None and (reason != EXPIRED or told):
            over = MessageRow(seq, UNTOUCHED, key=event.key, priority=priority)
            give_up(commit, queue, group, over, reason, None)
        else:
            group.mark_taken(commit, seq)
    return step


def settle_through(commit: Commit, queue: QueueState, through: int) -> None:
    """Settles everything up to a position for every group: a forced compaction removes it."""
    groups = queue.all_groups(commit.tx)
    for group in groups:
        _trim_leases(commit, group, through)
    for group in groups:
        for seq in [message.seq for message in group.parked(commit.tx, through)]:
            group.discard(commit, seq)
        _trim_untouched(commit, group, through)


def _trim_leases(commit: Commit, group: Group, through: int) -> None:
    for number, lease in list(group.leases(commit.tx)):
        gone = [index for index in lease.held() if lease.seq(index) <= through]
        for message in group.take_back(commit, number, lease, gone):
            group.move(commit, message, None)


def _trim_untouched(commit: Commit, group: Group, through: int) -> None:
    record = group.record
    if record.frontier >= through:
        return
    for start, end in list(group.taken_ranges(commit.tx)):
        if start > through:
            break
        commit.tx.delete(group.row(keys.TAKEN, start))
        record.taken -= end - start + 1
        through = max(through, end)
    group.mark_taken(commit, through)
