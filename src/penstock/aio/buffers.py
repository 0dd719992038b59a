"""The buffer for event loops: a producer and a consumer whose calls are awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, Self, TypeVar

from penstock.aio.running import AsyncHandle, close, finished, in_thread, submitted, threaded
from penstock.buffer import Batch, Consumer, Descriptor, Producer
from penstock.buffer.manifest import BufferHandle
from penstock.core.consuming.handover import hand_over

A = TypeVar("A")
H = TypeVar("H", bound=BufferHandle)
P = ParamSpec("P")


class AsyncProducer(AsyncHandle[Producer]):
    """Collects entries into batches and hands them to the buffer's consumer.

    Any number of threads may share a producer.
    """

    __slots__ = ()

    async def produce(self, entries: Sequence[bytes], metadata: bytes = b"") -> None:
        """Adds entries and returns when the manifest holds them; waits when the buffer has no room."""
        await submitted(lambda: self._sync.produce(entries, metadata, timeout=0))

    flush = threaded(Producer.flush)
    close = finished(Producer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncConsumer(AsyncHandle[Consumer]):
    """Reads a buffer's batches in order and removes them once they are acknowledged."""

    __slots__ = ("_left", "_lock", "_under_way")

    def __init__(self, sync: Consumer) -> None:
        super().__init__(sync)
        self._under_way: asyncio.Future[Batch | None] | None = None
        self._left: list[Descriptor] = []
        """The descriptors of cancelled callers, in order."""
        self._lock = threading.Lock()

    async def next_batch(self) -> Batch | None:
        """Returns the next batch, or None when there is none yet.

        A batch that a cancelled caller asked for comes next.
        """
        step = self._under_way or asyncio.ensure_future(in_thread(self._next_batch))
        self._under_way = step
        try:
            return await asyncio.shield(step)
        finally:
            if step.done():  # otherwise the caller was cancelled, and the next caller gets the batch
                self._under_way = None

    async def next_descriptors(self, limit: int) -> list[Descriptor]:
        """Returns up to `limit` of the next entries, to be fetched elsewhere; entries of a cancelled caller come
        next.
        """
        return await hand_over(lambda: self._next_descriptors(limit), self._take_back)

    def _next_descriptors(self, limit: int) -> list[Descriptor]:
        with self._lock:
            left = self._left[: max(0, limit)]
            found = left + self._sync.next_descriptors(limit - len(left))
            del self._left[: len(left)]
            return found

    def _next_batch(self) -> Batch | None:
        with self._lock:
            if not self._left:
                return self._sync.next_batch()
            batch = self._sync.fetch(self._left[0])
            del self._left[0]
            return batch

    def _take_back(self, descriptors: list[Descriptor]) -> None:
        with self._lock:
            self._left = sorted(self._left + descriptors, key=lambda descriptor: descriptor.sequence)

    fetch = threaded(Consumer.fetch)
    ack = threaded(Consumer.ack)
    ack_through = threaded(Consumer.ack_through)
    flush = threaded(Consumer.flush)
    close = finished(Consumer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _opening(kind: Callable[P, H], handle: Callable[[H], A]) -> Callable[P, Awaitable[A]]:
    async def opened(*args: P.args, **options: P.kwargs) -> A:
        return handle(await hand_over(lambda: kind(*args, **options), close))

    return opened


open_producer = _opening(Producer, AsyncProducer)
"""Opens a producer for an event loop; the arguments are the arguments of `penstock.buffer.Producer`."""
open_consumer = _opening(Consumer, AsyncConsumer)
"""Opens a consumer for an event loop; the arguments are the arguments of `penstock.buffer.Consumer`."""
