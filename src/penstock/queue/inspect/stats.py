"""How many messages of a queue are in which state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.contract import Snapshot
from penstock.journal.commit.catalog import TopicRecord
from penstock.journal.reading import TopicView
from penstock.queue import metrics
from penstock.queue.flow.breaker import BreakerState
from penstock.queue.flow.circuit import breaker_state
from penstock.queue.flow.turns import in_turn
from penstock.queue.inspect.positions import group_named, group_names, inspecting, unabsorbed, untouched
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import FAILED, MessageRow, read_message, read_special

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue

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
        plain = latest - record.frontier - record.covered
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
