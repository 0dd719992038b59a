"""The writer's cache of delivery state: queues and groups, which change only inside a commit.

The thread that leads the writer changes these objects and the store together. When a commit fails, or another process
has committed, the writer's epoch changes and everything here is read again, so nothing has to be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.core.clock import to_ms
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.catalog import TopicRecord, TopicState, load_state, save_record
from penstock.core.journal.commit import Commit, change_window
from penstock.core.journal.owners import this_host
from penstock.core.journal.reading import TopicView
from penstock.core.model.take import TakeRequest
from penstock.core.names import did_you_mean, refuse_system
from penstock.core.queue.flow import limits_takes
from penstock.core.queue.policy import QueuePolicy, check_together
from penstock.core.queue.state import keys
from penstock.core.queue.state.blocks import BlockCache
from penstock.core.queue.state.feed import Change, QueueFeed
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.records import (
    FAILED,
    LAYOUT,
    GroupRecord,
    LastFailure,
    MessageRow,
    Presence,
    QueueRecord,
    SpecialRow,
    Traits,
    encode,
    pack_presence,
    read_group,
    read_last_failure,
    read_presence,
    read_queue,
    read_special,
    read_traits,
)
from penstock.errors import ConfigError, UnknownQueue

WORK = 0
"""The id of the one group that all consumers share in work mode."""


class ProcessMemory:
    """The memory of this process about a queue, across commits of other processes.

    A queue that is dropped and made anew over the same topic begins with a new memory, without consumers.
    """

    __slots__ = ("blocks", "created_ms", "owner_sweeps", "seen")

    def __init__(self, name: str, record: QueueRecord) -> None:
        self.blocks = BlockCache(name, record.topic)
        self.created_ms = record.created_ms
        self.owner_sweeps: dict[int, tuple[float, int]] = {}
        """By group: the time when the owners of endless leases were last checked, and up to which lease; 0 for all
        leases.
        """
        self.seen: dict[tuple[int, str], Presence] = {}
        """The presence of consumers as this process last stored it, by group and name."""


class QueueState:
    """The state of a queue as the writer knows it."""

    __slots__ = (
        "_groups", "blocks", "cache", "feed", "name", "owner_sweeps", "record", "seen", "shaped", "topic", "traits",
    )  # fmt: skip

    def __init__(
        self, cache: QueueCache, name: str, record: QueueRecord, traits: Traits, lasting: ProcessMemory
    ) -> None:
        self.cache = cache
        self.name = name
        self.record = record
        self.topic = record.topic
        self.shaped = limits_takes(record.policy)
        self.feed = QueueFeed(name) if record.policy.feed else None
        self.traits = traits
        self.blocks = lasting.blocks
        self.owner_sweeps = lasting.owner_sweeps
        self.seen = lasting.seen
        self._groups: dict[int, Group] = {}

    @property
    def policy(self) -> QueuePolicy:
        return self.record.policy

    def change_policy(self, commit: Commit, policy: QueuePolicy) -> None:
        self.record.policy = policy
        self.shaped = limits_takes(policy)
        self.feed = (self.feed or QueueFeed(self.name)) if policy.feed else None
        self.save(commit)
        self.apply_window(commit)

    @property
    def fanout(self) -> bool:
        return self.record.policy.mode == "fanout"

    def save(self, commit: Commit) -> None:
        commit.tx.put(keys.queue_key(self.name), encode(self.record))

    def save_traits(self, commit: Commit) -> None:
        commit.tx.put(keys.traits_key(self.topic), encode(self.traits))

    def apply_window(self, commit: Commit) -> None:
        """Gives the topic the queue's dedup window; known keys stay known."""
        head = commit.ensure(self.name)
        new = self.policy.dedup_window
        if head.settings.dedup_window != new:
            change_window(commit, head, new)
            head.settings = msgspec.structs.replace(head.settings, dedup_window=new)
            save_record(commit.tx, self.name, TopicRecord(head.topic_id, head.settings))

    def view(self, snap: Snapshot) -> TopicView:
        """Returns the topic under the queue."""
        return TopicView(snap, self.name, TopicRecord(self.topic))

    def latest(self, commit: Commit) -> int:
        """Returns the newest position that takes may see, which excludes appends of this commit."""
        head = commit.head(self.name)
        return head.latest if head else 0

    def group(self, snap: Snapshot, group_id: int, name: str | None = None) -> Group:
        """Returns a group by its id; a group without a record has not done anything yet."""
        group = self._groups.get(group_id)
        if group is None:
            value = snap.get(keys.group_prefix(self.topic, group_id, self.record.purges) + keys.RECORD)
            record = GroupRecord() if value is None else read_group(value, self.name)
            if record.layout != LAYOUT:
                raise ConfigError(
                    f"queue {self.name!r} was written by an earlier version of penstock, whose rows this one does "
                    "not read: take its messages with that version, or drop it here with its topic"
                )
            if name is None:
                name = next((name for name, known in self.record.groups.items() if known == group_id), "")
            group = self._groups[group_id] = Group(self, group_id, name, record)
        return group

    def group_named(self, snap: Snapshot, name: str) -> Group | None:
        """Returns the group that a take names; None for an unregistered group.

        In work mode all names share one group.
        """
        group_id = self.record.groups.get(name)
        if self.record.policy.mode == "fanout":
            return None if group_id is None else self.group(snap, group_id)
        return None if group_id is None and name != "default" else self.group(snap, WORK)

    def adopt(self, group: Group) -> None:
        self._groups[group.group_id] = group

    def forget_groups(self) -> None:
        self._groups.clear()

    def named_groups(self, snap: Snapshot) -> list[Group]:
        """Returns every named group of a fanout queue; in work mode, names only tell who took a message."""
        return list(self.each_group(snap))[1:] if self.fanout else []

    def delivering(self, snap: Snapshot) -> list[Group]:
        """Returns the groups that have the queue's messages."""
        return self.named_groups(snap) or [self.group(snap, WORK)]

    def all_groups(self, snap: Snapshot) -> list[Group]:
        """Returns the shared group, which in fanout mode keeps messages that no other group wants, and the named
        groups.
        """
        return list(self.each_group(snap))

    def each_group(self, snap: Snapshot) -> Iterator[Group]:
        """Yields all groups, each read on demand."""
        yield self.group(snap, WORK)
        for name, group_id in self.record.groups.items() if self.fanout else ():
            yield self.group(snap, group_id, name)

    def find(self, snap: Snapshot, seq: int) -> list[tuple[Group, MessageRow]]:
        """Returns the message at a position for every group that has neither settled it nor handed it out."""
        found = [(group, group.find(snap, seq)) for group in self.all_groups(snap)]
        return [(group, message) for group, message in found if message is not None]

    def special(self, snap: Snapshot, group: Group, seq: int) -> SpecialRow | None:
        """Returns the delay or priority of a message that a group has not sorted in yet; None without such options."""
        if not group.record.absorbed < seq <= self.traits.special:
            return None
        value = snap.get(keys.special_key(self.topic, seq))
        return None if value is None else read_special(value, self.name)

    def own_budget(self, snap: Snapshot, seq: int) -> int | None:
        """Returns the retry budget that a message was pushed with; None for the policy's budget."""
        value = snap.get(keys.override_key(self.topic, seq)) if self.traits.overridden else None
        return None if value is None else int.from_bytes(value)

    def budget(self, snap: Snapshot, seq: int) -> int:
        """Returns the number of deliveries that a message may have."""
        own = self.own_budget(snap, seq)
        return self.policy.max_attempts if own is None else own

    def find_free(self, snap: Snapshot, seq: int) -> list[tuple[Group, MessageRow]]:
        """Returns the message at a position for every group that has not settled it; nothing when a lease holds it."""
        found = self.find(snap, seq)
        return [] if found and any(group.lease_of(snap, seq) for group in self.all_groups(snap)) else found

    def is_free(self, snap: Snapshot, seq: int) -> bool:
        """Returns True if a message is neither settled nor in flight, and no group has given it up."""
        found = self.find_free(snap, seq)
        return bool(found) and all(message.state != FAILED for _, message in found)

    def in_flight(self, snap: Snapshot) -> set[int]:
        """Returns the positions that leases of any group hold."""
        return {held.seq for group in self.all_groups(snap) for held in group.in_flight(snap)}

    def discard(self, commit: Commit, seq: int, change: Change) -> None:
        """Settles a message that is not in flight, for all groups."""
        for group in self.all_groups(commit.tx):
            group.discard(commit, seq, change)
        self.forget_letter(commit, seq)

    def tell_purged(self, commit: Commit, through: int, reason: str | None = None, group: str | None = None) -> None:
        """Records in the feed, if the queue has a feed, that no message up to a position is left, for all groups or
        one.
        """
        if self.feed is not None:
            self.feed.note(commit, Change("purged", reason), through, group)

    def note_letters(self, commit: Commit, letters: Iterable[tuple[int, str]]) -> None:
        """Writes the rows of dead letters: positions, and the queues they came from."""
        for seq, origin in letters:
            if not self.traits.letters:
                self.traits.letters = True
                self.save_traits(commit)
            commit.tx.put(keys.letter_key(self.topic, "", seq), origin.encode())
            commit.tx.put(keys.letter_key(self.topic, origin, seq), b"")

    def forget_letter(self, commit: Commit, seq: int) -> None:
        """Deletes the rows of a message that is settled, if it was a dead letter."""
        row = keys.letter_key(self.topic, "", seq)
        origin = commit.tx.get(row)
        if origin is not None:
            commit.tx.delete(row)
            commit.tx.delete(keys.letter_key(self.topic, origin.decode(), seq))

    def presence(self, snap: Snapshot, label: str, consumer: str) -> Presence | None:
        """Returns a consumer of a group; None when it is not, or no longer, listed."""
        group_id = self.record.groups.get(label, 0)
        known = self.seen.get((group_id, consumer))
        if known is None:
            row = snap.get(keys.presence_key(self.topic, group_id, consumer))
            known = None if row is None else read_presence(row)
        return known

    def unsettled(self, commit: Commit) -> int:
        """Returns the number of messages that are ready, in flight or delayed; in fanout, for the group that has
        most left."""
        return self.count_unsettled(commit.tx, commit.latest(self.name), self.overdue_through(commit.tx, commit.now_ms))

    def overdue_through(self, snap: Snapshot, now_ms: int) -> int:
        """Returns the position up to which messages have outlived the queue's ttl; 0 for none."""
        ttl = self.policy.ttl
        if ttl is None:
            return 0
        return self.view(snap).position_before(now_ms - round(ttl * 1000) + 1)

    def count_unsettled(
        self, snap: Snapshot, latest: int, overdue: int, lost: Callable[[Group], int] = lambda group: 0
    ) -> int:
        """Returns the number of unsettled messages in a snapshot; messages up to `overdue` count only while they are in
        flight.

        `lost` is the number of messages of a group that are no longer in flight and will not be ready again.
        """
        groups = self.delivering(snap)
        most = max(group.unsettled(latest) - group.overdue(snap, overdue) - lost(group) for group in groups)
        shared = self.group(snap, WORK)
        kept = shared.kept()
        return most + kept - shared.record.failed - shared.overdue(snap, overdue) if kept else most


