"""The contents of a queue, without taking a message: every message with its state, the holders of messages, and the
failed messages with their reasons.

`View.walk` iterates over the messages of a queue in one snapshot; the other functions choose among these messages.
Counts come from the groups' counters, so their cost does not depend on the queue's length.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_args

import msgspec

from penstock.core.clock import from_ms, to_ms
from penstock.core.consuming.delivery import Delivery
from penstock.core.engine.base import OverlayWrite
from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal.catalog import Catalog
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.index import EntityIndex
from penstock.core.model.failure import Attempt
from penstock.core.model.take import TakeRequest
from penstock.core.observe.sample import FailedMessage, TaskProgress
from penstock.core.queue import metrics
from penstock.core.queue.dead_letters import DeadLetterCursor, letter, origin
from penstock.core.queue.flow import BreakerState, breaker_state
from penstock.core.queue.operations.notes import read_progress, read_steps
from penstock.core.queue.operations.settle import (
    EXHAUSTED,
    LAPSED,
    REJECTED,
    LeaseHandle,
    held_by_token,
    lapsed_message,
    stale_error,
)
from penstock.core.queue.operations.take import STEP, TakeOperation, keyed_positions
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import WORK, QueueState, last_failures, presences, unknown_queue
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import HeldMessage, make_token, read_token
from penstock.core.queue.state.records import (
    FAILED,
    HELD,
    NEVER,
    READY,
    UNTOUCHED,
    WAITING,
    FailureTrail,
    GroupRecord,
    LastFailure,
    MessageRow,
    SpecialRow,
    read_message,
    read_special,
)  # fmt: skip
from penstock.core.units import show_duration, show_past
from penstock.errors import ConfigError, StaleDelivery

if TYPE_CHECKING:
    from penstock.core.queue.queue import LocalQueue

E = TypeVar("E")
MessageState = Literal["ready", "delayed", "in_flight", "failed"]
STATES: Final[tuple[MessageState, ...]] = get_args(MessageState)
PRESENT = 30.0
"""The seconds after its last take for which a consumer counts as active; after twice this time it is gone."""
HOLDS = 10


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class ListedMessage(msgspec.Struct, Generic[E], frozen=True):
    """An unsettled message in one group, with its event or the event's document."""

    event: E
    state: MessageState
    group: str | None
    """In work mode the group in whose name the message was taken, else "default".

    In fanout mode None for a message that no group wanted.
    """
    attempts: int = 0
    """The number of deliveries so far, including the delivery in flight."""
    max_attempts: int = 0
    """The budget of the message, or of the policy."""
    priority: int = 0
    due: datetime | None = None
    """The time when a delayed message becomes ready."""
    blocked: bool = False
    """True if an earlier message of its ordering key must be settled first."""
    error: str | None = None
    """The error of the last attempt: type and text."""
    traceback: str | None = None
    first_delivered: datetime | None = None
    last_delivered: datetime | None = None
    consumer: str | None = None
    """The consumer that holds the message."""
    deadline: datetime | None = None
    """The end of the lease, unless it is extended; None for a lease that lasts as long as its owner's process."""
    failed_attempts: list[Attempt] = []
    """The newest ten failed attempts, in order."""
    progress: TaskProgress | None = None
    """The progress that the handler reported in this attempt, or in the last attempt; see `penstock.progress`."""
    steps: list[str] = []
    """The names of the steps that have returned; see `penstock.step`."""


class QueueMessage(ListedMessage[Event], frozen=True):
    """An unsettled message in one group."""

    @property
    def seq(self) -> int:
        """Its position."""
        return self.event.seq

    @property
    def key(self) -> str | None:
        """Its ordering key."""
        return self.event.key


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
    progress: TaskProgress | None = None
    """The progress that the handler reported; see `penstock.progress`."""


