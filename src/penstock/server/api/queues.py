"""What is special about queues over HTTP: long polls, deliveries by their tokens, answers that must fit.

Every other operation on a queue runs its implementation as it is (`penstock.local.queues`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from msgspec.structs import asdict, replace
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.clock import seconds
from penstock.documents.events import ReceiptDocument, decode_binary, event_document, receipt_document
from penstock.errors import ConfigError, StaleDelivery
from penstock.events import Draft, Event
from penstock.names import check_text
from penstock.protocol import queues as wire
from penstock.protocol.fields import PolicyFields, policy_changes
from penstock.protocol.operation import PAGE_BYTES, page_of
from penstock.protocol.topics import EventList
from penstock.queue.queue import LocalQueue
from penstock.server.access import address_of
from penstock.server.api.binding import Call, answered, asked
from penstock.server.limits import FIRST_TAKEN, LONGEST_WAIT, MOST_TAKEN
from penstock.server.service import Refused, Service
from penstock.surface.delivery import Delivery, TakeRequest
from penstock.surface.failure import NackRequest, check_nack
from penstock.surface.handover import finish
from penstock.surface.queue import Queue, check_taking


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def queue_of(request: Request, service: Service) -> Queue:
    """The queue a request names, which must be there: a mistyped name must not make one."""
    return service.journal.queue(request.path_params["queue"], create=False)


def called(call: Call[object, object]) -> Queue:
    """The queue a call names."""
    return queue_of(call.request, call.service)


def open_queue(call: Call[None, PolicyFields]) -> wire.QueueDocument:
    """Makes a queue. What has a history as a topic is made one by an admin only, also as a dead-letter queue."""
    service, policy = call.service, policy_changes(call.body)
    known = service.journal.queues()
    for one in (call.name("queue"), policy.get("dead_letter")):
        if isinstance(one, str) and one not in known and len(service.journal.topic(one)):
            service.access.require(call.request, "admin", f"{one!r} is a topic with a history: making it a queue")
    return asked(call, wire.OPEN_QUEUE)


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def push_messages(call: Call[None, wire.PushRequest]) -> Response:
    message = call.body
    trace = call.request.headers.get("traceparent")
    if trace is not None:
        message.headers = {"traceparent": trace, **(message.headers or {})}
    receipts = _push(called(call), message)
    if message.payloads is None and message.messages is None:
        return answered(call.service, receipts[0], 200 if receipts[0].duplicate else 201, changed=True)
    return answered(call.service, wire.PUSH_MESSAGES.enveloped(receipts), 201, changed=True)


def _push(queue: Queue, message: wire.PushRequest) -> list[ReceiptDocument]:
    shared = asdict(message)
    payload, payloads, messages, binary = (shared.pop(name) for name in ("payload", "payloads", "messages", "binary"))
    if payloads is None and messages is None:
        return [receipt_document(queue.push(decode_binary(payload) if binary else payload, **shared))]
    if payload is not None or (payloads is not None and messages is not None):
        raise ConfigError("give one of payload, payloads and messages")
    items: list[object]
    if messages is not None:
        items = [_with_headers(document.draft(), message.headers) for document in messages]
    else:
        items = [decode_binary(one) if binary else one for one in payloads]
    return [receipt_document(receipt) for receipt in queue.push_many(items, **shared)]


def _with_headers(draft: Draft, headers: dict[str, str] | None) -> Draft:
    if headers:
        draft.headers = {**headers, **(draft.headers or {})}
    return draft


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def peek_messages(call: Call[wire.PeekQuery, None]) -> EventList[Event]:
    """What would be taken next, as much as fits into an answer."""
    return EventList(page_of(asked(call, wire.PEEK_MESSAGES).events, None, lambda event: len(event.raw))[0])


def delivery_document(delivery: Delivery) -> wire.DeliveryDocument:
    """A delivery as JSON says it."""
    return wire.DeliveryDocument(
        delivery.token,
        delivery.attempt,
        delivery.deadline,
        delivery.group,
        delivery.consumer,
        event_document(delivery.event),
    )


def _check(queue: Queue, limit: int, lease: float | None) -> None:
    if not 0 <= limit <= MOST_TAKEN:
        raise ConfigError(f"limit is a number from 0 to {MOST_TAKEN}, not {limit}")
    _check_lease(queue, lease)


def _check_lease(queue: Queue, lease: float | None) -> None:
    """Over HTTP there is no process whose end would end a lease of 0."""
    if lease == 0 or (lease is None and queue.policy.lease == 0):
        raise ConfigError("a lease of 0 lasts as long as the taker's process, which a server cannot see: give seconds")


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
async def take_messages(call: Call[None, TakeRequest]) -> list[wire.DeliveryDocument]:
    """Messages under a lease; waits for the first up to `wait` seconds. A client that goes away meanwhile gets none."""
    service, wanted = call.service, call.body
    queue = await run_in_threadpool(called, call)
    wait = min(seconds(wanted.wait, "wait"), LONGEST_WAIT)
    _check(queue, wanted.limit, wanted.lease)
    check_taking(wanted.limit, wanted.group, wanted.consumer, "take")
    if wanted.limit == 0:
        return []
    if wait and service.waiting >= service.limits.max_waiting:
        raise Refused(503, "TooManyWaiting", "too many requests wait for messages", {"Retry-After": "1"})
    service.waiting += 1
    try:
        taken = await _take_while_there(call.request, service, service.journal._backend.queue(queue.name), wanted, wait)
    finally:
        service.waiting -= 1
    return [delivery_document(delivery) for delivery in taken]


async def _take_while_there(
    request: Request, service: Service, queue: LocalQueue, wanted: TakeRequest, wait: float
) -> list[Delivery]:
    """Takes; when the client goes away or the server stops before the answer, what was taken is given back."""
    stopping = threading.Event()
    if wanted.host is None:
        wanted.host = address_of(request) or None
    taking = asyncio.ensure_future(_take_bounded(queue, wanted, wait, stopping))
    if not wait:
        return await taking
    gone = asyncio.ensure_future(_gone(request))
    closing = asyncio.ensure_future(service.closing.wait())
    try:
        await asyncio.wait((taking, gone, closing), return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            stopping.set()
            queue.nudge()
        taken = await taking
    finally:
        gone.cancel()
        closing.cancel()
    if gone.done() and not gone.cancelled() and taken:
        await run_in_threadpool(queue.release, taken)
        return []
    return taken


async def _take_bounded(
    queue: LocalQueue, wanted: TakeRequest, wait: float, stopping: threading.Event
) -> list[Delivery]:
    """Up to `limit` messages, but no more bytes than a page has: what is left is for the next take.

    How large messages are is known once some are taken; then the rest is asked for in one go.
    """
    taken: list[Delivery] = []
    size = 0
    step = min(wanted.limit, FIRST_TAKEN)
    host = "" if wanted.host is None else check_text(wanted.host, "host")
    lease = None if wanted.lease is None else seconds(wanted.lease, "lease")
    while step:
        some = replace(wanted, limit=step, wait=0.0 if taken else wait, lease=lease, host=host)
        try:
            found = await queue.take_async(some, stopping)
        except BaseException:
            if taken:  # the answer is the error, so the client would not learn of these
                await finish(partial(queue.release, taken))
            raise
        taken += found
        size += sum(len(delivery.event.raw) for delivery in found)
        step = _next_step(step, found, taken, size, wanted.limit)
    return taken


def _next_step(step: int, found: Sequence[Delivery], taken: list[Delivery], size: int, limit: int) -> int:
    """How many more messages to ask for, when `step` were asked for and `found`; 0: that is all."""
    if len(found) < step or size >= PAGE_BYTES:
        return 0
    fitting = (PAGE_BYTES - size) * len(taken) // max(1, size)
    return min(limit - len(taken), fitting)


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


def claim_deliveries(call: Call[None, wire.ClaimRequest]) -> list[wire.DeliveryDocument]:
    queue, wanted = called(call), call.body
    _check(queue, wanted.limit, wanted.lease)
    taken: list[Delivery] = []
    size = 0
    step = wanted.limit if wanted.min_idle == 0 else min(wanted.limit, FIRST_TAKEN)
    while step:
        try:
            found = queue.claim(
                min_idle=wanted.min_idle, group=wanted.group, consumer=wanted.consumer, limit=step, lease=wanted.lease
            )
        except BaseException:
            for delivery in taken:
                delivery.release()
            raise
        taken += found
        size += sum(len(delivery.event.raw) for delivery in found)
        # With min_idle=0 what was just claimed could be claimed again.
        step = 0 if wanted.min_idle == 0 else _next_step(step, found, taken, size, wanted.limit)
    return [delivery_document(delivery) for delivery in taken]


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def ack_deliveries(call: Call[None, wire.AckRequest]) -> int:
    return called(call).ack_many(list(call.body.tokens))


def _delivery(call: Call[object, object]) -> Delivery:
    return called(call).delivery(call.name("token"))


def read_delivery(call: Call[None, None]) -> wire.DeliveryDocument:
    return delivery_document(_delivery(call))


def ack_delivery(call: Call[None, wire.AckResult]) -> wire.Settled:
    _delivery(call).ack(result=call.body.result)
    return wire.Settled("ack")


def nack_delivery(call: Call[None, NackRequest]) -> wire.Settled:
    delivery = _delivery(call)
    delivery._nack(check_nack(**asdict(call.body)))
    return wire.Settled("nack", delivery._outcome)


def extend_delivery(call: Call[None, wire.ExtendRequest]) -> datetime:
    _check_lease(called(call), call.body.lease)
    delivery = _delivery(call)
    delivery.extend(call.body.lease)
    return delivery.deadline


def release_delivery(call: Call[None, None]) -> wire.Settled:
    """Gives it back without counting the attempt; whatever became of it meanwhile, this never fails."""
    try:
        _delivery(call).release()
    except StaleDelivery:
        return wire.Settled("nothing")
    return wire.Settled("release")
