"""What a handle stands on: a journal's store in this process, or a server that has it.

A `Queue` checks what it is given, once, and asks its backend. Most of what it asks is an operation of the protocol:
`call` runs its implementation here (`penstock.local`) or sends it (`penstock.remote`). The rest, what is hot or waits,
are methods, which both homes write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Literal

    import msgspec

    from penstock.clock import Seconds
    from penstock.events import Receipt
    from penstock.protocol.operation import Operation
    from penstock.queue.operations.groups import Pause
    from penstock.queue.policy import QueuePolicy
    from penstock.surface.delivery import Delivery, Outcome, TakeRequest
    from penstock.surface.failure import NackOptions
    from penstock.surface.queue import Queue
    from penstock.ticket import Ticket

A = TypeVar("A")


class Backend(Protocol):
    """Where a journal is."""

    def call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None) -> A:
        """An operation's answer; `names` are those in its path."""

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """The answer to a look-up; None when there is no such thing."""


class QueueBackend(Protocol):
    """A queue's hot paths and waits. Arguments are checked already."""

    name: str
    handle: Queue

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""

    def length(self) -> int:
        """Messages that are ready, in flight or delayed."""

    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""

    def pauses(self) -> list[Pause]:
        """The pauses that have not ended."""

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(
        self,
        payload: object,
        kind: str,
        key: str | None,
        priority: int | Literal["front"],
        delay: Seconds,
        not_before: datetime | None,
        dedup: str | None,
        max_attempts: int | None,
        headers: Mapping[str, str] | None,
        cause: object,
    ) -> Receipt:
        """Adds a message and returns when it is durable."""

    def submit(self, payload: object, options: Mapping[str, object]) -> Ticket[Receipt]:
        """`push` with a ticket."""

    def push_many(self, payloads: list[object], options: Mapping[str, object]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing."""

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """Messages under a lease; waits for the first, or until `stopping` is set and `nudge` was called."""

    async def take_async(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """`take` for an event loop. Cancelled, it leaves nothing taken."""

    def claim(
        self, limit: int, group: str, consumer: str | None, lease: float | None, min_idle: float
    ) -> list[Delivery]:
        """Takes over deliveries that no consumer has extended for `min_idle` seconds."""

    def delivery(self, token: str) -> Delivery:
        """The delivery a token names; StaleDelivery when its lease is gone."""

    def leave(self, group: str, consumer: str) -> bool:
        """A consumer has ended, and is not listed any more; False when it was not."""

    def nudge(self) -> None:
        """Wakes the takes that wait, so that they see that they should stop."""

    def check_may_wait(self) -> None:
        """ConfigError where a worker could not end while this thread waits for it."""

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, delivery: Delivery, result: object) -> None:
        """Settles a delivery, durably."""

    async def ack_async(self, delivery: Delivery, result: object) -> None:
        """`ack` for an event loop."""

    def ack_many(self, deliveries: list[Delivery | str]) -> int:
        """Settles deliveries, or their tokens, in one commit; returns how many were still held."""

    def nack(self, delivery: Delivery, options: NackOptions) -> Outcome:
        """Gives a message back, or up; returns what became of it."""

    def extend(self, deliveries: list[Delivery], lease: float | None, *, patient: bool = False) -> int:
        """Keeps messages for longer; returns until when. `patient`: those that are lost already are no error."""

    def release(self, deliveries: list[Delivery]) -> None:
        """Gives messages back without counting the attempt. Never fails."""
