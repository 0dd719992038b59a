"""Deliveries over HTTP: taken with a long poll, settled by their tokens, claimed from consumers that are gone."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from penstock.clock import seconds, to_ms
from penstock.documents.events import event_document
from penstock.errors import ConfigError, StaleDelivery
from penstock.names import check_consumer, check_text
from penstock.protocol import deliveries as operations
from penstock.protocol.deliveries import (
    Acknowledged,
    AckRequest,
    AckResult,
    ClaimRequest,
    ConsumerList,
    DeliveryDocument,
    DeliveryList,
    Extended,
    ExtendRequest,
    LeaveRequest,
    NackRequest,
    PendingList,
    PendingQuery,
    Settled,
    TakeRequest,
    WasListed,
)
from penstock.queue.run.waiting import take_waiting_async
from penstock.server.access import address_of
from penstock.server.api.binding import Call, serves
from penstock.server.api.parameters import page_size
from penstock.server.api.queues import called
from penstock.server.limits import FIRST_TAKEN, LONGEST_WAIT, MOST_TAKEN, PAGE_BYTES
from penstock.server.problems import Refused
from penstock.server.service import Service
from penstock.surface.failure import check_nack, failure_text

if TYPE_CHECKING:
    from penstock.queue.delivery import LocalDelivery
    from penstock.queue.queue import LocalQueue


def delivery_document(delivery: LocalDelivery) -> DeliveryDocument:
    """A delivery as JSON says it."""
    return DeliveryDocument(
        delivery.token,
        delivery.attempt,
        delivery.deadline,
        delivery.group,
        delivery.consumer,
        event_document(delivery.event),
    )


def _check(queue: LocalQueue, limit: int, lease: float | None) -> None:
    if not 0 <= limit <= MOST_TAKEN:
        raise ConfigError(f"limit is a number from 0 to {MOST_TAKEN}, not {limit}")
    _check_lease(queue, lease)


def _check_lease(queue: LocalQueue, lease: float | None) -> None:
    """Over HTTP there is no process whose end would end a lease of 0."""
    if lease == 0 or (lease is None and queue.policy.lease == 0):
        raise ConfigError("a lease of 0 lasts as long as the taker's process, which a server cannot see: give seconds")


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.TAKE_MESSAGES)
async def take_messages(call: Call[None, TakeRequest]) -> DeliveryList:
    """Messages under a lease; waits for the first up to `wait` seconds. A client that goes away meanwhile gets none."""
    service, wanted = call.service, call.body
    queue = await run_in_threadpool(called, call)
    wait = min(seconds(wanted.wait, "wait"), LONGEST_WAIT)
    _check(queue, wanted.limit, wanted.lease)
    if wanted.limit == 0:
        return DeliveryList([])
    if wait and service.waiting >= service.limits.max_waiting:
        raise Refused(503, "TooManyWaiting", "too many requests wait for messages", {"Retry-After": "1"})
    service.waiting += 1
    try:
        taken = await _take_while_there(call.request, service, queue, wanted, wait)
    finally:
        service.waiting -= 1
    return DeliveryList([delivery_document(delivery) for delivery in taken])


async def _take_while_there(
    request: Request, service: Service, queue: LocalQueue, wanted: TakeRequest, wait: float
) -> list[LocalDelivery]:
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
            queue._signal.notify()
        taken = await taking
    finally:
        gone.cancel()
        closing.cancel()
    if gone.done() and not gone.cancelled() and taken:
        await run_in_threadpool(queue._settling.release, taken)
        return []
    return taken


async def _take_bounded(
    queue: LocalQueue, wanted: TakeRequest, wait: float, stopping: threading.Event
) -> list[LocalDelivery]:
    """Up to `limit` messages, but no more bytes than a page has: what is left is for the next take.

    How large messages are is known once some are taken; then the rest is asked for in one go.
    """
    taken: list[LocalDelivery] = []
    size = 0
    step = min(wanted.limit, FIRST_TAKEN)
    host = "" if wanted.host is None else check_text(wanted.host, "host")
    since_ms = 0 if wanted.since is None else max(0, to_ms(wanted.since, "since"))
    while step:
        request = queue._request(step, wanted.group, wanted.consumer, wanted.lease, wanted.newest)
        request.host, request.since_ms = host, since_ms
        found = await take_waiting_async(queue, request, 0 if taken else wait, stopping)
        queue._counters.delivered.inc(len(found))
        taken += found
        size += sum(len(delivery.event.raw) for delivery in found)
        step = _next_step(step, found, taken, size, wanted.limit)
    return taken


def _next_step(step: int, found: list[LocalDelivery], taken: list[LocalDelivery], size: int, limit: int) -> int:
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


@serves(operations.LEAVE_QUEUE)
def leave_queue(call: Call[None, LeaveRequest]) -> WasListed:
    group, consumer = check_consumer(call.body.group, "group"), check_consumer(call.body.consumer)
    return WasListed(called(call)._settling.leave(group, consumer))


@serves(operations.CLAIM_DELIVERIES)
def claim_deliveries(call: Call[None, ClaimRequest]) -> DeliveryList:
    queue, wanted = called(call), call.body
    _check(queue, wanted.limit, wanted.lease)
    taken: list[LocalDelivery] = []
    size = 0
    step = wanted.limit if wanted.min_idle == 0 else min(wanted.limit, FIRST_TAKEN)
    while step:
        found = queue.claim(
            min_idle=wanted.min_idle, group=wanted.group, consumer=wanted.consumer, limit=step, lease=wanted.lease
        )
        taken += found
        size += sum(len(delivery.event.raw) for delivery in found)
        # With min_idle=0 what was just claimed could be claimed again.
        step = 0 if wanted.min_idle == 0 else _next_step(step, found, taken, size, wanted.limit)
    return DeliveryList([delivery_document(delivery) for delivery in taken])


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.ACK_DELIVERIES)
def ack_deliveries(call: Call[None, AckRequest]) -> Acknowledged:
    return Acknowledged(called(call).ack_many(list(call.body.tokens)))


def _delivery(call: Call[object, object]) -> LocalDelivery:
    return called(call).delivery(call.name("token"))


@serves(operations.READ_DELIVERY)
def read_delivery(call: Call[None, None]) -> DeliveryDocument:
    return delivery_document(_delivery(call))


@serves(operations.ACK_DELIVERY)
def ack_delivery(call: Call[None, AckResult]) -> Settled:
    _delivery(call).ack(result=call.body.result)
    return Settled("ack")


@serves(operations.NACK_DELIVERY)
def nack_delivery(call: Call[None, NackRequest]) -> Settled:
    wanted, delivery = call.body, _delivery(call)
    failure = failure_text(wanted.error, wanted.traceback)
    delivery._nack(check_nack(wanted.delay, failure, wanted.dead, wanted.default_delay))
    return Settled("nack", delivery._outcome)


@serves(operations.EXTEND_DELIVERY)
def extend_delivery(call: Call[None, ExtendRequest]) -> Extended:
    _check_lease(called(call), call.body.lease)
    delivery = _delivery(call)
    delivery.extend(call.body.lease)
    return Extended(delivery.deadline)


@serves(operations.RELEASE_DELIVERY)
def release_delivery(call: Call[None, None]) -> Settled:
    """Gives it back without counting the attempt; whatever became of it meanwhile, this never fails."""
    try:
        _delivery(call).release()
    except StaleDelivery:
        return Settled("nothing")
    return Settled("release")


@serves(operations.LIST_PENDING)
def list_pending(call: Call[PendingQuery, None]) -> PendingList:
    return PendingList(called(call).pending(call.query.group)[: page_size(call.query.limit)])


@serves(operations.LIST_CONSUMERS)
def list_consumers(call: Call[None, None]) -> ConsumerList:
    return ConsumerList(called(call).consumers())
