"""A worker over a queue at the other end of a url."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.clock import Seconds, seconds
from penstock.errors import PenstockError, StaleDelivery, StorageError
from penstock.journal.owners import this_process
from penstock.names import check_consumer, check_whole
from penstock.queue.results.reply import ack_with
from penstock.queue.run.middleware import log, log_failure, worker_nack
from penstock.remote.queues.taking import take, take_request
from penstock.surface.worker import Worker, finished

if TYPE_CHECKING:
    from penstock.remote.queues.delivery import RemoteDelivery
    from penstock.remote.queues.queue import RemoteQueue

POLL = 2.0
"""Seconds one take waits; also how long a worker that is told to stop may go on waiting."""


class RemoteQueueWorker(Worker):
    """Threads that take, handle and settle; leases are renewed while handlers run."""

    def __init__(
        self,
        queue: RemoteQueue,
        handler: Callable[[Any], object],
        *,
        group: str,
        concurrency: int,
        consumer: str | None,
        lease: Seconds | None,
    ) -> None:
        super().__init__(f"{queue.name}:{consumer or group}", queue.journal, handler)
        check_whole(concurrency, "concurrency")
        self._queue = queue
        self._handler = handler
        self._group = check_consumer(group, "group")
        self._concurrency = concurrency
        self._consumer = this_process() if consumer is None else check_consumer(consumer)
        self._began = datetime.now(UTC)
        self._lease = seconds(lease, "lease") if lease is not None else queue.policy.lease
        self._held: dict[str, RemoteDelivery] = {}
        self._over = threading.Event()
        """Set when a hand has failed: the others end too, and the worker begins again, if it may."""
        self._first_failure: BaseException | None = None

    def _work(self) -> None:
        self._over.clear()
        self._first_failure = None
        done = threading.Event()
        hands = [
            threading.Thread(target=self._hand, name=f"penstock-{self.name}-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        renewer = threading.Thread(target=self._renew, args=(done,), name=f"penstock-{self.name}-leases", daemon=True)
        for thread in (*hands, renewer):
            thread.start()
        try:
            for thread in hands:
                thread.join()
        finally:  # also when this thread is interrupted: what is in hand is finished, and nothing more is taken
            self._over.set()
            for thread in hands:
                thread.join()
            done.set()
            renewer.join()
        if self._first_failure is not None:
            raise self._first_failure
        with suppress(PenstockError):  # one that cannot say that it has ended is listed as gone
            self._queue._leave(self._group, self._consumer)

    def _hand(self) -> None:
        import asyncio

        with self._in_hand_thread(), asyncio.Runner() as runner:
            while not (self._stopping.is_set() or self._over.is_set()):
                try:
                    request = take_request(1, self._group, self._consumer, self._lease, False, self._began)
                    found = take(self._queue, request, POLL)
                except StorageError as error:
                    log.warning("worker %r: %s", self.name, error)
                    self._stopping.wait(1.0)
                    continue
                except Exception as error:
                    self._fail(error)
                    return
                delivery = found[0] if found else None
                try:
                    if delivery is not None:
                        self._work_on(delivery, runner)
                except BaseException as error:  # the process is ending, which is not the message's fault
                    self._fail(error)
                    if delivery is not None and not delivery._settled:
                        delivery.release()
                    return

    def _fail(self, error: BaseException) -> None:
        self._first_failure = self._first_failure or error
        self._over.set()

    def _work_on(self, delivery: RemoteDelivery, runner: Any) -> None:
        self._held[delivery.token] = delivery
        try:
            try:
                outcome = self._handler(delivery)
                if inspect.isawaitable(outcome):
                    if self._loop is not None:
                        outcome = self._wait_for(outcome)
                    else:
                        outcome = runner.run(finished(outcome))
            except Exception as error:
                try:
                    if not delivery._settled:
                        delivery._nack(worker_nack(delivery, error))
                finally:
                    log_failure(delivery, error)
            else:
                if not delivery._settled:
                    ack_with(delivery, outcome)
        except StaleDelivery as error:
            log.warning("%r was handled too late, and another consumer may have it now: %s", delivery, error)
        except PenstockError as error:
            log.warning("worker %r: message %d could not be settled: %s", self.name, delivery.seq, error)
        finally:
            self._held.pop(delivery.token, None)

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(max(0.05, self._lease / 3)):
            for delivery in list(self._held.values()):
                try:
                    delivery.extend(self._lease)
                except PenstockError as error:
                    log.warning("worker %r: a lease was not renewed: %s", self.name, error)