class QueueCache:
    """The writer's cache of all queues of a journal."""

    def __init__(self) -> None:
        self._states: dict[str, QueueState] = {}
        self._lasting: dict[int, ProcessMemory] = {}
        self._epoch = self._undone = -1

    def find(self, commit: Commit, name: str) -> QueueState | None:
        """Returns a queue, or None when there is none of that name."""
        if commit.catalog.epoch != self._epoch:
            self._states.clear()
            self._epoch = commit.catalog.epoch
            if commit.catalog.undone != self._undone:  # it may hold blocks of events that were never written
                self._lasting.clear()
                self._undone = commit.catalog.undone
        state = self._states.get(name)
        if state is None:
            state = self.load(commit.tx, name)
            if state is not None:
                self._states[name] = state
        return state

    def state(self, commit: Commit, name: str) -> QueueState:
        """Returns a queue; UnknownQueue when there is none of that name."""
        if commit.catalog.epoch == self._epoch and name in self._states:
            return self._states[name]
        state = self.find(commit, name)
        if state is None:
            raise unknown_queue(name)
        return state

    def create(self, commit: Commit, name: str, fields: dict[str, Any]) -> QueueState:
        """Makes a queue, and its topic if necessary; an existing topic keeps its dedup window.

        The queue begins with the topic's first stored event, or, after a dropped queue, behind that queue's last
        message. A topic with events that were no messages of a queue is a log, and stays a log: see
        `QueueRecord.over_log`.
        """
        self.find(commit, name)  # drops objects of an earlier epoch
        refuse_system(name)
        check_together(QueuePolicy(**fields), name)
        known = commit.head(name)
        if known is not None and "dedup_window" not in fields:
            fields = {**fields, "dedup_window": known.settings.dedup_window}
        head = known or commit.ensure(name)
        stored = load_state(commit.tx, head.topic_id, name)
        dropped = commit.tx.get(keys.dropped_key(head.topic_id))
        last, was_over_log = (0, False) if dropped is None else keys.unpack_dropped(dropped)
        begin = max(stored.trimmed, last)
        _refuse_sealed(name, stored, begin)
        over_log = commit.latest(name) > (stored.trimmed if was_over_log else begin)
        record = QueueRecord(QueuePolicy(**fields), head.topic_id, commit.now_ms, over_log=over_log)
        lasting = self._lasting[head.topic_id] = ProcessMemory(name, record)
        state = self._states[name] = QueueState(self, name, record, Traits(), lasting)
        state.save(commit)
        state.apply_window(commit)
        if begin:
            shared = Group(state, WORK, "", GroupRecord(frontier=begin, absorbed=begin))
            state.adopt(shared)
            commit.touch(shared)
        if dropped is not None:
            commit.tx.delete(keys.dropped_key(head.topic_id))
        return state

    def load(self, snap: Snapshot, name: str) -> QueueState | None:
        """Returns a queue as a snapshot has it."""
        value = snap.get(keys.queue_key(name))
        if value is None:
            return None
        record = read_queue(value, name)
        stored = snap.get(keys.traits_key(record.topic))
        traits = Traits() if stored is None else read_traits(stored, name)
        lasting = self._lasting.get(record.topic)
        if lasting is None or lasting.created_ms != record.created_ms:  # another process may have made it anew
            lasting = self._lasting[record.topic] = ProcessMemory(name, record)
        return QueueState(self, name, record, traits, lasting)

    @contextmanager
    def beside(self, snap: Snapshot, name: str) -> Iterator[QueueState | None]:
        """Opens a queue in the state of a snapshot, with blocks of its own, for a thread that does not lead the
        writer.
        """
        state = self.load(snap, name)
        if state is None:
            yield None
            return
        state.blocks = BlockCache(name, state.topic)
        try:
            yield state
        finally:
            # A queue and its groups refer to each other, so the blocks would stay until Python's garbage collector
            # runs.
            state._groups.clear()

    def drop(self, name: str) -> None:
        """Forgets a queue that was dropped."""
        state = self._states.pop(name, None)
        if state is not None:
            self.forget_topic(state.topic)

    def forget_topic(self, topic_id: int) -> None:
        """Drops the memory of a topic that was dropped, or whose queue was dropped."""
        self._lasting.pop(topic_id, None)


