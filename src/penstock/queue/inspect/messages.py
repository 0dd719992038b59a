"""Every message that is not settled, and how it is: what it waits for, how often it was tried, why it failed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_args

import msgspec

from penstock.clock import from_ms
from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.commit.catalog import TopicRecord
from penstock.journal.reading import TopicView
from penstock.queue.inspect.positions import inspecting, untouched_ranges
from penstock.queue.state import keys, runs
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import (
    FAILED,
    HELD,
    NEVER,
    READY,
    WAITING,
    Lease,
    MessageRow,
    SpecialRow,
    read_message,
    read_special,
)
from penstock.queue.state.trail import read_trail
from penstock.surface.failure import Attempt

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue

E = TypeVar("E")
MessageState = Literal["ready", "delayed", "in_flight", "failed"]
STATES: Final[tuple[MessageState, ...]] = get_args(MessageState)


class ListedMessage(msgspec.Struct, Generic[E], frozen=True):
    """A message that is not settled, as one group has it, with its event or with a document of it."""

    event: E
    state: MessageState
    group: str | None
    """In work mode the group in whose name it was taken, else "default". In fanout None for what no group wanted."""
    attempts: int = 0
    """Deliveries so far, the one in flight included."""
    max_attempts: int = 0
    """The budget: its own, or the policy's."""
    priority: int = 0
    due: datetime | None = None
    """When a delayed message becomes ready."""
    blocked: bool = False
    """Whether an earlier message of its ordering key must be settled first."""
    error: str | None = None
    """Why its last attempt failed: type and text."""
    traceback: str | None = None
    first_delivered: datetime | None = None
    last_delivered: datetime | None = None
    consumer: str | None = None
    """Who holds it."""
    deadline: datetime | None = None
    """Until when, unless extended; None for a lease that lasts as long as its owner's process."""
    failed_attempts: list[Attempt] = []
    """The newest ten, the oldest of them first."""


class QueueMessage(ListedMessage[Event], frozen=True):
    """A message that is not settled, as one group has it."""

    @property
    def seq(self) -> int:
        """Its position."""
        return self.event.seq

    @property
    def key(self) -> str | None:
        """Its ordering key."""
        return self.event.key


def check_state(state: str | None) -> MessageState | None:
    for known in (None, *STATES):
        if state == known:
            return known
    raise ConfigError(f"a message is {', '.join(STATES)}, not {state!r:.40}")


def messages(
    queue: LocalQueue, state: MessageState | None, group: str | None, after: int, limit: int | None = None
) -> Iterator[QueueMessage]:
    """Entries in order of position, then group, from one snapshot; `limit` counts positions."""
    with inspecting(queue) as (snap, found):
        now, previous = queue.journal.clock.now_ms(), 0
        streams = [one.entries(state, group) for one in _listings(snap, found, group, now, after)]
        for entry in heapq.merge(*streams, key=lambda one: (one.event.seq, one.group or "")):
            if entry.event.seq != previous:
                if limit is not None:
                    if not limit:
                        return
                    limit -= 1
                previous = entry.event.seq
            yield entry


def _listings(snap: Snapshot, state: QueueState, group: str | None, now: int, after: int) -> Iterator[_GroupListing]:
    """The groups that have messages."""
    named = state.record.groups
    if state.fanout and named and group is not None and group not in named:
        raise ConfigError(f"queue {state.name!r} has no group {group!r}; there are: {', '.join(sorted(named))}")
    for one in state.all_groups(snap):
        label = one.name if one.number else None if state.fanout else "default"
        if group is None or not state.fanout or label == group or not named:
            yield _GroupListing(snap, state, one, label, now, after)


