"""Taking and acknowledging messages of a served queue: one long poll after the other, many tokens in one request."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.clock import Seconds, seconds
from penstock.errors import ConfigError
from penstock.journal.owners import this_host
from penstock.names import check_consumer, check_limit
from penstock.protocol import deliveries as operations
from penstock.protocol.deliveries import AckRequest, TakeRequest
from penstock.remote.queues.delivery import RemoteDelivery
from penstock.surface.delivery import Delivery

if TYPE_CHECKING:
    from penstock.remote.queues.queue import RemoteQueue

WAIT = 30.0
"""Seconds one request waits for a message; a longer wait is several requests."""


def take_request(
    limit: int, group: str, consumer: str | None, lease: Seconds | None, newest: bool, since: datetime | None
) -> TakeRequest:
    """What a take asks for, checked as a queue in this process would; `since`: when a worker began."""
    if check_limit(limit) is None:
        raise ConfigError("take_many needs a limit: how many messages you can work on within one lease")
    return TakeRequest(
        limit=limit,
        group=check_consumer(group, "group"),
        consumer=None if consumer is None else check_consumer(consumer),
        lease=None if lease is None else seconds(lease, "lease"),
        newest=newest,
        host=None if consumer is None else this_host(),
        since=since,
    )


def take(
    queue: RemoteQueue, request: TakeRequest, wait: float, taker: AsyncTaker | None = None
) -> list[RemoteDelivery]:
    """What a request asks for; waits up to `wait` seconds for the first message, or until its taker has gone."""
    left = wait
    while True:
        request.wait = min(left, WAIT)
        answer = queue._change(operations.TAKE_MESSAGES, body=request, wait=request.wait)
        left -= request.wait
        if answer.deliveries or left <= 0 or (taker is not None and taker.gone):
            return [RemoteDelivery(queue, found) for found in answer.deliveries]


async def take_async(queue: RemoteQueue, request: TakeRequest, wait: float) -> list[RemoteDelivery]:
    """`take` for an event loop. Cancelled, the request goes on without it: what it finds is given back."""
    import asyncio

    taker = AsyncTaker()
    try:
        return await asyncio.to_thread(lambda: taker.receive(take(queue, request, wait, taker)))
    except asyncio.CancelledError:
        found = taker.leave()
        if found:
            asyncio.get_running_loop().run_in_executor(None, release_all, found)
        raise


class AsyncTaker:
    """A caller in an event loop for whom a thread takes; it may be gone when there is a message."""

    def __init__(self) -> None:
        self.gone = False
        self._found: list[RemoteDelivery] = []
        self._lock = threading.Lock()

    def receive(self, found: list[RemoteDelivery]) -> list[RemoteDelivery]:
        """In the thread: what was found, for the taker, or given back when that has gone."""
        with self._lock:
            self._found = found
            if not self.gone:
                return found
        release_all(found)
        return []

    def leave(self) -> list[RemoteDelivery]:
        """In the event loop: the taker has gone; returns what is on its way to it."""
        with self._lock:
            self.gone = True
            return self._found


def release_all(deliveries: list[RemoteDelivery]) -> None:
    for delivery in deliveries:
        delivery.release()


def acknowledge(queue: RemoteQueue, deliveries: Iterable[Delivery | str]) -> int:
    """Settles deliveries of a queue, or their tokens, in one commit; returns how many were still held."""
    tokens: list[str] = []
    mine: list[RemoteDelivery] = []
    for handle in deliveries:
        if isinstance(handle, RemoteDelivery):
            if handle.queue.name != queue.name:
                raise ConfigError(f"a delivery of queue {handle.queue.name!r} was given to queue {queue.name!r}")
            tokens.append(handle.token)
            mine.append(handle)
        elif isinstance(handle, str):
            tokens.append(handle)
        else:
            raise ConfigError(f"ack_many takes deliveries or their tokens, not {handle!r:.80}")
    if not tokens:
        return 0
    count = queue._change(operations.ACK_DELIVERIES, body=AckRequest(tokens)).acknowledged
    for delivery in mine:
        delivery._settled = True
    return count
