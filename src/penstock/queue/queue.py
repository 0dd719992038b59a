"""A queue of a journal in this process: what pushes, takes and settles do, each in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from sys import modules
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from penstock.clock import Seconds, to_ms
from penstock.documents.decoding import nearest
from penstock.errors import Closed, ConfigError, PenstockError
from penstock.events import Draft, Receipt
from penstock.journal.blocks import Columns
from penstock.journal.commit import Commit
from penstock.journal.log import TopicLog
from penstock.journal.prepare import FindCause, PreparedBatch, encode_payload, is_binary, prepare_one
from penstock.journal.writer import WriteRequest
from penstock.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES
from penstock.names import check_kind
from penstock.observe.logs import Log
from penstock.observe.tracing import sending
from penstock.queue import inspect, metrics
from penstock.queue.delivery import LeaseHandle, extend_in, held_or_stale, nack_in, release_in
from penstock.queue.metrics import QueueCounters
from penstock.queue.operations import groups, repair
from penstock.queue.operations.groups import Pause
from penstock.queue.operations.push import push
from penstock.queue.operations.settle import ack, ack_mask, find_held
from penstock.queue.operations.take import Request, name_message
from penstock.queue.options import DeliveryOptions, read_delivery_options
from penstock.queue.policy import QueuePolicy
from penstock.queue.results.reply import NOTHING, StoredResult, answer_of
from penstock.queue.run.waiting import take_waiting, take_waiting_async
from penstock.queue.state.cache import QueueState, forget_presence
from penstock.queue.state.group import HeldMessage
from penstock.queue.token import fits, read_token
from penstock.schema import DECLARED, brings_kind, schema_of_type
from penstock.surface.delivery import Delivery, Outcome, TakeRequest
from penstock.surface.failure import NackOptions
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.queue.registry import QueueRegistry

T = TypeVar("T")

log = Log("penstock.queue")


class LocalQueue:
    """What a `Queue` of a journal in this process stands on."""

    def __init__(self, registry: QueueRegistry, name: str) -> None:
        core = self._core = registry.core
        self.journal = core.journal
        self.name = name
        self._registry = registry
        self._cache = registry.cache
        self._writer = core.writer
        self._log = TopicLog(core, name)
        self._signal = core.hub.signal(name)
        self._counters = QueueCounters(name)
        self.handle = registry.make_handle(self)

    def change(self, apply: Callable[..., T], *args: object) -> T:
        """Does something to the queue's state in a commit of its own."""
        return self._writer.run(WriteRequest(lambda commit: apply(commit, self._cache.state(commit, self.name), *args)))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def policy(self) -> QueuePolicy:
        return self._registry.policy(self.name)

    def length(self) -> int:
        return inspect.length(self)

    def groups(self) -> list[str]:
        return inspect.groups(self)

    def pauses(self) -> list[Pause]:
        with inspect.inspecting(self) as (_, state):
            return groups.pauses(state.record)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(
        self,
        payload: object,
        kind: str,
        key: str | None,
        priority: int | Literal["front"],
        delay: Seconds,
        not_before: datetime | None,
        dedup: str | None,
        max_attempts: int | None,
        headers: Mapping[str, str] | None,
        cause: object,
    ) -> Receipt:
        span = sending(self.name, "push", None, headers) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self.prepare(
                payload, kind, key, priority, delay, not_before, dedup, max_attempts, headers, cause
            )
            receipts = self._writer.run(WriteRequest(self.push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._counters.pushed.inc()
        return receipts[0]

    def submit(self, payload: object, options: Mapping[str, object]) -> Ticket[Receipt]:
        batch, delivery = self.prepare_with(payload, options)
        self._counters.pushed.inc()
        return self._writer.submit(WriteRequest(lambda commit: self.push_in(commit, batch, delivery)[0], batch.size))

    def push_many(self, payloads: list[object], options: Mapping[str, object]) -> list[Receipt]:
        span = sending(self.name, "push", len(payloads)) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self.prepare_many(payloads, options)
            receipts = self._writer.run(WriteRequest(self.push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._counters.pushed.inc(len(receipts))
        return receipts

    def push_in(self, commit: Commit, batch: PreparedBatch, delivery: DeliveryOptions | None) -> list[Receipt]:
        """Pushes inside a commit."""
        return push(commit, self._cache.state(commit, self.name), batch, delivery)

    def prepare_with(
        self, payload: object, options: Mapping[str, object], find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        return self.prepare(payload, **_push_options(options), find_cause=find_cause)

    def prepare(
        self,
        payload: object,
        kind: Any,
        key: str | None,
        priority: int | Literal["front"],
        delay: Seconds,
        not_before: datetime | None,
        dedup: str | None,
        max_attempts: int | None,
        headers: Mapping[str, str] | None,
        cause: object,
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
            delivery = read_delivery_options(self._core.clock, key, priority, delay, not_before, max_attempts)
        if key is None and dedup is None and headers is None and cause is None and not self._core.guards:
            return prepare_one(kind, payload), delivery
        fields = draft_fields(key, dedup, headers, cause)
        return self._log.prepare(kind, payload, fields, find_cause), delivery

    def prepare_many(
        self, payloads: Iterable[object], options: Mapping[str, object], find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        given = _push_options(options)
        if given["dedup"] is not None:
            raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
        kind = given["kind"]
        if options.keys() <= {"kind"} and not self._core.guards:
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
            self._core.clock,
            keyed,
            given["priority"],
            given["delay"],
            given["not_before"],
            given["max_attempts"],
        )
        return self._log.prepare_many(drafts, find_cause), delivery

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        found = take_waiting(self, self.request(wanted), wanted.wait, stopping)
        if found:
            self._counters.delivered.inc(len(found))
        return found

    async def take_async(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        found = await take_waiting_async(self, self.request(wanted), wanted.wait, stopping)
        self._counters.delivered.inc(len(found))
        return found

    def request(self, wanted: TakeRequest) -> Request:
        """What a take asks for, in milliseconds and on behalf of this process."""
        lease_ms = None if wanted.lease is None else round(wanted.lease * 1000)
        owner = self._registry.owner
        request = Request(wanted.limit, wanted.group, wanted.consumer, lease_ms, wanted.newest, owner, wanted.host)
        if wanted.seq is not None or wanted.key is not None:
            name_message(request, wanted)
        if wanted.host is not None and wanted.since is not None:  # of a consumer elsewhere; of this process it is known
            request.since_ms = max(0, to_ms(wanted.since, "since"))
        return request

    def claim(
        self, limit: int, group: str, consumer: str | None, lease: float | None, min_idle: float
    ) -> list[Delivery]:
        lease_ms = None if lease is None else round(lease * 1000)
        request = Request(limit, group, consumer, lease_ms, False, self._registry.owner)
        found = repair.claim(self, request, round(min_idle * 1000)) if limit else []
        self._counters.delivered.inc(len(found))
        return found

    def delivery(self, token: str) -> Delivery:
        return inspect.find_delivery(self, token)

    def leave(self, group: str, consumer: str) -> bool:
        def apply(commit: Commit) -> bool:
            state = self._cache.find(commit, self.name)
            return state is not None and forget_presence(commit, state, group, consumer)

        return self._writer.run(WriteRequest(apply, relaxed=True))

    def nudge(self) -> None:
        self._signal.notify()

    def check_may_wait(self) -> None:
        self._writer.check_idle_here()

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, delivery: Delivery, result: object) -> None:
        answer = NOTHING if result is None else answer_of(result)
        self._writer.run(WriteRequest(self.ack_in, 0, (delivery, answer)))
        self.note_acks(1)

    async def ack_async(self, delivery: Delivery, result: object) -> None:
        await self._writer.submit(WriteRequest(self.ack_in, 0, (delivery, answer_of(result))))
        self.note_acks(1)

    def ack_in(self, commit: Commit, delivery: Delivery, answer: StoredResult = NOTHING) -> None:
        """Settles a delivery inside a commit."""
        state = self._cache.state(commit, self.name)
        ack(commit, state, held_or_stale(commit, state, delivery), answer)

    def ack_many(self, deliveries: list[Delivery | str]) -> int:
        if not deliveries:
            return 0
        together, tokens = self._by_lease(deliveries)
        count = self._writer.run(WriteRequest(self._ack_many_in, 0, (together, tokens)))
        self.note_acks(count)
        return count

    def _by_lease(self, handles: list[Delivery | str]) -> tuple[list[tuple[LeaseHandle, int]], list[str]]:
        """Deliveries as one bit mask per lease, and the tokens among them."""
        masks: dict[LeaseHandle, int] = {}
        tokens: list[str] = []
        for handle in handles:
            if isinstance(handle, str):
                tokens.append(handle)
            else:
                hold = handle._hold
                if TYPE_CHECKING:
                    assert isinstance(hold, LeaseHandle)
                masks[hold] = masks.get(hold, 0) | 1 << handle._index
        return list(masks.items()), tokens

    def _ack_many_in(self, commit: Commit, together: list[tuple[LeaseHandle, int]], tokens: list[str]) -> int:
        state = self._cache.state(commit, self.name)
        count = 0
        for hold, mask in together:
            group = state.group(commit.tx, hold.group)
            lease = group.lease(commit.tx, hold.lease_id)
            if lease is not None and lease.secret == hold.secret:
                count += ack_mask(commit, state, group, hold.lease_id, lease, mask)
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
        lease = state.group(commit.tx, address.group).lease(commit.tx, address.lease_id)
        if lease is None or not fits(state.topic, address, lease.secret):
            return None
        return find_held(commit, state, address.group, address.lease_id, address.index, lease.secret)

    def note_acks(self, count: int) -> None:
        """Counts what was settled, and lets upkeep know."""
        self._counters.acked.inc(count)
        self._registry.upkeep.note(self.name, count)

    def nack(self, delivery: Delivery, options: NackOptions) -> Outcome:
        outcome = self.change(nack_in, delivery, options)
        metrics.nacked.labels(queue=self.name, outcome=outcome).inc()
        return outcome

    def extend(self, deliveries: list[Delivery], lease: float | None, *, patient: bool = False) -> int:
        lease_ms = None if lease is None else round(lease * 1000)

        def apply(commit: Commit) -> int:
            state = self._cache.state(commit, self.name)
            return extend_in(commit, state, deliveries, lease_ms, patient=patient)

        return self._writer.run(WriteRequest(apply, relaxed=True))

    def release(self, deliveries: list[Delivery]) -> None:
        """Gives deliveries back; what cannot be given back any more comes back when its lease ends."""

        def apply(commit: Commit) -> None:
            state = self._cache.find(commit, self.name)
            if state is not None:
                release_in(commit, state, deliveries)

        try:
            self._writer.run(WriteRequest(apply, relaxed=True))
        except Closed:
            return
        except PenstockError as error:
            log.warning(
                "%d messages of queue %r could not be given back; their leases will end: %s",
                len(deliveries),
                self.name,
                error,
            )


# ── what a push appends ──────────────────────────────────────────────────────────────────────────────────────────────
_PUSH_DEFAULTS: dict[str, object] = {
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


def _push_options(given: Mapping[str, object]) -> dict[str, Any]:
    options = {**_PUSH_DEFAULTS, **given}
    if len(options) != len(_PUSH_DEFAULTS):
        unknown = sorted(set(options) - set(_PUSH_DEFAULTS))[0]
        raise ConfigError(f"a push has no option {unknown!r}{nearest(unknown, _PUSH_DEFAULTS)}")
    return options


def plain_batch(kind: str, payloads: list[Any]) -> PreparedBatch:
    """Payloads of one kind with nothing else to them: no drafts on the way."""
    check_kind(kind)
    kinds_of = set(map(type, payloads))
    encoded = _encode_simple(payloads) if kinds_of <= _SIMPLE else None
    if encoded is None:
        encoded = list(map(encode_payload, payloads))
    columns = Columns([kind] * len(encoded), encoded)
    if any(issubclass(one, bytes | bytearray | memoryview) for one in kinds_of):
        columns.binary = list(map(is_binary, payloads))
    size = sum(map(len, encoded))
    if size > MAX_BATCH_BYTES:
        raise ConfigError(f"a batch of {size:,} bytes is too large; at most {MAX_BATCH_BYTES:,} are allowed: split it")
    return PreparedBatch(columns, size)


_SIMPLE = {str, int, bool}
_encode_json = msgspec.json.Encoder().encode


def _encode_simple(payloads: list[Any]) -> list[bytes] | None:
    """Values that need no second look once they are JSON; None when one of them needs the long way and its errors."""
    try:
        encoded = list(map(_encode_json, payloads))
    except Exception:
        return None
    return encoded if not encoded or max(map(len, encoded)) <= MAX_PAYLOAD_BYTES else None


def draft_fields(
    key: str | None, dedup: str | None, headers: Mapping[str, str] | None, cause: object
) -> dict[str, Any]:
    """The part of a push that goes into the event itself."""
    fields: dict[str, Any] = {}
    if key is not None:
        fields["key"] = key
    if dedup is not None:
        fields["dedup"] = dedup
    if headers is not None:
        fields["headers"] = headers
    if cause is not None:
        fields["cause"] = cause.event if isinstance(cause, Delivery) else cause  # it stands for its message
    return fields
