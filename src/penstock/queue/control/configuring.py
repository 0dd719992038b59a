"""What an operator changes of a queue: its policy, and which groups there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.journal.commit.commit import Commit
from penstock.queue.flow.circuit import forget_breakers
from penstock.queue.operations import groups
from penstock.queue.policy import QueuePolicy, check_together, refuse_other_mode
from penstock.queue.state.cache import QueueState

if TYPE_CHECKING:
    from collections.abc import Mapping


def configure(commit: Commit, state: QueueState, changes: Mapping[str, object]) -> QueuePolicy:
    """Changes a queue's policy; returns the new one."""
    window = commit.ensure(state.name).settings.dedup_window  # the topic may have been given another one
    old = msgspec.structs.replace(state.policy, dedup_window=window)
    new = msgspec.structs.replace(old, **changes)
    check_together(new, state.name)
    refuse_other_mode(state.name, old, new.mode)
    if new == old:
        return new
    state.change_policy(commit, new)
    if new.breaker is None and old.breaker is not None:
        forget_breakers(commit, state)
    commit.touched.setdefault(state.name, 0)
    return new


def add_group(commit: Commit, state: QueueState, name: str, after: int | Literal["latest"]) -> None:
    """Registers a group that gets what comes after a position, unless it is there already."""
    if name in state.record.groups:
        return
    latest = commit.latest(state.name)
    start = latest if after == "latest" else after
    if start > latest:
        raise ConfigError(
            f"group {name!r} of queue {state.name!r} cannot begin after {start}: the queue ends at {latest}"
        )
    groups.add_group(commit, state, name, start)
