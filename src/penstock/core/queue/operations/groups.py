"""A queue's settings and groups: policy, pauses, the messages of a new group, and the messages that the last group
leaves.

In work mode all consumers share one group (id 0). In fanout mode no consumer takes from this group. It keeps the
messages that no other group wants: all messages as long as there is no other group, then the messages before the
beginning of all groups. A new group that wants these messages takes them over.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.core.clock import from_ms
from penstock.core.journal.commit import Commit
from penstock.core.queue.flow import forget_breakers, load_breaker, read_window, save_breaker
from penstock.core.queue.operations.push import debounced_until
from penstock.core.queue.policy import QueuePolicy, check_together, refuse_other_mode
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import WORK, QueueState
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import MAX_GROUP
from penstock.core.queue.state.records import (
    FAILED,
    HELD,
    NEVER,
    READY,
    TAKEN,
    WAITING,
    GroupRecord,
    MessageRow,
    QueueRecord,
)
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


# ── policy and pauses ─────────────────────────────────────────────────────────────────────────────────────────────────
def configure(commit: Commit, state: QueueState, changes: Mapping[str, object]) -> QueuePolicy:
    """Changes a queue's policy; returns the new one."""
    window = commit.ensure(state.name).settings.dedup_window  # the topic may have got another window
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


WHOLE = ""
"""The name under which a record keeps the pause of the whole queue."""


class Pause(msgspec.Struct, frozen=True):
    """A pause that has not ended."""

    group: str | None
    """The paused group; None for the whole queue."""
    since: datetime


def pause(commit: Commit, queue: QueueState, group: str | None) -> bool:
    """Stops handing messages out; returns False when the queue or group was paused already."""
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
    """Ends a pause and wakes waiting takes; returns False without a pause."""
    record, name = queue.record, WHOLE if group is None else group
    if name not in record.paused:
        return False
    record.paused = {other: since for other, since in record.paused.items() if other != name}
    queue.save(commit)
    commit.touched.setdefault(queue.name, 0)
    return True


def pauses(record: QueueRecord) -> list[Pause]:
    """Returns the pauses of a queue: first of the whole queue, then of groups by name."""
    return [Pause(name or None, from_ms(since)) for name, since in sorted(record.paused.items())]


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def add_group(commit: Commit, state: QueueState, name: str, after: int | Literal["latest"]) -> None:
    """Registers a group that gets the messages after a position, unless the group exists."""
    if name in state.record.groups:
        return
    latest = commit.latest(state.name)
    start = latest if after == "latest" else after
    if start > latest:
        raise ConfigError(
            f"group {name!r} of queue {state.name!r} cannot begin after {start}: the queue ends at {latest}"
        )
    register_group(commit, state, name, start)


Range = tuple[int, int]


class GroupImage(msgspec.Struct):
    """A group's state without its leases, in memory: for the rare occasions when the group is built anew."""

    absorbed: int
    untouched: list[Range]
    """The untouched ranges, ascending; the last range of a group without an end is unlimited."""
    messages: dict[int, MessageRow]

    def is_untouched(self, seq: int) -> bool:
        return any(start <= seq <= end for start, end in self.untouched)

    def part(self, after: int, until: int = NEVER) -> GroupImage:
        """Returns the part between two positions, the second position included."""
        clipped = [(max(start, after + 1), min(end, until)) for start, end in self.untouched]
        messages = {seq: message for seq, message in self.messages.items() if after < seq <= until}
        return GroupImage(max(self.absorbed, after), [one for one in clipped if one[0] <= one[1]], messages)


def register_group(commit: Commit, queue: QueueState, name: str, after: int) -> Group:
    """Registers a group that gets every unsettled message after a position; in work mode registers only its name."""
    record = queue.record
    if record.next_group > MAX_GROUP:
        raise ConfigError(f"queue {queue.name!r} has had {MAX_GROUP} groups, which is all it can have")
    known, group_id = dict(record.groups), record.next_group
    record.groups = {**known, name: group_id}
    record.next_group += 1
    queue.save(commit)
    shared = queue.group(commit.tx, WORK)
    if not queue.fanout:
        return shared
    group = Group(queue, group_id, name, GroupRecord())
    queue.adopt(group)
    latest = commit.latest(queue.name)
    if known and after >= latest and not shared.kept():  # the new group shares no message with any other group
        group.record = GroupRecord(latest, latest)
        commit.touch(group)
        return group
    others = [queue.group(commit.tx, other, name) for name, other in known.items()]
    kept = image_of(commit, shared) if not others or shared.kept() else None
    begin = _for_newcomer(commit, others, kept) if others else kept
    assert begin is not None
    trimmed = queue.view(commit.tx).trimmed()
    begin = begin.part(after)
    _install(commit, group, GroupImage(begin.absorbed, begin.part(trimmed).untouched, begin.messages))
    if kept is not None:  # messages that this group does not want stay with the shared group
        until = min(shared.record.until, after) if others else after
        _install(commit, shared, kept.part(0, until), until)
    return group


