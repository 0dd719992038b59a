"""A delivery: one message in one consumer's hand, until it is settled or its lease ends."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import Seconds, from_ms
from penstock.events import Event
from penstock.journal.commit.commit import Commit
from penstock.queue.operations.settle import HeldMessage, extend, find_held, nack, release, stale
from penstock.queue.policy import duration_ms
from penstock.queue.results.reply import NOTHING, StoredResult, answer_of
from penstock.queue.state.cache import QueueState
from penstock.queue.state.records import NEVER, Lease
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
    number: int = 0
    secret: bytes = b""
    deadline: int = 0

    def under(self, group: Group, number: int, lease: Lease) -> LeaseHandle:
        """The same taker's hold on a lease it was given."""
        return LeaseHandle(
            self.queue, self.label, self.consumer, group.topic, group.number, number, lease.secret, lease.deadline
        )


class LocalDelivery(Delivery, msgspec.Struct, eq=False, weakref=True):
    """A message taken in this process."""

    _hold: LeaseHandle
    _index: int
    event: Event
    """The message as it was pushed."""
    attempt: int
    """How often it has been delivered, this time included."""
    _deadline: int = 0
    _settled: bool = False
    _outcome: Outcome | None = None
    _answer: StoredResult = NOTHING

    # ── what it is ───────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def token(self) -> str:
        """The delivery's name: 24 characters of a-z and 2-7, new for every delivery."""
        hold = self._hold
        return make_token(hold.topic, hold.group, hold.number, self._index, hold.secret)

    @property
    def group(self) -> str:
        """The group it was taken for."""
        return self._hold.label

    @property
    def consumer(self) -> str | None:
        """The consumer that took it, if it gave its name."""
        return self._hold.consumer

    @property
    def queue(self) -> LocalQueue:
        """The queue it was taken from."""
        return self._hold.queue

    @property
    def deadline(self) -> datetime:
        """When the lease ends; datetime.max for one that lasts as long as this process."""
        ms = self._deadline or self._hold.deadline
        return datetime.max.replace(tzinfo=from_ms(0).tzinfo) if ms == NEVER else from_ms(ms)

    # ── what becomes of it ───────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, *, result: object = None) -> None:
        """Settles the message, durably. StaleDelivery when the lease was lost, or the delivery was settled already.

        `result`: what the one who pushed it with `reply=True` is told.
        """
        if result is not None:
            self._answer = answer_of(result)
        self._hold.queue._settling.ack(self)
        self._settled = True

    async def ack_async(self, *, result: object = None) -> None:
        """`ack` for an event loop: shares its commit with all that are awaited meanwhile."""
        if result is not None:
            self._answer = answer_of(result)
        await self._hold.queue._settling.ack_async(self)
        self._settled = True

    def _nack(self, options: NackOptions) -> None:
        self._outcome = self._hold.queue._settling.nack(self, options)
        self._settled = True

    def extend(self, lease: Seconds | None = None) -> None:
        """Keeps the message for `lease` more seconds from now (the policy's lease, unless given)."""
        lease_ms = None if lease is None else duration_ms(lease, "lease")
        self._deadline = self._hold.queue._settling.extend([self], lease_ms)

    def release(self) -> None:
        """Gives the message back at once without counting the attempt: for shutting down. Never fails."""
        self._hold.queue._settling.release([self])
        self._settled = True

    # ── inside a commit ──────────────────────────────────────────────────────────────────────────────────────────────
    def _held(self, commit: Commit, queue: QueueState) -> HeldMessage | None:
        hold = self._hold
        return find_held(commit, queue, hold.group, hold.number, self._index, hold.secret)

    def _held_or_stale(self, commit: Commit, queue: QueueState) -> HeldMessage:
        hold = self._hold
        held = find_held(commit, queue, hold.group, hold.number, self._index, hold.secret)
        if held is None:
            raise stale(self.token, queue.name)
        return held


def nack_in(commit: Commit, queue: QueueState, delivery: LocalDelivery, options: NackOptions) -> Outcome:
    return nack(commit, queue, delivery._held_or_stale(commit, queue), options)


def release_in(commit: Commit, queue: QueueState, deliveries: list[LocalDelivery]) -> int:
    released = 0
    for delivery in deliveries:
        held = delivery._held(commit, queue)
        if held is not None:
            release(commit, queue, held)
            released += 1
    return released


def extend_in(
    commit: Commit, queue: QueueState, deliveries: list[LocalDelivery], lease_ms: int | None, *, patient: bool
) -> int:
    """Extends what is still held; impatient: StaleDelivery when one of them is not."""
    held = []
    for delivery in deliveries:
        found = delivery._held(commit, queue) if patient else delivery._held_or_stale(commit, queue)
        if found is not None:
            held.append(found)
    return extend(commit, queue, held, round(queue.policy.lease * 1000) if lease_ms is None else lease_ms)
