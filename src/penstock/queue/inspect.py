"""What a queue holds, without taking it: every message and how it is, who holds what, what was given up and why."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_args

import msgspec

from penstock.clock import from_ms
from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError, StaleDelivery
from penstock.events import Event
from penstock.journal.commit.catalog import TopicRecord, load_state
from penstock.journal.reading import TopicView
from penstock.limits import ATTEMPTS_KEPT
from penstock.observe.sample import FailedMessage
from penstock.queue import letters, metrics
from penstock.queue.delivery import LeaseHandle, LocalDelivery
from penstock.queue.flow import BreakerState, breaker_state
from penstock.queue.letters import DeadLetterCursor
from penstock.queue.operations.settle import stale
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.state.cache import WORK, QueueState, presences, unknown_queue
from penstock.queue.state.group import Group, in_turn, members, read_trail
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
from penstock.queue.token import fits, make_token, read_token
from penstock.surface.failure import DEAD_QUEUE, Attempt

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue


@contextmanager
def inspecting(queue: LocalQueue) -> Iterator[tuple[Snapshot, QueueState]]:
    """A snapshot and the queue in it."""
    queue._core.check_open()
    with queue._core.engine.read() as snap, queue._cache.beside(snap, queue.name) as state:
        if state is None:
            raise unknown_queue(queue.name)
        yield snap, state


# ── one message ────────────────────────────────────────────────────────────────────────────────────────────────────
def get(queue: LocalQueue, seq: int) -> Event | None:
    with inspecting(queue) as (snap, state):
        now_ms = queue.journal.clock.now_ms()
        if seq and next(unsettled_positions(snap, state, now_ms, seq - 1), None) == seq:
            return BlockCache(queue.name, state.topic).event(snap, seq)
        return None


# ── in order ───────────────────────────────────────────────────────────────────────────────────────────────────────
def unsettled_events(queue: LocalQueue) -> Iterator[Event]:
    with inspecting(queue) as (snap, state):
        yield from events_after(snap, state, queue.journal.clock.now_ms(), 0)


def events_after(snap: Snapshot, state: QueueState, now_ms: int, after: int) -> Iterator[Event]:
    """The messages beyond a position that some group has not settled, in order."""
    blocks = BlockCache(state.name, state.topic)
    for seq in unsettled_positions(snap, state, now_ms, after):
        event = blocks.event(snap, seq)
        if event is not None:
            yield event


def unsettled_positions(snap: Snapshot, state: QueueState, now_ms: int, after: int = 0) -> Iterator[int]:
    """Positions that some group has not settled, ascending; those that outlived their ttl only while they are held."""
    overdue = state.overdue_through(snap, now_ms)
    if not overdue:
        yield from all_unsettled(snap, state, after)
        return
    groups = state.all_groups(snap)
    flying = {seq for group in groups for seq in flying_in(snap, group)}
    for seq in all_unsettled(snap, state, after):
        if seq > overdue or seq in flying or has_failed(snap, groups, seq):
            yield seq


def all_unsettled(snap: Snapshot, state: QueueState, after: int = 0) -> Iterator[int]:
    """Positions that some group has not settled, ascending, whatever their age."""
    latest = TopicView(snap, state.name, TopicRecord(state.topic)).latest()
    previous = 0
    for seq in heapq.merge(*(positions(snap, group, latest, after) for group in state.all_groups(snap))):
        if seq != previous:
            previous = seq
            yield seq


def positions(snap: Snapshot, group: Group, latest: int, after: int = 0) -> Iterator[int]:
    """One group's unsettled positions, ascending."""
    untaken = untouched(snap, group, latest, after)
    return heapq.merge(group.parked(snap, after=after), flying_after(snap, group, after), untaken)


def available(snap: Snapshot, state: QueueState, now_ms: int) -> Iterator[Event]:
    """Messages that are not in flight and that have not failed, in order."""
    blocks = BlockCache(state.name, state.topic)
    groups = state.all_groups(snap)
    flying = {seq for group in groups for seq in flying_in(snap, group)}
    for seq in unsettled_positions(snap, state, now_ms):
        if seq not in flying and not has_failed(snap, groups, seq):
            event = blocks.event(snap, seq)
            if event is not None:
                yield event


def has_failed(snap: Snapshot, groups: list[Group], seq: int) -> bool:
    """Whether some group has given a message up."""
    for group in groups:
        if group.record.failed:
            message = group.message(snap, seq)
            if message is not None and message.state == FAILED:
                return True
    return False


