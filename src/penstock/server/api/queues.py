"""Queues over HTTP: their policies and numbers, groups and schedules, and their repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.conditions import Where
from penstock.document import (
    decode_binary,
)
from penstock.errors import ConfigError, UnknownQueue
from penstock.queue.policy import QueuePolicy
from penstock.queue.retry import Retry
from penstock.server.api import parameters
from penstock.server.api.topics import json
from penstock.server.service import Service, guarded

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue


def queue_of(request: Request, service: Service) -> LocalQueue:
    """The queue a request names; UnknownQueue when it is not there: a mistyped name must not make one."""
    return existing(service, request.path_params["queue"])


def existing(service: Service, name: str) -> LocalQueue:
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


def groups_of(queue: LocalQueue) -> list[str]:
    """The groups whose numbers are worth showing."""
    return (queue.groups() or ["default"]) if queue.policy.mode == "fanout" else ["default"]


def _stats(queue: LocalQueue, group: str) -> StatsDocument:
    stats = queue.stats(group)
    return StatsDocument(
        stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age, list(stats.groups)
    )


def _document(queue: LocalQueue) -> QueueDocument:
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
        return int(queue.redrive(to=to, limit=wish.limit, where=_chooser(wish.where, wish.ids), dry_run=wish.dry_run))

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
