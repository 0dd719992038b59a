"""A queue at the other end of a url."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from penstock.clock import Seconds, seconds
from penstock.documents.conditions import EventChoice, predicate
from penstock.events import Event, Receipt
from penstock.limits import MESSAGES_LISTED
from penstock.names import check_consumer, check_limit, check_position
from penstock.observe.sample import FailedMessage
from penstock.protocol import deliveries, messages
from penstock.protocol import queues as operations
from penstock.protocol.deliveries import ClaimRequest, LeaveRequest, PendingQuery
from penstock.protocol.fields import PolicyFields, policy_fields, policy_of
from penstock.protocol.messages import MessageQuery, PeekQuery, PushRequest
from penstock.protocol.operation import Operation
from penstock.protocol.queues import (
    DiscardRequest,
    GroupQuery,
    NewGroup,
    PauseRequest,
    QueueDocument,
    RunNowRequest,
)
from penstock.queue.inspect import MessageState, PendingDelivery, QueueConsumer, QueueMessage, QueueStats, check_state
from penstock.queue.operations.groups import Pause
from penstock.queue.operations.repair import Redriven
from penstock.queue.policy import QueuePolicy, checked, refuse_mismatch
from penstock.queue.results.reply import with_reply
from penstock.queue.results.ticket import ResultTicket
from penstock.queue.run.schedule import Schedule
from penstock.remote.events import event_of, events_of, receipt_of
from penstock.remote.local_only import refused
from penstock.remote.queues import listing, moving
from penstock.remote.queues.delivery import RemoteDelivery
from penstock.remote.queues.listing import LISTED
from penstock.remote.queues.pushing import push_request, schedule_request
from penstock.remote.queues.taking import acknowledge, take, take_async, take_request
from penstock.surface.arguments import PushArguments, TakeArguments
from penstock.surface.delivery import Delivery
from penstock.surface.queue import DEFAULT_GROUP, Queue
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.queue.run.middleware import Middleware
    from penstock.remote.journal import RemoteJournal
    from penstock.remote.queues.worker import RemoteQueueWorker
    from penstock.surface.arguments import PolicyArguments

A = TypeVar("A")


class RemoteQueue(Queue):
    """A queue of a served journal."""

    journal: RemoteJournal

    def __init__(self, journal: RemoteJournal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._client = journal._client

    @classmethod
    def open(cls, journal: RemoteJournal, name: str, policy: Mapping[str, object], *, create: bool) -> RemoteQueue:
        """The queue, made at the server when it is not there (and this journal may write)."""
        wanted = checked(policy, name)
        fields = policy_fields(wanted)
        queue = cls(journal, name)
        if journal._read_only or not create:
            refuse_mismatch(name, policy_of(queue._document().policy), wanted)
        else:
            queue._change(operations.OPEN_QUEUE, body=fields)
        return queue

    def _ask(self, operation: Operation[A], *names: str, query: Any = None) -> A:
        return self._client.call(operation, self.name, *names, query=query)

    def _change(self, operation: Operation[A], *names: str, body: object = None, wait: float = 0.0) -> A:
        self.journal._check_writable()
        return self._client.call(operation, self.name, *names, body=body, wait=wait)

    def _document(self) -> QueueDocument:
        return self._ask(operations.READ_QUEUE)

    @property
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""
        return policy_of(self._document().policy)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @overload
    def push(self, payload: object, *, reply: Literal[False] = False, **options: Unpack[PushArguments]) -> Receipt: ...

    @overload
    def push(self, payload: object, *, reply: Literal[True], **options: Unpack[PushArguments]) -> ResultTicket: ...

    def push(
        self,
        payload: Any,
        *,
        kind: str = "message",
        key: str | None = None,
        priority: int | Literal["front"] = 0,
        delay: Seconds = 0,
        not_before: datetime | None = None,
        dedup: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        cause: Any = None,
        reply: bool = False,
    ) -> Receipt | ResultTicket:
        """Adds a message and returns when it is durable; `reply`: a ticket for what a worker's handler returns."""
        token = None
        if reply:
            headers, token = with_reply(self.name, headers)
        options = PushArguments(kind=kind, key=key, priority=priority, delay=delay, not_before=not_before)
        options |= PushArguments(dedup=dedup, max_attempts=max_attempts, headers=headers, cause=cause)
        receipt = self._push(push_request(self.name, [payload], options, many=False))[0]
        return receipt if token is None else ResultTicket(self, receipt, token)

    def submit(self, payload: object, **options: Unpack[PushArguments]) -> Ticket[Receipt]:
        """`push` with a ticket: hands the message over and returns at once."""
        self.journal._check_writable()
        # Made here: the caller's trace context does not follow into another thread.
        request = push_request(self.name, [payload], options, many=False)
        return self.journal._submit(lambda: self._push(request)[0])

    def push_many(self, payloads: Iterable[object], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; a Draft brings what is its own."""
        return self._push(push_request(self.name, payloads, options, many=True))

    def _push(self, request: PushRequest | None) -> list[Receipt]:
        if request is None:
            return []
        answer = self._change(messages.PUSH_MESSAGES, body=request)
        return [receipt_of(document) for document in answer.receipts]

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(self, *, wait: Seconds = 0, **options: Unpack[TakeArguments]) -> RemoteDelivery | None:
        """The next message, for this consumer until it is settled or its lease ends; None when there is none."""
        found = self.take_many(1, wait=wait, **options)
        return found[0] if found else None

    def take_many(
        self,
        limit: int,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> list[RemoteDelivery]:
        """Up to `limit` messages, as many as there are (and fit into an answer); `wait`: how long for the first."""
        request = take_request(limit, group, consumer, lease, newest, None)
        return take(self, request, seconds(wait, "wait")) if limit else []

    async def take_async(self, *, wait: Seconds = 0, **options: Unpack[TakeArguments]) -> RemoteDelivery | None:
        """`take` for an event loop."""
        found = await self.take_many_async(1, wait=wait, **options)
        return found[0] if found else None

    async def take_many_async(
        self,
        limit: int,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> list[RemoteDelivery]:
        """`take_many` for an event loop."""
        request = take_request(limit, group, consumer, lease, newest, None)
        return await take_async(self, request, seconds(wait, "wait")) if limit else []

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack_many(self, deliveries: Iterable[Delivery | str]) -> int:
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns how many were still held."""
        return acknowledge(self, deliveries)

    def delivery(self, token: str) -> RemoteDelivery:
        """The delivery a token names; StaleDelivery when its lease is gone."""
        return RemoteDelivery(self, self._ask(deliveries.READ_DELIVERY, token))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, seq: int) -> Event | None:
        """The message at a position, without taking it; None when it is settled or never was."""
        found = self._client.find(messages.READ_MESSAGE, self.name, str(check_position(seq, "seq")))
        return None if found is None else event_of(found)

    def peek(self, limit: int = 1, *, group: str = DEFAULT_GROUP) -> list[Event]:
        """The messages that would be taken next, without taking them."""
        check_limit(limit)
        return list(events_of(self._ask(messages.PEEK_MESSAGES, query=PeekQuery(group, limit)).events))

    def __iter__(self) -> Iterator[Event]:
        """Everything not acknowledged, in order of position: ready, in flight, delayed and failed."""
        return listing.unsettled_events(self)

    def __len__(self) -> int:
        return self._document().length

    def stats(self, group: str = DEFAULT_GROUP) -> QueueStats:
        """How many messages are in which state."""
        return self._ask(operations.READ_QUEUE_STATS, query=GroupQuery(check_consumer(group, "group")))

    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""
        return self._ask(deliveries.LIST_PENDING, query=PendingQuery(group, LISTED)).pending

    def failed(self, group: str = DEFAULT_GROUP) -> Iterator[Event]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""
        return (failure.event for failure in self.failures(group))

    def failures(self, group: str = DEFAULT_GROUP) -> Iterator[FailedMessage]:
        """The same with the reason each was given up for."""
        return listing.failures(self, group)

    def dead_letters(self) -> Iterator[FailedMessage]:
        """The queue's dead letters, with the reason each was given up for."""
        return listing.dead_letters(self)

    def messages(
        self,
        state: MessageState | None = None,
        *,
        group: str | None = None,
        after: int = 0,
        limit: int = MESSAGES_LISTED,
    ) -> list[QueueMessage]:
        """Messages that are not settled, with their state, attempts, last error, due time, priority and group."""
        check_limit(limit)
        name = None if group is None else check_consumer(group, "group")
        return listing.listed(self, MessageQuery(check_state(state), name, check_position(after, "after")), limit)

    def consumers(self) -> list[QueueConsumer]:
        """Workers, and other consumers that gave their name: where, since when, last seen when, and what they hold."""
        return self._ask(deliveries.LIST_CONSUMERS).consumers

    def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""
        return self._ask(operations.LIST_SCHEDULES).schedules

    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""
        return self._document().groups

    # ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────
    def claim(
        self,
        *,
        min_idle: Seconds,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        limit: int = 1,
        lease: Seconds | None = None,
    ) -> list[RemoteDelivery]:
        """Takes over deliveries that no consumer has extended for `min_idle`."""
        request = ClaimRequest(
            min_idle=seconds(min_idle, "min_idle"),
            group=group,
            consumer=consumer,
            limit=limit,
            lease=None if lease is None else seconds(lease, "lease"),
        )
        found = self._change(deliveries.CLAIM_DELIVERIES, body=request).deliveries
        return [RemoteDelivery(self, delivery) for delivery in found]

    def redrive(
        self,
        *,
        to: Queue | None = None,
        limit: int | None = None,
        where: EventChoice | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Sends dead letters and failed messages back to their queue. A condition is asked by the server."""
        check_limit(limit)
        return moving.redrive(self, to, limit, predicate(where), dry_run)

    def move(self, to: Queue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that are not in flight to the end of another queue, all or nothing; returns how many."""
        return moving.move(self, to, check_limit(limit), predicate(where))

    def discard(self, seqs: Iterable[int]) -> int:
        """Settles messages that are not in flight, by their positions, as if they had been taken and acknowledged."""
        request = DiscardRequest([check_position(seq, "seq") for seq in seqs])
        return self._change(operations.DISCARD_MESSAGES, body=request).discarded

    def run_now(self, seqs: Iterable[int], *, group: str | None = None) -> int:
        """Makes delayed messages ready at once, also those that wait for their retry; returns how many did."""
        name = None if group is None else check_consumer(group, "group")
        request = RunNowRequest([check_position(seq, "seq") for seq in seqs], name)
        return self._change(operations.RUN_NOW, body=request).made_ready

    def purge(self) -> int:
        """Removes every message, also those in flight; returns how many."""
        return self._change(operations.PURGE_QUEUE).removed

    def drop(self) -> int:
        """Removes the queue with its messages; returns how many those were."""
        self.journal._queues.pop(self.name, None)
        return self._change(operations.DROP_QUEUE).removed

    def configure(self, **policy: Unpack[PolicyArguments]) -> QueuePolicy:
        """Changes the policy, all but the mode: a queue keeps the one it was made with."""
        return policy_of(self._change(operations.CONFIGURE_QUEUE, body=_policy(policy, self.name)))

    def pause(self, group: str | None = None) -> bool:
        """Hands nothing out any more, to one group or to all, until `resume`; False when that was so already."""
        return self._change(operations.PAUSE_QUEUE, body=_pause(group)).changed

    def resume(self, group: str | None = None) -> bool:
        """Ends a pause: takes that wait wake up. False when there was none."""
        return self._change(operations.RESUME_QUEUE, body=_pause(group)).changed

    def pauses(self) -> list[Pause]:
        """The pauses that have not ended, that of the whole queue first."""
        return self._document().pauses

    # ── groups, schedules, workers ───────────────────────────────────────────────────────────────────────────────────
    def every(
        self,
        interval: Seconds | str,
        payload: object = None,
        *,
        name: str,
        timezone: str = "UTC",
        missed: Literal["all", "last", "none"] = "all",
        kind: str = "message",
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> Schedule:
        """Pushes a message periodically: every `interval` seconds, or by a cron line of five fields."""
        request = schedule_request(interval, payload, name, timezone, missed, kind, headers, key, priority)
        return self._change(operations.ADD_SCHEDULE, body=request)

    def unschedule(self, name: str) -> bool:
        """Removes a periodic message; False when there is none of that name."""
        return self._change(operations.REMOVE_SCHEDULE, check_consumer(name, "schedule")).removed

    def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets what comes after a position."""
        self._change(operations.ADD_GROUP, body=NewGroup(check_consumer(name, "group"), after))

    def remove_group(self, name: str) -> bool:
        """Forgets a group, so that messages no longer wait for it; False when there is none of that name."""
        return self._change(operations.REMOVE_GROUP, check_consumer(name, "group")).removed

    def _leave(self, group: str, consumer: str) -> bool:
        """A consumer has ended, and is not listed any more; False when it was not."""
        return self._change(deliveries.LEAVE_QUEUE, body=LeaveRequest(consumer, group)).listed

    def worker(
        self,
        handler: Callable[[Any], object],
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Seconds | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> RemoteQueueWorker:
        """A worker that gives messages to `handler`, `concurrency` at a time, and renews their leases meanwhile."""
        if ahead is not None:
            raise refused("taking ahead", "a worker over http takes one message at a time for each of `concurrency`")
        if tuple(middleware):
            raise refused("a worker's middleware", "wrap the handler, or run the worker where the store is")
        from penstock.remote.queues.worker import RemoteQueueWorker

        worker = RemoteQueueWorker(self, handler, group=group, concurrency=concurrency, consumer=consumer, lease=lease)
        self.journal._workers.add(worker)
        return worker


def _policy(policy: Mapping[str, object], queue: str) -> PolicyFields:
    """A policy, checked here as a queue in this process would, as it travels."""
    return policy_fields(checked(policy, queue))


def _pause(group: str | None) -> PauseRequest:
    return PauseRequest(None if group is None else check_consumer(group, "group"))
