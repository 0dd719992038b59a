"""A delivery: one message that one consumer holds, until it is settled or its lease ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import msgspec

from penstock.core.clock import Duration, from_ms, seconds
from penstock.core.consuming.handover import finish
from penstock.core.events import Event
from penstock.core.model.failure import NackRequest, check_nack
from penstock.core.model.take import Outcome
from penstock.core.schema import PayloadT
from penstock.errors import PoisonMessage, StaleDelivery

if TYPE_CHECKING:
    from penstock.core.surface.backend import QueueBackend
    from penstock.core.surface.queue import Queue

T = TypeVar("T")

NEVER = (1 << 63) - 1
"""The deadline, in milliseconds, of a lease that lasts as long as its owner's process."""


class LeaseHold(Protocol):
    """The lease that several deliveries share, in this process or at a server."""

    label: str
    consumer: str | None
    deadline: int

    @property
    def queue(self) -> QueueBackend:
        """The queue of the lease."""

    def token(self, index: int) -> str:
        """Returns the token of the delivery with this index in the lease."""


def backend_of(delivery: Delivery) -> QueueBackend:
    """Returns the interface beneath the queue of a delivery."""
    return delivery._hold.queue


class Delivery(msgspec.Struct, Generic[PayloadT], eq=False, weakref=True):
    """A message under your lease until `deadline`: `ack` it, `nack` it, or use it as a context manager, which settles
    it.

    >>> for delivery in queue.receive(wait=5):
    ...     with delivery:   # acknowledged on a clean exit, given back with the error on an exception
    ...         handle(delivery.payload)
    """

    _hold: LeaseHold
    _index: int
    event: Event[PayloadT]
    """The message as it was pushed."""
    attempt: int
    """The number of deliveries so far, including this delivery."""
    _deadline: int = 0
    _settled: bool = False
    _outcome: Outcome | None = None

    # ── what it is ───────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def token(self) -> str:
        """The delivery's name: 24 characters of a-z and 2-7, new for every delivery."""
        return self._hold.token(self._index)

    @property
    def group(self) -> str:
        """The group that the message was taken for."""
        return self._hold.label

    @property
    def consumer(self) -> str | None:
        """The consumer that took the message, if it gave its name."""
        return self._hold.consumer

    @property
    def queue(self) -> Queue[PayloadT]:
        """The queue that the message was taken from."""
        return self._hold.queue.handle

    @property
    def deadline(self) -> datetime:
        """The time when the lease ends; datetime.max for a lease that lasts as long as this process."""
        ms = self._deadline or self._hold.deadline
        return datetime.max.replace(tzinfo=UTC) if ms == NEVER else from_ms(ms)

    @property
    def seq(self) -> int:
        """The message's position in its queue."""
        return self.event.seq

    @property
    def payload(self) -> PayloadT:
        """The message's payload, decoded on access; PoisonMessage (with the raw bytes) when it does not decode."""
        return self.event.payload

    def as_(self, type: type[T]) -> T:
        """Returns the payload as a value of a declared event type, upcast to its newest version."""
        return self.event.as_(type)

    @property
    def poison(self) -> PoisonMessage | None:
        """The error that decoding the payload raises, or None when it decodes."""
        try:
            self.event.payload  # noqa: B018
        except PoisonMessage as error:
            return error
        return None

    @property
    def kind(self) -> str:
        """The message's kind."""
        return self.event.kind

    @property
    def key(self) -> str | None:
        """The message's ordering key."""
        return self.event.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.event.headers

    def __repr__(self) -> str:
        return f"<delivery {self._hold.queue.name}#{self.seq} attempt {self.attempt} for {self.group!r}>"

    # ── what becomes of it ───────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, *, result: object = None) -> None:
        """Settles the message durably.

        Raises StaleDelivery when the lease was lost, or the delivery is settled already.

        `result` goes to the caller that pushed the message with `reply=True`; over HTTP it is JSON, and not bytes.
        """
        self._hold.queue.ack(self, result)
        self._settled = True

    async def ack_async(self, *, result: object = None) -> None:
        """Does what `ack` does, for an event loop; shares its commit with other awaited calls."""
        await self._hold.queue.ack_async(self, result)
        self._settled = True

    def nack(
        self, *, delay: Duration | None = None, error: str | BaseException | None = None, dead: bool = False
    ) -> None:
        """Gives the message back to its position, after `delay` (default: the policy's delay); `dead` gives it up.

        `error` is the reason: a text, or the exception, whose traceback is then kept too.
        """
        self._nack(check_nack(error, delay=delay, dead=dead))

    async def nack_async(
        self, *, delay: Duration | None = None, error: str | BaseException | None = None, dead: bool = False
    ) -> None:
        """Does what `nack` does, for an event loop."""
        import asyncio

        await asyncio.to_thread(lambda: self.nack(delay=delay, error=error, dead=dead))

    def _nack(self, options: NackRequest) -> None:
        """Gives the message back with checked options."""
        self._outcome = self._hold.queue.nack(self, options)
        self._settled = True

    def extend(self, lease: Duration | None = None) -> None:
        """Extends the lease to `lease` seconds from now (default: the policy's lease)."""
        self._deadline = self._hold.queue.extend([self], None if lease is None else seconds(lease, "lease"))

    def release(self, delay: Duration = 0) -> None:
        """Gives the message back without counting the attempt, at once or after `delay`: for a program that shuts down,
        or that cannot handle this message. Never fails."""
        self._hold.queue.release([self], seconds(delay, "delay"))
        self._settled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        if not isinstance(error, Exception):  # interrupted, not failed
            self.release()
            return
        with suppress(StaleDelivery):  # the caller's own failure matters more than the lost lease
            self.nack(error=error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._settled:
            return
        if error is None:
            await self.ack_async()
            return
        # The failure of the block is settled even if the task is cancelled once more.
        await finish(lambda: self.__exit__(kind, error, trace))
