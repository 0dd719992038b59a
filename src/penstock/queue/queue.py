"""Queue: what users push to, take from, look into and repair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from sys import modules
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, overload

from penstock.clock import Seconds, seconds
from penstock.documents.conditions import EventChoice, predicate
from penstock.errors import ConfigError
from penstock.events import Event, Receipt
from penstock.journal.commit.request import WriteRequest
from penstock.limits import MESSAGES_LISTED
from penstock.names import check_consumer, check_limit, check_position
from penstock.observe.sample import FailedMessage
from penstock.observe.spans import sending
from penstock.queue import inspect
from penstock.queue.delivery import LocalDelivery
from penstock.queue.inspect import MessageState, PendingDelivery, QueueConsumer, QueueMessage, QueueStats
from penstock.queue.metrics import QueueCounters
from penstock.queue.operations import groups, repair
from penstock.queue.operations.groups import Pause
from penstock.queue.operations.repair import Redriven
from penstock.queue.operations.take import Request
from penstock.queue.policy import QueuePolicy, checked, duration_ms
from penstock.queue.pushing import Pushing
from penstock.queue.results.reply import with_reply
from penstock.queue.results.ticket import ResultTicket
from penstock.queue.run import schedule
from penstock.queue.run.middleware import Middleware
from penstock.queue.run.schedule import Schedule
from penstock.queue.run.waiting import take_waiting, take_waiting_async
from penstock.queue.run.worker import QueueWorker
from penstock.queue.settling import Settling
from penstock.surface.delivery import Delivery
from penstock.surface.queue import DEFAULT_GROUP, Queue
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.queue.registry import QueueRegistry
    from penstock.surface.arguments import PolicyArguments, PushArguments, TakeArguments

T = TypeVar("T")


class LocalQueue(Queue):
    """A queue of a journal in this process; `Queue` says what each method does."""

    def __init__(self, registry: QueueRegistry, name: str) -> None:
        core = self._core = registry.core
        self.journal = core.journal
        self.name = name
        self._registry = registry
        self._cache = registry.cache
        self._writer = core.writer
        self._signal = core.hub.signal(name)
        self._counters = QueueCounters(name)
        self._pushing = Pushing(registry, name, self._counters)
        self._settling = Settling(registry, name, self._counters)

    def _change(self, apply: Callable[..., T], *args: object) -> T:
        """Does something to the queue's state in a commit of its own."""
        return self._writer.run(WriteRequest(lambda commit: apply(commit, self._cache.state(commit, self.name), *args)))

    @property
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""
        return self._registry.policy(self.name)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @overload
    def push(self, payload: object, *, reply: Literal[False] = False, **options: Unpack[PushArguments]) -> Receipt: ...

    @overload
    def push(self, payload: object, *, reply: Literal[True], **options: Unpack[PushArguments]) -> ResultTicket: ...

    def push(
        self,
        payload: object,
        *,
        kind: str = "message",
        key: str | None = None,
        priority: int | Literal["front"] = 0,
        delay: Seconds = 0,
        not_before: datetime | None = None,
        dedup: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        cause: object = None,
        reply: bool = False,
    ) -> Receipt | ResultTicket:
        """Adds a message and returns when it is durable; `reply`: a ticket for what a worker's handler returns."""
        token = None
        if reply:
            headers, token = with_reply(self.name, headers)
        span = sending(self.name, "push", None, headers) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self._pushing.prepare(
                payload, kind, key, priority, delay, not_before, dedup, max_attempts, headers, cause
            )
            receipts = self._writer.run(WriteRequest(self._pushing.push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._counters.pushed.inc()
        return receipts[0] if token is None else ResultTicket(self, receipts[0], token)

    def submit(self, payload: object, **options: Unpack[PushArguments]) -> Ticket[Receipt]:
        """`push` with a ticket: hands the message over and returns at once; await the ticket, or ask it later."""
        return self._pushing.submit(payload, options)

    def push_many(self, payloads: Iterable[object], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; a Draft brings what is its own."""
        return self._pushing.push_many(list(payloads), options)

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(
        self,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> LocalDelivery | None:
        """The next message, for this consumer until it is settled or its lease ends; None when there is none."""
        found = self._take(1, group, consumer, wait, lease, newest)
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
    ) -> list[LocalDelivery]:
        """Up to `limit` messages, as many as there are; `wait`: how long to wait for the first."""
        if check_limit(limit) is None:
            raise ConfigError("take_many needs a limit: how many messages you can work on within one lease")
        return self._take(limit, group, consumer, wait, lease, newest) if limit else []

    async def take_async(self, *, wait: Seconds = 0, **options: Unpack[TakeArguments]) -> LocalDelivery | None:
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
    ) -> list[LocalDelivery]:
        """`take_many` for an event loop."""
        if check_limit(limit) is None:
            raise ConfigError("take_many_async needs a limit: how many messages you can work on within one lease")
        if not limit:
            return []
        request = self._request(limit, group, consumer, lease, newest)
        found = await take_waiting_async(self, request, seconds(wait, "wait"))
        self._counters.delivered.inc(len(found))
        return found

    def _take(
        self, limit: int, group: str, consumer: str | None, wait: Seconds, lease: Seconds | None, newest: bool
    ) -> list[LocalDelivery]:
        request = self._request(limit, group, consumer, lease, newest)
        found = take_waiting(self, request, seconds(wait, "wait") if wait else 0.0)
        if found:
            self._counters.delivered.inc(len(found))
        return found

    def _request(self, limit: int, group: str, consumer: str | None, lease: Seconds | None, newest: bool) -> Request:
        if group != DEFAULT_GROUP:
            check_consumer(group, "group")
        if consumer is not None:
            check_consumer(consumer)
        lease_ms = None if lease is None else duration_ms(lease, "lease")
        return Request(limit, group, consumer, lease_ms, newest, self._registry.owner)

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack_many(self, deliveries: Iterable[Delivery | str]) -> int:
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns how many were still held."""
        return self._settling.ack_many(list(deliveries))

    def delivery(self, token: str) -> LocalDelivery:
        """The delivery a token names, as its holder has it; StaleDelivery when its lease is gone."""
        return inspect.find_delivery(self, token)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, seq: int) -> Event | None:
        """The message at a position, without taking it; None when it is settled or never was."""
        return inspect.get(self, check_position(seq, "seq"))

    def peek(self, limit: int = 1, *, group: str = DEFAULT_GROUP) -> list[Event]:
        """The messages that would be taken next, without taking them."""
        check_limit(limit)
        return inspect.peek(self, limit, check_consumer(group, "group"))

    def __iter__(self) -> Iterator[Event]:
        """Everything not acknowledged, in order of position: ready, in flight, delayed and failed."""
        return inspect.unsettled_events(self)

    def __len__(self) -> int:
        """Messages that are ready, in flight or delayed; in fanout, for the group that has most left."""
        return inspect.length(self)

    def stats(self, group: str = DEFAULT_GROUP) -> QueueStats:
        """How many messages are in which state; costs the same whatever the queue holds."""
        return inspect.stats(self, check_consumer(group, "group"))

    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""
        return inspect.pending(self, None if group is None else check_consumer(group, "group"))

    def failed(self, group: str = DEFAULT_GROUP) -> Iterator[Event]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""
        return inspect.failed(self, check_consumer(group, "group"))

    def failures(self, group: str = DEFAULT_GROUP) -> Iterator[FailedMessage]:
        """The same with the reason each was given up for."""
        return inspect.failures(self, check_consumer(group, "group"))

    def dead_letters(self) -> Iterator[FailedMessage]:
        """The queue's dead letters with the reason each was given up for; of a dead-letter queue, all it holds."""
        return inspect.dead_letters(self)

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
        return list(inspect.messages(self, inspect.check_state(state), name, check_position(after, "after"), limit))

    def consumers(self) -> list[QueueConsumer]:
        """Workers, and other consumers that gave their name: where, since when, last seen when, and what they hold."""
        return inspect.consumers(self)

    # ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────
    def claim(
        self,
        *,
        min_idle: Seconds,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        limit: int = 1,
        lease: Seconds | None = None,
    ) -> list[LocalDelivery]:
        """Takes over deliveries whose holders have not extended them for `min_idle`, ended or not."""
        idle_ms = round(seconds(min_idle, "min_idle") * 1000)
        if check_limit(limit) is None:
            raise ConfigError("claim needs a limit: how many messages you can work on within one lease")
        request = self._request(limit, group, consumer, lease, False)
        found = repair.claim(self, request, idle_ms) if limit else []
        self._counters.delivered.inc(len(found))
        return found

    def redrive(
        self,
        *,
        to: Queue | None = None,
        limit: int | None = None,
        where: EventChoice | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Sends dead letters back to the queue they come from (or `to`), and makes failed messages ready again."""
        check_limit(limit)
        return repair.redrive(self, None if to is None else self._registry.own(to), limit, predicate(where), dry_run)

    def move(self, to: Queue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that are not in flight to the end of another queue, all or nothing; returns how many."""
        check_limit(limit)
        return repair.move(self, self._registry.own(to), limit, predicate(where))

    def purge(self) -> int:
        """Removes every message, also those in flight; returns how many. The policy and the positions stay."""
        return repair.purge(self)

    def drop(self) -> int:
        """Removes the queue with its messages, groups and schedules; returns how many messages that were."""
        return repair.drop(self)

    def discard(self, seqs: Iterable[int]) -> int:
        """Settles messages that are not in flight, by their positions, as if they had been acknowledged."""
        return repair.discard_many(self, [check_position(seq, "seq") for seq in seqs])

    def run_now(self, seqs: Iterable[int], *, group: str | None = None) -> int:
        """Makes delayed messages ready at once, also those that wait for their retry; returns how many did."""
        wanted = [check_position(seq, "seq") for seq in seqs]
        return self._change(repair.run_now, wanted, None if group is None else check_consumer(group, "group"))

    def configure(self, **policy: Unpack[PolicyArguments]) -> QueuePolicy:
        """Changes the policy, all but the mode: a queue keeps the one it was made with."""
        return self._change(groups.configure, checked(policy, self.name))

    # ── pausing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def pause(self, group: str | None = None) -> bool:
        """Hands nothing out any more, to one group or to all, until `resume`; False when that was so already."""
        return self._change(groups.pause, None if group is None else check_consumer(group, "group"))

    def resume(self, group: str | None = None) -> bool:
        """Ends a pause: takes that wait wake up. False when there was none."""
        return self._change(groups.resume, None if group is None else check_consumer(group, "group"))

    def pauses(self) -> list[Pause]:
        """The pauses that have not ended, that of the whole queue first."""
        with inspect.inspecting(self) as (_, state):
            return groups.pauses(state.record)

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""
        return inspect.groups(self)

    def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets what comes after a position; one that exists already is left as it is."""
        check_consumer(name, "group")
        if after != "latest":
            check_position(after, "after")
        self._change(groups.add_group, name, after)

    def remove_group(self, name: str) -> bool:
        """Forgets a group, so that messages no longer wait for it; False when there is none of that name."""
        return self._change(groups.remove_group, check_consumer(name, "group"))

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def worker(
        self,
        handler: Callable[[LocalDelivery], object],
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Seconds | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> QueueWorker:
        """A worker that gives messages to `handler` (a function or a coroutine function), `concurrency` at a time."""
        self._request(1, group, consumer, lease, False)
        worker = QueueWorker(
            self,
            handler,
            group=group,
            concurrency=concurrency,
            consumer=consumer,
            ahead=ahead,
            lease=lease,
            middleware=middleware,
        )
        self._core.workers.add(worker)
        return worker

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
        """Pushes a message periodically: every `interval` seconds, or by a cron line of five fields ("0 6 * * mon")."""
        return schedule.add(self, interval, payload, name, timezone, missed, kind, headers, key=key, priority=priority)

    def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""
        return schedule.listed(self)

    def unschedule(self, name: str) -> bool:
        """Removes a periodic message; False when there is none of that name."""
        return schedule.remove(self, check_consumer(name, "schedule"))