class QueueConsumer(msgspec.Struct, frozen=True):
    """A worker, or another consumer that gave its name in a take."""

    name: str
    group: str
    last_seen: datetime
    state: str
    """active (seen within 30 s), stale (within a minute), or gone."""
    host: str | None = None
    """The consumer's machine; over HTTP the machine that it names, else its address."""
    since: datetime | None = None
    """The time of the consumer's first take, or, for a worker over HTTP, of its start."""
    in_hand: int = 0
    """The number of messages that the consumer holds."""
    holds: list[int] = []
    """The positions of the first ten of these messages."""
    progress: dict[int, TaskProgress] = {}
    """The progress that the handlers of these messages reported, by position."""
    working_since: datetime | None = None
    """The time when the oldest of these messages was handed out."""
    last_failed_at: datetime | None = None
    """The time when an attempt of this consumer failed last, in the last day."""
    last_failed: int | None = None
    """The position of the message of this attempt."""
    last_error: str | None = None
    """The type and message of the exception, or the text with which the message was given back."""

    def works_on(self, now: datetime) -> str:
        """Returns, in words, the messages that the consumer works on, with their progress and for how long."""
        if not self.in_hand:
            return "waits" if self.state != "gone" else "nothing"
        told = ((seq, self.progress.get(seq)) for seq in self.holds[:3])
        shown = ", ".join(f"#{seq}" if progress is None else f"#{seq} ({progress})" for seq, progress in told)
        more = f" and {self.in_hand - 3:,} more" if self.in_hand > 3 else ""
        since = self.working_since
        return f"{shown}{more}" + (f", for {show_duration(max(0.0, (now - since).total_seconds()))}" if since else "")

    def last_failure(self, now: datetime) -> str:
        """Returns, in words, the message of this consumer's last failed attempt, with time and reason."""
        if self.last_failed_at is None:
            return "–"
        when = show_past((now - self.last_failed_at).total_seconds())
        return f"#{self.last_failed}, {when}: {self.last_error or 'no error was given'}"


class QueueStats(msgspec.Struct, frozen=True):
    """The number of messages of a group in each state."""

    ready: int
    """Messages that can be taken now (or as soon as their ordering key is free)."""
    in_flight: int
    """Messages under a lease that has not ended."""
    delayed: int
    """Messages that wait for their time or for their retry."""
    failed: int
    """Messages that were given up and stay, because the queue has no dead-letter queue, or until the next take moves
    them there.
    """
    oldest_age: float | None
    """The seconds since the oldest ready message was pushed."""
    groups: tuple[str, ...] = ()
    """The queue's groups."""
    paused: bool = False
    """True if the queue or this group is paused."""
    breaker: BreakerState | None = None
    """The group's circuit breaker: closed, open or half-open; None where the policy has none."""


_PLAIN: Final = MessageRow(0, UNTOUCHED)
"""The row of an untouched message that was pushed without a delay or a priority."""


# ── the walk ─────────────────────────────────────────────────────────────────────────────────────────────────────────
class Entry(msgspec.Struct, eq=False, gc=False):
    """A message that one group has not settled, with its state."""

    seq: int
    state: MessageState
    group: Group
    label: str | None
    """The group's name; in work mode the group in whose name the message was taken, else "default"."""
    message: MessageRow
    event: Event | None = None
    """The event, if the walk has read it; see `View.event`."""
    held: HeldMessage[Group] | None = None
    """The message under its lease, while it is in flight."""


