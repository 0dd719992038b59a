"""Receives messages: one as a context manager, or one after the other, in a thread or in an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core.consuming.delivery import Delivery
from penstock.core.schema import PayloadT

if TYPE_CHECKING:
    from penstock.core.clock import Duration
    from penstock.core.model.arguments import TakeArguments
    from penstock.core.surface.queue import Queue

LONG = 3600.0
"""The seconds that one take of an endless receiver waits."""


class Settling(Protocol):
    """A delivery that the end of a block settles."""

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object, /) -> None:
        """Acknowledges the message, or gives it back."""


D = TypeVar("D", bound=Settling)


class AsyncReceiver(Generic[D]):
    """The asynchronous result of `queue.receive`: `async with` it for one message or None, or iterate over it with
    `async for`."""

    __slots__ = ("_held", "_take_async", "_wait")

    def __init__(self, take: Callable[[Duration], Awaitable[D | None]], wait: Duration | None) -> None:
        self._take_async = take
        self._wait = wait
        self._held: list[D] = []

    async def _next_async(self) -> D | None:
        while True:
            delivery = await self._take_async(LONG if self._wait is None else self._wait)
            if delivery is not None or self._wait is not None:
                return delivery

    async def __aenter__(self) -> D | None:
        delivery = await self._next_async()
        if delivery is not None:
            self._held.append(delivery)
        return delivery

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._held:
            await self._held.pop().__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[D]:
        while (delivery := await self._next_async()) is not None:
            yield delivery


class Receiver(AsyncReceiver[Delivery[PayloadT]], Generic[PayloadT]):
    """The result of `queue.receive`: `with` it for one message or None, or iterate over it.

    >>> with queue.receive(wait=5) as delivery:     # acknowledged on a clean exit, given back on an exception
    ...     if delivery:
    ...         handle(delivery.payload)
    >>> for delivery in queue.receive(wait=5):      # ends when none came for five seconds
    ...     with delivery:
    ...         handle(delivery.payload)

    `async with` and `async for` do the same in an event loop. Iterating settles nothing by itself: `with` does.
    """

    __slots__ = ("_options", "_queue")

    def __init__(self, queue: Queue[PayloadT], wait: Duration | None, options: TakeArguments) -> None:
        super().__init__(lambda wait: queue.take_async(wait=wait, **options), wait)
        self._queue = queue
        self._options = options

    def _next(self) -> Delivery[PayloadT] | None:
        while True:
            delivery = self._queue.take(wait=LONG if self._wait is None else self._wait, **self._options)
            if delivery is not None or self._wait is not None:
                return delivery

    def __enter__(self) -> Delivery[PayloadT] | None:
        delivery = self._next()
        if delivery is not None:
            self._held.append(delivery)
        return delivery

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._held:
            self._held.pop().__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Delivery[PayloadT]]:
        while (delivery := self._next()) is not None:
            yield delivery
