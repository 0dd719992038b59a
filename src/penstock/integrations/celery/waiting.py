"""The wait for several queues, and the renewal of leases: a thread for each, while a connection uses them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping

import penstock
from penstock.errors import Closed, PenstockError, StaleDelivery

log = logging.getLogger("penstock.celery")

RENEWALS = 3
"""A lease is renewed so many times before it would end."""


class QueueWait:
    """Waits until one of several queues has a message, or until it is told that something else has changed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-celery-wait", daemon=True)
        self._thread.start()

    def first(
        self, queues: Mapping[str, penstock.Queue], seconds: float, lease: float
    ) -> list[tuple[str, penstock.Delivery]]:
        """The first message, or first messages, that come within the time, with the names of their queues."""
        return asyncio.run_coroutine_threadsafe(self._first(queues, seconds, lease), self._loop).result()

    async def _first(
        self, queues: Mapping[str, penstock.Queue], seconds: float, lease: float
    ) -> list[tuple[str, penstock.Delivery]]:
        takes = [asyncio.ensure_future(queue.take_async(wait=seconds, lease=lease)) for queue in queues.values()]
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([*takes, change], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._changed.clear()
            for one in (*takes, change):
                one.cancel()  # a take that is cancelled takes nothing
        ended = await asyncio.gather(*takes, return_exceptions=True)
        taken = [(name, one) for name, one in zip(queues, ended, strict=True) if isinstance(one, penstock.Delivery)]
        for failed in ended:
            if isinstance(failed, Exception) and not taken:
                raise failed
        return taken

    def changed(self) -> None:
        """Ends a wait that is under way."""
        self._loop.call_soon_threadsafe(self._changed.set)

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class LeaseRenewal:
    """Keeps the leases of all that a connection holds, from a thread."""

    def __init__(self, lease: float, held: Callable[[], Iterable[penstock.Delivery]]) -> None:
        self._pause, self._lease, self._held = lease / RENEWALS, lease, held
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="penstock-celery-leases", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._done.wait(self._pause):
            for delivery in self._held():
                try:
                    delivery.extend(self._lease)
                except StaleDelivery:  # settled meanwhile, or lost: its acknowledgement says which
                    continue
                except Closed:
                    return
                except PenstockError as error:
                    log.warning("the lease of %r could not be renewed: %s", delivery, error)

    def close(self) -> None:
        """Ends the thread."""
        self._done.set()
        self._thread.join()
