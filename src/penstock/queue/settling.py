"""What becomes of deliveries: acknowledged, given back, extended and released, each in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Closed, ConfigError, PenstockError
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.observe.logs import Log
from penstock.queue import metrics
from penstock.queue.delivery import LeaseHandle, LocalDelivery, extend_in, nack_in, release_in
from penstock.queue.metrics import QueueCounters
from penstock.queue.operations.settle import HeldMessage, ack, ack_mask, find_held
from penstock.queue.state.cache import QueueState, forget_presence
from penstock.queue.token import fits, read_token
from penstock.surface.delivery import Delivery, Outcome
from penstock.surface.failure import NackOptions

if TYPE_CHECKING:
    from penstock.queue.registry import QueueRegistry

log = Log("penstock.queue")


class Settling:
    """How the deliveries of one queue end: the part of it that settles them."""

    def __init__(self, registry: QueueRegistry, name: str, counters: QueueCounters) -> None:
        self._registry = registry
        self._cache = registry.cache
        self._writer = registry.core.writer
        self._name = name
        self._counters = counters

    def ack_many(self, handles: list[Delivery | str]) -> int:
        """Settles deliveries, or their tokens, in one commit; returns how many were still held."""
        if not handles:
            return 0
        together, tokens = self._by_lease(handles)
        count = self._writer.run(WriteRequest(self._ack_many_in, 0, (together, tokens)))
        for handle in handles:
            if handle.__class__ is LocalDelivery:
                handle._settled = True
        self.note_acks(count)
        return count

    def _by_lease(self, handles: list[Delivery | str]) -> tuple[list[tuple[LeaseHandle, int]], list[str]]:
        """Deliveries as one bit mask per lease, and the tokens among them."""
        masks: dict[LeaseHandle, int] = {}
        tokens: list[str] = []
        for handle in handles:
            if isinstance(handle, LocalDelivery):
                hold = handle._hold
                masks[hold] = masks.get(hold, 0) | 1 << handle._index
            elif isinstance(handle, str):
                tokens.append(handle)
            else:
                raise ConfigError(f"ack_many takes deliveries or their tokens, not {handle!r:.80}")
        for hold in masks:
            if hold.queue._settling is not self:
                raise ConfigError(f"a delivery of queue {hold.queue.name!r} was given to queue {self._name!r}")
        return list(masks.items()), tokens

    def _ack_many_in(self, commit: Commit, together: list[tuple[LeaseHandle, int]], tokens: list[str]) -> int:
        state = self._cache.state(commit, self._name)
        count = 0
        for hold, mask in together:
            group = state.group(commit.tx, hold.group)
            lease = group.lease(commit.tx, hold.number)
            if lease is not None and lease.secret == hold.secret:
                count += ack_mask(commit, state, group, hold.number, lease, mask)
        for token in tokens:
            held = self._find(commit, state, token)
            if held is not None:
                ack(commit, state, held)
                count += 1
        return count

    def _find(self, commit: Commit, state: QueueState, token: str) -> HeldMessage | None:
        address = read_token(token)
        if address is None or (address.group and address.group not in state.record.groups.values()):
            return None
        lease = state.group(commit.tx, address.group).lease(commit.tx, address.number)
        if lease is None or not fits(state.topic, address, lease.secret):
            return None
        return find_held(commit, state, address.group, address.number, address.index, lease.secret)

    def ack(self, delivery: LocalDelivery) -> None:
        self._writer.run(WriteRequest(self.ack_in, 0, (delivery,)))
        self.note_acks(1)

    async def ack_async(self, delivery: LocalDelivery) -> None:
        await self._writer.submit(WriteRequest(self.ack_in, 0, (delivery,)))
        self.note_acks(1)

    def ack_in(self, commit: Commit, delivery: LocalDelivery) -> None:
        state = self._cache.state(commit, self._name)
        ack(commit, state, delivery._held_or_stale(commit, state), delivery._answer)

    def note_acks(self, count: int) -> None:
        self._counters.acked.inc(count)
        self._registry.upkeep.note(self._name, count)

    def nack(self, delivery: LocalDelivery, options: NackOptions) -> Outcome:
        outcome = self._writer.run(WriteRequest(self.nack_in, 0, (delivery, options)))
        metrics.nacked.labels(queue=self._name, outcome=outcome).inc()
        return outcome

    def nack_in(self, commit: Commit, delivery: LocalDelivery, options: NackOptions) -> Outcome:
        return nack_in(commit, self._cache.state(commit, self._name), delivery, options)

    def extend(self, deliveries: list[LocalDelivery], lease_ms: int | None, *, patient: bool = False) -> int:
        def apply(commit: Commit) -> int:
            state = self._cache.state(commit, self._name)
            return extend_in(commit, state, deliveries, lease_ms, patient=patient)

        return self._writer.run(WriteRequest(apply, relaxed=True))

    def leave(self, label: str, consumer: str) -> bool:
        """A consumer has ended, and is not listed any more; False when it was not."""

        def apply(commit: Commit) -> bool:
            state = self._cache.find(commit, self._name)
            return state is not None and forget_presence(commit, state, label, consumer)

        return self._writer.run(WriteRequest(apply, relaxed=True))

    def release(self, deliveries: list[LocalDelivery]) -> int:
        """Gives deliveries back; what cannot be given back any more comes back when its lease ends."""

        def apply(commit: Commit) -> int:
            state = self._cache.find(commit, self._name)
            return 0 if state is None else release_in(commit, state, deliveries)

        try:
            return self._writer.run(WriteRequest(apply, relaxed=True))
        except Closed:
            return 0
        except PenstockError as error:
            log.warning(
                "%d messages of queue %r could not be given back; their leases will end: %s",
                len(deliveries),
                self._name,
                error,
            )
            return 0