def _refuse_sealed(name: str, stored: TopicState, begin: int) -> None:
    """Refuses a queue over sealed history: events in Parquet files would never be delivered."""
    if stored.in_files > begin:
        raise ConfigError(
            f"topic {name!r} cannot become a queue: its history through {stored.in_files} is sealed in Parquet "
            f"files, which a queue does not hand out; push to a queue of another name, or remove that history with "
            f"compact({stored.in_files})"
        )


def unknown_queue(name: str, names: Iterable[str] = ()) -> UnknownQueue:
    """Returns the error for a missing queue, with the nearest existing name."""
    close = did_you_mean(name, names)
    meant = f"{close} Else" if close else ":"
    unknown = UnknownQueue(f"there is no queue {name!r}{meant} make it with journal.queue({name!r})")
    unknown.queue = name
    return unknown


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each consumer that gave its name has a row with its machine, its start and its last sign of life: a take (a waiting
# take tries every second) or an extended lease. The row is written at most every few seconds, so it costs a busy
# consumer nothing.
PRESENCE_MS = 5_000
"""The shortest pause between two notes of a consumer's presence."""


def presences(snap: Snapshot, topic: int) -> list[tuple[bytes, bytes, Presence]]:
    """Returns the consumers of a queue: the key, the row and its decoded value."""
    return [(key, value, read_presence(value)) for key, value in snap.scan(*keys.presence_range(topic))]


def last_failures(snap: Snapshot, topic: int) -> list[tuple[bytes, bytes, LastFailure]]:
    """Returns the newest failed attempt of each consumer: the key, the row and its decoded value."""
    return [(key, row, read_last_failure(row, "")) for key, row in snap.scan(*keys.last_failure_range(topic))]


def note_presence(commit: Commit, queue: QueueState, wanted: TakeRequest) -> None:
    """Notes, every few seconds, that a consumer is present. A consumer without a host runs in this process."""
    assert wanted.consumer is not None
    known = queue.seen.get((queue.record.groups.get(wanted.group, 0), wanted.consumer))
    if known is None or not 0 <= commit.now_ms - known.seen_ms < PRESENCE_MS:
        since, host = commit.now_ms if known is None else known.since_ms, this_host()
        if wanted.host is not None:  # for a consumer elsewhere
            since = since if wanted.since is None else max(0, to_ms(wanted.since, "since"))
            host = wanted.host
        _save_presence(commit, queue, wanted.group, wanted.consumer, since, host)


def note_extension(commit: Commit, queue: QueueState, label: str, consumer: str) -> None:
    """Notes, every few seconds, the presence of a consumer that extends a lease, because it may take no message for
    hours.
    """
    known = queue.presence(commit.tx, label, consumer)
    if known is not None and not 0 <= commit.now_ms - known.seen_ms < PRESENCE_MS:
        _save_presence(commit, queue, label, consumer, known.since_ms, known.host)


def forget_presence(commit: Commit, queue: QueueState, label: str, consumer: str) -> bool:
    """Removes a consumer that has ended; returns False for an unknown consumer."""
    group_id = queue.record.groups.get(label, 0)
    queue.seen.pop((group_id, consumer), None)
    key = keys.presence_key(queue.topic, group_id, consumer)
    if commit.tx.get(key) is None:
        return False
    commit.tx.delete(key)
    return True


def _save_presence(commit: Commit, queue: QueueState, label: str, consumer: str, since_ms: int, host: str) -> None:
    group_id = queue.record.groups.get(label, 0)
    presence = queue.seen[group_id, consumer] = Presence(commit.now_ms, since_ms, host)
    commit.tx.put(keys.presence_key(queue.topic, group_id, consumer), pack_presence(presence))
