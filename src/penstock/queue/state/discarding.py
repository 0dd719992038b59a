"""Settling a message without a delivery."""

from __future__ import annotations

from penstock.engine.contract import Snapshot
from penstock.journal.commit.commit import Commit
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import READY, WAITING
from penstock.queue.state.trail import forget_trail


def is_open(snap: Snapshot, group: Group, seq: int) -> bool:
    """Whether a group has neither settled a message nor handed it out."""
    return group.wants(snap, seq) or group.message(snap, seq) is not None


def discard(commit: Commit, state: QueueState, seq: int) -> None:
    """Settles a message that is not in flight, for all groups."""
    for group in state.all_groups(commit.tx):
        discard_for(commit, group, seq)


def discard_for(commit: Commit, group: Group, seq: int) -> None:
    """The same for one group."""
    message = group.message(commit.tx, seq)
    if message is not None:
        group.remove(commit, message)
        if message.traced:
            forget_trail(commit, group, seq)
        if message.key is not None and message.state in (READY, WAITING):
            group.free(commit, message.key, seq)
    elif group.wants(commit.tx, seq):
        group.cover(commit, seq, seq)
