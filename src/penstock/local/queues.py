"""What the operations on queues do, each in one commit or from one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from penstock.documents.conditions import Where
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.commit import Commit
from penstock.local.backend import LocalBackend, implements
from penstock.names import check_consumer, check_text
from penstock.observe.sample import FailedMessage
from penstock.protocol import deliveries, messages
from penstock.protocol import queues as operations
from penstock.protocol.deliveries import ConsumerList, LeaveRequest, PendingList, PendingQuery, WasListed
from penstock.protocol.fields import PolicyFields, payload_of, policy_changes, policy_document
from penstock.protocol.journal import EventList
from penstock.protocol.messages import (
    DeadLetterList,
    DeadLetterQuery,
    FailedList,
    FailedQuery,
    MessagePage,
    MessageQuery,
    PeekQuery,
)
from penstock.protocol.operation import PAGE_BYTES
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
from penstock.queue import inspect
from penstock.queue.inspect import QueueMessage, QueueStats
from penstock.queue.letters import DeadLetterCursor
from penstock.queue.operations import groups, repair
from penstock.queue.policy import checked
from penstock.queue.queue import LocalQueue
from penstock.queue.run import schedule
from penstock.queue.run.schedule import Schedule
from penstock.queue.state.cache import QueueState

P = TypeVar("P")


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@implements(operations.LIST_QUEUES)
def list_queues(at: LocalBackend) -> QueueNames:
    return QueueNames(at.queues.names())


@implements(operations.READ_QUEUE)
def read_queue(at: LocalBackend, name: str) -> QueueDocument:
    return _document(at.queue(name))


def _document(queue: LocalQueue) -> QueueDocument:
    numbers = {group: stats for group, stats, _ in inspect.stats_of_groups(queue)}
    policy = policy_document(queue.policy())
    return QueueDocument(queue.name, queue.length(), policy, queue.groups(), numbers, queue.pauses())


@implements(operations.READ_QUEUE_STATS)
def read_queue_stats(at: LocalBackend, name: str, query: GroupQuery) -> QueueStats:
    return inspect.stats(at.queue(name), check_consumer(query.group, "group"))


@implements(operations.OPEN_QUEUE)
def open_queue(at: LocalBackend, name: str, policy: PolicyFields) -> QueueDocument:
    """Makes the queue when it is not there; a policy other than the stored one is PolicyMismatch."""
    return _document(at.queues.queue(name, policy_changes(policy)))


@implements(operations.CONFIGURE_QUEUE)
def configure_queue(at: LocalBackend, name: str, policy: PolicyFields) -> PolicyFields:
    changes = checked(policy_changes(policy), name)
    return policy_document(at.queue(name).change(groups.configure, changes))


@implements(operations.DROP_QUEUE)
def drop_queue(at: LocalBackend, name: str) -> Removed:
    return Removed(repair.drop(at.queue(name)))


@implements(operations.PURGE_QUEUE)
def purge_queue(at: LocalBackend, name: str) -> Removed:
    return Removed(repair.purge(at.queue(name)))


@implements(operations.PAUSE_QUEUE)
def pause_queue(at: LocalBackend, name: str, wanted: PauseRequest) -> PauseAnswer:
    return _change_pause(at, name, groups.pause, wanted)


@implements(operations.RESUME_QUEUE)
def resume_queue(at: LocalBackend, name: str, wanted: PauseRequest) -> PauseAnswer:
    return _change_pause(at, name, groups.resume, wanted)


def _change_pause(
    at: LocalBackend, name: str, change: Callable[[Commit, QueueState, str | None], bool], wanted: PauseRequest
) -> PauseAnswer:
    def apply(commit: Commit, state: QueueState) -> PauseAnswer:
        return PauseAnswer(change(commit, state, wanted.group), groups.pauses(state.record))

    return at.queue(name).change(apply)


# ── groups, schedules, consumers ─────────────────────────────────────────────────────────────────────────────────────
@implements(operations.ADD_GROUP)
def add_group(at: LocalBackend, name: str, wanted: NewGroup) -> GroupNames:
    queue = at.queue(name)
    queue.change(groups.add_group, check_consumer(wanted.name, "group"), wanted.after)
    return GroupNames(queue.groups())


@implements(operations.REMOVE_GROUP)
def remove_group(at: LocalBackend, name: str, group: str) -> WasRemoved:
    return WasRemoved(at.queue(name).change(groups.remove_group, check_consumer(group, "group")))


@implements(operations.ADD_SCHEDULE)
def add_schedule(at: LocalBackend, name: str, wanted: NewSchedule) -> Schedule:
    interval = wanted.cron if wanted.interval is None else wanted.interval
    if interval is None or (wanted.cron is not None and wanted.interval is not None):
        raise ConfigError('give one of "interval" and "cron"')
    return schedule.add(
        at.queue(name),
        interval,
        payload_of(wanted.payload, wanted.binary),
        wanted.name,
        wanted.timezone,
        wanted.missed,
        wanted.kind,
        wanted.headers,
        key=wanted.key,
        priority=wanted.priority,
    )


@implements(operations.REMOVE_SCHEDULE)
def remove_schedule(at: LocalBackend, name: str, wanted: str) -> WasRemoved:
    return WasRemoved(schedule.remove(at.queue(name), wanted))


@implements(operations.LIST_SCHEDULES)
def list_schedules(at: LocalBackend, name: str) -> ScheduleList:
    return ScheduleList(schedule.listed(at.queue(name)))


@implements(deliveries.LIST_CONSUMERS)
def list_consumers(at: LocalBackend, name: str) -> ConsumerList:
    return ConsumerList(inspect.consumers(at.queue(name)))


@implements(deliveries.LEAVE_QUEUE)
def leave_queue(at: LocalBackend, name: str, wanted: LeaveRequest) -> WasListed:
    group, consumer = check_consumer(wanted.group, "group"), check_consumer(wanted.consumer)
    return WasListed(at.queue(name).leave(group, consumer))


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@implements(messages.READ_MESSAGE)
def read_message(at: LocalBackend, name: str, seq: str) -> Event | None:
    queue = at.queue(name)
    return inspect.get(queue, int(seq)) if seq.isascii() and seq.isdigit() and len(seq) <= 18 else None


@implements(messages.PEEK_MESSAGES)
def peek_messages(at: LocalBackend, name: str, query: PeekQuery) -> EventList[Event]:
    return EventList(inspect.peek(at.queue(name), query.limit, check_consumer(query.group, "group")))


@implements(messages.LIST_MESSAGES)
def list_messages(at: LocalBackend, name: str, query: MessageQuery) -> MessagePage[QueueMessage]:
    found: list[QueueMessage] = []
    last = seen = size = 0
    state, key = inspect.check_state(query.state), None if query.key is None else check_text(query.key, "key")
    for one in inspect.messages(at.queue(name), state, query.group, query.after, key):
        if one.seq != last:
            if seen == query.limit or size >= PAGE_BYTES:
                return MessagePage(found, last)
            last, seen = one.seq, seen + 1
        found.append(one)
        size += len(one.event.raw) + len(one.error or "") + len(one.traceback or "")
    return MessagePage(found)


@implements(messages.LIST_FAILED)
def list_failed(at: LocalBackend, name: str, query: FailedQuery) -> FailedList[FailedMessage]:
    given_up = inspect.failures(at.queue(name), check_consumer(query.group, "group"), query.after)
    return FailedList(*_page(((one, one.event.seq) for one in given_up), query.limit))


@implements(messages.LIST_DEAD_LETTERS)
def list_dead_letters(at: LocalBackend, name: str, query: DeadLetterQuery) -> DeadLetterList[FailedMessage]:
    after = DeadLetterCursor.read(query.after) if query.after else None
    if query.after and after is None:
        raise ConfigError(f"after must be the next of the page before, not {query.after[:40]!r}")
    letters = ((one, DeadLetterCursor.of(one.event)) for one in inspect.dead_letters(at.queue(name), after))
    found, follows = _page(letters, query.limit)
    return DeadLetterList(found, None if follows is None else str(follows))


def _page(found: Iterable[tuple[FailedMessage, P]], limit: int | None) -> tuple[list[FailedMessage], P | None]:
    """Messages given up, bounded in number and bytes, and the cursor behind which there are more."""
    page: list[FailedMessage] = []
    size, last = 0, None
    for one, cursor in found:
        if len(page) == limit or size >= PAGE_BYTES:
            return page, last
        last = cursor
        page.append(one)
        size += len(one.event.raw) + len(one.traceback or "")
    return page, None


@implements(deliveries.LIST_PENDING)
def list_pending(at: LocalBackend, name: str, query: PendingQuery) -> PendingList:
    return PendingList(list(islice(inspect.pending(at.queue(name), query.group), query.limit)))


# ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────────
@implements(operations.REDRIVE_QUEUE)
def redrive_queue(at: LocalBackend, name: str, wanted: RedriveRequest) -> RedriveAnswer:
    to = None if wanted.to is None else at.queue(wanted.to)
    chosen = _choice(wanted.where, wanted.ids)
    count = repair.redrive(at.queue(name), to, wanted.limit, chosen, wanted.dry_run)
    if wanted.dry_run:
        return RedriveAnswer(would_redrive=int(count), left=count.left)
    return RedriveAnswer(redriven=int(count), left=count.left)


@implements(operations.MOVE_MESSAGES)
def move_messages(at: LocalBackend, name: str, wanted: MoveRequest) -> Moved:
    queue, to = at.queue(name), at.queue(wanted.to)
    return Moved(repair.move(queue, to, wanted.limit, _choice(wanted.where, wanted.ids)))


def _choice(where: str | None, ids: list[str] | None) -> Callable[[Event], bool] | None:
    condition = Where(where) if where else None
    if ids is None:
        return condition
    chosen = frozenset(ids)
    return lambda event: event.id in chosen and (condition is None or condition.matches(event))


@implements(operations.DISCARD_MESSAGES)
def discard_messages(at: LocalBackend, name: str, wanted: DiscardRequest) -> Discarded:
    return Discarded(repair.discard_many(at.queue(name), wanted.seqs))


@implements(operations.RUN_NOW)
def run_messages_now(at: LocalBackend, name: str, wanted: RunNowRequest) -> RunNowResult:
    return RunNowResult(at.queue(name).change(repair.run_now, wanted.seqs, wanted.group))
