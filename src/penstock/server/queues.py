"""Queues over HTTP: push, take with a long poll, settle by token, look into, repair."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.document import (
    DraftDocument,
    EventDocument,
    ReceiptDocument,
    decode_binary,
    event_document,
    receipt_document,
)
from penstock.errors import ConfigError, UnknownQueue
from penstock.event import Draft
from penstock.observed import Failure
from penstock.queue.policy import QueuePolicy
from penstock.queue.retry import Retry
from penstock.queue.waiting import take_waiting_async
from penstock.server import parameters
from penstock.server.held import failures, find_delivery, letters
from penstock.server.limits import LONGEST_WAIT, MOST_EVENTS, MOST_TAKEN, USUAL_EVENTS
from penstock.server.problems import Refused
from penstock.server.service import Service, guarded
from penstock.server.topics import Receipts, json
from penstock.where import Where

if TYPE_CHECKING:
    from penstock.queue.delivery import Delivery
    from penstock.queue.queue import Queue


def queue_of(request: Request, service: Service) -> Queue:
    """The queue a request names; UnknownQueue when it is not there: a mistyped name must not make one."""
    return existing(service, request.path_params["queue"])


def existing(service: Service, name: str) -> Queue:
    if name not in service.journal.queues():
        raise UnknownQueue(
            f"there is no queue {name!r}: make it with journal.queue({name!r}), or PUT /v1/queues/{name}"
        )
    return service.journal.queue(name)


# ── the list, one queue ──────────────────────────────────────────────────────────────────────────────────────────────
class StatsDocument(msgspec.Struct):
    ready: int
    in_flight: int
    delayed: int
    failed: int
    oldest_age: float | None
    groups: list[str]


class QueueDocument(msgspec.Struct):
    name: str
    length: int
    policy: dict[str, Any]
    groups: list[str]
    stats: dict[str, StatsDocument]
    """By group; a work queue has one, "default"."""


def policy_document(policy: QueuePolicy) -> dict[str, Any]:
    """A policy with every field, its retry as an object."""
    values = msgspec.structs.asdict(policy)
    return {**values, "retry": msgspec.structs.asdict(policy.retry)}


def groups_of(queue: Queue) -> list[str]:
    """The groups whose numbers are worth showing."""
    return (queue.groups() or ["default"]) if queue.policy.mode == "fanout" else ["default"]


def _stats(queue: Queue, group: str) -> StatsDocument:
    stats = queue.stats(group)
    return StatsDocument(
        stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age, list(stats.groups)
    )


def _document(queue: Queue) -> QueueDocument:
    stats = {group: _stats(queue, group) for group in groups_of(queue)}
    return QueueDocument(queue.name, len(queue), policy_document(queue.policy), queue.groups(), stats)


@guarded("read")
def list_queues(request: Request, service: Service) -> Response:
    return json({"queues": service.journal.queues()})


@guarded("read")
def show_queue(request: Request, service: Service) -> Response:
    return json(_document(queue_of(request, service)))


@guarded("read")
def show_stats(request: Request, service: Service) -> Response:
    return json(_stats(queue_of(request, service), request.query_params.get("group") or "default"))


def _policy(given: dict[str, Any]) -> dict[str, Any]:
    """A policy as a body gives it; its retry may be an object, or a delay in seconds."""
    if isinstance(given.get("retry"), dict):
        try:
            given["retry"] = msgspec.convert(given["retry"], Retry)
        except msgspec.ValidationError as error:
            raise ConfigError(f"retry cannot be used: {error}") from error
    return given


@guarded("write")
async def open_queue(request: Request, service: Service) -> Response:
    """Makes the queue when it is not there; a policy other than the stored one is PolicyMismatch."""
    policy = _policy(await parameters.struct(request, service.limits, dict[str, Any]))
    name = request.path_params["queue"]
    queue = await run_in_threadpool(lambda: service.journal.queue(name, **policy))
    return json(await run_in_threadpool(_document, queue))


@guarded("admin")
async def configure(request: Request, service: Service) -> Response:
    changes = _policy(await parameters.struct(request, service.limits, dict[str, Any]))

    def change() -> dict[str, Any]:
        return policy_document(queue_of(request, service).configure(**changes))

    return json(await run_in_threadpool(change))


@guarded("admin")
def drop_queue(request: Request, service: Service) -> Response:
    return json({"removed": queue_of(request, service).drop()})


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message to push; several share everything but what their drafts say."""

    payload: Any = None
    kind: str = "message"
    key: str | None = None
    priority: int = 0
    delay: float = 0
    not_before: datetime | None = None
    dedup: str | None = None
    max_attempts: int | None = None
    headers: dict[str, str] | None = None
    cause: str | None = None
    binary: bool = False
    payloads: list[Any] | None = None
    """Several payloads that share everything else."""
    messages: list[DraftDocument] | None = None
    """Several messages, each with its own kind, key, dedup, headers and cause."""


