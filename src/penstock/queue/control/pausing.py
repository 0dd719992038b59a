"""Pausing: a queue, or one of its groups, hands nothing out until it is resumed; stored with the queue."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.clock import from_ms
from penstock.errors import ConfigError
from penstock.journal.commit.commit import Commit
from penstock.queue.state.cache import QueueState
from penstock.queue.state.records import QueueRecord

WHOLE = ""
"""The name under which a record keeps the pause of the whole queue."""


class Pause(msgspec.Struct, frozen=True):
    """A pause that has not ended."""

    group: str | None
    """None: of the whole queue."""
    since: datetime


def pause(commit: Commit, queue: QueueState, group: str | None) -> bool:
    """Stops handing messages out; False when that was so already."""
    record = queue.record
    if group is not None and group not in record.groups and (queue.fanout or group != "default"):
        known = ", ".join(sorted(record.groups)) or ("none yet" if queue.fanout else "default")
        raise ConfigError(f"queue {queue.name!r} has no group {group!r} to pause; there are: {known}")
    name = WHOLE if group is None else group
    if name in record.paused:
        return False
    record.paused = {**record.paused, name: commit.now_ms}
    queue.save(commit)
    return True


def resume(commit: Commit, queue: QueueState, group: str | None) -> bool:
    """Ends a pause and wakes takes that wait; False when there was none."""
    record, name = queue.record, WHOLE if group is None else group
    if name not in record.paused:
        return False
    record.paused = {other: since for other, since in record.paused.items() if other != name}
    queue.save(commit)
    commit.touched.setdefault(queue.name, 0)
    return True


def pauses(record: QueueRecord) -> list[Pause]:
    """The pauses of a queue, its own first, then the groups' by name."""
    return [Pause(name or None, from_ms(since)) for name, since in sorted(record.paused.items())]
