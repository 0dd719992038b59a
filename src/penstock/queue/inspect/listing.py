"""Who holds what of a queue, what has failed, and who was here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import from_ms
from penstock.engine.contract import Snapshot
from penstock.events import Event
from penstock.queue.inspect.positions import failures, group_named, group_names, inspecting
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.state.cache import QueueState
from penstock.queue.state.presence import presences
from penstock.queue.state.records import NEVER
from penstock.queue.token import make_token

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue

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
        for seq in failures(snap, group):
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