@guarded("write")
async def push(request: Request, service: Service) -> Response:
    message = await parameters.struct(request, service.limits, Message)
    trace = request.headers.get("traceparent")
    if trace is not None:
        message.headers = {"traceparent": trace, **(message.headers or {})}
    receipts = await run_in_threadpool(_push, queue_of(request, service), message)
    if message.payloads is None and message.messages is None:
        return json(receipts[0], 200 if receipts[0].duplicate else 201)
    return json(Receipts(receipts), 201)


def _push(queue: Queue, message: Message) -> list[ReceiptDocument]:
    shared: dict[str, Any] = {
        "kind": message.kind,
        "key": message.key,
        "priority": message.priority,
        "delay": message.delay,
        "not_before": message.not_before,
        "max_attempts": message.max_attempts,
        "headers": message.headers,
        "cause": message.cause,
    }
    if message.payloads is None and message.messages is None:
        payload = decode_binary(message.payload) if message.binary else message.payload
        return [receipt_document(queue.push(payload, dedup=message.dedup, **shared))]
    if message.payload is not None or (message.payloads is not None and message.messages is not None):
        raise ConfigError("give one of payload, payloads and messages")
    items: list[Any]
    if message.messages is not None:
        items = [_with_headers(document.draft(), message.headers) for document in message.messages]
    else:
        items = [decode_binary(one) if message.binary else one for one in message.payloads or []]
    return [receipt_document(receipt) for receipt in queue.push_many(items, dedup=message.dedup, **shared)]


def _with_headers(draft: Draft, headers: dict[str, str] | None) -> Draft:
    if headers:
        draft.headers = {**headers, **(draft.headers or {})}
    return draft


# ── taking and settling ──────────────────────────────────────────────────────────────────────────────────────────────
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


def delivery_document(delivery: Delivery) -> DeliveryDocument:
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


def _check_lease(queue: Queue, lease: float | None) -> None:
    """Over HTTP there is no process whose end would end a lease of 0."""
    if lease == 0 or (lease is None and queue.policy.lease == 0):
        raise ConfigError("a lease of 0 lasts as long as the taker's process, which a server cannot see: give seconds")


async def _take_while_there(request: Request, service: Service, queue: Queue, wish: Wish) -> list[Delivery]:
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
    find_delivery(queue_of(request, service), request.path_params["token"]).ack()
    return json({"settled": "ack"})


@guarded("write")
async def nack(request: Request, service: Service) -> Response:
    given = await parameters.struct(request, service.limits, Nack)

    def settle() -> None:
        delivery = find_delivery(queue_of(request, service), request.path_params["token"])
        delivery.nack(delay=given.delay, error=given.error, dead=given.dead)

    await run_in_threadpool(settle)
    return json({"settled": "nack"})


@guarded("write")
async def extend(request: Request, service: Service) -> Response:
    given = await parameters.struct(request, service.limits, Extension)

    def prolong() -> datetime:
        queue = queue_of(request, service)
        _check_lease(queue, given.lease)
        delivery = find_delivery(queue, request.path_params["token"])
        delivery.extend(given.lease)
        return delivery.deadline

    return json({"deadline": await run_in_threadpool(prolong)})


@guarded("write")
def release(request: Request, service: Service) -> Response:
    """Gives it back without counting the attempt; whatever became of it meanwhile, this never fails."""
    from penstock.errors import StaleDelivery

    try:
        find_delivery(queue_of(request, service), request.path_params["token"]).release()
    except StaleDelivery:
        return json({"settled": "nothing"})
    return json({"settled": "release"})


@guarded("read")
def show_delivery(request: Request, service: Service) -> Response:
    return json(delivery_document(find_delivery(queue_of(request, service), request.path_params["token"])))


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


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _limit(request: Request) -> int:
    limit = parameters.number(request, "limit", USUAL_EVENTS, most=MOST_EVENTS)
    assert limit is not None
    return limit


