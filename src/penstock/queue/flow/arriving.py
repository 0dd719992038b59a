"""Messages that become ready before a choice: their time has come, or they were pushed with a delay or a priority."""

from __future__ import annotations

from itertools import islice

from penstock.clock import set_back_ms
from penstock.journal.commit.commit import Commit
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import READY, WAITING, MessageRow, read_special


def wake_due(commit: Commit, group: Group, step: int) -> bool:
    """Messages whose time has come become ready, `step` of them; True when there may be more."""
    tx = commit.tx
    low, _ = keys.rows(group.topic, group.number, b"w")
    due = list(islice(tx.scan(low, keys.waiting_key(group.topic, group.number, commit.now_ms + 1, 0)), step))
    for key, _ in due:
        message = group.message(tx, keys.tail_seq(key))
        assert message is not None
        group.remove(commit, message)
        message.state, message.due = READY, 0
        group.seat(commit, message)
    commit.touch(group)
    group.record.next_due = 0
    for key, _ in tx.scan(*keys.rows(group.topic, group.number, b"w")):
        group.record.next_due = keys.split_waiting(key)[0]
        break
    return len(due) == step


def absorb(commit: Commit, queue: QueueState, group: Group, latest: int, step: int) -> bool:
    """Sorts in what was pushed with a delay or a priority since the last take; True when there is more."""
    tx, now = commit.tx, commit.now_ms
    start = keys.special_key(group.topic, group.record.absorbed + 1)
    rows = list(islice(tx.scan(start, keys.special_key(group.topic, latest + 1)), step))
    runs: list[list[int]] = []
    for key, value in rows:
        seq, special = keys.tail_seq(key), read_special(value, queue.name)
        back = set_back_ms(special.since_ms, now)
        due = special.due - back
        if due <= now and special.priority == 0:
            continue  # late enough to be like any other
        if group.is_past(tx, seq):
            continue  # discarded, or another group's, before this one came to it
        if runs and runs[-1][1] == seq - 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
        waits = due > now
        group.place(
            commit,
            MessageRow(
                seq,
                WAITING if waits else READY,
                priority=special.priority,
                key=special.key,
                due=due if waits else 0,
                since_ms=special.since_ms - back,
            ),
        )
    for first, last in runs:
        group.cover(commit, first, last)
    commit.touch(group)
    full = len(rows) == step
    group.record.absorbed = keys.tail_seq(rows[-1][0]) if full else latest
    return full
