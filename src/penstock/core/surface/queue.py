"""Queue: the handle to push, take, inspect and repair messages, wherever the journal is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.clock import Duration, seconds
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.worker import adapt_handler
from penstock.core.documents.decoding import nearest
from penstock.core.events import Draft, Event, PayloadType, Receipt
from penstock.core.model.arguments import (
    PolicyArguments,
    PushArguments,
    TakeArguments,
    TakeManyArguments,
    show_arguments,
)
from penstock.core.model.conditions import EventChoice, Where, predicate
from penstock.core.model.push import PushOptions
from penstock.core.model.take import DEFAULT_GROUP, TakeRequest, check_taker, check_taking, take_request
from penstock.core.names import (
    check_consumer,
    check_headers,
    check_items,
    check_limit,
    check_mapping,
    check_position,
    check_whole,
)
from penstock.core.observe.logs import Log
from penstock.core.observe.sample import FailedMessage
from penstock.core.protocol import queues as wire
from penstock.core.protocol.fields import payload_fields, policy_fields, policy_of
from penstock.core.protocol.operation import Operation
from penstock.core.queue.inspect import (
    MessageState,
    PendingDelivery,
    QueueConsumer,
    QueueMessage,
    QueueStats,
    check_state,
)
from penstock.core.queue.operations.groups import Pause
from penstock.core.queue.operations.repair import Redriven
from penstock.core.queue.policy import QueuePolicy, check_policy
from penstock.core.queue.results import ResultTicket, with_reply
from penstock.core.queue.schedule import Schedule, cron_line
from penstock.core.queue.tasks.state import TaskTimes
from penstock.core.schema import MESSAGE_KIND, PayloadT, brings_kind, encode_event
from penstock.core.surface.receiving import Receiver
from penstock.errors import ConfigError
from penstock.limits import MESSAGES_LISTED

if TYPE_CHECKING:
    from penstock.core.queue.worker import Middleware, QueueWorker
    from penstock.core.surface.backend import QueueBackend
    from penstock.core.surface.journal import Journal
    from penstock.core.ticket import Ticket

A = TypeVar("A")
L = TypeVar("L", bound="AnswerPage")

log = Log("penstock.queue")

FIRST_PAGE, PAGE = 50, 1_000
"""The messages of the first page of a walk over a queue, and of each later page."""
LISTED = 10_000
"""The rows that a list requests at a time."""


class AnswerPage(Protocol):
    """A part of a list."""

    @property
    def next(self) -> int | str | None:
        """The cursor of the next page; None without a next page."""


class Queue(Generic[PayloadT]):
    """Messages handed out under leases, over the topic of the same name. Thread-safe; get one from `journal.queue`."""

    def __init__(self, journal: Journal, backend: QueueBackend, payload: PayloadType[PayloadT] | None = None) -> None:
        self.journal = journal
        self.name = backend.name
        self._backend = backend
        self._payload = payload

    def _typed(self, found: list[Delivery]) -> list[Delivery[PayloadT]]:
        """Returns deliveries with payloads of this handle's type."""
        if self._payload is not None:
            for one in found:
                one.event = self._payload.typed(one.event)
        return found

    def _call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None) -> A:
        return self.journal._backend.call(operation, self.name, *names, request=request)

    def _pages(self, operation: Operation[L], query: msgspec.Struct) -> Iterator[L]:
        """Yields the rows of a list by pages, a short page first."""
        page = self._call(operation, request=replace(query, limit=FIRST_PAGE))
        while True:
            yield page
            if page.next is None:
                return
            page = self._call(operation, request=replace(query, after=page.next, limit=PAGE))

    def _name_of(self, other: Queue) -> str:
        """Returns the name of another queue of the same journal."""
        if not isinstance(other, Queue) or other.journal is not self.journal:
            raise ConfigError(f"a queue of this journal is needed, not of another journal: {other!r:.80}")
        return other.name

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self.journal!r}>"

    @property
    def policy(self) -> QueuePolicy:
        """The stored policy of the queue."""
        return self._backend.policy()

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @overload
    def push(
        self, payload: PayloadT, *, reply: Literal[False] = False, **options: Unpack[PushArguments]
    ) -> Receipt: ...

    @overload
    def push(self, payload: PayloadT, *, reply: Literal[True], **options: Unpack[PushArguments]) -> ResultTicket: ...

    def push(
        self,
        payload: PayloadT,
        *,
        kind: str = "message",
        key: str | None = None,
        priority: int | Literal["front"] = 0,
        delay: Duration = 0,
        not_before: datetime | None = None,
        dedup: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        cause: object = None,
        reply: bool = False,
    ) -> Receipt | ResultTicket:
        """Adds a message and returns when it is durable.

        A payload of a declared event type brings its kind, and `delivery.as_(type)` returns it. `key`: messages of one
        key are delivered in order, one at a time. `delay` and `not_before` are the earliest time of delivery.
        `priority` needs a queue with priorities; "front" goes before all waiting messages in any queue. `dedup`: within
        the policy's window, a repeated key returns the first message's receipt. `max_attempts` is the message's own
        retry budget. `reply` returns a ticket for the result of the worker's handler.
        """
        if self._payload is not None:
            payload = self._payload.accept(payload, kind)
        if reply:
            headers = with_reply(self.name, headers)
        options = PushOptions(kind, key, priority, delay, not_before, dedup, max_attempts, headers, cause)
        receipt = self._backend.push(payload, options)
        return ResultTicket(self, receipt) if reply else receipt

    @show_arguments(PushArguments, PushOptions)
    def submit(self, payload: PayloadT, **options: Unpack[PushArguments]) -> Ticket[Receipt]:
        """Submits a message and returns a ticket at once; await the ticket, or ask it later."""
        if self._payload is not None:
            payload = self._payload.accept(payload, options.get("kind", MESSAGE_KIND))
        return self._backend.submit(payload, push_options(options))

    @show_arguments(PushArguments, PushOptions)
    def push_many(self, payloads: Iterable[PayloadT | Draft], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; the options of `push` apply to all of them.

        A Draft among the payloads has its own kind, key, dedup key, headers and cause.
        """
        wanted: list[object] = check_items(payloads, "payloads")
        if self._payload is not None:
            wanted = self._payload.messages(wanted, options.get("kind", MESSAGE_KIND))
        return self._backend.push_many(wanted, push_options(options))

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @show_arguments(TakeArguments, TakeRequest)
    def receive(self, *, wait: Duration | None = 0, **options: Unpack[TakeArguments]) -> Receiver[PayloadT]:
        """Returns messages to work on.

        `with queue.receive(wait=1) as delivery` gives one message, or None when no message arrives in this time. `for
        delivery in queue.receive(wait=1)` gives one message after the other until no message arrives. `wait=None` waits
        forever.

        The `with` block acknowledges its message, or gives it back with the error that left the block. In a loop, put
        each delivery in its own `with` block. `async with` and `async for` do the same. The options are the options of
        `take`.
        """
        return Receiver(self, wait, options)

    def take(
        self,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Duration = 0,
        lease: Duration | None = None,
        newest: bool = False,
        seq: int | None = None,
        key: str | None = None,
    ) -> Delivery[PayloadT] | None:
        """Returns the next message, which this consumer holds until it is settled or its lease ends; None without a
        message.

        `wait` is the time to wait for a message. `newest` takes from the other end, in queues without keys. `seq` takes
        only the message at this position, before earlier messages; None when it is in flight, delayed, failed, settled,
        or behind another message of its ordering key. `key` takes the next message of this key. Pauses, rates and
        limits apply to all of these takes.
        """
        if group != DEFAULT_GROUP or consumer is not None:
            check_taker(group, consumer)
        patience = seconds(wait, "wait") if wait else 0.0
        hold = None if lease is None else seconds(lease, "lease")
        found = self._backend.take(TakeRequest(1, group, consumer, patience, hold, newest, seq, key))
        if self._payload is not None:
            self._typed(found)
        return found[0] if found else None

    @show_arguments(TakeManyArguments, TakeRequest)
    def take_many(
        self, limit: int, *, wait: Duration = 0, **options: Unpack[TakeManyArguments]
    ) -> Sequence[Delivery[PayloadT]]:
        """Returns up to `limit` messages; `wait` is the time to wait for the first message.

        The options are the options of `take`.
        """
        wanted = take_request(limit, "take_many", wait, **options)
        return self._typed(self._backend.take(wanted)) if limit else []

    @show_arguments(TakeArguments, TakeRequest)
    async def take_async(self, *, wait: Duration = 0, **options: Unpack[TakeArguments]) -> Delivery[PayloadT] | None:
        """Does what `take` does, for an event loop."""
        found = self._typed(await self._backend.take_async(take_request(1, "take_async", wait, **options)))
        return found[0] if found else None

    @show_arguments(TakeManyArguments, TakeRequest)
    async def take_many_async(
        self, limit: int, *, wait: Duration = 0, **options: Unpack[TakeManyArguments]
    ) -> Sequence[Delivery[PayloadT]]:
        """Does what `take_many` does, for an event loop."""
        wanted = take_request(limit, "take_many_async", wait, **options)
        return self._typed(await self._backend.take_async(wanted)) if limit else []

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack_many(self, deliveries: Iterable[Delivery | str]) -> int:
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns the number that were still held.

        Unknown, repeated, settled and lost deliveries count 0.
        """
        handles = check_items(deliveries, "deliveries")
        for one in handles:
            if isinstance(one, Delivery):
                if one.queue.name != self.name or one.queue.journal is not self.journal:
                    raise ConfigError(f"a delivery of queue {one.queue.name!r} was given to queue {self.name!r}")
            elif not isinstance(one, str):
                raise ConfigError(f"ack_many takes deliveries or their tokens, not {one!r:.80}")
        count = self._backend.ack_many(handles)
        for one in handles:
            if isinstance(one, Delivery):
                one._settled = True
        return count

    def delivery(self, token: str) -> Delivery[PayloadT]:
        """Returns the delivery of a token, as its holder has it; raises StaleDelivery when its lease is gone."""
        if not isinstance(token, str):
            raise ConfigError(f"a delivery is found by its token, which is text, not {token!r:.80}")
        return self._typed([self._backend.delivery(token)])[0]

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, seq: int | None = None, *, key: str | None = None) -> Event[PayloadT] | None:
        """Returns the message at a position, or the first message of an ordering key, without taking it; None for a
        settled or unknown message.
        """
        if (seq is None) == (key is None):
            raise ConfigError("get a message by its position, or by its key: give one of them")
        if seq is None:
            found = next((one.event for one in self.messages(key=key, limit=1)), None)
        else:
            found = self.journal._backend.find(wire.READ_MESSAGE, self.name, str(check_position(seq, "seq")))
        return found if self._payload is None or found is None else self._payload.typed(found)

    def peek(self, limit: int = 1, *, group: str = DEFAULT_GROUP) -> list[Event[PayloadT]]:
        """Returns the messages that would be taken next, without taking them."""
        query = wire.PeekQuery(check_group(group), check_whole(limit, "limit", 0))
        found = self._call(wire.PEEK_MESSAGES, request=query).events
        return found if self._payload is None else self._payload.typed_all(found)

    def __iter__(self) -> Iterator[Event[PayloadT]]:
        """Yields every unsettled message, in order of position: ready, in flight, delayed and failed."""
        previous = 0
        for page in self._pages(wire.LIST_MESSAGES, wire.MessageQuery()):
            for one in page.messages:
                if one.seq != previous:
                    previous = one.seq
                    yield one.event if self._payload is None else self._payload.typed(one.event)

    def __len__(self) -> int:
        """Returns the number of messages that are ready, in flight or delayed; in fanout mode, of the group with the
        most messages left.
        """
        return self._backend.length()

    def __bool__(self) -> bool:
        return True

    def stats(self, group: str = DEFAULT_GROUP) -> QueueStats:
        """Returns the number of messages in each state; the cost does not depend on the queue's length."""
        return self._call(wire.READ_QUEUE_STATS, request=wire.GroupQuery(check_group(group)))

    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Returns every delivery in flight, of one group or of all."""
        return self._call(wire.LIST_PENDING, request=wire.PendingQuery(_optional(group), LISTED))

    def failed(self, group: str = DEFAULT_GROUP) -> Iterator[Event]:
        """Yields failed messages, which were given up without a dead-letter queue, in order of position."""
        return (failure.event for failure in self.failures(group))

    def failures(self, group: str = DEFAULT_GROUP) -> Iterator[FailedMessage]:
        """Yields failed messages with their reasons, in order of position."""
        pages = self._pages(wire.LIST_FAILED, wire.FailedQuery(check_group(group)))
        return (failure for page in pages for failure in page.failed)

    def dead_letters(self) -> Iterator[FailedMessage]:
        """Yields the queue's dead letters with their reasons; for a dead-letter queue, all its letters."""
        pages = self._pages(wire.LIST_DEAD_LETTERS, wire.DeadLetterQuery())
        return (letter for page in pages for letter in page.dead)

    def messages(
        self,
        state: MessageState | None = None,
        *,
        group: str | None = None,
        key: str | None = None,
        after: int = 0,
        limit: int = MESSAGES_LISTED,
    ) -> list[QueueMessage]:
        """Returns unsettled messages, with their state, attempts, last error, due time, priority and group.

        `state` limits the list to ready, delayed, in_flight or failed messages; `key` to one ordering key. The list is
        in order of position, with `limit` positions from `after` on: the next page begins after the last `seq`. In
        fanout mode each group that has not settled a message has its own entry; `group` limits the list to one group.
        """
        query = wire.MessageQuery(check_state(state), _optional(group), key, check_position(after, "after"))
        left: int | None = check_limit(limit)
        found: list[QueueMessage] = []
        while left is None or left > 0:
            query.limit = LISTED if left is None else min(left, LISTED)
            page = self._call(wire.LIST_MESSAGES, request=query)
            found += page.messages
            left = None if left is None else left - len({one.seq for one in page.messages})
            if page.next is None:
                break
            query.after = page.next
        return found

    def consumers(self) -> list[QueueConsumer]:
        """Returns workers, and other consumers that gave their name: their machine, their start, their last sign of
        life, and the messages that they hold.
        """
        return self._call(wire.LIST_CONSUMERS)

    def task_times(self) -> list[TaskTimes]:
        """Returns, by task, the durations of calls from delivery to settlement, in this hour and the hour before,
        for tasks whose results are kept.
        """
        return self._call(wire.LIST_TASK_TIMES)

    # ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────
    def claim(
        self,
        *,
        min_idle: Duration,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        limit: int = 1,
        lease: Duration | None = None,
    ) -> Sequence[Delivery[PayloadT]]:
        """Takes over deliveries that no consumer has extended for `min_idle`, whether or not their lease has ended.

        A claim is a new delivery, with a new token and one more attempt; the old handle is stale.
        """
        idle = seconds(min_idle, "min_idle")
        wanted = take_request(limit, "claim", 0, group, consumer, lease)
        return self._typed(self._backend.claim(wanted, idle))

    def redrive(
        self,
        *,
        to: Queue | None = None,
        limit: int | None = None,
        where: EventChoice | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Sends dead letters back to the queue they come from (or `to`), and makes failed messages ready again.

        Call it on a dead-letter queue for all of its letters, or on a queue for its own failed messages and its own
        letters. The messages get a fresh budget and keep their key and priority; in fanout mode they go to the group
        that gave them up. Returns the number of messages; `dry_run` only counts. The result's `left` names the letters
        that cannot be sent, because their queue or their group is gone.
        """
        target = None if to is None else self._name_of(to)
        request = wire.RedriveRequest(
            target, check_limit(limit), *_requested_choice(where, self._given_up), dry_run=dry_run
        )
        answer = self._call(wire.REDRIVE_QUEUE, request=request)
        return Redriven((answer.would_redrive if dry_run else answer.redriven) or 0, answer.left)

    def _given_up(self) -> Iterator[Event]:
        for group in self.groups() if self.policy.mode == "fanout" else [DEFAULT_GROUP]:
            yield from self.failed(group)
        yield from (letter.event for letter in self.dead_letters())

    def move(self, to: Queue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that are not in flight to the end of another queue; returns their number.

        The messages keep delays, priorities (if the other queue has priorities) and retry budgets. Many messages move
        in several commits, each message in one commit. Raises QueueFull when the other queue has no room for all of
        them. In a transaction, `tx.move` moves all or none.
        """
        target = self._name_of(to)
        if target == self.name:
            raise ConfigError(f"queue {self.name!r} cannot be moved to itself")
        request = wire.MoveRequest(target, check_limit(limit), *_requested_choice(where, self.__iter__))
        return self._call(wire.MOVE_MESSAGES, request=request)

    def discard(self, seqs: Iterable[int]) -> int:
        """Settles messages that are not in flight, by their positions, as if they had been taken and acknowledged.

        Positions that are unknown, settled or in flight count 0; failed messages can be discarded too.
        """
        request = wire.DiscardRequest([check_position(seq, "seq") for seq in check_items(seqs, "seqs")])
        return self._call(wire.DISCARD_MESSAGES, request=request)

    def run_now(self, seqs: Iterable[int], *, group: str | None = None) -> int:
        """Makes delayed messages ready at once, including messages that wait for their retry; returns their number.

        The positions name the messages, for one group or for all. Messages that are not delayed count 0.
        """
        positions = [check_position(seq, "seq") for seq in check_items(seqs, "seqs")]
        request = wire.RunNowRequest(positions, _optional(group))
        return self._call(wire.RUN_NOW, request=request)

    def purge(self) -> int:
        """Removes every message, including messages in flight; returns their number.

        The policy and the positions stay.
        """
        return self._call(wire.PURGE_QUEUE)

    def drop(self) -> int:
        """Removes the queue with its messages, groups and schedules; returns the number of messages.

        The topic stays, and with it the count of positions: a new queue under this name continues the count.
        """
        return self._call(wire.DROP_QUEUE)

    @show_arguments(PolicyArguments)
    def configure(self, **policy: Unpack[PolicyArguments]) -> QueuePolicy:
        """Changes the policy, except the mode, which is fixed."""
        fields = policy_fields(check_policy(with_queue_names(policy), self.name))
        return policy_of(self._call(wire.CONFIGURE_QUEUE, request=fields))

    # ── pausing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def pause(self, group: str | None = None) -> bool:
        """Stops deliveries to one group or to all, until `resume`; returns False when they were stopped already.

        The pause is stored and applies to every process. Messages in flight can be settled, and pushes continue.
        """
        return self._call(wire.PAUSE_QUEUE, request=wire.PauseRequest(_optional(group))).changed

    def resume(self, group: str | None = None) -> bool:
        """Ends a pause and wakes waiting takes; returns False without a pause.

        The pause of the whole queue and the pauses of its groups end separately.
        """
        return self._call(wire.RESUME_QUEUE, request=wire.PauseRequest(_optional(group))).changed

    def pauses(self) -> list[Pause]:
        """Returns the current pauses, first the pause of the whole queue."""
        return self._backend.pauses()

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def groups(self) -> list[str]:
        """Returns the names of the queue's groups, sorted."""
        return self._backend.groups()

    def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets the messages after a position; an existing group does not change.

        In work mode only the name is stored: all takes share the messages, whatever group they name.
        """
        if after != "latest":
            check_position(after, "after")
        self._call(wire.ADD_GROUP, request=wire.NewGroup(check_group(name), after))

    def remove_group(self, name: str) -> bool:
        """Removes a group, so that messages no longer wait for it; returns False for an unknown group."""
        return self._call(wire.REMOVE_GROUP, check_group(name))

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def worker(
        self,
        handler: Callable[[Any], object],
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Duration | None = None,
        middleware: Iterable[Middleware] = (),
        batch: int | None = None,
        wait: Duration = 0,
    ) -> QueueWorker:
        """Returns a worker that gives messages to `handler` (a function or a coroutine function), `concurrency` at a
        time.

        A handler that returns acknowledges its message; a handler that raises gives it back. Leases are renewed
        meanwhile, including leases of messages taken ahead. `start()` the worker, `run()` it, or use it as a context
        manager.

        With `batch`, the handler gets a list of up to so many deliveries, and `wait` is the time that an incomplete
        batch waits for more messages. Deliveries that the handler has not settled are acknowledged in one commit when
        it returns, and given back one by one when it raises.
        """
        from penstock.core.queue.worker import QueueBatchWorker, QueueWorker

        check_taking(1, group, consumer, "a worker")
        if self._payload is not None:
            handler = adapt_handler(handler, self._typed_in_hand)
        if batch is not None and (concurrency != 1 or ahead is not None):
            raise ConfigError("a worker with batch= handles one batch at a time: start several for more at once")
        taker = group, consumer, lease, middleware
        worker = (
            QueueWorker(self, handler, *taker, concurrency, ahead)
            if batch is None
            else QueueBatchWorker(self, handler, *taker, batch, wait)
        )
        self.journal._backend.workers.add(worker)
        return worker

    def _leave(self, group: str, consumer: str) -> None:
        """Notes that a consumer has ended, so that it is no longer listed."""
        self._call(wire.LEAVE_QUEUE, request=wire.LeaveRequest(consumer, group))

    def _typed_in_hand(self, given: Delivery | list[Delivery]) -> object:
        return self._typed(given) if isinstance(given, list) else self._typed([given])[0]

    def every(
        self,
        interval: Duration,
        payload: object = None,
        *,
        name: str,
        timezone: str = "UTC",
        missed: Literal["all", "last", "none"] = "last",
        kind: str = "message",
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> Schedule:
        """Pushes a message periodically: every `interval` ("90s", 3600, a timedelta), or by a cron line of five fields
        ("0 6 * * mon").

        Each tick pushes exactly one message, however many processes have the queue open. The schedule is stored under
        `name` and continues after restarts, wherever the queue is opened. The same name with the same arguments changes
        nothing; other arguments replace the schedule. `missed` decides which ticks are made up for that no process was
        there to push.
        """
        if self._payload is not None:
            payload = self._payload.accept(payload, kind)
        if brings_kind(payload, kind):
            kind, payload, own = encode_event(payload)
            headers = {**own, **check_mapping(headers, "headers")}
        cron = cron_line(interval)
        request = wire.NewSchedule(
            name=check_consumer(name, "schedule"),
            interval=None if cron else seconds(interval, "interval"),
            cron=cron,
            timezone=timezone,
            missed=missed,
            kind=kind,
            headers=None if headers is None else dict(check_headers(headers)),
            key=key,
            priority=priority,
            **payload_fields(payload),
        )
        return self._call(wire.ADD_SCHEDULE, request=request)

    def schedules(self) -> list[Schedule]:
        """Returns the queue's periodic messages, by name."""
        return self._call(wire.LIST_SCHEDULES)

    def unschedule(self, name: str) -> bool:
        """Removes a periodic message; returns False for an unknown name."""
        return self._call(wire.REMOVE_SCHEDULE, check_consumer(name, "schedule"))


def _requested_choice(
    where: EventChoice | None, candidates: Callable[[], Iterable[Event]]
) -> tuple[str | None, list[str] | None]:
    """Returns the form of a choice in a request: the text of a condition; for a function, the ids of the chosen
    events.
    """
    chooser = predicate(where)
    if chooser is None or isinstance(chooser, Where):
        return None if chooser is None else chooser.text, None
    return None, sorted({event.id for event in candidates() if chooser(event)})


def push_options(given: Mapping[str, Any]) -> PushOptions:
    """Returns the given options of a push; a ConfigError names an unknown option."""
    if unknown := sorted(given.keys() - set(PushOptions.__struct_fields__)):
        raise ConfigError(f"a push has no option {unknown[0]!r}{nearest(unknown[0], PushOptions.__struct_fields__)}")
    return PushOptions(**given)


def update_policy(queue: Queue, wanted: Mapping[str, object]) -> Queue:
    """Changes a queue's policy to a program's policy; records the change in the log and the audit."""
    before, changes = queue.policy, check_policy(wanted, queue.name)
    queue._call(wire.CONFIGURE_QUEUE, request=policy_fields(changes))
    stored = asdict(before)
    changed = {name: [stored[name], value] for name, value in changes.items() if stored[name] != value}
    said = ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
    log.warning("queue %r has another policy now, as this program asks for it: %s", queue.name, said)
    queue.journal._backend.audit("queue.updated", queue.name, {"changes": msgspec.to_builtins(changed)})
    return queue


def with_queue_names(policy: Mapping[str, object]) -> dict[str, object]:
    """Returns a given policy, with its dead-letter queue by name."""
    target = policy.get("dead_letter")
    return {**policy, "dead_letter": target.name} if isinstance(target, Queue) else dict(policy)


def check_group(group: str) -> str:
    return check_consumer(group, "group")


def _optional(group: str | None) -> str | None:
    return None if group is None else check_group(group)
