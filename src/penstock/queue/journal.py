"""What queues add to a journal and to its transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from penstock.clock import Seconds
from penstock.errors import ConfigError
from penstock.events import Receipt
from penstock.journal.journal import BaseJournal, Description
from penstock.journal.transaction import BaseTransaction
from penstock.queue.registry import QueueRegistry
from penstock.surface.failure import failure_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.queue.delivery import LocalDelivery
    from penstock.queue.queue import LocalQueue
    from penstock.surface.arguments import PolicyArguments, PushArguments
    from penstock.surface.delivery import Delivery
    from penstock.surface.queue import Queue


class QueueJournal(BaseJournal):
    """A journal whose topics can be queues."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._registry = QueueRegistry(self)

    def queue(self, name: str, *, create: bool = True, **policy: Unpack[PolicyArguments]) -> LocalQueue:
        """A queue over the topic of that name; it is made on first use. See `QueuePolicy` for what may be given.

        `create=False` makes none: a queue that is not there raises UnknownQueue, which names the nearest one.

        A policy that differs from the stored one raises PolicyMismatch; `queue.configure` changes it.
        """
        self._check_open()
        return self._registry.queue(name, policy, create=create)

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return self._registry.names()

    def describe(self) -> Description:
        """What this journal is: engine, place, size, durability, topics, queues, and which of these are paused."""
        return msgspec.structs.replace(super().describe(), paused=self._registry.paused())

    def _before_close(self) -> None:
        super()._before_close()
        self._registry.close()


class QueueTransaction(BaseTransaction):
    """A transaction that may push to queues and settle deliveries, together with everything else in it."""

    _journal: QueueJournal

    def __init__(self, journal: BaseJournal) -> None:
        super().__init__(journal)
        self._settling: list[LocalDelivery] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        settling, self._settling = self._settling, []
        if kind is not None:
            _reopen(settling)
        try:
            super().__exit__(kind, error, trace)
        except BaseException:
            if not self._committed:  # an interrupt that waited for the commit comes after it
                _reopen(settling)
            raise

    def push(self, queue: Queue | str, payload: Any, **options: Unpack[PushArguments]) -> Receipt:
        """Pushes a message; nobody is woken, and nobody sees it, before the transaction commits."""
        self._open()
        handle = self._queue(queue)
        batch, delivery = handle._prepare_with(payload, options, self._find_cause)
        return self._change(lambda commit: handle._push_in(commit, batch, delivery)[0])

    def push_many(self, queue: Queue | str, payloads: Iterable[Any], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Pushes several messages at consecutive positions."""
        self._open()
        handle = self._queue(queue)
        batch, delivery = handle._prepare_many(payloads, options, self._find_cause)
        return self._change(lambda commit: handle._push_in(commit, batch, delivery))

    def ack(self, delivery: Delivery) -> None:
        """Settles a delivery if, and only if, the transaction commits. StaleDelivery when it is not held any more."""
        mine = self._own(delivery)
        self._change(lambda commit: mine.queue._ack_in(commit, mine))
        self._settle(mine)

    def nack(
        self,
        delivery: Delivery,
        *,
        delay: Seconds | None = None,
        error: str | BaseException | None = None,
        dead: bool = False,
    ) -> None:
        """Gives a delivery back if the transaction commits; see `Delivery.nack`."""
        from penstock.queue.delivery import check_nack

        options = check_nack(delay, failure_text(error), dead)
        mine = self._own(delivery)
        self._change(lambda commit: mine.queue._nack_in(commit, mine, options))
        self._settle(mine)

    def _settle(self, delivery: LocalDelivery) -> None:
        delivery._settled = True
        self._settling.append(delivery)

    def _queue(self, queue: Queue | str) -> LocalQueue:
        return self._journal._registry.own(queue)

    def _own(self, delivery: Delivery) -> LocalDelivery:
        from penstock.queue.delivery import LocalDelivery

        if not isinstance(delivery, LocalDelivery):
            raise ConfigError(f"a transaction settles Delivery objects, not {delivery!r:.80}")
        self._journal._registry.own(delivery.queue)
        return delivery


def _reopen(deliveries: list[LocalDelivery]) -> None:
    """The transaction was rolled back: what it had settled is held as before."""
    for delivery in deliveries:
        delivery._settled = False
