"""Receiving messages: one as a context manager, or one after the other, in a thread or in an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, Unpack

from penstock.schema import PayloadT

if TYPE_CHECKING:
    from penstock.clock import Seconds
    from penstock.surface.arguments import TakeArguments
    from penstock.surface.delivery import Delivery
    from penstock.surface.queue import Queue

LONG = 3600.0
"""Seconds that one take of a receiver without an end waits."""


class Receiver(Generic[PayloadT]):
    """What `queue.receive` gives: `with` it for one message or None, or iterate over it.

    >>> with queue.receive(wait=5) as delivery:     # acknowledged on a clean exit, given back on an exception
    ...     if delivery:
    ...         handle(delivery.payload)
    >>> for delivery in queue.receive(wait=5):      # ends when none came for five seconds
    ...     with delivery:
    ...         handle(delivery.payload)

    `async with` and `async for` do the same in an event loop. Iterating settles nothing by itself: `with` does.
    """

    __slots__ = ("_held", "_options", "_queue", "_wait")

    def __init__(self, queue: Queue[PayloadT], wait: Seconds | None, options: TakeArguments) -> None:
        self._queue = queue
        self._wait = wait
        self._options = options
        self._held: list[Delivery[PayloadT]] = []

    def _take(self, **options: Unpack[TakeArguments]) -> Delivery[PayloadT] | None:
        if self._wait is not None:
            return self._queue.take(wait=self._wait, **options)
        while True:
            delivery = self._queue.take(wait=LONG, **options)
            if delivery is not None:
                return delivery

    async def _take_async(self, **options: Unpack[TakeArguments]) -> Delivery[PayloadT] | None:
        if self._wait is not None:
            return await self._queue.take_async(wait=self._wait, **options)
        while True:
            delivery = await self._queue.take_async(wait=LONG, **options)
            if delivery is not None:
                return delivery

    # ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────
    def __enter__(self) -> Delivery[PayloadT] | None:
        delivery = self._take(**self._options)
        if delivery is not None:
            self._held.append(delivery)
        return delivery

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._held:
            self._held.pop().__exit__(kind, error, trace)

    async def __aenter__(self) -> Delivery[PayloadT] | None:
        delivery = await self._take_async(**self._options)
        if delivery is not None:
            self._held.append(delivery)
        return delivery

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._held:
            await self._held.pop().__aexit__(kind, error, trace)

    # ── one after the other ──────────────────────────────────────────────────────────────────────────────────────────
    def __iter__(self) -> Iterator[Delivery[PayloadT]]:
        while (delivery := self._take(**self._options)) is not None:
            yield delivery

    async def __aiter__(self) -> AsyncIterator[Delivery[PayloadT]]:
        while (delivery := await self._take_async(**self._options)) is not None:
            yield delivery