@guarded("read")
def peek(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or "default"
    limit = parameters.number(request, "limit", 1, most=MOST_EVENTS)
    assert limit is not None
    events = queue_of(request, service).peek(limit, group=group)
    return json({"events": [event_document(event) for event in events]})


@guarded("read")
def list_messages(request: Request, service: Service) -> Response:
    """Everything not acknowledged, in order of position, a page at a time."""
    after = parameters.number(request, "after", 0) or 0
    limit = _limit(request)
    unsettled = (event for event in queue_of(request, service) if event.seq > after)
    events = list(islice(unsettled, limit + 1))
    follows = events[limit - 1].seq if len(events) > limit and limit else None
    return json({"events": [event_document(event) for event in events[:limit]], "next": follows})


@guarded("read")
def show_message(request: Request, service: Service) -> Response:
    name = request.path_params["seq"]
    event = queue_of(request, service).get(int(name)) if name.isdigit() and len(name) <= 18 else None
    if event is None:
        raise Refused(404, "UnknownEvent", f"no message {name[:40]!r} is waiting or in flight")
    return json(event_document(event))


@guarded("read")
def pending(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or None
    return json({"pending": queue_of(request, service).pending(group)[: _limit(request)]})


class FailureDocument(msgspec.Struct):
    queue: str
    attempts: int
    reason: str
    error: str | None
    at: datetime | None
    event: EventDocument


def failure_documents(found: Iterator[Failure], limit: int) -> list[FailureDocument]:
    return [
        FailureDocument(one.queue, one.attempts, one.reason, one.error, one.at, event_document(one.event))
        for one in islice(found, limit)
    ]


@guarded("read")
def list_failed(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or "default"
    return json({"failed": failure_documents(failures(queue_of(request, service), group), _limit(request))})


@guarded("read")
def list_dead(request: Request, service: Service) -> Response:
    queue = queue_of(request, service)
    return json({"dead": failure_documents(letters(service.journal, queue.name), _limit(request))})


@guarded("read")
def list_consumers(request: Request, service: Service) -> Response:
    return json({"consumers": queue_of(request, service).consumers()})


# ── groups, schedules ────────────────────────────────────────────────────────────────────────────────────────────────
class NewGroup(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    after: int | str = 0


@guarded("write")
async def add_group(request: Request, service: Service) -> Response:
    given = await parameters.struct(request, service.limits, NewGroup)
    if isinstance(given.after, str) and given.after != "latest":
        raise ConfigError(f'after is a position or "latest", not {given.after[:40]!r}')

    def add() -> list[str]:
        queue = queue_of(request, service)
        queue.add_group(given.name, after="latest" if isinstance(given.after, str) else given.after)
        return queue.groups()

    return json({"groups": await run_in_threadpool(add)}, 201)


@guarded("write")
def remove_group(request: Request, service: Service) -> Response:
    return json({"removed": queue_of(request, service).remove_group(request.path_params["group"])})


class NewSchedule(msgspec.Struct, forbid_unknown_fields=True):
    """A periodic message: every so many seconds, or by a cron line."""

    name: str
    interval: float | None = None
    cron: str | None = None
    payload: Any = None
    binary: bool = False
    timezone: str = "UTC"
    missed: Literal["all", "last", "none"] = "all"
    kind: str = "message"
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0


@guarded("write")
async def add_schedule(request: Request, service: Service) -> Response:
    wish = await parameters.struct(request, service.limits, NewSchedule)
    interval = wish.cron if wish.interval is None else wish.interval
    if interval is None or (wish.cron is not None and wish.interval is not None):
        raise ConfigError('give one of "interval" and "cron"')

    def add() -> Any:
        return queue_of(request, service).every(
            interval,
            decode_binary(wish.payload) if wish.binary else wish.payload,
            name=wish.name,
            timezone=wish.timezone,
            missed=wish.missed,
            kind=wish.kind,
            headers=wish.headers,
            key=wish.key,
            priority=wish.priority,
        )

    return json(await run_in_threadpool(add), 201)


@guarded("write")
def remove_schedule(request: Request, service: Service) -> Response:
    return json({"removed": queue_of(request, service).unschedule(request.path_params["name"])})


@guarded("read")
def list_schedules(request: Request, service: Service) -> Response:
    return json({"schedules": queue_of(request, service).schedules()})


# ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────────
class Redrive(msgspec.Struct, forbid_unknown_fields=True):
    to: str | None = None
    limit: int | None = None
    where: str | None = None
    ids: list[str] | None = None
    """Only messages with these ids."""
    dry_run: bool = False


@guarded("admin")
async def redrive(request: Request, service: Service) -> Response:
    wish = await parameters.struct(request, service.limits, Redrive)

    def send_back() -> int:
        queue = queue_of(request, service)
        to = None if wish.to is None else existing(service, wish.to)
        return queue.redrive(to=to, limit=wish.limit, where=_chooser(wish.where, wish.ids), dry_run=wish.dry_run)

    count = await run_in_threadpool(send_back)
    return json({"would_redrive" if wish.dry_run else "redriven": count})


def _chooser(where: str | None, ids: list[str] | None) -> Any:
    condition = Where(where) if where else None
    if ids is None:
        return condition
    wanted = frozenset(ids)
    return lambda event: event.id in wanted and (condition is None or condition.matches(event))


class Move(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    limit: int | None = None
    where: str | None = None
    ids: list[str] | None = None


@guarded("admin")
async def move(request: Request, service: Service) -> Response:
    wish = await parameters.struct(request, service.limits, Move)

    def carry() -> int:
        queue = queue_of(request, service)
        return queue.move(existing(service, wish.to), limit=wish.limit, where=_chooser(wish.where, wish.ids))

    return json({"moved": await run_in_threadpool(carry)})


@guarded("admin")
def purge(request: Request, service: Service) -> Response:
    return json({"removed": queue_of(request, service).purge()})