def failed_positions(snap: Snapshot, state: QueueState) -> Iterator[int]:
    """Positions of messages that some group has given up, ascending, each once."""
    previous = 0
    for seq in heapq.merge(*(failed_in(snap, group) for group in state.all_groups(snap))):
        if seq != previous:
            previous = seq
            yield seq


def flying_in(snap: Snapshot, group: Group) -> set[int]:
    """Positions that the group's leases hold."""
    return {lease.seq(index) for _, lease in group.leases(snap) for index in lease.held()}


def flying_after(snap: Snapshot, group: Group, after: int) -> list[int]:
    """The same beyond a position, ascending."""
    return sorted(seq for seq in flying_in(snap, group) if seq > after)


def untouched(snap: Snapshot, group: Group, latest: int, after: int = 0) -> Iterator[int]:
    """Positions above the frontier that no lease or row covers."""
    for start, end in untouched_ranges(snap, group, latest, after):
        yield from range(start, end + 1)


def untouched_ranges(snap: Snapshot, group: Group, latest: int, after: int = 0) -> Iterator[tuple[int, int]]:
    """The same, from where to where."""
    start = max(group.record.frontier, after) + 1
    if group.record.until >= 0:
        latest = min(latest, group.record.until)
    for low, high in group.taken_ranges(snap):
        if start < low:
            yield start, low - 1
        start = max(start, high + 1)
    if start <= latest:
        yield start, latest


def peek(queue: LocalQueue, limit: int | None, name: str) -> list[Event]:
    with inspecting(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        found: list[Event] = []
        for seq in next_positions(snap, state, group_named(snap, state, name), blocks, queue.journal.clock.now_ms()):
            if limit is not None and len(found) >= limit:
                break
            event = blocks.event(snap, seq)
            if event is not None:
                found.append(event)
        return found


def next_positions(snap: Snapshot, state: QueueState, group: Group, blocks: BlockCache, now: int) -> Iterator[int]:
    """What would be taken, in that order."""
    overdue = state.overdue_through(snap, now)
    latest = TopicView(snap, state.name, TopicRecord(state.topic)).latest()
    ranked: list[tuple[int, int]] = []
    busy: Counter[str] = Counter()
    for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"y")):
        priority, seq = keys.split_ready(key)
        ranked.append((-priority, seq))
    if group.record.ready > len(ranked):  # those that wait for their lane's turn go after the others
        yield from (seq for _, seq in sorted(ranked) if seq > overdue)
        yield from in_turn(snap, group, overdue)
        ranked.clear()
    low, _ = keys.rows(group.topic, group.number, b"w")
    for key, _ in snap.scan(low, keys.waiting_key(group.topic, group.number, now + 1, 0)):
        message = group.message(snap, keys.tail_seq(key))
        if message is not None and message.key is not None:
            under_way = group.occupants(snap, message.key)
            if message.seq not in under_way:  # a debounce held it back; now it is behind those of its key
                if busy[message.key] + len(under_way) >= state.policy.max_in_flight_per_key:
                    continue
                busy[message.key] += 1
        if message is not None:
            ranked.append((-message.priority, message.seq))
    special: set[int] = set()
    for key, value in unabsorbed(snap, group, latest):
        seq, options = keys.tail_seq(key), read_special(value, state.name)
        if options.due > now or options.priority:
            special.add(seq)
        if options.due <= now and options.priority:
            ranked.append((-options.priority, seq))

    def plain() -> Iterator[tuple[int, int]]:
        for seq in untouched(snap, group, latest):
            if seq in special:
                continue
            event = blocks.event(snap, seq)
            key = None if event is None or seq <= overdue else event.key
            if key is not None:
                if busy[key] + len(group.occupants(snap, key)) >= state.policy.max_in_flight_per_key:
                    continue
                busy[key] += 1
            yield 0, seq

    for _, seq in heapq.merge(sorted(ranked), plain()):
        if seq > overdue:
            yield seq


def unabsorbed(snap: Snapshot, group: Group, latest: int) -> Iterator[tuple[bytes, bytes]]:
    """Delays and priorities that the group's next take will sort in."""
    if group.queue.traits.special > group.record.absorbed:
        start = keys.special_key(group.topic, group.record.absorbed + 1)
        for key, value in snap.scan(start, keys.special_key(group.topic, latest + 1)):
            if not group.is_past(snap, keys.tail_seq(key)):
                yield key, value


def failed_in(snap: Snapshot, group: Group) -> Iterator[int]:
    """Positions of a group's failed messages, ascending."""
    if group.record.failed:
        for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"f")):
            yield keys.tail_seq(key)


# ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def group_names(state: QueueState) -> list[str]:
    names = set(state.record.groups)
    return sorted(names if state.fanout else names | {"default"})


def group_named(snap: Snapshot, state: QueueState, name: str) -> Group:
    """The group whose numbers are asked for; one that is not added yet would find the messages of no group."""
    if not state.fanout:
        return state.group(snap, WORK)
    number = state.record.groups.get(name)
    if number is not None:
        return state.group(snap, number)
    if state.record.groups:
        # What it will find, the others' progress decides: the one furthest behind says the most.
        latest = TopicView(snap, state.name, TopicRecord(state.topic)).latest()
        furthest = max(state.named_groups(snap), key=lambda group: group.unsettled(latest))
        record = msgspec.structs.replace(furthest.record, in_flight=0, leases=0, failed=0)
        record.ready += furthest.record.in_flight + furthest.record.failed
        record.ready += state.group(snap, WORK).kept()
        return Group(state, furthest.number, name, record)
    record = msgspec.structs.replace(state.group(snap, WORK).record)
    record.frontier = max(record.frontier, load_state(snap, state.topic, state.name).trimmed)
    return Group(state, WORK, name, record)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────
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
        for seq, key in members(self.snap, self.group, after=max(self.after, self.overdue)):
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


# ── deliveries and consumers ──────────────────────────────────────────────────────────────────────────────────────────
PRESENT = 30.0
"""Seconds after its last take for which a consumer counts as active; twice that and it is gone."""
HOLDS = 10


class PendingDelivery(msgspec.Struct, frozen=True):
    """A delivery in flight."""

    token: str
    seq: int
    group: str
    consumer: str | None
    attempt: int
    delivered_at: datetime
    deadline: datetime
    key: str | None = None


class QueueConsumer(msgspec.Struct, frozen=True):
    """A worker, or another consumer that gave its name when it took something."""

    name: str
    group: str
    last_seen: datetime
    state: str
    """active (seen within 30 s), stale (within a minute), or gone."""
    host: str | None = None
    """Its machine; over HTTP the one it names, else the address it asks from."""
    since: datetime | None = None
    """When it first took something, or, a worker over HTTP, began."""
    in_hand: int = 0
    """How many messages it holds."""
    holds: list[int] = []
    """The positions of the first ten of them."""


def pending(queue: LocalQueue, name: str | None) -> list[PendingDelivery]:
    found = []
    with inspecting(queue) as (snap, state):
        for group in state.all_groups(snap):
            for number, lease in group.leases(snap):
                if name is not None and lease.label != name:
                    continue
                for index in lease.held():
                    message = lease.message(index)
                    deadline = lease.deadline_of(index)
                    found.append(
                        PendingDelivery(
                            make_token(state.topic, group.number, number, index, lease.secret),
                            message.seq,
                            lease.label,
                            lease.consumer,
                            message.attempts,
                            from_ms(lease.delivered_ms),
                            from_ms(deadline) if deadline != NEVER else datetime.max.replace(tzinfo=from_ms(0).tzinfo),
                            message.key,
                        )
                    )
    found.sort(key=lambda one: (one.seq, one.group))
    return found