class View:
    """A queue in one snapshot."""

    def __init__(self, snap: Snapshot, state: QueueState, now: int) -> None:
        self.snap = snap
        self.state = state
        self.now = now

    @cached_property
    def latest(self) -> int:
        """The newest position of the queue's topic."""
        return self.state.view(self.snap).latest()

    @property
    def length(self) -> int:
        """The number of messages that are ready, in flight or delayed; in fanout mode, of the group with the most
        messages left.
        """
        return self.state.count_unsettled(self.snap, self.latest, self.overdue, self._lost)

    def is_lost(self, group: Group, seq: int) -> bool:
        """Returns True if a message is given up, or gone, because its lease has ended: its key no longer waits for
        it.
        """
        held = group.lease_of(self.snap, seq) if self._has_lapsed(group) else None
        entry = None if held is None else self._at(held)
        return held is not None and (entry is None or entry.state == "failed")

    def _lost(self, group: Group) -> int:
        """Returns the number of messages that a group counts as in flight although they are given up, or gone: their
        leases have ended.
        """
        return sum(entry is None or entry.state == "failed" for entry in self.lapsed(group))

    @cached_property
    def overdue(self) -> int:
        """The position up to which messages have outlived their ttl: they are gone, unless they are in flight or
        have failed.
        """
        return self.state.overdue_through(self.snap, self.now)

    def walk(self, *states: MessageState, after: int = 0, groups: Iterable[Group] | None = None) -> Iterator[Entry]:
        """Yields the unsettled messages beyond a position, in some states or all, by position, then group."""
        wanted = states or STATES
        chosen = self.state.all_groups(self.snap) if groups is None else groups
        walks = [self._walk_group(group, wanted, after) for group in chosen]
        return heapq.merge(*walks, key=lambda one: (one.seq, one.label or "")) if len(walks) > 1 else walks[0]

    def of_key(
        self, index: EntityIndex, key: str, *states: MessageState, after: int, groups: list[Group]
    ) -> Iterator[Entry]:
        """Returns the messages of one ordering key."""
        after = max(after, min(group.floor(self.snap) for group in groups))
        for seq in keyed_positions(self.state.view(self.snap), index.open, key, after):
            found = [self.entry(group, seq) for group in groups]
            yield from (entry for entry in found if entry is not None and entry.state in (states or STATES))

    def entry(self, group: Group, seq: int) -> Entry | None:
        """Returns the message at a position, unless a group has settled it."""
        message = group.find(self.snap, seq)
        if message is None:
            held = group.lease_of(self.snap, seq)
            return None if held is None else self._at(held)
        if message.state == UNTOUCHED and (special := self.state.special(self.snap, group, seq)) is not None:
            message = special.row(seq)
        return next(self._shown(group, [(seq, message, None)]), None)

    def _shown(self, group: Group, found: Iterable[tuple[int, MessageRow, Event | None]]) -> Iterator[Entry]:
        """Yields the messages that no lease holds in their current state: a message past its ttl is gone, unless it
        has failed.
        """
        label = group.name if group.group_id else None if self.state.fanout else "default"
        for seq, message, event in found:
            if message.state == FAILED:
                yield Entry(seq, "failed", group, label, message, event)
            elif seq > self.overdue:
                yield Entry(seq, "delayed" if message.due > self.now else "ready", group, label, message, event)

    def _at(self, held: HeldMessage[Group]) -> Entry | None:
        """Returns the current state of a leased message: in flight, unless the lease has ended, which no take may
        have noticed.
        """
        if held.ended(self.now):
            return next(self._shown(held.group, [(held.seq, lapsed_message(self.snap, held), None)]), None)
        message = held.lease.message(held.index)
        return Entry(held.seq, "in_flight", held.group, held.lease.label, message, None, held)

    def lapsed(self, group: Group) -> list[Entry | None]:
        """Returns the messages of a group whose leases have ended without notice of a take; None for a message that
        is gone.
        """
        if not self._has_lapsed(group):
            return []
        return [self._at(held) for held in group.in_flight(self.snap) if held.ended(self.now)]

    def _has_lapsed(self, group: Group) -> bool:
        return 0 < group.record.next_deadline <= self.now

    def held(self, label: str | None) -> Iterator[HeldMessage[Group]]:
        """Yields the messages in flight, by position: of one group's name, or all."""
        return (held for held in self.leased(label) if not held.ended(self.now))

    def leased(self, label: str | None) -> Iterator[HeldMessage[Group]]:
        """Yields the leased messages, including messages whose leases have ended without notice of a take."""
        held = [group.in_flight(self.snap) for group in self.named(label)]
        every = heapq.merge(*held, key=lambda one: one.seq) if len(held) != 1 else held[0]
        return every if label is None else (one for one in every if one.lease.label == label)

    def named(self, label: str | None) -> list[Group]:
        """Returns the group of a name, which in work mode all names share; without a name all groups."""
        if label is None or not self.state.fanout:
            return self.state.all_groups(self.snap)
        group_id = self.state.record.groups.get(label)
        return [] if group_id is None else [self.state.group(self.snap, group_id, label)]

    def event(self, entry: Entry) -> Event | None:
        """Returns the event of a message; None when it was removed."""
        return entry.event or self.state.blocks.event(self.snap, entry.seq)

    def has(self, group: Group, seq: int) -> bool:
        """Returns True if a group has not settled the message at a position."""
        return self.entry(group, seq) is not None

    def events(self, entries: Iterable[Entry]) -> Iterator[Event]:
        """Yields the events of messages in order of position, each event once."""
        previous = 0
        for entry in entries:
            if entry.seq != previous:
                previous = entry.seq
                event = self.event(entry)
                if event is not None:
                    yield event

    def available(self) -> Iterator[Event]:
        """Yields the messages that no group has in flight or has given up."""
        for event in self.events(self.walk("ready", "delayed")):
            if not self.state.fanout or self.is_free(event.seq):
                yield event

    def is_free(self, seq: int) -> bool:
        """Returns True if a message is neither settled nor in flight, and no group has given it up."""
        found = {entry.state for group in self.state.all_groups(self.snap) if (entry := self.entry(group, seq))}
        return bool(found) and found.isdisjoint(("in_flight", "failed"))

    def trail(self, group: Group, message: MessageRow) -> FailureTrail:
        """Returns the traces of a message's attempts, without the traceback of an attempt before a lapsed lease."""
        found = group.trail(self.snap, message)
        return msgspec.structs.replace(found, traceback=None) if message.error == LAPSED.error else found

    def progress(self, entry: Entry) -> TaskProgress | None:
        """Returns the progress of a message: in flight, of this attempt; else of the last attempt."""
        secret = None if entry.held is None else entry.held.lease.secret
        return read_progress(self.snap, entry.group, entry.seq, secret)

    def failed_message(self, group: Group, message: MessageRow, event: Event) -> FailedMessage:
        """Returns a message that a group has given up, with the reason."""
        trail = self.trail(group, message)
        attempts = trail.shown()
        reason = REJECTED if attempts and attempts[-1].ended == "rejected" else EXHAUSTED
        at, name = _moment(message.last_ms), self.state.name
        return FailedMessage(event, name, message.attempts, reason, message.error, at, trail.traceback, attempts)

    def failures(self, after: int = 0, groups: list[Group] | None = None) -> Iterator[FailedMessage]:
        """Yields the messages beyond a position that groups have given up, by position, then group."""
        for entry in self.walk("failed", after=after, groups=groups):
            event = self.event(entry)
            if event is not None:
                yield self.failed_message(entry.group, entry.message, event)

    def newest_failures(self, group: Group, before: int) -> Iterator[FailedMessage]:
        """Yields the messages before a position that a group has given up, the newest first."""
        rows = self.snap.scan(*group.rows(keys.PLACES[FAILED], 0, before - 1), reverse=True)
        stored = (read_message(value, self.state.name) for _, value in rows)
        lapsed = [one.message for one in self.lapsed(group) if one and one.state == "failed" and one.seq < before]
        lapsed.sort(key=lambda one: -one.seq)
        for message in heapq.merge(stored, lapsed, key=lambda one: one.seq, reverse=True):
            event = self.state.blocks.event(self.snap, message.seq)
            if event is not None:
                yield self.failed_message(group, message, event)

    def newest_letters(self, of: str | None, before: int) -> Iterator[Event]:
        """Returns the dead letters before a position that came from a queue, or all, the newest first."""
        if self.state.record.over_log:  # letters that were events of a log have no rows, so all of them are checked
            found: list[Event] = [event for event in self.letters(of) if event.seq < before]
            return iter(found[::-1])
        return self.letters(of, 0, before)

    def letters(self, of: str | None, after: int = 0, before: int | None = None) -> Iterator[Event]:
        """Yields dead letters of a queue, or all: those beyond a position, by position; or those before a position,
        the newest first.
        """
        if not self.state.record.over_log:  # letters that were events of a log have no rows
            topic = self.state.topic
            low, high = (keys.letter_key(topic, of or "", seq) for seq in (after + 1, before or NEVER))
            rows = self.snap.scan(low, high, reverse=before is not None)
            seqs = (keys.tail_seq(key) for key, _ in rows)
            groups = self.state.all_groups(self.snap)
            unsettled = (seq for seq in seqs if any(self.has(group, seq) for group in groups))
            found = (self.state.blocks.event(self.snap, seq) for seq in unsettled)
            events: Iterator[Event] = (event for event in found if event is not None)
        else:
            events = self.events(self.walk(after=after))
        return (event for event in events if origin(event) and of in (None, origin(event)))

    def _walk_group(self, group: Group, wanted: Collection[str], after: int) -> Iterator[Entry]:
        live, snap = max(after, self.overdue), self.snap
        states = [READY, HELD] if "ready" in wanted else []
        if "delayed" in wanted or (states and 0 < group.record.next_due <= self.now):
            states.append(WAITING)
        rows = [group.parked(snap, None, after, [FAILED])] if "failed" in wanted else []
        rows += [group.parked(snap, None, live, states)] if states else []
        sources = [self._shown(group, ((one.seq, one, None) for one in some)) for some in rows]
        if states:
            sources.append(self._shown(group, self._untouched(group, wanted, live)))
        if "in_flight" in wanted or self._has_lapsed(group):
            sources.append(one for held in group.in_flight(snap, after) if (one := self._at(held)) is not None)
        return (one for one in heapq.merge(*sources, key=lambda one: one.seq) if one.state in wanted)

    def _untouched(
        self, group: Group, wanted: Collection[str], after: int
    ) -> Iterator[tuple[int, MessageRow, Event | None]]:
        """Yields the messages above the frontier; a row holds a delay or a priority that is not sorted in yet."""
        snap, state = self.snap, self.state
        if "ready" not in wanted:
            for seq, special in self.unabsorbed(group, self.latest):
                event = state.blocks.event(snap, seq) if seq > after and special.due > self.now else None
                if event is not None:
                    yield seq, special.row(seq), event
            return
        plain = state.traits.special <= group.record.absorbed
        for start, end in group.untouched(snap, self.latest, after):
            for block, at in state.blocks.between(snap, start, end):
                seq = block.seq(at)
                found = None if plain else state.special(snap, group, seq)
                yield seq, _PLAIN if found is None else found.row(seq), Event(block, at)

    def unabsorbed(self, group: Group, through: int) -> Iterator[tuple[int, SpecialRow]]:
        """Yields the delays and priorities that the group's next take will sort in."""
        if self.state.traits.special > group.record.absorbed:
            start = keys.special_key(group.topic, group.record.absorbed + 1)
            for key, value in self.snap.scan(start, keys.special_key(group.topic, through + 1)):
                if group.is_untouched(self.snap, keys.tail_seq(key)):
                    yield keys.tail_seq(key), read_special(value, self.state.name)

    def group(self, name: str) -> Group:
        """Returns a group by its name; for a group that is not added yet, the messages that it would find."""
        snap, state = self.snap, self.state
        if not state.fanout:
            return state.group(snap, WORK)
        group_id = state.record.groups.get(name)
        if group_id is not None:
            return state.group(snap, group_id, name)
        if state.record.groups:
            # The progress of the other groups decides what the new group finds: the slowest group tells most.
            furthest = max(state.named_groups(snap), key=lambda group: group.unsettled(self.latest))
            record = msgspec.structs.replace(furthest.record, in_flight=0, leases=0, failed=0)
            record.ready += furthest.record.in_flight + furthest.record.failed
            record.ready += state.group(snap, WORK).kept()
            return Group(state, furthest.group_id, name, record)
        record = msgspec.structs.replace(state.group(snap, WORK).record)
        record.frontier = max(record.frontier, state.view(snap).trimmed())
        return Group(state, WORK, name, record)


