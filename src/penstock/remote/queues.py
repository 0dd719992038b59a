"""A queue at the other end of a url: the backend of its handle."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.clock import SystemClock, seconds, to_ms
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.handover import Handover
from penstock.core.events import Draft, Receipt
from penstock.core.journal.owners import this_host
from penstock.core.journal.prepare import encode_payload, is_binary
from penstock.core.model.failure import NackRequest
from penstock.core.model.push import PushOptions
from penstock.core.model.take import Outcome, TakeRequest
from penstock.core.observe.logs import Log
from penstock.core.observe.tracing import trace_headers, with_trace
from penstock.core.protocol import queues as wire
from penstock.core.protocol.fields import policy_of
from penstock.core.protocol.operation import Operation
from penstock.core.queue.operations.groups import Pause
from penstock.core.queue.operations.notes import check_progress
from penstock.core.queue.operations.push import drafts_of, one_draft, read_delivery_options
from penstock.core.queue.policy import QueuePolicy
from penstock.core.surface.queue import Queue
from penstock.core.ticket import Ticket
from penstock.errors import Closed, ConfigError, OutcomeUnknown, PenstockError, StorageError
from penstock.remote.events import draft_documents, event_of, receipt_of

if TYPE_CHECKING:
    from penstock.core.surface.journal import Journal
    from penstock.remote.backend import RemoteBackend

A = TypeVar("A")

WAIT = 30.0
"""The number of seconds that one request waits for a message. A longer wait takes several requests."""
WORKER_WAIT = 2.0
"""The number of seconds of a worker's long poll. A stopped worker continues to wait for at most this time."""
WORKER_PAUSE = 1.0
"""The number of seconds after which a worker asks again when the server does not answer."""

log = Log("penstock.queue")


class ServedLease(msgspec.Struct, eq=False):
    """A delivery's lease, as the server reports it."""

    queue: RemoteQueue
    label: str
    consumer: str | None
    deadline: int
    name: str

    def token(self, index: int) -> str:
        """Returns the delivery's token."""
        return self.name


