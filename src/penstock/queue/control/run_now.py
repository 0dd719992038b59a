"""Running delayed messages now: their time, or their retry's, has come because an operator says so."""

from __future__ import annotations

from penstock.journal.commit.commit import Commit
from penstock.queue.flow.merging import forget_debounced
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import READY, WAITING, MessageRow, read_special


def run_now(commit: Commit, queue: QueueState, seqs: list[int], name: str | None) -> int:
    """Makes those of some messages ready that wait for their time, for one group or for all; returns how many."""
    latest = queue.latest(commit)
    groups = [group for group in queue.all_groups(commit.tx) if name is None or not queue.fanout or group.name == name]
    count = 0
    for seq in dict.fromkeys(seqs):
        if seq <= latest:
            count += max([_make_ready(commit, queue, group, seq) for group in groups], default=False)
    return count


def _make_ready(commit: Commit, queue: QueueState, group: Group, seq: int) -> bool:
    message = group.message(commit.tx, seq)
    if message is not None:
        if message.state != WAITING:
            return False
        group.remove(commit, message)
        message.state, message.due = READY, 0
        if message.key is not None and queue.record.policy.debounce is not None:
            forget_debounced(commit, queue, message.key, seq)
        group.seat(commit, message)
        return True
    if seq <= group.record.absorbed or seq > queue.traits.special or not group.wants(commit.tx, seq):
        return False
    value = commit.tx.get(keys.special_key(group.topic, seq))
    special = None if value is None else read_special(value, queue.name)
    if special is None or special.due <= commit.now_ms:
        return False
    if special.key is not None:
        forget_debounced(commit, queue, special.key, seq)
    group.seat(commit, MessageRow(seq, READY, priority=special.priority, key=special.key))
    group.cover(commit, seq, seq)
    return True
