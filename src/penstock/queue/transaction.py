"""What a transaction does to queues: pushes, and deliveries that are settled if, and only if, it commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.events import Receipt
from penstock.journal.transaction import HeldWriter
from penstock.queue.delivery import nack_in
from penstock.queue.registry import QueueRegistry

if TYPE_CHECKING:
    from penstock.surface.delivery import Delivery
    from penstock.surface.failure import NackOptions


class QueueChanges:
    """The pushes and settled deliveries of one transaction."""

    def __init__(self, held: HeldWriter, registry: QueueRegistry) -> None:
        self._held = held
        self._registry = registry
        self._settled: list[Delivery] = []

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

    def reopen(self) -> None:
        """The transaction was rolled back: what it had settled is held as before."""
        for delivery in self._settled:
            delivery._settled = False

    def _keep(self, delivery: Delivery) -> None:
        delivery._settled = True
        self._settled.append(delivery)
