"""A queue of a journal in this process: what pushes, takes and settles do, each in one commit, or in a transaction's.

Takes wait for a push, for a due time, for a lease that ends, in this process or another one. No wake-up is lost: the
topic's signal is noted before the try, and waiting returns at once when it has grown since. Time in the store is the
journal's own clock; a wait also ends when that much real time has gone by, so that a clock that stands still (in a
test) cannot hold it for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from sys import modules
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from penstock.clock import Seconds, SystemClock, to_ms
from penstock.documents.decoding import nearest
from penstock.errors import Closed, ConfigError, OutcomeUnknown, PenstockError
from penstock.events import Draft, Receipt
from penstock.journal.blocks import Columns
from penstock.journal.commit import Commit
from penstock.journal.log import TopicLog
from penstock.journal.prepare import FindCause, PreparedBatch, encode_payload, is_binary, prepare_one
from penstock.journal.transaction import HeldWriter
from penstock.journal.writer import WriteRequest
from penstock.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES
from penstock.names import check_kind, check_name
from penstock.observe.logs import Log
from penstock.observe.tracing import received, sending
from penstock.queue import inspect, metrics
from penstock.queue.metrics import QueueCounters
from penstock.queue.operations import groups, repair
from penstock.queue.operations.groups import Pause, group_for
from penstock.queue.operations.push import DeliveryOptions, push, read_delivery_options
from penstock.queue.operations.repair import Redriven, Where, move_in, purge_in, redrive_in
from penstock.queue.operations.settle import (
    LeaseHandle,
    ack,
    ack_mask,
    extend_in,
    find_held,
    held_or_stale,
    nack_in,
    release_in,
)
from penstock.queue.operations.take import Request, Taken, name_message, take
from penstock.queue.policy import QueuePolicy
from penstock.queue.registry import QueueRegistry
from penstock.queue.results import NOTHING, StoredResult, answer_of
from penstock.queue.state.cache import QueueState, forget_presence, unknown_queue
from penstock.queue.state.group import HeldMessage
from penstock.queue.state.records import fits, read_token
from penstock.schema import DECLARED, brings_kind, schema_of_type
from penstock.surface.delivery import Delivery, Outcome, TakeRequest
from penstock.surface.failure import NackOptions
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.journal.commit import Commit
    from penstock.queue.registry import QueueRegistry
    from penstock.surface.delivery import Delivery, TakeRequest
    from penstock.surface.failure import NackOptions

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


# ── takes that wait ──────────────────────────────────────────────────────────────────────────────────────────────────
LONGEST_NAP = 1.0
"""Seconds after which a waiting take looks again even if nothing was due: wall clocks can be set."""
SHORT_NAP = 0.05
"""The same under a clock of one's own, which may jump at any time."""
SHORTEST_NAP = 0.001


def take_in(commit: Commit, queue: LocalQueue, request: Request) -> Taken:
    """One try, and a lease if it finds something."""
    state = queue._cache.state(commit, queue.name)
    hold = LeaseHandle(queue, request.label, request.consumer)
    return take(commit, state, group_for(commit, state, request.label), request, hold)


class WaitBudget:
    """How long a take has waited, and how long it may sleep before its next try."""

    __slots__ = ("_clock", "_deadline", "_real_deadline", "_started", "exact")

    def __init__(self, queue: LocalQueue, wait: float) -> None:
        self._clock = queue._core.clock
        self.exact = isinstance(self._clock, SystemClock)
        self._started = time.perf_counter()
        self._deadline = self._clock.monotonic() + wait
        self._real_deadline = time.monotonic() + wait

    def nap(self, next_ms: int) -> float:
        """Seconds to sleep at the most; 0 when the time is up."""
        left = min(self._deadline - self._clock.monotonic(), self._real_deadline - time.monotonic())
        if left <= 0:
            return 0.0
        nap = min(left, LONGEST_NAP if self.exact else SHORT_NAP)
        if next_ms:
            nap = min(nap, max((next_ms - self._clock.now_ms()) / 1000, SHORTEST_NAP))
        return nap

    def waited(self) -> float:
        return time.perf_counter() - self._started