class _GroupListing:
    """The messages of one group in one snapshot, after a position."""

    def __init__(
        self,
        snap: Snapshot,
        state: QueueState,
        group: Group,
        label: str | None,
        now: int,
        after: int,
    ) -> None:
        self.snap = snap
        self.state = state
        self.group = group
        self.label = label
        self.now = now
        self.after = after
        self.latest = TopicView(snap, state.name, TopicRecord(state.topic)).latest()
        self.overdue = state.overdue_through(snap, now)

    def entries(self, state: MessageState | None, lease_label: str | None) -> Iterator[QueueMessage]:
        """The messages in one state (or any), ascending; of deliveries, those taken in a group's name."""
        sources: list[Iterator[QueueMessage]] = []
        if state in (None, "in_flight"):
            sources.append(self._in_flight(lease_label))
        if state == "failed":
            sources.append(self._failed())
        else:
            sources.append(self._placed(state))
        if state in (None, "ready"):
            sources.append(self._held_in_runs())
        if state in (None, "ready", "delayed"):
            sources.append(self._untouched(state))
        return heapq.merge(*sources, key=lambda one: one.event.seq)

    def _in_flight(self, label: str | None) -> Iterator[QueueMessage]:
        held: list[tuple[int, Lease, int]] = [
            (lease.seq(index), lease, index)
            for _, lease in self.group.leases(self.snap)
            if label is None or lease.label == label
            for index in lease.held()
        ]
        for seq, lease, index in sorted(held, key=lambda one: one[0]):
            event = self._event(seq)
            if event is not None:
                message, deadline = lease.message(index), lease.deadline_of(index)
                yield self._entry(
                    event,
                    "in_flight",
                    message,
                    group=lease.label,
                    consumer=lease.consumer,
                    deadline=None if deadline == NEVER else from_ms(deadline),
                )

    def _placed(self, wanted: MessageState | None) -> Iterator[QueueMessage]:
        """Messages with a row of their own."""
        if wanted == "in_flight":
            return
        start = keys.message_key(self.group.topic, self.group.number, self.after + 1)
        _, stop = keys.rows(self.group.topic, self.group.number, b"e")
        for _, value in self.snap.scan(start, stop):
            message = read_message(value, self.state.name)
            late = message.state == WAITING and message.due > self.now
            state: MessageState = "failed" if message.state == FAILED else "delayed" if late else "ready"
            if wanted in (None, state) and (message.state == FAILED or message.seq > self.overdue):
                event = self._event(message.seq)
                if event is not None:
                    yield self._entry(event, state, message, blocked=message.state == HELD)

    def _failed(self) -> Iterator[QueueMessage]:
        start = keys.failed_key(self.group.topic, self.group.number, self.after + 1)
        _, stop = keys.rows(self.group.topic, self.group.number, b"f")
        for key, _ in self.snap.scan(start, stop):
            message = self.group.message(self.snap, keys.tail_seq(key))
            event = self._event(keys.tail_seq(key))
            if message is not None and event is not None:
                yield self._entry(event, "failed", message)

    def _held_in_runs(self) -> Iterator[QueueMessage]:
        """Messages held behind a busy key that have no row of their own."""
        for seq, key in runs.members(self.snap, self.group, after=max(self.after, self.overdue)):
            event = self._event(seq) if seq > self.overdue else None
            if event is not None:
                yield self._entry(event, "ready", MessageRow(seq, HELD, key=key), blocked=True)

    def _untouched(self, wanted: MessageState | None) -> Iterator[QueueMessage]:
        """Messages above the frontier; those with a delay or a priority have a row that says so."""
        group, snap = self.group, self.snap
        specials = group.queue.traits.special > group.record.absorbed
        for start, end in untouched_ranges(snap, group, self.latest):
            at = max(start, self.after + 1, self.overdue + 1)
            if wanted == "delayed":
                if specials:
                    yield from self._delayed_between(at, end)
                continue
            while (found := group.queue.blocks.find(snap, at, end)) is not None:
                event = Event(*found)
                at = event.seq + 1
                special = self._special(event.seq) if specials else None
                entry = self._untouched_entry(event, special or SpecialRow())
                if wanted in (None, entry.state):
                    yield entry

    def _delayed_between(self, start: int, end: int) -> Iterator[QueueMessage]:
        first = max(start, self.group.record.absorbed + 1)
        low, high = keys.special_key(self.group.topic, first), keys.special_key(self.group.topic, end + 1)
        for key, value in self.snap.scan(low, high) if first <= end else ():
            special = read_special(value, self.state.name)
            event = self._event(keys.tail_seq(key)) if special.due > self.now else None
            if event is not None:
                yield self._untouched_entry(event, special)

    def _untouched_entry(self, event: Event, special: SpecialRow) -> QueueMessage:
        late = special.due > self.now
        row = MessageRow(event.seq, WAITING if late else READY, priority=special.priority, due=special.due)
        busy = event.key is not None and self.group.is_busy(self.snap, event.key)
        return self._entry(event, "delayed" if late else "ready", row, blocked=busy)

    def _special(self, seq: int) -> SpecialRow | None:
        if not self.group.record.absorbed < seq <= self.group.queue.traits.special:
            return None
        value = self.snap.get(keys.special_key(self.group.topic, seq))
        return None if value is None else read_special(value, self.state.name)

    def _budget(self, seq: int) -> int:
        own = self.snap.get(keys.override_key(self.group.topic, seq)) if self.state.traits.overridden else None
        return self.state.policy.max_attempts if own is None else int.from_bytes(own)

    def _event(self, seq: int) -> Event | None:
        return self.group.queue.blocks.event(self.snap, seq) if seq > self.after else None

    def _entry(
        self,
        event: Event,
        state: MessageState,
        message: MessageRow,
        *,
        group: str | None = None,
        blocked: bool = False,
        consumer: str | None = None,
        deadline: datetime | None = None,
    ) -> QueueMessage:
        trail = read_trail(self.snap, self.group, message)
        return QueueMessage(
            event,
            state,
            group or self.label,
            message.attempts,
            self._budget(message.seq),
            message.priority,
            from_ms(message.due) if state == "delayed" else None,
            blocked,
            message.error,
            trail.traceback,
            from_ms(message.first_ms) if message.first_ms else None,
            from_ms(message.last_ms) if message.last_ms else None,
            consumer,
            deadline,
            trail.shown(),
        )
