"""What a transaction does to queues: pushes, and deliveries that are settled if, and only if, it commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.events import Receipt
from penstock.journal.transaction import HeldWriter
from penstock.queue.registry import QueueRegistry

if TYPE_CHECKING:
    from penstock.queue.delivery import LocalDelivery
    from penstock.surface.delivery import Delivery
    from penstock.surface.failure import NackOptions
    from penstock.surface.queue import Queue


class QueueChanges:
    """The pushes and settled deliveries of one transaction."""

    def __init__(self, held: HeldWriter, registry: QueueRegistry) -> None:
        self._held = held
        self._registry = registry
        self._settled: list[LocalDelivery] = []

    def push(self, queue: Queue | str, payload: object, options: Mapping[str, object]) -> Receipt:
        self._held.commit()
        handle = self._registry.own(queue)
        batch, delivery = handle._pushing.prepare_with(payload, options, self._held.find_cause)
        return self._held.change(lambda commit: handle._pushing.push_in(commit, batch, delivery)[0])

    def push_many(self, queue: Queue | str, payloads: Iterable[object], options: Mapping[str, object]) -> list[Receipt]:
        self._held.commit()
        handle = self._registry.own(queue)
        batch, delivery = handle._pushing.prepare_many(payloads, options, self._held.find_cause)
        return self._held.change(lambda commit: handle._pushing.push_in(commit, batch, delivery))

    def ack(self, delivery: Delivery) -> None:
        mine = self._own(delivery)
        self._held.change(lambda commit: mine.queue._settling.ack_in(commit, mine))
        self._keep(mine)

    def nack(self, delivery: Delivery, options: NackOptions) -> None:
        mine = self._own(delivery)
        self._held.change(lambda commit: mine.queue._settling.nack_in(commit, mine, options))
        self._keep(mine)

    def reopen(self) -> None:
        """The transaction was rolled back: what it had settled is held as before."""
        for delivery in self._settled:
            delivery._settled = False

    def _keep(self, delivery: LocalDelivery) -> None:
        delivery._settled = True
        self._settled.append(delivery)

    def _own(self, delivery: Delivery) -> LocalDelivery:
        from penstock.queue.delivery import LocalDelivery

        if not isinstance(delivery, LocalDelivery):
            raise ConfigError(f"a transaction settles Delivery objects, not {delivery!r:.80}")
        self._registry.own(delivery.queue)
        return delivery