@contextmanager
def open_view(queue: LocalQueue) -> Iterator[View]:
    """Opens a view of a queue as it is now."""
    queue.core.check_open()
    with queue.core.engine.read() as snap, queue.cache.beside(snap, queue.name) as state:
        if state is None:
            raise unknown_queue(queue.name)
        yield View(snap, state, queue.journal.clock.now_ms())


def _moment(ms: int) -> datetime | None:
    """Returns a stored time; None where there is none."""
    return from_ms(ms) if 0 < ms < NEVER else None


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def get(queue: LocalQueue, seq: int) -> Event | None:
    """Returns the message at a position; None when it is settled or never existed."""
    with open_view(queue) as view:
        has = 0 < seq <= view.latest and any(view.has(group, seq) for group in view.state.each_group(view.snap))
        return view.state.blocks.event(view.snap, seq) if has else None


def peek(queue: LocalQueue, limit: int | None, name: str) -> list[Event]:
    """Returns the messages that a group would take next, without rates and limits.

    It runs a take whose changes are not kept.
    """
    left, found = NEVER if limit is None else limit, list[Event]()
    with open_view(queue) as view:
        state, group = view.state, view.group(name)
        state.record.policy = msgspec.structs.replace(
            state.policy, rate=None, rate_per_key=None, breaker=None, max_in_flight=None, dead_letter=None
        )
        state.feed, state.traits.replies = None, False
        group.record.endless = 0  # a take finds out which processes have ended
        commit = Commit(Catalog(), OverlayWrite(None, False, view.snap), view.now, queue.core.index)
        if 0 < group.record.next_due <= view.now and state.policy.fair_by is None and state.policy.ttl is None:
            _wake_first(commit, group, left)
        more = left > 0
        while more:
            taking = TakeOperation(commit, group, TakeRequest(left, name, lease=1), queue)
            more = taking.catch_up()
            if not more:
                taking.oldest(left - len(found))
                found += [delivery.event for delivery in taking.deliveries]
                more = len(found) < left and (
                    bool(taking.deliveries) or taking.walked >= STEP or _wake_first(commit, group, left - len(found))
                )
    return found


