"""What a transaction does to queues: messages pushed, taken and settled if, and only if, it commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.events import Receipt
from penstock.journal.transaction import HeldWriter
from penstock.names import check_name
from penstock.queue.delivery import extend_in, nack_in, release_in
from penstock.queue.operations.repair import Redriven, Where, move_in, purge_in, redrive_in
from penstock.queue.registry import QueueRegistry
from penstock.queue.run.waiting import take_in
from penstock.queue.state.cache import unknown_queue

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue
    from penstock.surface.delivery import Delivery, TakeRequest
    from penstock.surface.failure import NackOptions


class QueueChanges:
    """The pushes, takes and settled deliveries of one transaction."""

    def __init__(self, held: HeldWriter, registry: QueueRegistry) -> None:
        self._held = held
        self._registry = registry
        self._settled: list[Delivery] = []
        self._extended: list[tuple[Delivery, int]] = []
        """With the deadline that each had before."""

    def push(self, queue: str, payload: object, options: Mapping[str, object]) -> Receipt:
        own = self._existing(queue)
        batch, delivery = own.prepare_with(payload, options, self._held.find_cause)
        return self._held.change(lambda commit: own.push_in(commit, batch, delivery)[0])

    def push_many(self, queue: str, payloads: Iterable[object], options: Mapping[str, object]) -> list[Receipt]:
        own = self._existing(queue)
        batch, delivery = own.prepare_many(payloads, options, self._held.find_cause)
        return self._held.change(lambda commit: own.push_in(commit, batch, delivery))

    def ack(self, queue: str, delivery: Delivery) -> None:
        own = self._existing(queue)
        self._held.change(lambda commit: own.ack_in(commit, delivery))
        self._keep(delivery)

    def nack(self, queue: str, delivery: Delivery, options: NackOptions) -> None:
        cache = self._registry.cache
        self._held.change(lambda commit: nack_in(commit, cache.state(commit, queue), delivery, options))
        self._keep(delivery)

    def take(self, queue: str, wanted: TakeRequest) -> list[Delivery]:
        """Messages that are leased if, and only if, the transaction commits; its own pushes are among them."""
        own = self._existing(queue)
        request = own.request(wanted)
        while True:
            self._held.flushed()
            taken = self._held.change(lambda commit: take_in(commit, own, request))
            if taken.deliveries or not taken.more:
                return taken.deliveries

    def extend(self, queue: str, delivery: Delivery, lease: float | None) -> None:
        lease_ms, cache = None if lease is None else round(lease * 1000), self._registry.cache
        deadline = self._held.change(
            lambda commit: extend_in(commit, cache.state(commit, queue), [delivery], lease_ms, patient=False)
        )
        self._extended.append((delivery, delivery._deadline))
        delivery._deadline = deadline

    def release(self, queue: str, delivery: Delivery) -> None:
        cache = self._registry.cache
        self._held.change(lambda commit: release_in(commit, cache.state(commit, queue), [delivery]))
        self._keep(delivery)

    def purge(self, queue: str) -> int:
        own = self._existing(queue)
        return self._held.change(lambda commit: purge_in(commit, own))

    def move(self, queue: str, to: str, limit: int | None, where: Where | None) -> int:
        own, target = self._existing(queue), self._existing(to)
        self._held.flushed()
        return self._held.change(lambda commit: move_in(commit, own, target.name, limit, where))

    def redrive(self, queue: str, to: str | None, limit: int | None, where: Where | None) -> Redriven:
        own, target = self._existing(queue), None if to is None else self._existing(to)
        self._held.flushed()
        return self._held.change(lambda commit: redrive_in(commit, own, target, limit, where))

    def reopen(self) -> None:
        """The transaction was rolled back: what it had settled is held as before."""
        for delivery in self._settled:
            delivery._settled = False
        for delivery, deadline in reversed(self._extended):
            delivery._deadline = deadline

    def _existing(self, name: str) -> LocalQueue:
        """A queue that is there, for this transaction: it may have made it, of dead letters."""
        if self._registry.cache.find(self._held.commit(), check_name(name, "queue")) is None:
            raise unknown_queue(name, self._registry.names())
        return self._registry.handle(name)

    def _keep(self, delivery: Delivery) -> None:
        delivery._settled = True
        self._settled.append(delivery)
