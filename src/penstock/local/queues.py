"""What the operations on queues do, each in one commit or from one snapshot."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from penstock.documents.conditions import Where
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.commit import Commit
from penstock.local.backend import LocalBackend
from penstock.names import check_consumer, check_text
from penstock.observe.sample import FailedMessage
from penstock.protocol import queues as wire
from penstock.protocol.fields import PolicyFields, payload_of, policy_changes, policy_document
from penstock.protocol.operation import PAGE_BYTES, page_of
from penstock.protocol.topics import EventList
from penstock.queue import inspect, schedule
from penstock.queue.operations import groups, repair
from penstock.queue.operations.settle import DeadLetterCursor
from penstock.queue.policy import checked
from penstock.queue.queue import LocalQueue
from penstock.queue.registry import with_topics_window
from penstock.queue.state.cache import QueueState, forget_presence


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def list_queues(at: LocalBackend) -> list[str]:
    return at.queues.names()


def read_queue(at: LocalBackend, name: str) -> wire.QueueDocument:
    return _document(at.queue(name))


def _document(queue: LocalQueue) -> wire.QueueDocument:
    with inspect.viewing(queue) as view:
        numbers = {group: stats for group, stats, _ in inspect.stats_of_groups(view)}
        names, paused = inspect.group_names(view.state), groups.pauses(view.state.record)
        policy = policy_document(with_topics_window(view.snap, queue.name, view.state.record).policy)
        return wire.QueueDocument(queue.name, view.length, policy, names, numbers, paused)


def read_queue_stats(at: LocalBackend, name: str, query: wire.GroupQuery) -> inspect.QueueStats:
    return inspect.stats(at.queue(name), check_consumer(query.group, "group"))


def open_queue(at: LocalBackend, name: str, policy: PolicyFields) -> wire.QueueDocument:
    """Makes the queue when it is not there; a policy other than the stored one is PolicyMismatch."""
    return _document(at.queues.queue(name, policy_changes(policy)))


def configure_queue(at: LocalBackend, name: str, policy: PolicyFields) -> PolicyFields:
    changes = checked(policy_changes(policy), name)
    return policy_document(at.queue(name).change(groups.configure, changes))


def drop_queue(at: LocalBackend, name: str) -> int:
    return repair.drop(at.queue(name))


def purge_queue(at: LocalBackend, name: str) -> int:
    return repair.purge(at.queue(name))


def pause_queue(at: LocalBackend, name: str, wanted: wire.PauseRequest) -> wire.PauseAnswer:
    return _change_pause(at, name, groups.pause, wanted)


def resume_queue(at: LocalBackend, name: str, wanted: wire.PauseRequest) -> wire.PauseAnswer:
    return _change_pause(at, name, groups.resume, wanted)


def _change_pause(
    at: LocalBackend, name: str, change: Callable[[Commit, QueueState, str | None], bool], wanted: wire.PauseRequest
) -> wire.PauseAnswer:
    def apply(commit: Commit, state: QueueState) -> wire.PauseAnswer:
        return wire.PauseAnswer(change(commit, state, wanted.group), groups.pauses(state.record))

    return at.queue(name).change(apply)


# ── groups, schedules, consumers ─────────────────────────────────────────────────────────────────────────────────────
def add_group(at: LocalBackend, name: str, wanted: wire.NewGroup) -> list[str]:
    queue = at.queue(name)
    queue.change(groups.add_group, check_consumer(wanted.name, "group"), wanted.after)
    return queue.groups()


def remove_group(at: LocalBackend, name: str, group: str) -> bool:
    return at.queue(name).change(groups.remove_group, check_consumer(group, "group"))


def add_schedule(at: LocalBackend, name: str, wanted: wire.NewSchedule) -> schedule.Schedule:
    return schedule.add(at.queue(name), wanted, payload_of(wanted.payload, wanted.binary))


def remove_schedule(at: LocalBackend, name: str, wanted: str) -> bool:
    return schedule.remove(at.queue(name), wanted)


def list_schedules(at: LocalBackend, name: str) -> list[schedule.Schedule]:
    return schedule.listed(at.queue(name))


def list_consumers(at: LocalBackend, name: str) -> list[inspect.QueueConsumer]:
    return inspect.consumers(at.queue(name))


def leave_queue(at: LocalBackend, name: str, wanted: wire.LeaveRequest) -> bool:
    group, consumer = check_consumer(wanted.group, "group"), check_consumer(wanted.consumer)
    return at.queue(name).change(forget_presence, group, consumer, relaxed=True)


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_message(at: LocalBackend, name: str, seq: str) -> Event | None:
    queue = at.queue(name)
    return inspect.get(queue, int(seq)) if seq.isascii() and seq.isdigit() and len(seq) <= 18 else None


def peek_messages(at: LocalBackend, name: str, query: wire.PeekQuery) -> EventList[Event]:
    return EventList(inspect.peek(at.queue(name), query.limit, check_consumer(query.group, "group")))


def list_messages(at: LocalBackend, name: str, query: wire.MessageQuery) -> wire.MessagePage[inspect.QueueMessage]:
    found: list[inspect.QueueMessage] = []
    last = seen = size = 0
    state, key = inspect.check_state(query.state), None if query.key is None else check_text(query.key, "key")
    for one in inspect.messages(at.queue(name), state, query.group, query.after, key):
        if one.seq != last:
            if seen == query.limit or size >= PAGE_BYTES:
                return wire.MessagePage(found, last)
            last, seen = one.seq, seen + 1
        found.append(one)
        size += _size(one)
    return wire.MessagePage(found)


def list_failed(at: LocalBackend, name: str, query: wire.FailedQuery) -> wire.FailedList[FailedMessage]:
    given_up = inspect.failures(at.queue(name), check_consumer(query.group, "group"), query.after)
    found, last = page_of(given_up, query.limit, _size)
    return wire.FailedList(found, None if last is None else last.event.seq)


def list_dead_letters(at: LocalBackend, name: str, query: wire.DeadLetterQuery) -> wire.DeadLetterList[FailedMessage]:
    after = DeadLetterCursor.read(query.after) if query.after else None
    if query.after and after is None:
        raise ConfigError(f"after must be the next of the page before, not {query.after[:40]!r}")
    found, last = page_of(inspect.dead_letters(at.queue(name), after), query.limit, _size)
    return wire.DeadLetterList(found, None if last is None else str(DeadLetterCursor.of(last.event)))


def _size(one: inspect.QueueMessage | FailedMessage) -> int:
    return len(one.event.raw) + len(one.error or "") + len(one.traceback or "")


def list_pending(at: LocalBackend, name: str, query: wire.PendingQuery) -> list[inspect.PendingDelivery]:
    return list(islice(inspect.pending(at.queue(name), query.group), query.limit))


# ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────────
def redrive_queue(at: LocalBackend, name: str, wanted: wire.RedriveRequest) -> wire.RedriveAnswer:
    to = None if wanted.to is None else at.queue(wanted.to)
    chosen = _choice(wanted.where, wanted.ids)
    count = repair.redrive(at.queue(name), to, wanted.limit, chosen, wanted.dry_run)
    if wanted.dry_run:
        return wire.RedriveAnswer(would_redrive=int(count), left=count.left)
    return wire.RedriveAnswer(redriven=int(count), left=count.left)


def move_messages(at: LocalBackend, name: str, wanted: wire.MoveRequest) -> int:
    queue, to = at.queue(name), at.queue(wanted.to)
    return repair.move(queue, to, wanted.limit, _choice(wanted.where, wanted.ids))


def _choice(where: str | None, ids: list[str] | None) -> Callable[[Event], bool] | None:
    condition = Where(where) if where else None
    if ids is None:
        return condition
    chosen = frozenset(ids)
    return lambda event: event.id in chosen and (condition is None or condition.matches(event))


def discard_messages(at: LocalBackend, name: str, wanted: wire.DiscardRequest) -> int:
    return repair.discard_many(at.queue(name), wanted.seqs)


def run_now(at: LocalBackend, name: str, wanted: wire.RunNowRequest) -> int:
    return at.queue(name).change(repair.run_now, wanted.seqs, wanted.group)