def _wake_first(commit: Commit, group: Group, most: int) -> bool:
    """Makes the due messages ready that a take would return first, up to a number; returns False without due messages.

    It looks at all due messages, and moves only these.
    """
    rows = commit.tx.scan(*group.due_rows(commit.now_ms))
    due = [message for key, _ in rows if (message := group.placed(commit.tx, WAITING, keys.tail_seq(key))) is not None]
    before, group.record.next_due = group.record.ready, 0
    for message in sorted(due, key=lambda one: (-one.priority, one.seq)):
        if group.record.ready - before >= most:
            break
        group.requeue(commit, message)
    return bool(due)


def check_state(state: str | None) -> MessageState | None:
    for known in (None, *STATES):
        if state == known:
            return known
    raise ConfigError(f"a message is {', '.join(STATES)}, not {state!r:.40}")


def messages(
    queue: LocalQueue, state: MessageState | None, group: str | None, after: int, key: str | None = None
) -> Iterator[QueueMessage]:
    """Yields messages in order of position, then group, from one snapshot; of one ordering key, or all."""
    with open_view(queue) as view:
        fanout, named = view.state.fanout, view.state.record.groups
        if fanout and named and group is not None and group not in named:
            raise ConfigError(f"queue {queue.name!r} has no group {group!r}; there are: {', '.join(sorted(named))}")
        groups = view.named(group if named else None)
        states = () if state is None else (state,)
        if key is None:
            found = view.walk(*states, after=after, groups=groups)
        else:
            found = view.of_key(queue.core.index, key, *states, after=after, groups=groups)
        for entry in found:
            event = view.event(entry)
            if event is not None and (entry.held is None or group in (None, entry.label)):
                yield _listed(view, entry, event)


