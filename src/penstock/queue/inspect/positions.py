"""Which positions of a queue are not settled, in order, and what would be taken next."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.contract import Snapshot
from penstock.events import Event
from penstock.journal.commit.catalog import TopicRecord, load_state
from penstock.journal.reading import TopicView
from penstock.queue.flow.turns import in_turn
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.state.cache import WORK, QueueState, unknown_queue
from penstock.queue.state.group import Group
from penstock.queue.state.records import FAILED, read_special

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


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────────
def get(queue: LocalQueue, seq: int) -> Event | None:
    with inspecting(queue) as (snap, state):
        now_ms = queue.journal.clock.now_ms()
        if seq and next(unsettled_positions(snap, state, now_ms, seq - 1), None) == seq:
            return BlockCache(queue.name, state.topic).event(snap, seq)
        return None


# ── in order ─────────────────────────────────────────────────────────────────────────────────────────────────────────
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
    return heapq.merge(group.aside(snap, after=after), flying_after(snap, group, after), untaken)


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
    for seq in heapq.merge(*(failures(snap, group) for group in state.all_groups(snap))):
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
    for low, high in group.covers(snap):
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


def failures(snap: Snapshot, group: Group) -> Iterator[int]:
    """Positions of a group's failed messages, ascending."""
    if group.record.failed:
        for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"f")):
            yield keys.tail_seq(key)


# ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────
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
