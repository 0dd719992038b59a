"""The operations on queues, each in one commit or from one snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.clock import seconds
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.handover import finish
from penstock.core.documents.events import event_document
from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal.commit import Commit
from penstock.core.journal.prepare import encode_payload
from penstock.core.journal.writer import WriteRequest
from penstock.core.local.backend import LocalBackend, PendingCommit, can_prepare_at_once
from penstock.core.model.calls import GatherRequest
from penstock.core.model.conditions import Where, check_events_chosen
from penstock.core.model.failure import NackRequest, check_nack
from penstock.core.model.take import TakeRequest, check_taking, take_request
from penstock.core.names import check_consumer, check_text
from penstock.core.observe.sample import FailedMessage
from penstock.core.protocol import queues as wire
from penstock.core.protocol.fields import PolicyFields, payload_of, policy_changes, policy_document
from penstock.core.protocol.operation import PAGE_BYTES, Caller, WaitingCaller, page_of
from penstock.core.protocol.topics import EventList
from penstock.core.queue import inspect, schedule
from penstock.core.queue.dead_letters import DeadLetterCursor
from penstock.core.queue.operations import groups, repair
from penstock.core.queue.operations.follow import gather
from penstock.core.queue.operations.take import check_take, check_timed
from penstock.core.queue.policy import check_policy
from penstock.core.queue.queue import LocalQueue
from penstock.core.queue.registry import with_topics_window
from penstock.core.queue.results import answer_of
from penstock.core.queue.state.cache import QueueState, forget_presence
from penstock.core.queue.tasks.looking import find_call
from penstock.core.queue.tasks.state import TaskState, TaskTimes, task_times
from penstock.errors import Backpressure, ConfigError, StaleDelivery

A = TypeVar("A")


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def list_queues(at: LocalBackend) -> list[str]:
    return at.queues.names()


def read_queue(at: LocalBackend, name: str) -> wire.QueueDocument:
    return _document(at.queue(name))


def _document(queue: LocalQueue) -> wire.QueueDocument:
    with inspect.open_view(queue) as view:
        numbers = {group: stats for group, stats, _ in inspect.stats_of_groups(view)}
        names, paused = inspect.group_names(view.state), groups.pauses(view.state.record)
        policy = policy_document(with_topics_window(view.snap, queue.name, view.state.record).policy)
        return wire.QueueDocument(queue.name, view.length, policy, names, numbers, paused)


def read_queue_stats(at: LocalBackend, name: str, query: wire.GroupQuery) -> inspect.QueueStats:
    return inspect.stats(at.queue(name), check_consumer(query.group, "group"))


def open_queue(at: LocalBackend, caller: Caller, name: str, policy: PolicyFields) -> wire.QueueDocument:
    """Opens a queue, and makes a missing queue; a different policy raises PolicyMismatch.

    Only an admin makes a queue of a topic with a history, also as a dead-letter queue.
    """
    wanted = policy_changes(policy)
    known = at.queues.names()
    for one in (name, wanted.get("dead_letter")):
        if isinstance(one, str) and one not in known and at.topic(one).length():
            caller.require("admin", f"{one!r} is a topic with a history: making it a queue")
    return _document(at.queues.queue(name, wanted))


def configure_queue(at: LocalBackend, name: str, policy: PolicyFields) -> PolicyFields:
    changes = check_policy(policy_changes(policy), name)
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
    return schedule.list_schedules(at.queue(name))


def list_consumers(at: LocalBackend, name: str) -> list[inspect.QueueConsumer]:
    return inspect.consumers(at.queue(name))


def leave_queue(at: LocalBackend, name: str, wanted: wire.LeaveRequest) -> bool:
    group, consumer = check_consumer(wanted.group, "group"), check_consumer(wanted.consumer)
    return at.queue(name).change(forget_presence, group, consumer, relaxed=True)


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_task(at: LocalBackend, id: str) -> TaskState | None:
    return find_call(at.queues, id)


def push_together(at: LocalBackend, wanted: GatherRequest) -> list[Receipt]:
    return at.core.writer.run(WriteRequest(lambda commit: gather(commit, at.queues.cache, wanted)))


def list_task_times(at: LocalBackend, name: str) -> list[TaskTimes]:
    with inspect.open_view(at.queue(name)) as view:
        return task_times(view.snap, view.state.topic, name, view.now)


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def push_messages(
    at: LocalBackend, caller: Caller, name: str, wanted: wire.PushRequest
) -> PendingCommit[Receipt] | PendingCommit[list[Receipt]]:
    """Pushes messages. A payload has a receipt, several messages have a list of receipts."""
    headers = {**caller.headers, **(wanted.headers or {})} or None
    wanted.headers = headers
    at_once = wanted.cause is None and can_prepare_at_once(at, ())
    if wanted.payloads is None and wanted.messages is None:
        payload = payload_of(wanted.payload, wanted.binary)
        return _change(
            at,
            name,
            lambda queue: queue.pushing(payload, wanted),
            lambda queue, receipt: queue.note_pushes(1),
            at_once,
        )
    if wanted.payload is not None or (wanted.payloads is not None and wanted.messages is not None):
        raise ConfigError("give one of payload, payloads and messages")
    items: list[object] = []
    if wanted.messages is not None:
        drafts = [_with_headers(document.draft(), headers) for document in wanted.messages]
        at_once = at_once and can_prepare_at_once(at, drafts)
        items += drafts
    else:
        items += [payload_of(one, wanted.binary) for one in wanted.payloads or ()]
    return _change(
        at,
        name,
        lambda queue: queue.pushing_many(items, wanted),
        lambda queue, receipts: queue.note_pushes(len(receipts)),
        at_once,
    )


def _change(
    at: LocalBackend,
    name: str,
    prepare: Callable[[LocalQueue], WriteRequest[A]],
    note: Callable[[LocalQueue, A], None],
    at_once: bool = True,
) -> PendingCommit[A]:
    """Returns a change of a queue; a queue that was not used before is looked up in the store."""
    known = at.queues.known(name)
    return PendingCommit(
        lambda: prepare(known or at.queue(name)),
        at_once and known is not None,
        lambda answer: note(at.queues.handle(name), answer),
    )


def _with_headers(draft: Draft, headers: dict[str, str] | None) -> Draft:
    if headers:
        draft.headers = {**headers, **(draft.headers or {})}
    return draft


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
FIRST_TAKEN = 64
"""The number of messages that are taken first, before their size is known."""


async def take_messages(
    at: LocalBackend, caller: WaitingCaller, name: str, wanted: TakeRequest
) -> list[wire.DeliveryDocument]:
    """Takes messages; waits up to `wait` seconds for the first. A caller that is gone meanwhile gets none."""
    queue, request = await _checked_take(at, caller, name, wanted)
    caller.wake = queue.nudge
    taken: list[Delivery] = []
    size, step = 0, min(wanted.limit, FIRST_TAKEN)
    while step:
        some = replace(request, limit=step, wait=0.0 if taken else wanted.wait)
        try:
            found = await queue.take_async(some, caller.stopping, caller.patience, timed=True)
        except BaseException as error:
            if taken and isinstance(error, Backpressure):
                break
            if taken:  # the answer is the error: no consumer would get earlier messages of this take
                await finish(partial(queue.release, taken))
            raise
        taken += found
        size += _bytes_of(found)
        step = _next_step(step, found, taken, size, wanted.limit)
    return await _handed_out(queue, caller, taken)


async def ack_and_take(
    at: LocalBackend, caller: WaitingCaller, name: str, token: str, wanted: wire.NextRequest
) -> list[wire.DeliveryDocument]:
    """Settles a delivery, and takes ready messages in the same commit; without ready messages it waits like a take."""
    queue, request = await _checked_take(at, caller, name, wanted)
    some = replace(request, limit=min(wanted.limit, FIRST_TAKEN), wait=0.0)
    if taken := await queue.ack_and_take_async(token, wanted.result, some, caller.patience):
        return await _handed_out(queue, caller, taken)
    return await take_messages(at, caller, name, request) if wanted.wait else []


async def _checked_take(
    at: LocalBackend, caller: WaitingCaller, name: str, wanted: TakeRequest
) -> tuple[LocalQueue, TakeRequest]:
    """Returns the queue and the checked request of a take."""
    _check_taken(wanted.limit)
    check_taking(wanted.limit, wanted.group, wanted.consumer, "take")
    queue = at.queues.known(name)
    if queue is None:
        queue = await asyncio.to_thread(at.queue, name)
    request = TakeRequest(
        wanted.limit,
        wanted.group,
        wanted.consumer,
        wanted.wait,
        None if wanted.lease is None else seconds(wanted.lease, "lease"),
        wanted.newest,
        wanted.seq,
        wanted.key,
        check_text(wanted.host, "host") if wanted.host is not None else caller.host,
        wanted.since,
    )
    check_take(request)
    return queue, request


async def _handed_out(queue: LocalQueue, caller: WaitingCaller, taken: list[Delivery]) -> list[wire.DeliveryDocument]:
    """Returns the answer of a take; a caller that is gone meanwhile gets no messages."""
    if taken and caller.gone:
        await asyncio.to_thread(queue.release, taken)
        return []
    return list(map(_delivery_document, taken))


def claim_deliveries(at: LocalBackend, name: str, wanted: wire.ClaimRequest) -> list[wire.DeliveryDocument]:
    queue = at.queue(name)
    _check_taken(wanted.limit)
    check_timed(queue.policy(), wanted.lease)
    idle = seconds(wanted.min_idle, "min_idle")
    taken: list[Delivery] = []
    size, step = 0, wanted.limit if idle == 0 else min(wanted.limit, FIRST_TAKEN)
    while step:
        try:
            found = queue.claim(take_request(step, "claim", 0, wanted.group, wanted.consumer, wanted.lease), idle)
        except BaseException:
            queue.release(taken)
            raise
        taken += found
        size += _bytes_of(found)
        # With min_idle=0, messages that were just claimed could be claimed again.
        step = 0 if idle == 0 else _next_step(step, found, taken, size, wanted.limit)
    return list(map(_delivery_document, taken))


def _check_taken(limit: int) -> None:
    if not 0 <= limit <= wire.MOST_TAKEN:
        raise ConfigError(f"limit is a number from 0 to {wire.MOST_TAKEN}, not {limit}")


def _bytes_of(found: list[Delivery]) -> int:
    return sum(len(delivery.event.raw) for delivery in found)


def _next_step(step: int, found: list[Delivery], taken: list[Delivery], size: int, limit: int) -> int:
    """Returns the number of further messages to take, after `step` messages were requested and `found`.

    0 means that the queue is empty, or the answer is full.

    The size of messages is known after the first messages; then the rest is taken in one step.
    """
    if len(found) < step or size >= PAGE_BYTES:
        return 0
    fitting = (PAGE_BYTES - size) * len(taken) // max(1, size)
    return min(limit - len(taken), fitting)


def _delivery_document(delivery: Delivery) -> wire.DeliveryDocument:
    return wire.DeliveryDocument(
        delivery.token,
        delivery.attempt,
        delivery.deadline,
        delivery.group,
        delivery.consumer,
        event_document(delivery.event),
    )


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def ack_deliveries(at: LocalBackend, name: str, wanted: wire.AckRequest) -> PendingCommit[int]:
    return _change(at, name, lambda queue: queue.acking_tokens(wanted.tokens), LocalQueue.note_acks)


def ack_delivery(at: LocalBackend, name: str, token: str, wanted: wire.AckResult) -> PendingCommit[wire.Settled]:
    def prepare(queue: LocalQueue) -> WriteRequest[wire.Settled]:
        answer = answer_of(wanted.result)

        def apply(commit: Commit) -> wire.Settled:
            queue.ack_token_in(commit, token, answer)
            return wire.Settled("ack")

        return WriteRequest(apply)

    return _change(at, name, prepare, lambda queue, settled: queue.note_acks(1))


def read_delivery(at: LocalBackend, name: str, token: str) -> wire.DeliveryDocument:
    return _delivery_document(at.queue(name).delivery(token))


def nack_delivery(at: LocalBackend, name: str, token: str, wanted: NackRequest) -> wire.Settled:
    queue = at.queue(name)
    return wire.Settled("nack", queue.nack(queue.delivery(token), check_nack(**asdict(wanted))))


def extend_delivery(at: LocalBackend, name: str, token: str, wanted: wire.ExtendRequest) -> datetime:
    queue = at.queue(name)
    check_timed(queue.policy(), wanted.lease)
    delivery = queue.delivery(token)
    delivery.extend(wanted.lease)
    return delivery.deadline


def release_delivery(at: LocalBackend, name: str, token: str, wanted: wire.ReleaseRequest) -> wire.Settled:
    """Gives a delivery back without counting the attempt; never fails, even for a settled delivery."""
    queue, delay = at.queue(name), seconds(wanted.delay, "delay")
    try:
        queue.release([queue.delivery(token)], delay)
    except StaleDelivery:
        return wire.Settled("nothing")
    return wire.Settled("release")


def list_steps(at: LocalBackend, name: str, token: str) -> dict[str, object]:
    queue = at.queue(name)
    return {step: msgspec.json.decode(result) for step, result in queue.steps(queue.delivery(token)).items()}


def store_step(at: LocalBackend, name: str, token: str, wanted: wire.StepRequest) -> bool:
    queue = at.queue(name)
    queue.store_step(queue.delivery(token), check_text(wanted.name, "name"), encode_payload(wanted.result))
    return True


def note_progress(at: LocalBackend, name: str, token: str, wanted: wire.ProgressRequest) -> bool:
    queue = at.queue(name)
    queue.note_progress(queue.delivery(token), wanted.share, wanted.text, wanted.step)
    return True


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_message(at: LocalBackend, name: str, seq: str) -> Event | None:
    queue = at.queue(name)
    return inspect.get(queue, int(seq)) if seq.isascii() and seq.isdigit() and len(seq) <= 18 else None


def peek_messages(at: LocalBackend, name: str, query: wire.PeekQuery) -> EventList[Event]:
    found = inspect.peek(at.queue(name), query.limit, check_consumer(query.group, "group"))
    return EventList(page_of(found, None, lambda event: len(event.raw))[0])


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
        size += _message_size(one)
    return wire.MessagePage(found)


def list_failed(at: LocalBackend, name: str, query: wire.FailedQuery) -> wire.FailedList[FailedMessage]:
    given_up = inspect.failures(at.queue(name), check_consumer(query.group, "group"), query.after)
    found, last = page_of(given_up, query.limit, _message_size)
    return wire.FailedList(found, None if last is None else last.event.seq)


def list_dead_letters(at: LocalBackend, name: str, query: wire.DeadLetterQuery) -> wire.DeadLetterList[FailedMessage]:
    after = DeadLetterCursor.read(query.after) if query.after else None
    if query.after and after is None:
        raise ConfigError(f"after must be the next of the page before, not {query.after[:40]!r}")
    found, last = page_of(inspect.dead_letters(at.queue(name), after), query.limit, _message_size)
    return wire.DeadLetterList(found, None if last is None else str(DeadLetterCursor.of(last.event)))


def _message_size(one: inspect.QueueMessage | FailedMessage) -> int:
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
    if wanted.where:
        check_events_chosen(Where(wanted.where))
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