def take_waiting(
    queue: LocalQueue, request: Request, wait: float, stopping: threading.Event | None = None
) -> list[Delivery]:
    """Tries until there is something, or the time is up, or the journal is closed."""
    signal = queue._signal
    budget: WaitBudget | None = None
    began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
    while True:
        seen = signal.version
        operation = WriteRequest(take_in, 0, (queue, request), True)
        try:
            taken = queue._writer.run(operation)
        except BaseException:
            # A signal's, after the commit; or the commit may turn up later: its caller never hears what that took.
            if operation.error is None or isinstance(operation.error, OutcomeUnknown):
                _return_unheard(queue, operation)
            raise
        if taken.deliveries:
            if began_ns:
                received(queue.name, [delivery.event for delivery in taken.deliveries], began_ns)
            return taken.deliveries if budget is None else _woken(taken, budget)
        if taken.more:
            continue
        if not wait or (stopping is not None and stopping.is_set()):
            return []
        if budget is None:
            budget = WaitBudget(queue, wait)
            metrics.waits_started.inc()
        nap = budget.nap(taken.next_ms)
        if not nap:
            return _timed_out(budget)
        with queue._core.hub:
            signal.wait(seen, nap)
        _check_open(queue)


async def take_waiting_async(
    queue: LocalQueue, request: Request, wait: float, stopping: threading.Event | None = None
) -> list[Delivery]:
    """`take_waiting` for an event loop: the tries are committed by the writer's own thread."""
    signal = queue._signal
    budget: WaitBudget | None = None
    began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
    while True:
        seen = signal.version
        taken = await _take_once(queue, request)
        if taken.deliveries:
            if began_ns:
                received(queue.name, [delivery.event for delivery in taken.deliveries], began_ns)
            return taken.deliveries if budget is None else _woken(taken, budget)
        if taken.more:
            continue
        if not wait or (stopping is not None and stopping.is_set()):
            return []
        if budget is None:
            budget = WaitBudget(queue, wait)
            metrics.waits_started.inc()
        nap = budget.nap(taken.next_ms)
        if not nap:
            return _timed_out(budget)
        with queue._core.hub:
            await signal.wait_async(seen, nap)
        _check_open(queue)


async def _take_once(queue: LocalQueue, request: Request) -> Taken:
    import asyncio

    request_of_take = WriteRequest(take_in, 0, (queue, request), True)
    try:
        return await queue._writer.submit(request_of_take)
    except (asyncio.CancelledError, OutcomeUnknown):
        # The take may go on without us: what it finds is given back by the operation that comes after it.
        _return_unheard(queue, request_of_take)
        raise


def _return_unheard(queue: LocalQueue, operation: WriteRequest[Taken]) -> None:
    with suppress(PenstockError):  # what ended the caller's wait matters more
        queue._writer.submit(WriteRequest(lambda commit: _give_back(commit, queue, operation.value), relaxed=True))


def _give_back(commit: Commit, queue: LocalQueue, taken: Taken | None) -> None:
    state = queue._cache.find(commit, queue.name)
    if taken is not None and state is not None:
        release_in(commit, state, taken.deliveries)


def _check_open(queue: LocalQueue) -> None:
    if queue._core.closed:
        metrics.waits_cancelled.inc()
        raise Closed(f"the journal was closed while a take from queue {queue.name!r} waited")


def _woken(taken: Taken, budget: WaitBudget) -> list[Delivery]:
    metrics.waits_woken.inc()
    metrics.wait_seconds.observe(budget.waited())
    return taken.deliveries


def _timed_out(budget: WaitBudget) -> list[Delivery]:
    metrics.waits_timed_out.inc()
    metrics.wait_seconds.observe(budget.waited())
    return []


# ── in a transaction ─────────────────────────────────────────────────────────────────────────────────────────────────
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
