"""What a queue's handle does between a caller and the writer: preparing pushes, settling deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from penstock.clock import Seconds
from penstock.documents.decoding import nearest
from penstock.errors import Closed, ConfigError, PenstockError
from penstock.events import Draft, Receipt
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import FindCause, PreparedBatch, prepare_one
from penstock.journal.commit.writer import WriteRequest
from penstock.observe.logs import Log
from penstock.queue import metrics
from penstock.queue.batches import draft_fields, plain_batch
from penstock.queue.delivery import LeaseHandle, LocalDelivery, extend_in, nack_in, release_in
from penstock.queue.metrics import QueueCounters
from penstock.queue.operations.push import DeliveryOptions, push, read_delivery_options
from penstock.queue.operations.settle import HeldMessage, NackOptions, ack, ack_mask, find_held
from penstock.queue.state.cache import QueueState
from penstock.queue.state.presence import forget_presence
from penstock.queue.token import fits, read_token
from penstock.schema import DECLARED, brings_kind, schema_of_type
from penstock.surface.delivery import Delivery, Outcome

if TYPE_CHECKING:
    from penstock.queue.registry import QueueRegistry

log = Log("penstock.queue")


class QueueCore:
    """The part of a queue that users do not see."""

    def __init__(self, registry: QueueRegistry, name: str, topic: int) -> None:
        self.journal = registry.journal
        self.name = name
        self._registry = registry
        self._cache = registry.cache
        self._number = topic
        self._writer = registry.journal._writer
        self._topic = registry.journal.topic(name)
        self._signal = registry.journal._hub.signal(name)
        self._counters = QueueCounters(name)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _push_in(self, commit: Commit, batch: PreparedBatch, delivery: DeliveryOptions | None) -> list[Receipt]:
        return push(commit, self._cache.state(commit, self.name), batch, delivery)

    def _prepare_with(
        self, payload: Any, options: Mapping[str, Any], find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        return self._prepare(payload, **_push_options(options), find_cause=find_cause)

    def _prepare(
        self,
        payload: Any,
        kind: Any,
        key: str | None,
        priority: int | Literal["front"],
        delay: Seconds,
        not_before: datetime | None,
        dedup: str | None,
        max_attempts: int | None,
        headers: Mapping[str, str] | None,
        cause: Any,
        find_cause: FindCause | None = None,
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        if payload.__class__ in DECLARED and brings_kind(payload, kind):
            kind, payload = payload, None
        delivery = None
        if (
            priority
            or priority.__class__ is not int
            or delay != 0
            or not_before is not None
            or max_attempts is not None
        ):
            delivery = read_delivery_options(self.journal.clock, key, priority, delay, not_before, max_attempts)
        if key is None and dedup is None and headers is None and cause is None and not self.journal._guards:
            return prepare_one(kind, payload), delivery
        fields = draft_fields(key, dedup, headers, cause)
        return self._topic._prepare(kind, payload, fields, find_cause), delivery

    def _prepare_many(
        self, payloads: Iterable[Any], options: Mapping[str, Any], find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        given = _push_options(options)
        if given["dedup"] is not None:
            raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
        kind = given["kind"]
        if options.keys() <= {"kind"} and not self.journal._guards:
            items = list(payloads)
            kinds_of = set(map(type, items))
            if not any(issubclass(one, Draft) or schema_of_type(one) for one in kinds_of):
                return plain_batch(kind, items), None
            payloads = items
        fields = draft_fields(given["key"], None, given["headers"], given["cause"])
        drafts = [
            item
            if isinstance(item, Draft)
            else Draft(item, **fields)
            if brings_kind(item, kind)
            else Draft(kind, item, **fields)
            for item in payloads
        ]
        keyed = next((draft.key for draft in drafts if draft.key is not None), None)
        delivery = read_delivery_options(
            self.journal.clock,
            keyed,
            given["priority"],
            given["delay"],
            given["not_before"],
            given["max_attempts"],
        )
        return self._topic._prepare_many(drafts, find_cause), delivery

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _by_hold(self, handles: list[Delivery | str]) -> tuple[list[tuple[LeaseHandle, int]], list[str]]:
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
            if hold.queue is not self:
                raise ConfigError(f"a delivery of queue {hold.queue.name!r} was given to queue {self.name!r}")
        return list(masks.items()), tokens

    def _ack_many_in(self, commit: Commit, together: list[tuple[LeaseHandle, int]], tokens: list[str]) -> int:
        state = self._cache.state(commit, self.name)
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

    def _ack(self, delivery: LocalDelivery) -> None:
        self._writer.run(WriteRequest(self._ack_in, 0, (delivery,)))
        self._note_acks(1)

    async def _ack_async(self, delivery: LocalDelivery) -> None:
        await self._writer.submit(WriteRequest(self._ack_in, 0, (delivery,)))
        self._note_acks(1)

    def _ack_in(self, commit: Commit, delivery: LocalDelivery) -> None:
        state = self._cache.state(commit, self.name)
        ack(commit, state, delivery._held_or_stale(commit, state), delivery._answer)

    def _note_acks(self, count: int) -> None:
        self._counters.acked.inc(count)
        self._registry.upkeep.note(self.name, count)

    def _nack(self, delivery: LocalDelivery, options: NackOptions) -> Outcome:
        outcome = self._writer.run(WriteRequest(self._nack_in, 0, (delivery, options)))
        metrics.nacked.labels(queue=self.name, outcome=outcome).inc()
        return outcome

    def _nack_in(self, commit: Commit, delivery: LocalDelivery, options: NackOptions) -> Outcome:
        return nack_in(commit, self._cache.state(commit, self.name), delivery, options)

    def _extend(self, deliveries: list[LocalDelivery], lease_ms: int | None, *, patient: bool = False) -> int:
        def apply(commit: Commit) -> int:
            state = self._cache.state(commit, self.name)
            return extend_in(commit, state, deliveries, lease_ms, patient=patient)

        return self._writer.run(WriteRequest(apply, relaxed=True))

    def _leave(self, label: str, consumer: str) -> bool:
        """A consumer has ended, and is not listed any more; False when it was not."""

        def apply(commit: Commit) -> bool:
            state = self._cache.find(commit, self.name)
            return state is not None and forget_presence(commit, state, label, consumer)

        return self._writer.run(WriteRequest(apply, relaxed=True))

    def _release(self, deliveries: list[LocalDelivery]) -> int:
        """Gives deliveries back; what cannot be given back any more comes back when its lease ends."""

        def apply(commit: Commit) -> int:
            state = self._cache.find(commit, self.name)
            return 0 if state is None else release_in(commit, state, deliveries)

        try:
            return self._writer.run(WriteRequest(apply, relaxed=True))
        except Closed:
            return 0
        except PenstockError as error:
            log.warning(
                "%d messages of queue %r could not be given back; their leases will end: %s",
                len(deliveries),
                self.name,
                error,
            )
            return 0


_PUSH_DEFAULTS: dict[str, Any] = {
    "kind": "message",
    "key": None,
    "priority": 0,
    "delay": 0,
    "not_before": None,
    "dedup": None,
    "max_attempts": None,
    "headers": None,
    "cause": None,
}


def _push_options(given: Mapping[str, Any]) -> dict[str, Any]:
    options = {**_PUSH_DEFAULTS, **given}
    if len(options) != len(_PUSH_DEFAULTS):
        unknown = sorted(set(options) - set(_PUSH_DEFAULTS))[0]
        raise ConfigError(f"a push has no option {unknown!r}{nearest(unknown, _PUSH_DEFAULTS)}")
    return options