def _listed(view: View, entry: Entry, event: Event) -> QueueMessage:
    message, group, held, snap = entry.message, entry.group, entry.held, view.snap
    trail = view.trail(group, message)
    blocked = False
    if event.key is not None and message.state in (HELD, UNTOUCHED):
        occupants = group.under_way(snap, event.key, view.overdue)
        under_way = [seq for seq in occupants if not view.is_lost(group, seq)]
        room = view.state.policy.max_in_flight_per_key - len(under_way)
        is_full = room <= 0 or (message.state == HELD and len(under_way) == len(occupants))
        blocked = is_full and entry.seq not in under_way
    deadline = 0 if held is None else held.lease.deadline_of(held.index)
    return QueueMessage(
        event,
        entry.state,
        entry.label,
        message.attempts,
        view.state.budget(snap, entry.seq),
        message.priority,
        from_ms(message.due) if entry.state == "delayed" else None,
        blocked,
        message.error,
        trail.traceback,
        _moment(message.first_ms),
        _moment(message.last_ms),
        None if held is None else held.lease.consumer,
        _moment(deadline),
        trail.shown(),
        view.progress(entry),
        sorted(read_steps(snap, group, entry.seq)),
    )


# ── deliveries and consumers ─────────────────────────────────────────────────────────────────────────────────────────
def pending(queue: LocalQueue, name: str | None) -> Iterator[PendingDelivery]:
    """Yields the deliveries in flight, of one group or of all, in order of position."""
    with open_view(queue) as view:
        for held in view.held(name):
            lease, message = held.lease, held.lease.message(held.index)
            token = make_token(view.state.topic, held.group.group_id, held.lease_id, held.index, lease.secret)
            deadline = _moment(lease.deadline_of(held.index)) or datetime.max.replace(tzinfo=UTC)
            times = from_ms(lease.delivered_ms), deadline
            progress = read_progress(view.snap, held.group, held.seq, lease.secret)
            taker = lease.label, lease.consumer
            yield PendingDelivery(token, held.seq, *taker, message.attempts, *times, message.key, progress)


def find_delivery(queue: LocalQueue, token: str) -> Delivery:
    """Returns the delivery of a token, as its holder has it; raises StaleDelivery when its lease is gone."""
    if read_token(token) is None:
        raise StaleDelivery(f"{token[:40]!r} is no delivery's token", token=token[:40])
    with open_view(queue) as view:
        held = held_by_token(view.snap, view.state, token)
        event = None if held is None else view.state.blocks.event(view.snap, held.seq)
        if held is None or event is None:
            raise stale_error(token, queue.name)
        lease, index = held.lease, held.index
        hold = LeaseHandle.of(queue, held.group, held.lease_id, lease)
        return Delivery(hold, index, event, lease.message(index).attempts, lease.deadline_of(index))


def group_names(state: QueueState) -> list[str]:
    names = set(state.record.groups)
    return sorted(names if state.fanout else names | {"default"})


