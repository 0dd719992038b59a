"""The leases that deliveries of this process are under, and what becomes of these inside a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.journal.commit import Commit
from penstock.queue.operations.settle import extend, find_held, nack, release, stale
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import HeldMessage
from penstock.queue.state.records import Lease
from penstock.queue.token import make_token
from penstock.surface.delivery import Delivery, Outcome
from penstock.surface.failure import NackOptions

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue
    from penstock.queue.state.group import Group


class LeaseHandle(msgspec.Struct, eq=False, weakref=False):
    """What the deliveries of one lease have in common."""

    queue: LocalQueue
    label: str
    consumer: str | None = None
    topic: int = 0
    group: int = 0
    lease_id: int = 0
    secret: bytes = b""
    deadline: int = 0

    def token(self, index: int) -> str:
        """The name of the delivery with this index in the lease."""
        return make_token(self.topic, self.group, self.lease_id, index, self.secret)

    def under(self, group: Group, lease_id: int, lease: Lease) -> LeaseHandle:
        """The same taker's hold on a lease it was given."""
        return LeaseHandle(
            self.queue, self.label, self.consumer, group.topic, group.group_id, lease_id, lease.secret, lease.deadline
        )


def held_in(commit: Commit, queue: QueueState, delivery: Delivery) -> HeldMessage | None:
    """The message a delivery holds; None when it does not hold it any more."""
    hold = delivery._hold
    if TYPE_CHECKING:
        assert isinstance(hold, LeaseHandle)
    return find_held(commit, queue, hold.group, hold.lease_id, delivery._index, hold.secret)


def held_or_stale(commit: Commit, queue: QueueState, delivery: Delivery) -> HeldMessage:
    """The message a delivery holds; StaleDelivery when it does not hold it any more."""
    hold = delivery._hold
    if TYPE_CHECKING:
        assert isinstance(hold, LeaseHandle)
    held = find_held(commit, queue, hold.group, hold.lease_id, delivery._index, hold.secret)
    if held is None:
        raise stale(delivery.token, queue.name)
    return held


def nack_in(commit: Commit, queue: QueueState, delivery: Delivery, options: NackOptions) -> Outcome:
    return nack(commit, queue, held_or_stale(commit, queue, delivery), options)


def release_in(commit: Commit, queue: QueueState, deliveries: list[Delivery]) -> int:
    released = 0
    for delivery in deliveries:
        held = held_in(commit, queue, delivery)
        if held is not None:
            release(commit, queue, held)
            released += 1
    return released


def extend_in(
    commit: Commit, queue: QueueState, deliveries: list[Delivery], lease_ms: int | None, *, patient: bool
) -> int:
    """Extends what is still held; impatient: StaleDelivery when one of them is not."""
    held = []
    for delivery in deliveries:
        found = held_in(commit, queue, delivery) if patient else held_or_stale(commit, queue, delivery)
        if found is not None:
            held.append(found)
    return extend(commit, queue, held, round(queue.policy.lease * 1000) if lease_ms is None else lease_ms)