def failed(queue: LocalQueue, name: str) -> Iterator[Event]:
    with inspecting(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        group = group_named(snap, state, name)
        for seq in failed_in(snap, group):
            event = blocks.event(snap, seq)
            if event is not None:
                yield event


def groups(queue: LocalQueue) -> list[str]:
    with inspecting(queue) as (_, state):
        return group_names(state)


def consumers(queue: LocalQueue) -> list[QueueConsumer]:
    found = []
    with inspecting(queue) as (snap, state):
        now = queue.journal.clock.now_ms()
        labels = {number: name for name, number in state.record.groups.items()}
        held = _in_hand(snap, state)
        for key, _, row in presences(snap, state.topic):
            number, name = keys.split_presence(key)
            age, label = (now - row.seen_ms) / 1000, labels.get(number, "default")
            seqs = sorted(held.get((label, name), ()))
            found.append(
                QueueConsumer(
                    name,
                    label,
                    from_ms(row.seen_ms),
                    "active" if age <= PRESENT else "stale" if age <= 2 * PRESENT else "gone",
                    row.host or None,
                    from_ms(row.since_ms) if row.since_ms else None,
                    len(seqs),
                    seqs[:HOLDS],
                )
            )
    return found


def _in_hand(snap: Snapshot, state: QueueState) -> dict[tuple[str, str], list[int]]:
    """The positions that consumers with a name hold, by group and name."""
    found: dict[tuple[str, str], list[int]] = {}
    for group in state.all_groups(snap):
        for _, lease in group.leases(snap):
            if lease.consumer is not None:
                seqs = found.setdefault((lease.label, lease.consumer), [])
                seqs.extend(lease.seq(index) for index in lease.held())
    return found


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────────────────────
READY_SAMPLE = 1000
"""Ready messages that `oldest_age` looks at: with priorities, the oldest need not be the first."""


class QueueStats(msgspec.Struct, frozen=True):
    """How many messages of a group are in which state."""

    ready: int
    """Could be taken now (or as soon as their ordering key is free)."""
    in_flight: int
    """Held by a lease; a lease that has ended counts until the next take finds it."""
    delayed: int
    """Wait for their time, or for their retry."""
    failed: int
    """Given up, with no dead-letter queue to go to."""
    oldest_age: float | None
    """Seconds since the oldest ready message was pushed."""
    groups: tuple[str, ...] = ()
    """The queue's groups."""
    paused: bool = False
    """Whether nothing is handed out for now, because the queue or this group is paused."""
    breaker: BreakerState | None = None
    """The group's circuit breaker: closed, open or half-open; None where the policy has none."""


def stats(queue: LocalQueue, name: str) -> QueueStats:
    with inspecting(queue) as (snap, state):
        now = queue.journal.clock.now_ms()
        group = group_named(snap, state, name)
        record = group.record
        latest = TopicView(snap, state.name, TopicRecord(state.topic)).latest()
        plain = latest - record.frontier - record.taken
        delayed, ready = record.waiting, record.ready + record.held
        if record.next_due and record.next_due <= now:
            low, _ = keys.rows(group.topic, group.number, b"w")
            due = sum(1 for _ in snap.scan(low, keys.waiting_key(group.topic, group.number, now + 1, 0)))
            delayed, ready = delayed - due, ready + due
        for _, value in unabsorbed(snap, group, latest):
            if read_special(value, state.name).due > now:
                delayed, plain = delayed + 1, plain - 1
        metrics.in_flight.labels(queue=queue.name).set(record.in_flight)
        breaker = breaker_state(snap, state, group, now)
        if breaker is not None:
            level = {"closed": 0, "half-open": 0.5, "open": 1}[breaker]
            metrics.breaker_open.labels(queue=queue.name, group=name).set(level)
        overdue = state.overdue_through(snap, now)
        if overdue:
            gone = group.overdue(snap, overdue)
            late = sum(message.due > now for message in _placed(snap, group, overdue))
            late += sum(
                read_special(value, state.name).due > now for _, value in unabsorbed(snap, group, min(latest, overdue))
            )
            delayed, ready = delayed - late, ready - (gone - late)
        oldest = _oldest_ready(snap, state, group, latest, overdue) if plain + ready else None
        return QueueStats(
            plain + ready,
            record.in_flight,
            delayed,
            record.failed,
            None if oldest is None else max(0.0, (now - oldest) / 1000),
            tuple(group_names(state)),
            state.record.is_paused(name),
            breaker,
        )


def settle_times(queue: LocalQueue, name: str) -> dict[int, int]:
    """How many messages of a group took how long from delivery to acknowledgement; see `GroupRecord.settle_times`."""
    with inspecting(queue) as (snap, state):
        return dict(group_named(snap, state, name).record.settle_times)


def _placed(snap: Snapshot, group: Group, through: int) -> Iterator[MessageRow]:
    """Messages with a row of their own, up to a position, that have not failed."""
    low, _ = keys.rows(group.topic, group.number, b"e")
    for _, value in snap.scan(low, keys.message_key(group.topic, group.number, through + 1)):
        message = read_message(value, group.queue.name)
        if message.state != FAILED:
            yield message


def _oldest_ready(snap: Snapshot, state: QueueState, group: Group, latest: int, overdue: int) -> int | None:
    """When the oldest ready message was recorded."""
    seqs = list(islice((seq for seq in untouched(snap, group, latest) if seq > overdue), 1))
    for key, _ in islice(snap.scan(*keys.rows(group.topic, group.number, b"y")), READY_SAMPLE):
        if keys.tail_seq(key) > overdue:
            seqs.append(keys.tail_seq(key))
    if group.record.ready:
        seqs += islice(in_turn(snap, group, overdue), READY_SAMPLE)
    if not seqs:
        return None
    event = BlockCache(state.name, state.topic).event(snap, min(seqs))
    return None if event is None else int(event._rows.recorded_ms(event._row))


def length(queue: LocalQueue) -> int:
    with inspecting(queue) as (snap, state):
        latest = TopicView(snap, state.name, TopicRecord(state.topic)).latest()
        return state.count_unsettled(snap, latest, queue.journal.clock.now_ms())


# ── what was given up ─────────────────────────────────────────────────────────────────────────────────────────────────
_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode


def find_delivery(queue: LocalQueue, token: str) -> LocalDelivery:
    """The delivery a token names, as its holder would have it; StaleDelivery when its lease is gone."""
    address = read_token(token)
    if address is None:
        raise StaleDelivery(f"{token[:40]!r} is no delivery's token", token=token[:40])
    with inspecting(queue) as (snap, state):
        if address.group and address.group not in state.record.groups.values():
            raise stale(token, queue.name)
        group = state.group(snap, address.group)
        lease = group.lease(snap, address.number)
        if lease is None or not fits(state.topic, address, lease.secret) or address.index not in lease.held():
            raise stale(token, queue.name)
        message = lease.message(address.index)
        event = BlockCache(queue.name, state.topic).event(snap, message.seq)
        if event is None:
            raise stale(token, queue.name)
        hold = LeaseHandle(queue, lease.label, lease.consumer).under(group, address.number, lease)
        return LocalDelivery(hold, address.index, event, message.attempts, lease.deadline_of(address.index))


def failures(queue: LocalQueue, group: str = "default", after: int = 0) -> Iterator[FailedMessage]:
    """The queue's own failed messages beyond a position, in order."""
    with inspecting(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        chosen = group_named(snap, state, group)
        _, stop = keys.rows(chosen.topic, chosen.number, b"f")
        for key, _ in snap.scan(keys.failed_key(chosen.topic, chosen.number, after + 1), stop):
            seq = keys.tail_seq(key)
            event, message = blocks.event(snap, seq), chosen.message(snap, seq)
            if event is None or message is None:
                continue
            at = from_ms(message.last_ms) if message.last_ms else None
            trail = read_trail(snap, chosen, message)
            yield FailedMessage(
                event, queue.name, message.attempts, "attempts", message.error, at, trail.traceback, trail.shown()
            )


def dead_letters(queue: LocalQueue, after: DeadLetterCursor | None = None) -> Iterator[FailedMessage]:
    """The dead letters of a queue: those in its dead-letter queue that come from it, or, of such a queue, all. Those
    behind a place cost nothing for what lies before it."""
    registry = queue._registry
    target = queue.policy.dead_letter
    place = after or DeadLetterCursor("", 0)
    own = place.queue == queue.name != target
    if target is not None and not own and target in registry.names():
        for event in _events_after(registry.existing(target), place.seq if place.queue == target else 0):
            if letters.origin(event) == queue.name:
                yield letter(event)
    # An ordinary queue is not walked: a hundred thousand messages would be looked at for nothing.
    if queue.name != target and _receives_dead(queue):
        for event in _events_after(queue, place.seq if own else 0):
            if letters.origin(event) is not None:
                yield letter(event)


def _events_after(queue: LocalQueue, seq: int) -> Iterator[Event]:
    with inspecting(queue) as (snap, state):
        yield from events_after(snap, state, queue.journal.clock.now_ms(), seq)


def _receives_dead(queue: LocalQueue) -> bool:
    """Whether dead letters come, or came, to a queue: some queue's policy names it, or it begins with one."""
    if any(letters.origin(event) is not None for event in queue.peek(1)):
        return True
    registry = queue._registry
    records = (registry.record(name) for name in registry.names())
    return any(record is not None and record.policy.dead_letter == queue.name for record in records)


def letter(event: Event) -> FailedMessage:
    """A dead letter with what its headers say. Anyone may push such headers: what cannot be read is left out."""
    headers = event.headers
    return FailedMessage(
        event,
        headers.get(DEAD_QUEUE, ""),
        _count(headers.get(letters.ATTEMPTS, "")),
        headers.get(letters.REASON, ""),
        headers.get(letters.ERROR),
        _time(headers.get(letters.LAST, "")),
        headers.get(letters.TRACEBACK),
        _attempts(headers.get(letters.TRIED, "")),
    )


def _attempts(text: str) -> list[Attempt]:
    try:
        return _decode_attempts(text)[:ATTEMPTS_KEPT] if text else []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