def delivered_groups(state: QueueState) -> list[str]:
    """Returns the groups that messages are delivered to, by name: in work mode one."""
    return (group_names(state) if state.fanout else []) or ["default"]


class _Holding(msgspec.Struct):
    """The messages that one consumer holds."""

    count: int = 0
    seqs: list[int] = []
    """The positions of the first ten messages of each lease."""
    since_ms: int = NEVER
    progress: dict[int, TaskProgress] = {}


_NOTHING_HELD: Final = _Holding()


def _holdings(view: View) -> dict[tuple[str, str | None], _Holding]:
    """Returns what each consumer holds, by group and name. The cost grows with the leases, not with their messages."""
    found: dict[tuple[str, str | None], _Holding] = {}
    for group in view.named(None):
        for _, lease in group.leases(view.snap):
            if lease.extended is None and lease.deadline <= view.now:
                continue
            held = [index for index in lease.held() if lease.deadline_of(index) > view.now]
            if held:
                own = found.setdefault((lease.label, lease.consumer), _Holding())
                first = [lease.seq(index) for index in held[:HOLDS]]
                told = {seq: read_progress(view.snap, group, seq, lease.secret) for seq in first}
                own.progress |= {seq: progress for seq, progress in told.items() if progress is not None}
                own.count += len(held)
                own.seqs += first
                own.since_ms = min(own.since_ms, lease.delivered_ms)
    return found


def consumers(queue: LocalQueue) -> list[QueueConsumer]:
    """Returns the consumers that gave their name, with the messages that each holds."""
    found = []
    with open_view(queue) as view:
        labels = {group_id: name for name, group_id in view.state.record.groups.items()}
        held = _holdings(view)
        failed = {keys.split_presence(key): found for key, _, found in last_failures(view.snap, view.state.topic)}
        for key, _, row in presences(view.snap, view.state.topic):
            group_id, name = keys.split_presence(key)
            age, label = (view.now - row.seen_ms) / 1000, labels.get(group_id, "default")
            own = held.get((label, name), _NOTHING_HELD)
            failure = failed.get((group_id if view.state.fanout else 0, name))
            state = "active" if age <= PRESENT else "stale" if age <= 2 * PRESENT else "gone"
            seen, since = from_ms(row.seen_ms), _moment(row.since_ms)
            made = QueueConsumer(name, label, seen, state, row.host or None, since, own.count)
            found.append(
                msgspec.structs.replace(
                    made,
                    holds=(holds := sorted(own.seqs)[:HOLDS]),
                    progress={seq: own.progress[seq] for seq in holds if seq in own.progress},
                    working_since=_moment(own.since_ms),
                    last_failed_at=None if failure is None else from_ms(failure.attempt.ended_ms),
                    last_failed=None if failure is None else failure.seq,
                    last_error=None if failure is None else failure.attempt.error,
                )
            )
    return found


def newest_failures(view: View) -> dict[str, LastFailure]:
    """Returns the newest failed attempt of each group in the last day, by the group's name."""
    labels = {group_id: name for name, group_id in view.state.record.groups.items()} if view.state.fanout else {}
    found: dict[str, LastFailure] = {}
    for key, _, failure in last_failures(view.snap, view.state.topic):
        label = labels.get(keys.split_presence(key)[0], "default")
        if label not in found or failure.attempt.ended_ms > found[label].attempt.ended_ms:
            found[label] = failure
    return found


def counted_consumers(view: View) -> tuple[Counter[str], Counter[str]]:
    """Returns, by group, the number of consumers that were seen within a minute, and of consumers that are gone."""
    labels = {group_id: name for name, group_id in view.state.record.groups.items()} if view.state.fanout else {}
    present: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    for key, _, row in presences(view.snap, view.state.topic):
        counts = present if view.now - row.seen_ms <= 2000 * PRESENT else gone
        counts[labels.get(keys.split_presence(key)[0], "default")] += 1
    return present, gone


# ── counts ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def stats(queue: LocalQueue, name: str) -> QueueStats:
    """Returns the number of messages of a group in each state."""
    with open_view(queue) as view:
        return _stats(view, view.group(name), name)


def stats_of_groups(view: View) -> list[tuple[str, QueueStats, GroupRecord]]:
    """Returns the statistics of every group that receives messages, with the group's record."""
    groups = [(name, view.group(name)) for name in delivered_groups(view.state)]
    return [(name, _stats(view, group, name), group.record) for name, group in groups]


