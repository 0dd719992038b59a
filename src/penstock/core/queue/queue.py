"""A queue of a journal in this process: pushes, takes and settlements, each in one commit or in a transaction's commit.

Takes wait for a push, for a due time, for a lease that ends, in this process or another one. No wake-up is lost: the
topic's signal is noted before the try, and waiting returns at once when it has grown since. Time in the store is the
journal's own clock; a wait also ends when that much real time has gone by, so that a clock that stands still (in a
test) cannot hold it without end.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from sys import modules
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.core.clock import SystemClock
from penstock.core.consuming.delivery import Delivery
from penstock.core.events import Draft, Receipt
from penstock.core.journal.blocks import Columns
from penstock.core.journal.commit import Commit
from penstock.core.journal.log import TopicLog
from penstock.core.journal.prepare import FindCause, PreparedBatch, encode_payload, is_binary, prepare_one
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.failure import NackRequest
from penstock.core.model.push import PushOptions
from penstock.core.model.take import Outcome, TakeRequest
from penstock.core.names import check_items, check_kind
from penstock.core.observe.logs import Log
from penstock.core.observe.metrics import Counter
from penstock.core.observe.tracing import received, sending
from penstock.core.queue import inspect, metrics
from penstock.core.queue.operations import groups, notes, repair, settle
from penstock.core.queue.operations.groups import Pause
from penstock.core.queue.operations.push import DeliveryOptions, draft_fields, drafts_of, push, read_delivery_options
from penstock.core.queue.operations.settle import LeaseHandle
from penstock.core.queue.operations.take import Taken, check_take, take, take_timed
from penstock.core.queue.policy import QueuePolicy
from penstock.core.queue.registry import QueueRegistry
from penstock.core.queue.results import NOTHING, StoredResult, answer_of
from penstock.core.queue.state.cache import QueueState
from penstock.core.schema import DECLARED, brings_kind, schema_of_type
from penstock.core.ticket import Ticket
from penstock.errors import Closed, ConfigError, OutcomeUnknown, PenstockError, UnknownQueue
from penstock.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES

T = TypeVar("T")

SETTLED_MESSAGES = 1024
"""The number of settled messages after which upkeep of the topic pays."""

log = Log("penstock.queue")


class LocalQueue:
    """The base of a `Queue` of a journal in this process:"""

    def __init__(self, registry: QueueRegistry, name: str) -> None:
        core = self.core = registry.core
        self.journal = core.journal
        self.name = name
        self.registry = registry
        self.owner = registry.owner
        self.cache = registry.cache
        self._writer = core.writer
        self._log = TopicLog(core, name)
        self._signal = core.hub.signal(name)
        # The cells of counters, which save a call of `inc` for each message.
        self._pushed = metrics.pushed.labels(queue=name).cells
        self._taken = metrics.delivered.labels(queue=name).cells
        self._acked = metrics.acked.labels(queue=name).cells
        self._settled = 0
        """The approximate number of messages that this process has settled since the last upkeep."""
        self.handle = registry.make_handle(self)

    def change(self, apply: Callable[..., T], *args: object, relaxed: bool = False) -> T:
        """Changes the queue's state in a commit of its own, which need not be synced if it is `relaxed`."""

        def run(commit: Commit) -> T:
            return apply(commit, self.cache.state(commit, self.name), *args)

        return self._writer.run(WriteRequest(run, relaxed=relaxed))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def policy(self) -> QueuePolicy:
        return self.registry.policy(self.name)

    def length(self) -> int:
        with inspect.open_view(self) as view:
            return view.length

    def groups(self) -> list[str]:
        with inspect.open_view(self) as view:
            return inspect.group_names(view.state)

    def pauses(self) -> list[Pause]:
        with inspect.open_view(self) as view:
            return groups.pauses(view.state.record)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, payload: object, options: PushOptions) -> Receipt:
        span = sending(self.name, "push", None, options.headers) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self.prepare(payload, options)
            receipts = self._writer.run(WriteRequest(self.push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._pushed[get_ident()] += 1
        return receipts[0]

    def submit(self, payload: object, options: PushOptions) -> Ticket[Receipt]:
        request = self.pushing(payload, options)
        self._pushed[get_ident()] += 1
        return self._writer.submit(request)

    def pushing(self, payload: object, options: PushOptions) -> WriteRequest[Receipt]:
        """Returns the push of one message, for the writer."""
        batch, delivery = self.prepare(payload, options)
        return WriteRequest(lambda commit: self.push_in(commit, batch, delivery)[0], batch.size)

    def pushing_many(self, payloads: list[object], options: PushOptions) -> WriteRequest[list[Receipt]]:
        """Returns the push of several messages, for the writer."""
        batch, delivery = self.prepare_many(payloads, options)
        return WriteRequest(self.push_in, batch.size, (batch, delivery))

    def note_pushes(self, count: int) -> None:
        """Counts pushed messages."""
        self._pushed[get_ident()] += count

    def push_many(self, payloads: list[object], options: PushOptions) -> list[Receipt]:
        span = sending(self.name, "push", len(payloads)) if "opentelemetry.trace" in modules else None
        try:
            receipts = self._writer.run(self.pushing_many(payloads, options))
        finally:
            if span is not None:
                span.end()
        self._pushed[get_ident()] += len(receipts)
        return receipts

    def push_in(self, commit: Commit, batch: PreparedBatch, delivery: DeliveryOptions | None) -> list[Receipt]:
        """Pushes inside a commit."""
        return push(commit, self.cache.state(commit, self.name), batch, delivery)

    def prepare(
        self, payload: object, options: PushOptions, find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        kind: Any = options.kind
        if payload.__class__ in DECLARED and brings_kind(payload, kind):
            kind, payload = payload, None
        delivery = None
        if (
            options.priority
            or options.priority.__class__ is not int
            or options.delay != 0
            or options.not_before is not None
            or options.max_attempts is not None
        ):
            delivery = read_delivery_options(self.core.clock, options, options.key)
        if options.key is options.dedup is None and options.headers is options.cause is None and not self.core.guards:
            return prepare_one(kind, payload), delivery
        return self._log.prepare(kind, payload, draft_fields(options), find_cause), delivery

    def prepare_many(
        self, payloads: Iterable[object], options: PushOptions, find_cause: FindCause | None = None
    ) -> tuple[PreparedBatch, DeliveryOptions | None]:
        items, clock = check_items(payloads, "payloads"), self.core.clock
        plain = options.key is options.dedup is None and options.headers is options.cause is None
        if plain and not (self.core.guards or any(map(_brings_fields, set(map(type, items))))):
            return plain_batch(options.kind, items), read_delivery_options(clock, options, None)
        drafts = drafts_of(items, options)
        keyed = next((draft.key for draft in drafts if draft.key is not None), None)
        return self._log.prepare_many(drafts, find_cause), read_delivery_options(clock, options, keyed)

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        tries = self._take_steps(wanted, stopping, take)
        try:
            while True:
                step = next(tries)
                if isinstance(step, WriteRequest):
                    self._writer.run(step)
                else:
                    with self.core.hub:
                        self._signal.wait(*step)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            tries.close()

    async def take_async(
        self,
        wanted: TakeRequest,
        stopping: threading.Event | None = None,
        patience: float = math.inf,
        *,
        timed: bool = False,
    ) -> list[Delivery]:
        """Does what `take` does for an event loop: the writer's own thread commits each try.

        Raises Backpressure when the writer has no room for `patience` seconds. With `timed`, a lease that lasts as long
        as the taker's process raises ConfigError.
        """
        tries = self._take_steps(wanted, stopping, take_timed if timed else take)
        try:
            while True:
                step = next(tries)
                if isinstance(step, WriteRequest):
                    await self._writer.run_async(step, patience)
                else:
                    with self.core.hub:
                        await self._signal.wait_async(*step)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            tries.close()

    def _take_steps(
        self,
        wanted: TakeRequest,
        stopping: threading.Event | None,
        operation: Callable[[Commit, LocalQueue, TakeRequest], Taken],
    ) -> Generator[WriteRequest[Taken] | tuple[int, float], None, list[Delivery]]:
        """Runs a take as a generator that returns its deliveries.

        Yields each try, for a commit, and each wait: the signal's version to wait past, and the seconds.

        When it is closed after a try, it gives back the messages that the try has found, because the caller is gone.
        """
        if wanted.seq is not None or wanted.key is not None or wanted.since is not None:
            check_take(wanted)
        began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
        wait = None
        while True:
            seen = self._signal.version
            attempt = WriteRequest(operation, 0, (self, wanted), True)
            try:
                yield attempt
            except GeneratorExit:
                self._return_unheard(attempt)
                raise
            taken = attempt.value
            if TYPE_CHECKING:
                assert taken is not None
            if taken.deliveries:
                self._taken[get_ident()] += len(taken.deliveries)
                if began_ns:
                    received(self.name, [delivery.event for delivery in taken.deliveries], began_ns)
                if wait is not None:
                    wait.end(metrics.waits_woken)
                return taken.deliveries
            wait = wait or TakeWait(self, wanted.wait, stopping)
            nap = wait.nap(taken)
            if nap is None:
                return []
            if nap:
                yield seen, nap
                wait.check_open()

    def _return_unheard(self, operation: WriteRequest[Taken]) -> None:
        """Gives back the messages of a take whose caller is gone: a signal came after its commit, the take was
        cancelled, or the commit may still happen.
        """

        def give_back(commit: Commit) -> None:
            state, taken = self.cache.find(commit, self.name), operation.value
            if taken is not None and state is not None:
                settle.release(commit, state, taken.deliveries)

        if operation.error is None or isinstance(operation.error, OutcomeUnknown):
            with suppress(PenstockError):  # the error that ended the caller's wait matters more
                self._writer.submit(WriteRequest(give_back, relaxed=True), nested=True)  # without waiting

    def claim(self, wanted: TakeRequest, min_idle: float) -> list[Delivery]:
        found = repair.claim(self, wanted, round(min_idle * 1000)) if wanted.limit else []
        self._taken[get_ident()] += len(found)
        return found

    def delivery(self, token: str) -> Delivery:
        return inspect.find_delivery(self, token)

    def nudge(self) -> None:
        self._signal.notify()

    def check_may_wait(self) -> None:
        self._writer.check_idle_here()

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, delivery: Delivery, result: object) -> None:
        answer = NOTHING if result is None else answer_of(result)
        self._writer.run(WriteRequest(self.ack_in, 0, (delivery, answer)))
        self.note_acks(1)

    def ack_and_take(self, delivery: Delivery, result: object, wanted: TakeRequest) -> list[Delivery]:
        """Settles a delivery and takes the next available messages, in one commit."""
        began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
        request = WriteRequest(self._ack_and_take_in, 0, (delivery, answer_of(result), wanted))
        try:
            found = self._writer.run(request).deliveries
        except BaseException:
            self._return_unheard(request)
            raise
        self._note_next(found, began_ns)
        return found

    async def ack_and_take_async(
        self, token: str, result: object, wanted: TakeRequest, patience: float
    ) -> list[Delivery]:
        """Acknowledges and takes for a taker in another process, which names its delivery by the token."""
        began_ns = time.time_ns() if "opentelemetry.trace" in modules else 0
        request = WriteRequest(self._ack_token_and_take_in, 0, (token, answer_of(result), wanted))
        try:
            found = (await self._writer.run_async(request, patience)).deliveries
        except BaseException:
            self._return_unheard(request)
            raise
        self._note_next(found, began_ns)
        return found

    def _ack_and_take_in(self, commit: Commit, delivery: Delivery, answer: StoredResult, wanted: TakeRequest) -> Taken:
        self.ack_in(commit, delivery, answer)
        return take(commit, self, wanted)

    def _ack_token_and_take_in(self, commit: Commit, token: str, answer: StoredResult, wanted: TakeRequest) -> Taken:
        self.ack_token_in(commit, token, answer)
        return take_timed(commit, self, wanted)

    def _note_next(self, found: list[Delivery], began_ns: int) -> None:
        self.note_acks(1)
        if found:
            self._taken[get_ident()] += len(found)
            if began_ns:
                received(self.name, [delivery.event for delivery in found], began_ns)

    async def ack_async(self, delivery: Delivery, result: object) -> None:
        await self._writer.run_async(WriteRequest(self.ack_in, 0, (delivery, answer_of(result))))
        self.note_acks(1)

    def ack_in(self, commit: Commit, delivery: Delivery, answer: StoredResult = NOTHING) -> None:
        """Settles a delivery inside a commit."""
        state = self.cache.state(commit, self.name)
        held = settle.held_or_stale(commit, state, delivery)
        settle.ack(commit, held.group, held.lease_id, held.lease, 1 << held.index, answer)

    def ack_many(self, deliveries: list[Delivery | str]) -> int:
        if not deliveries:
            return 0
        together, tokens = self._by_lease(deliveries)
        count = self._writer.run(WriteRequest(self._ack_many_in, 0, (together, tokens)))
        self.note_acks(count)
        return count

    def acking_tokens(self, tokens: list[str]) -> WriteRequest[int]:
        """Returns the request that acknowledges deliveries by their tokens, for the writer."""
        return WriteRequest(self._ack_many_in, 0, ([], tokens))

    def ack_token_in(self, commit: Commit, token: str, answer: StoredResult) -> None:
        """Settles the delivery that a token names inside a commit."""
        state = self.cache.state(commit, self.name)
        held = settle.held_by_token(commit.tx, state, token)
        if held is None:
            raise settle.stale_error(token[:40], self.name)
        settle.ack(commit, held.group, held.lease_id, held.lease, 1 << held.index, answer)

    def _by_lease(self, handles: list[Delivery | str]) -> tuple[list[tuple[LeaseHandle, int]], list[str]]:
        """Returns deliveries as one bit mask per lease, and the tokens among them."""
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
        state = self.cache.state(commit, self.name)
        count = 0
        for hold, mask in together:
            group = state.group(commit.tx, hold.group)
            lease = group.lease(commit.tx, hold.lease_id)
            if lease is not None and lease.secret == hold.secret and (held := mask & lease.held_mask()):
                settle.ack(commit, group, hold.lease_id, lease, held)
                count += held.bit_count()
        for token in tokens:
            found = settle.held_by_token(commit.tx, state, token)
            if found is not None:
                settle.ack(commit, found.group, found.lease_id, found.lease, 1 << found.index)
                count += 1
        return count

    def note_acks(self, count: int) -> None:
        """Counts acknowledged messages."""
        self._acked[get_ident()] += count
        self._settled += count
        if self._settled >= SETTLED_MESSAGES:
            self._request_upkeep()

    def note_settled(self, count: int) -> None:
        """Counts messages that were settled otherwise."""
        self._settled += count
        if self._settled >= SETTLED_MESSAGES:
            self._request_upkeep()

    def _request_upkeep(self) -> None:
        self._settled = 0
        self.core.housekeeper.request(self.name)

    def nack(self, delivery: Delivery, options: NackRequest) -> Outcome:
        outcome = self.change(settle.nack, delivery, options)
        metrics.nacked.labels(queue=self.name, outcome=outcome).inc()
        return outcome

    def extend(self, deliveries: list[Delivery], lease: float | None, *, patient: bool = False) -> int:
        return self.change(partial(settle.extend, patient=patient), deliveries, lease, relaxed=True)

    def steps(self, delivery: Delivery) -> dict[str, bytes]:
        with inspect.open_view(self) as view:
            held = settle.held_by_token(view.snap, view.state, delivery.token)
            if held is None:
                raise settle.stale_error(delivery.token, self.name)
            return notes.read_steps(view.snap, held.group, held.seq)

    def store_step(self, delivery: Delivery, name: str, result: bytes) -> None:
        self.change(
            lambda commit, state: notes.store_step(commit, settle.held_or_stale(commit, state, delivery), name, result)
        )

    def note_progress(self, delivery: Delivery, share: float, text: str | None, step: str | None = None) -> None:
        notes.check_progress(share, text, step)

        def apply(commit: Commit, state: QueueState) -> None:
            notes.note_progress(commit, settle.held_or_stale(commit, state, delivery), share, text, step)

        self.change(apply, relaxed=True)

    def release(self, deliveries: list[Delivery], delay: float = 0.0) -> None:
        """Gives deliveries back; a delivery that cannot be given back any more returns when its lease ends."""
        try:
            self.change(settle.release, deliveries, delay, relaxed=True)
        except (Closed, UnknownQueue):
            return
        except PenstockError as error:
            log.warning(
                "%d messages of queue %r could not be given back; their leases will end: %s",
                len(deliveries),
                self.name,
                error,
            )


# ── what a push appends ──────────────────────────────────────────────────────────────────────────────────────────────
def _brings_fields(given: type) -> bool:
    return issubclass(given, Draft) or schema_of_type(given) is not None


def plain_batch(kind: str, payloads: list[Any]) -> PreparedBatch:
    """Returns the batch of plain payloads of one kind, without drafts on the way."""
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
    """Returns simple values as JSON; None when a value needs the full check and its errors."""
    try:
        encoded = list(map(_encode_json, payloads))
    except Exception:
        return None
    return encoded if not encoded or max(map(len, encoded)) <= MAX_PAYLOAD_BYTES else None


# ── takes that wait ──────────────────────────────────────────────────────────────────────────────────────────────────
LONGEST_NAP = 1.0
"""The seconds after which a waiting take tries again without a due message, because wall clocks can be set."""
SHORT_NAP = 0.05
"""The short nap under a clock of the program's own, which may jump at any time."""
SHORTEST_NAP = 0.001


class TakeWait:
    """The pause of a take that has found nothing, before its next try."""

    __slots__ = ("_core", "_deadline", "_queue", "_real_deadline", "_started", "_stopping", "_wait")

    def __init__(self, queue: LocalQueue, wait: float, stopping: threading.Event | None) -> None:
        self._queue = queue.name
        self._core = queue.core
        self._wait = wait
        self._stopping = stopping
        self._started = 0.0
        self._deadline = self._core.clock.monotonic() + wait
        self._real_deadline = time.monotonic() + wait

    def nap(self, taken: Taken) -> float | None:
        """Returns the most seconds to wait, 0 for no wait; None when the take has ended."""
        if taken.more:
            return 0.0
        if not self._wait or (self._stopping is not None and self._stopping.is_set()):
            return None
        if not self._started:
            self._started = time.perf_counter()
            metrics.waits_started.inc()
        clock = self._core.clock
        left = min(self._deadline - clock.monotonic(), self._real_deadline - time.monotonic())
        if left <= 0:
            self.end(metrics.waits_timed_out)
            return None
        nap = min(left, LONGEST_NAP if isinstance(clock, SystemClock) else SHORT_NAP)
        return min(nap, max((taken.next_ms - clock.now_ms()) / 1000, SHORTEST_NAP)) if taken.next_ms else nap

    def end(self, counter: Counter) -> None:
        """Counts an ended wait."""
        if self._started:
            counter.inc()
            metrics.wait_seconds.observe(time.perf_counter() - self._started)

    def check_open(self) -> None:
        if self._core.closed:
            metrics.waits_cancelled.inc()
            raise Closed(f"the journal was closed while a take from queue {self._queue!r} waited")
