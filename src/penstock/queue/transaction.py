"""What a transaction does to queues: messages pushed, taken and settled if, and only if, it commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.events import Receipt
from penstock.journal.transaction import HeldWriter
from penstock.queue.delivery import extend_in, nack_in, release_in
from penstock.queue.operations.repair import purge_in
from penstock.queue.registry import QueueRegistry
from penstock.queue.run.waiting import take_in

if TYPE_CHECKING:
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
        self._held.commit()
        own = self._registry.existing(queue)
        batch, delivery = own.prepare_with(payload, options, self._held.find_cause)
        return self._held.change(lambda commit: own.push_in(commit, batch, delivery)[0])

    def push_many(self, queue: str, payloads: Iterable[object], options: Mapping[str, object]) -> list[Receipt]:
        self._held.commit()
        own = self._registry.existing(queue)
        batch, delivery = own.prepare_many(payloads, options, self._held.find_cause)
        return self._held.change(lambda commit: own.push_in(commit, batch, delivery))

    def ack(self, queue: str, delivery: Delivery) -> None:
        own = self._registry.existing(queue)
        self._held.change(lambda commit: own.ack_in(commit, delivery))
        self._keep(delivery)

    def nack(self, queue: str, delivery: Delivery, options: NackOptions) -> None:
        cache = self._registry.cache
        self._held.change(lambda commit: nack_in(commit, cache.state(commit, queue), delivery, options))
        self._keep(delivery)

    def take(self, queue: str, wanted: TakeRequest) -> list[Delivery]:
        """Messages that are leased if, and only if, the transaction commits; its own pushes are among them."""
        own = self._registry.existing(queue)
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
        own = self._registry.existing(queue)
        return self._held.change(lambda commit: purge_in(commit, own))

    def reopen(self) -> None:
        """The transaction was rolled back: what it had settled is held as before."""
        for delivery in self._settled:
            delivery._settled = False
        for delivery, deadline in reversed(self._extended):
            delivery._deadline = deadline

    def _keep(self, delivery: Delivery) -> None:
        delivery._settled = True
        self._settled.append(delivery)
