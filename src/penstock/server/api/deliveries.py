"""Deliveries over HTTP: taken with a long poll, settled by their tokens, claimed from who forgot them."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.document import EventDocument, event_document
from penstock.errors import ConfigError, StaleDelivery
from penstock.queue.run.waiting import take_waiting_async
from penstock.server.api import parameters
from penstock.server.api.problems import Refused
from penstock.server.api.queues import queue_of
from penstock.server.api.topics import json
from penstock.server.limits import LONGEST_WAIT, MOST_TAKEN
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.queue.delivery import LocalDelivery
    from penstock.queue.queue import LocalQueue


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """What a taker wants."""

    limit: int = 1
    group: str = "default"
    consumer: str | None = None
    wait: float = 0
    lease: float | None = None
    newest: bool = False


class DeliveryDocument(msgspec.Struct):
    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: EventDocument


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


@guarded("write")
async def take(request: Request, service: Service) -> Response:
    """Messages under a lease; waits for the first up to `wait` seconds. Who goes away meanwhile gets none."""
    wish = await parameters.struct(request, service.limits, Wish)
    queue = await run_in_threadpool(queue_of, request, service)
    if not 0 <= wish.limit <= MOST_TAKEN:
        raise ConfigError(f"limit is a number from 0 to {MOST_TAKEN}, not {wish.limit}")
    if not wish.wait >= 0:
        raise ConfigError(f"wait is a number of seconds of at least 0, not {wish.wait}")
    _check_lease(queue, wish.lease)
    if wish.limit == 0:
        return json({"deliveries": []})
    if wish.wait and service.waiting >= service.limits.max_waiting:
        raise Refused(503, "TooManyWaiting", "too many requests wait for messages", {"Retry-After": "1"})
    service.waiting += 1
    try:
        taken = await _take_while_there(request, service, queue, wish)
    finally:
        service.waiting -= 1
    return json({"deliveries": [delivery_document(delivery) for delivery in taken]})


def _check_lease(queue: LocalQueue, lease: float | None) -> None:
    """Over HTTP there is no process whose end would end a lease of 0."""
    if lease == 0 or (lease is None and queue.policy.lease == 0):
        raise ConfigError("a lease of 0 lasts as long as the taker's process, which a server cannot see: give seconds")


async def _take_while_there(request: Request, service: Service, queue: LocalQueue, wish: Wish) -> list[LocalDelivery]:
    """Takes; when the client goes away or the server stops before the answer, what was taken is given back."""
    stopping = threading.Event()
    wanted = queue._request(wish.limit, wish.group, wish.consumer, wish.lease, wish.newest)
    taking = asyncio.ensure_future(take_waiting_async(queue, wanted, min(wish.wait, LONGEST_WAIT), stopping))
    if not wish.wait:
        taken = await taking
        queue._counters.delivered.inc(len(taken))
        return taken
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
    queue._counters.delivered.inc(len(taken))
    if gone.done() and not gone.cancelled() and taken:
        await run_in_threadpool(queue._release, taken)
        return []
    return taken


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


class Tokens(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[str]


class Nack(msgspec.Struct, forbid_unknown_fields=True):
    delay: float | None = None
    error: str | None = None
    dead: bool = False


class Extension(msgspec.Struct, forbid_unknown_fields=True):
    lease: float | None = None


@guarded("write")
async def ack_many(request: Request, service: Service) -> Response:
    given = await parameters.struct(request, service.limits, Tokens)
    queue = await run_in_threadpool(queue_of, request, service)
    return json({"acknowledged": await run_in_threadpool(lambda: queue.ack_many(list(given.tokens)))})


@guarded("write")
def ack(request: Request, service: Service) -> Response:
    queue_of(request, service).delivery(request.path_params["token"]).ack()
    return json({"settled": "ack"})


@guarded("write")
async def nack(request: Request, service: Service) -> Response:
    given = await parameters.struct(request, service.limits, Nack)

    def settle() -> None:
        delivery = queue_of(request, service).delivery(request.path_params["token"])
        delivery.nack(delay=given.delay, error=given.error, dead=given.dead)

    await run_in_threadpool(settle)
    return json({"settled": "nack"})


@guarded("write")
async def extend(request: Request, service: Service) -> Response:
    given = await parameters.struct(request, service.limits, Extension)

    def prolong() -> datetime:
        queue = queue_of(request, service)
        _check_lease(queue, given.lease)
        delivery = queue.delivery(request.path_params["token"])
        delivery.extend(given.lease)
        return delivery.deadline

    return json({"deadline": await run_in_threadpool(prolong)})


@guarded("write")
def release(request: Request, service: Service) -> Response:
    """Gives it back without counting the attempt; whatever became of it meanwhile, this never fails."""
    try:
        queue_of(request, service).delivery(request.path_params["token"]).release()
    except StaleDelivery:
        return json({"settled": "nothing"})
    return json({"settled": "release"})


@guarded("read")
def show_delivery(request: Request, service: Service) -> Response:
    return json(delivery_document(queue_of(request, service).delivery(request.path_params["token"])))


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    min_idle: float
    group: str = "default"
    consumer: str | None = None
    limit: int = 1
    lease: float | None = None


@guarded("write")
async def claim(request: Request, service: Service) -> Response:
    wish = await parameters.struct(request, service.limits, Claim)
    if not 0 <= wish.limit <= MOST_TAKEN:
        raise ConfigError(f"limit is a number from 0 to {MOST_TAKEN}, not {wish.limit}")

    def take_over() -> list[DeliveryDocument]:
        queue = queue_of(request, service)
        _check_lease(queue, wish.lease)
        found = queue.claim(
            min_idle=wish.min_idle, group=wish.group, consumer=wish.consumer, limit=wish.limit, lease=wish.lease
        )
        return [delivery_document(delivery) for delivery in found]

    return json({"deliveries": await run_in_threadpool(take_over)})