def _stats(view: View, group: Group, name: str) -> QueueStats:
    snap, now, overdue, record = view.snap, view.now, view.overdue, group.record
    delayed, ready = record.waiting, record.ready + record.held + view.latest - record.frontier - record.taken
    if record.next_due and record.next_due <= now:
        due = sum(1 for _ in snap.scan(*group.due_rows(now)))
        delayed, ready = delayed - due, ready + due
    later = sum(special.due > now for _, special in view.unabsorbed(group, view.latest))
    delayed, ready = delayed + later, ready - later
    if overdue:
        rows = snap.scan(group.due_rows(now)[1], group.rows(keys.WAITING)[1])
        late = sum(keys.tail_seq(key) <= overdue for key, _ in rows)
        late += sum(special.due > now for _, special in view.unabsorbed(group, min(view.latest, overdue)))
        delayed, ready = delayed - late, ready - (group.overdue(snap, overdue) - late)
    lapsed = view.lapsed(group)
    states = Counter(entry.state for entry in lapsed if entry is not None)
    ready, delayed, in_flight = ready + states["ready"], delayed + states["delayed"], record.in_flight - len(lapsed)
    metrics.in_flight.labels(queue=view.state.name).set(in_flight)
    breaker = breaker_state(snap, group, now)
    if breaker is not None:
        level = {"closed": 0, "half-open": 0.5, "open": 1}[breaker]
        metrics.breaker_open.labels(queue=view.state.name, group=name).set(level)
    seqs = [entry.seq for entry in lapsed if entry is not None and entry.state == "ready"]
    oldest = _oldest_ready(view, group, seqs) if ready else None
    return QueueStats(
        ready,
        in_flight,
        delayed,
        record.failed + states["failed"],
        None if oldest is None else max(0.0, (now - oldest) / 1000),
        tuple(group_names(view.state)),
        view.state.record.is_paused(name),
        breaker,
    )


def _oldest_ready(view: View, group: Group, lapsed: list[int]) -> int | None:
    """Returns the time when the oldest ready message was recorded; `lapsed` holds messages that are ready because
    their leases have ended.
    """
    seq = min(filter(None, [group.oldest(view.snap, view.latest, view.overdue, [READY]), *lapsed]), default=0)
    event = view.state.blocks.event(view.snap, seq) if seq else None
    return None if event is None else to_ms(event.recorded_at, "recorded_at")


# ── what was given up ────────────────────────────────────────────────────────────────────────────────────────────────
def failures(queue: LocalQueue, group: str = "default", after: int = 0) -> Iterator[FailedMessage]:
    """Yields the messages beyond a position that a group has given up, in order, with their reasons."""
    with open_view(queue) as view:
        yield from view.failures(after, [view.group(group)])


def newest_failed(queue: LocalQueue, group: str, before: DeadLetterCursor | None = None) -> Iterator[FailedMessage]:
    """Yields the messages before a cursor that a group has given up, the newest first."""
    with open_view(queue) as view:
        yield from view.newest_failures(view.group(group), NEVER if before is None else before.seq)


def newest_dead(queue: LocalQueue, before: DeadLetterCursor | None = None) -> Iterator[FailedMessage]:
    """Yields the dead letters of `dead_letters` before a cursor, the newest of each queue first."""
    registry, target = queue.registry, queue.policy().dead_letter
    own = before is not None and before.queue == queue.name != target
    if target is not None and not own and registry.record(target) is not None:
        with open_view(registry.existing(target)) as view:
            yield from map(letter, view.newest_letters(queue.name, NEVER if before is None else before.seq))
    if queue.name != target:
        with open_view(queue) as view:
            yield from map(letter, view.newest_letters(None, before.seq if own and before else NEVER))


def dead_letters(queue: LocalQueue, after: DeadLetterCursor | None = None) -> Iterator[FailedMessage]:
    """Yields the dead letters of a queue: the letters in its dead-letter queue that come from it.

    For a dead-letter queue, yields all its letters. Letters before a cursor cost nothing.
    """
    registry = queue.registry
    target = queue.policy().dead_letter
    cursor = after or DeadLetterCursor("", 0)
    own = cursor.queue == queue.name != target
    if target is not None and not own and registry.record(target) is not None:
        with open_view(registry.existing(target)) as view:
            yield from map(letter, view.letters(queue.name, cursor.seq if cursor.queue == target else 0))
    if queue.name != target:
        with open_view(queue) as view:
            yield from map(letter, view.letters(None, cursor.seq if own else 0))
