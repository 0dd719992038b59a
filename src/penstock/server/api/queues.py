"""Queues over HTTP: their policies and numbers, groups and schedules, and their repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from penstock.documents.conditions import EventChoice, Where
from penstock.documents.events import decode_binary
from penstock.errors import ConfigError, UnknownQueue
from penstock.events import Event
from penstock.protocol import queues as operations
from penstock.protocol.fields import PolicyFields, policy_changes, policy_document
from penstock.protocol.queues import (
    Discarded,
    DiscardRequest,
    GroupNames,
    GroupQuery,
    Moved,
    MoveRequest,
    NewGroup,
    NewSchedule,
    PauseAnswer,
    PauseRequest,
    QueueDocument,
    QueueNames,
    RedriveAnswer,
    RedriveRequest,
    Removed,
    RunNowRequest,
    RunNowResult,
    ScheduleList,
    WasRemoved,
)
from penstock.queue.inspect import QueueStats
from penstock.queue.run.schedule import Schedule
from penstock.server.api.binding import Call, serves
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue


def queue_of(request: Request, service: Service) -> LocalQueue:
    """The queue a request names; UnknownQueue when it is not there: a mistyped name must not make one."""
    return existing_queue(service, request.path_params["queue"])


def existing_queue(service: Service, name: str) -> LocalQueue:
    try:
        return service.journal.queue(name, create=False)
    except UnknownQueue as unknown:
        raise UnknownQueue(f"{unknown}, or PUT /v1/queues/{name}") from None


def called(call: Call[object, object]) -> LocalQueue:
    """The queue a call names."""
    return existing_queue(call.service, call.name("queue"))


# ── the list, one queue ──────────────────────────────────────────────────────────────────────────────────────────────
def groups_of(queue: LocalQueue) -> list[str]:
    """The groups whose numbers are worth showing."""
    return (queue.groups() or ["default"]) if queue.policy.mode == "fanout" else ["default"]


def _document(queue: LocalQueue) -> QueueDocument:
    stats = {group: queue.stats(group) for group in groups_of(queue)}
    return QueueDocument(queue.name, len(queue), policy_document(queue.policy), queue.groups(), stats, queue.pauses())


@serves(operations.LIST_QUEUES)
def list_queues(call: Call[None, None]) -> QueueNames:
    return QueueNames(call.service.journal.queues())


@serves(operations.READ_QUEUE)
def read_queue(call: Call[None, None]) -> QueueDocument:
    return _document(called(call))


@serves(operations.READ_QUEUE_STATS)
def read_queue_stats(call: Call[GroupQuery, None]) -> QueueStats:
    return called(call).stats(call.query.group)


@serves(operations.OPEN_QUEUE)
def open_queue(call: Call[None, PolicyFields]) -> QueueDocument:
    """Makes the queue when it is not there; a policy other than the stored one is PolicyMismatch."""
    service, name, policy = call.service, call.name("queue"), policy_changes(call.body)
    known = service.journal.queues()
    for one in (name, policy.get("dead_letter")):
        if isinstance(one, str) and one not in known and len(service.journal.topic(one)):
            service.access.require(call.request, "admin", f"{one!r} is a topic with a history: making it a queue")
    return _document(service.journal.queue(name, **policy))


@serves(operations.CONFIGURE_QUEUE)
def configure_queue(call: Call[None, PolicyFields]) -> PolicyFields:
    return policy_document(called(call).configure(**policy_changes(call.body)))


@serves(operations.DROP_QUEUE)
def drop_queue(call: Call[None, None]) -> Removed:
    return Removed(called(call).drop())


# ── groups, schedules ────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.ADD_GROUP)
def add_group(call: Call[None, NewGroup]) -> GroupNames:
    queue = called(call)
    queue.add_group(call.body.name, after=call.body.after)
    return GroupNames(queue.groups())


@serves(operations.REMOVE_GROUP)
def remove_group(call: Call[None, None]) -> WasRemoved:
    return WasRemoved(called(call).remove_group(call.name("group")))


@serves(operations.ADD_SCHEDULE)
def add_schedule(call: Call[None, NewSchedule]) -> Schedule:
    wanted = call.body
    interval = wanted.cron if wanted.interval is None else wanted.interval
    if interval is None or (wanted.cron is not None and wanted.interval is not None):
        raise ConfigError('give one of "interval" and "cron"')
    return called(call).every(
        interval,
        decode_binary(wanted.payload) if wanted.binary else wanted.payload,
        name=wanted.name,
        timezone=wanted.timezone,
        missed=wanted.missed,
        kind=wanted.kind,
        headers=wanted.headers,
        key=wanted.key,
        priority=wanted.priority,
    )


@serves(operations.REMOVE_SCHEDULE)
def remove_schedule(call: Call[None, None]) -> WasRemoved:
    return WasRemoved(called(call).unschedule(call.name("schedule")))


@serves(operations.LIST_SCHEDULES)
def list_schedules(call: Call[None, None]) -> ScheduleList:
    return ScheduleList(called(call).schedules())


# ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.REDRIVE_QUEUE)
def redrive_queue(call: Call[None, RedriveRequest]) -> RedriveAnswer:
    queue, wanted = called(call), call.body
    to = None if wanted.to is None else existing_queue(call.service, wanted.to)
    count = queue.redrive(to=to, limit=wanted.limit, where=_choice(wanted.where, wanted.ids), dry_run=wanted.dry_run)
    if wanted.dry_run:
        return RedriveAnswer(would_redrive=int(count), left=count.left)
    return RedriveAnswer(redriven=int(count), left=count.left)


def _choice(where: str | None, ids: list[str] | None) -> EventChoice | None:
    condition = Where(where) if where else None
    if ids is None:
        return condition
    chosen = frozenset(ids)

    def chosen_and_fulfilling(event: Event) -> bool:
        return event.id in chosen and (condition is None or condition.matches(event))

    return chosen_and_fulfilling


@serves(operations.MOVE_MESSAGES)
def move_messages(call: Call[None, MoveRequest]) -> Moved:
    queue, wanted = called(call), call.body
    to = existing_queue(call.service, wanted.to)
    return Moved(queue.move(to, limit=wanted.limit, where=_choice(wanted.where, wanted.ids)))


@serves(operations.DISCARD_MESSAGES)
def discard_messages(call: Call[None, DiscardRequest]) -> Discarded:
    return Discarded(called(call).discard(call.body.seqs))


@serves(operations.RUN_NOW)
def run_now(call: Call[None, RunNowRequest]) -> RunNowResult:
    return RunNowResult(called(call).run_now(call.body.seqs, group=call.body.group))


@serves(operations.PURGE_QUEUE)
def purge_queue(call: Call[None, None]) -> Removed:
    return Removed(called(call).purge())


# ── pausing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@serves(operations.PAUSE_QUEUE)
def pause_queue(call: Call[None, PauseRequest]) -> PauseAnswer:
    queue = called(call)
    return PauseAnswer(queue.pause(call.body.group), queue.pauses())


@serves(operations.RESUME_QUEUE)
def resume_queue(call: Call[None, PauseRequest]) -> PauseAnswer:
    queue = called(call)
    return PauseAnswer(queue.resume(call.body.group), queue.pauses())