class RemoteQueue:
    """The backend of a `Queue` of a served journal."""

    def __init__(self, journal: Journal, backend: RemoteBackend, name: str) -> None:
        self._backend = backend
        self.name = name
        self.handle = Queue(journal, self)

    def _call(
        self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None, wait: float = 0.0
    ) -> A:
        return self._backend.call(operation, self.name, *names, request=request, wait=wait)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _document(self) -> wire.QueueDocument:
        return self._call(wire.READ_QUEUE)

    def policy(self) -> QueuePolicy:
        return policy_of(self._document().policy)

    def length(self) -> int:
        return self._document().length

    def groups(self) -> list[str]:
        return self._document().groups

    def pauses(self) -> list[Pause]:
        return self._document().pauses

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, payload: object, options: PushOptions) -> Receipt:
        return self._push(push_request(self.name, [one_draft(payload, options)], options))[0]

    def submit(self, payload: object, options: PushOptions) -> Ticket[Receipt]:
        self._backend.check_writable()
        # The headers are made here, because the caller's trace context does not follow into another thread.
        request = push_request(self.name, [one_draft(payload, options)], options)
        return self._backend.submit(lambda: self._push(request)[0])

    def push_many(self, payloads: list[object], options: PushOptions) -> list[Receipt]:
        return self._push(push_request(self.name, drafts_of(payloads, options), options))

    def _push(self, request: wire.PushRequest | None) -> list[Receipt]:
        if request is None:
            return []
        return [receipt_of(document) for document in self._call(wire.PUSH_MESSAGES, request=request)]

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(
        self,
        wanted: TakeRequest,
        stopping: threading.Event | None = None,
        taker: Handover[list[Delivery]] | None = None,
    ) -> list[Delivery]:
        left, longest = wanted.wait, WAIT if stopping is None else WORKER_WAIT
        request = replace(wanted, host=None if wanted.consumer is None else this_host())
        while True:
            request.wait = min(left, longest)
            try:
                found = self._call(wire.TAKE_MESSAGES, request=request, wait=request.wait)
            except StorageError as error:
                # If the answer to a take is lost, its messages come again when their leases end.
                if stopping is None or not (error.retryable or isinstance(error, OutcomeUnknown)):
                    raise
                log.warning("queue %r: %s", self.name, error)  # a worker continues when the server is available again
                stopping.wait(WORKER_PAUSE)
                found = []
            left -= request.wait
            gone = taker is not None and taker.gone
            if found or left <= 0 or gone or (stopping is not None and stopping.is_set()):
                return [self._taken(one) for one in found]

    async def take_async(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """Takes messages. When the call is cancelled, the request continues, and its messages are given back."""
        taker = Handover(self.release)
        return await taker.run(lambda: self.take(wanted, stopping, taker))

    def claim(self, wanted: TakeRequest, min_idle: float) -> list[Delivery]:
        request = wire.ClaimRequest(min_idle, wanted.group, wanted.consumer, wanted.limit, wanted.lease)
        return [self._taken(one) for one in self._call(wire.CLAIM_DELIVERIES, request=request)]

    def delivery(self, token: str) -> Delivery:
        return self._taken(self._call(wire.READ_DELIVERY, token))

    def _taken(self, found: wire.DeliveryDocument) -> Delivery:
        deadline = to_ms(found.deadline, "deadline")
        hold = ServedLease(self, found.group, found.consumer, deadline, found.token)
        return Delivery(hold, 0, event_of(found.event), found.attempt)

    def nudge(self) -> None:
        """Does nothing: a worker's take ends soon by itself."""

    def check_may_wait(self) -> None:
        """Does nothing: a waiting thread does not hold a writer here."""

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, delivery: Delivery, result: object) -> None:
        if is_binary(result):
            raise ConfigError("a reply over HTTP is JSON: bytes have no place in it")
        request = wire.AckResult(msgspec.Raw(encode_payload(result)))
        self._call(wire.ACK_DELIVERY, delivery.token, request=request)

    def ack_and_take(self, delivery: Delivery, result: object, wanted: TakeRequest) -> list[Delivery]:
        if is_binary(result):
            raise ConfigError("a reply over HTTP is JSON: bytes have no place in it")
        host = None if wanted.consumer is None else this_host()
        request = wire.NextRequest(**{**asdict(wanted), "host": host}, result=msgspec.Raw(encode_payload(result)))
        return [self._taken(one) for one in self._call(wire.ACK_AND_TAKE, delivery.token, request=request)]

    async def ack_async(self, delivery: Delivery, result: object) -> None:
        import asyncio

        await asyncio.to_thread(self.ack, delivery, result)

    def ack_many(self, deliveries: list[Delivery | str]) -> int:
        tokens = [one if isinstance(one, str) else one.token for one in deliveries]
        return self._call(wire.ACK_DELIVERIES, request=wire.AckRequest(tokens)) if tokens else 0

    def nack(self, delivery: Delivery, options: NackRequest) -> Outcome:
        return self._call(wire.NACK_DELIVERY, delivery.token, request=options).outcome or "requeued"

    def extend(self, deliveries: list[Delivery], lease: float | None, *, patient: bool = False) -> int:
        deadline = 0
        for delivery in deliveries:
            try:
                found = self._call(wire.EXTEND_DELIVERY, delivery.token, request=wire.ExtendRequest(lease))
                deadline = to_ms(found, "deadline")
            except PenstockError as error:
                if not patient:
                    raise
                log.warning("the lease of %r was not renewed: %s", delivery, error)
        return deadline

    def steps(self, delivery: Delivery) -> dict[str, bytes]:
        found = self._call(wire.LIST_STEPS, delivery.token)
        return {name: msgspec.json.encode(result) for name, result in found.items()}

    def store_step(self, delivery: Delivery, name: str, result: bytes) -> None:
        self._call(wire.STORE_STEP, delivery.token, request=wire.StepRequest(name, msgspec.Raw(result)))

    def note_progress(self, delivery: Delivery, share: float, text: str | None, step: str | None = None) -> None:
        check_progress(share, text, step)
        self._call(wire.NOTE_PROGRESS, delivery.token, request=wire.ProgressRequest(share, text, step))

    def release(self, deliveries: list[Delivery], delay: float = 0.0) -> None:
        for delivery in deliveries:
            try:
                self._call(wire.RELEASE_DELIVERY, delivery.token, request=wire.ReleaseRequest(delay))
            except Closed:
                pass
            except PenstockError as error:  # the error that interrupted its holder is more important
                log.warning("%r could not be given back; its lease will end: %s", delivery, error)


def push_request(queue: str, drafts: list[Draft], options: PushOptions) -> wire.PushRequest | None:
    """Returns the request that pushes some drafts; None when there are no drafts."""
    keyed = next((draft.key for draft in drafts if draft.key is not None), options.key)
    read_delivery_options(SystemClock(), options, keyed)
    if not drafts:
        return None
    trace, delay = trace_headers(), options.delay
    if trace is not None:
        drafts = [replace(draft, headers=with_trace(draft.headers, trace)) for draft in drafts]
    return wire.PushRequest(
        messages=draft_documents(drafts, queue),
        priority=options.priority,
        delay=seconds(delay, "delay"),
        not_before=options.not_before,
        max_attempts=options.max_attempts,
    )
