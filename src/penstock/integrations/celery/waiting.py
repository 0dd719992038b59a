"""The wait for several queues, and the renewal of leases. Each has a thread while a connection uses it."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress

import penstock
from penstock.errors import Closed, PenstockError, StaleDelivery

log = logging.getLogger("penstock.celery")

RENEWALS = 3
"""The number of times that a lease is renewed before it would end."""
LONGEST = 3600.0
"""The number of seconds after which a wait ends without a message. The connection then begins the next wait."""


class QueueWait:
    """A wait until one of several queues has a message. Its descriptor becomes readable when the wait is over."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._wait: Future[list[tuple[str, penstock.Delivery]]] | None = None
        self._readable, self._writable = socket.socketpair()
        for one in (self._readable, self._writable):
            one.setblocking(False)
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-celery-wait", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable."""
        return self._readable.fileno()

    def begin(self, queues: Mapping[str, penstock.Queue], lease: float) -> None:
        """Starts a wait for the first message of these queues."""
        self._wait = asyncio.run_coroutine_threadsafe(self._first(queues, lease), self._loop)
        self._wait.add_done_callback(lambda _: self.wake())

    async def _first(self, queues: Mapping[str, penstock.Queue], lease: float) -> list[tuple[str, penstock.Delivery]]:
        takes = [asyncio.ensure_future(queue.take_async(wait=LONGEST, lease=lease)) for queue in queues.values()]
        end = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([*takes, end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ended.clear()
            for one in (*takes, end):
                one.cancel()  # a cancelled take takes nothing
        ended = await asyncio.gather(*takes, return_exceptions=True)
        taken = [(name, one) for name, one in zip(queues, ended, strict=True) if isinstance(one, penstock.Delivery)]
        for failed in ended:
            if isinstance(failed, Exception) and not taken:
                raise failed
        return taken

    def is_over(self) -> bool:
        """Returns True if a message has come, or the wait has failed."""
        self.drain()  # first: a wait that ends after this line makes the descriptor readable again
        return self._wait is not None and self._wait.done()

    def come(self) -> list[tuple[str, penstock.Delivery]]:
        """Returns the messages that have come, each with the name of its queue; an empty list when there are none."""
        wait = self._wait
        if wait is None or not wait.done() or wait.exception() is not None:
            return []
        return wait.result()

    def end(self) -> list[tuple[str, penstock.Delivery]]:
        """Ends the wait and returns the messages that have come. Raises the error with which the wait has failed."""
        if self._wait is None:
            return []
        if not self._wait.done():
            self._loop.call_soon_threadsafe(self._ended.set)
        try:
            return self._wait.result()
        finally:
            self._wait = None

    def pause(self, seconds: float | None) -> None:
        """Waits until the descriptor is readable or the time is over."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)

    def wake(self) -> None:
        """Makes the descriptor readable."""
        with suppress(OSError):  # it is readable already, or closed
            self._writable.send(b"x")

    def drain(self) -> None:
        """Makes the descriptor unreadable."""
        with suppress(OSError):
            self._readable.recv(4096)

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._readable.close()
        self._writable.close()


class LeaseRenewal:
    """Renews the leases of all deliveries of a connection, in a thread."""

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
                except StaleDelivery:  # settled meanwhile, or lost: its acknowledgement tells
                    continue
                except Closed:
                    return
                except PenstockError as error:
                    log.warning("the lease of %r could not be renewed: %s", delivery, error)

    def close(self) -> None:
        """Ends the thread."""
        self._done.set()
        self._thread.join()