def remove_group(commit: Commit, queue: QueueState, name: str) -> bool:
    """Removes a group. Unsettled messages of the last group are kept for the next group."""
    group_id = queue.record.groups.get(name)
    if group_id is None:
        return False
    commit.flush()
    if queue.fanout and len(queue.record.groups) == 1:
        shared = queue.group(commit.tx, WORK)
        kept = image_of(commit, shared) if shared.kept() else None
        _install(commit, shared, _for_newcomer(commit, [queue.group(commit.tx, group_id)], kept))
        commit.flush()
    commit.tx.delete_range(*keys.group_range(queue.topic, group_id, queue.record.purges))
    commit.tx.delete_range(*keys.flow_of_group(queue.topic, group_id))
    if queue.fanout:
        queue.tell_purged(commit, commit.latest(queue.name), "its group was removed", name)
    queue.record.groups = {known: at for known, at in queue.record.groups.items() if known != name}
    queue.record.paused = {known: since for known, since in queue.record.paused.items() if known != name}
    queue.save(commit)
    queue.forget_groups()
    return True


def group_for(commit: Commit, queue: QueueState, name: str) -> Group:
    """Finds the group that a take names; the first take registers it."""
    group = queue.group_named(commit.tx, name) or register_group(commit, queue, name, 0)
    if group.record.seen_ms - commit.now_ms >= TOLERATED_MS:
        follow_clock(commit, group)
    return group


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def image_of(commit: Commit, group: Group) -> GroupImage:
    """Returns the state of a group, without the messages that it has handed out."""
    follow_clock(commit, group)  # no wait of the image begins later than now
    messages = {message.seq: message for message in group.parked(commit.tx)}
    for message in messages.values():
        if message.state == WAITING and message.key is not None and not message.attempts:
            # The message waits for a rate, which each group has of its own, unless a debounce holds it back for all
            # groups.
            message.due = debounced_until(commit, group.queue, message.key, message.seq)
            message.state = WAITING if message.due > commit.now_ms else READY
    return GroupImage(group.record.absorbed, list(group.untouched(commit.tx, NEVER)), messages)


def _for_newcomer(commit: Commit, groups: list[Group], kept: GroupImage | None) -> GroupImage:
    """Collects the messages that some group has not settled, as untried messages, and the messages that no group
    wanted.
    """
    images = [*(image_of(commit, group) for group in groups), *([] if kept is None else [kept])]
    ranges = _merged([one for image in images for one in image.untouched])
    together = GroupImage(min(image.absorbed for image in images), ranges, {})
    held = [lease.message(index) for group in groups for _, lease in group.leases(commit.tx) for index in lease.held()]
    parked = [message for image in images for message in image.messages.values()]
    for message in [*sorted(parked, key=_urgency), *held]:
        if message.seq in together.messages or together.is_untouched(message.seq):
            continue
        if kept is None or message.seq not in kept.messages:
            waits = message.state == WAITING and not message.attempts
            due, since = message.due if waits else 0, message.since_ms
            state = WAITING if waits else READY
            message = MessageRow(message.seq, state, 0, message.priority, message.key, due, since_ms=since)
        together.messages[message.seq] = message
    return together


def _urgency(message: MessageRow) -> tuple[int, int]:
    return ({READY: 0, HELD: 0, WAITING: 1, FAILED: 2}[message.state], message.due)


def _install(commit: Commit, group: Group, image: GroupImage, until: int = -1) -> None:
    """Writes an image into the rows of a group without leases; `until` is the end of the group."""
    commit.tx.delete_range(*keys.group_range(group.topic, group.group_id, group.queue.record.purges))
    commit.tx.delete_range(*keys.flow_of_group(group.topic, group.group_id))
    commit.touch(group)
    stops = [start - 1 for start, _ in image.untouched] + ([until] if until >= 0 else [])
    group.record = GroupRecord(stops[0], image.absorbed, until=until, seen_ms=group.record.seen_ms)
    for (_, end), stop in zip(image.untouched, stops[1:], strict=False):
        if end < stop:
            group.mark_taken(commit, stop, end + 1)
    for message in sorted(image.messages.values(), key=lambda message: message.seq):
        state, message = message.state, msgspec.structs.replace(message, state=TAKEN, turn=0)
        held_back = state == WAITING and not message.attempts  # held by a debounce: it gets its turn when it is due
        if state == FAILED or held_back:
            group.move(commit, message, state)
        else:
            group.requeue(commit, message, message.due if state == WAITING else 0)


def _merged(ranges: list[Range]) -> list[Range]:
    """Returns ranges in order, with overlapping or touching ranges joined."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


# ── a clock that was set back ─────────────────────────────────────────────────────────────────────────────────────────
TOLERATED_MS = 1000
"""The milliseconds that a clock may go back without an adjustment: deadlines then last longer by this time, because
adjusting all of them costs more.
"""


def follow_clock(commit: Commit, group: Group) -> None:
    """Moves a group's deadlines, due times and limits back when the clock went back."""
    record, now = group.record, commit.now_ms
    commit.touch(group)
    record.seen_ms = now
    group.set_leases_back(commit)
    group.set_waits_back(commit)
    _set_limits_back(commit, group, now)
    commit.touched.setdefault(group.queue.name, 0)  # takes that wait for a later time must try again


def _set_limits_back(commit: Commit, group: Group, now: int) -> None:
    queue, tx = group.queue, commit.tx
    own = keys.flow_key(group.topic, group.group_id, b"q")
    windows = list(tx.scan(own, own + b"\0")) + list(tx.scan(*keys.flow_rows(group.topic, group.group_id, b"r")))
    for row, value in windows:
        window = read_window(value, queue.name)
        window.set_back(now)
        tx.put(row, keys.encode(window))
    if queue.policy.breaker is not None:
        breaker = load_breaker(tx, group)
        breaker.failures.set_back(now)  # `Limiter.room` shortens the pause of an open breaker
        save_breaker(commit, group, breaker)
