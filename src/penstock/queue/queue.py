"""Queue: what users push to, take from, look into and repair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from sys import modules
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import msgspec

from penstock.clock import Seconds, seconds
from penstock.documents.conditions import EventChoice, predicate
from penstock.errors import ConfigError
from penstock.events import Event, Receipt
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.writer import WriteRequest
from penstock.limits import MESSAGES_LISTED
from penstock.names import check_consumer, check_limit, check_position
from penstock.observe.sample import FailedMessage
from penstock.observe.spans import sending
from penstock.queue.control import pausing
from penstock.queue.control.hastening import run_now
from penstock.queue.control.pausing import Pause
from penstock.queue.core import QueueCore
from penstock.queue.delivery import LocalDelivery
from penstock.queue.inspect import listing, messages, positions, stats
from penstock.queue.inspect.failures import dead_letters, failures, find_delivery
from penstock.queue.inspect.listing import PendingDelivery, QueueConsumer
from penstock.queue.inspect.messages import MessageState, QueueMessage
from penstock.queue.inspect.stats import QueueStats
from penstock.queue.operations import moving, repair
from penstock.queue.operations.choice import Request
from penstock.queue.operations.groups import add_group, change_mode, remove_group
from penstock.queue.operations.moving import Redriven
from penstock.queue.policy import QueuePolicy, check_together, checked, duration_ms
from penstock.queue.results.reply import with_reply
from penstock.queue.results.ticket import ResultTicket
from penstock.queue.run import schedule
from penstock.queue.run.middleware import Middleware
from penstock.queue.run.schedule import Schedule
from penstock.queue.run.waiting import take_waiting, take_waiting_async
from penstock.queue.run.worker import QueueWorker
from penstock.queue.state.cache import QueueState, unknown_queue
from penstock.surface.delivery import Delivery
from penstock.surface.queue import DEFAULT_GROUP, Queue
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.api import LocalJournal
    from penstock.surface.arguments import PolicyArguments, PushArguments


class LocalQueue(QueueCore, Queue):
    """A queue of a journal in this process."""

    journal: LocalJournal
    name: str

    @property
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""
        record = self._registry.record(self.name)
        if record is None:
            raise unknown_queue(self.name)
        return record.policy

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @overload
    def push(self, payload: Any, *, reply: Literal[False] = False, **options: Unpack[PushArguments]) -> Receipt: ...

    @overload
    def push(self, payload: Any, *, reply: Literal[True], **options: Unpack[PushArguments]) -> ResultTicket: ...

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
        """Adds a message and returns when it is durable.

        `key`: messages of one key are delivered in order, one at a time. `delay`, `not_before`: not earlier than that.
        `priority`: for queues that have priorities; "front" for any: before all that wait. `dedup`: within the policy's
        window the same key gives the first message's receipt again. `max_attempts`: its own retry budget.
        `reply`: returns a ticket for what a worker's handler returns.
        """
        token = None
        if reply:
            headers, token = with_reply(self.name, headers)
        span = sending(self.name, "push", None, headers) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self._prepare(
                payload, kind, key, priority, delay, not_before, dedup, max_attempts, headers, cause
            )
            receipts = self._writer.run(WriteRequest(self._push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._counters.pushed.inc()
        return receipts[0] if token is None else ResultTicket(self, receipts[0], token)

    def submit(self, payload: Any, **options: Unpack[PushArguments]) -> Ticket[Receipt]:
        """`push` with a ticket: hands the message over and returns at once; await the ticket, or ask it later."""
        batch, delivery = self._prepare_with(payload, options)
        self._counters.pushed.inc()
        return self._writer.submit(WriteRequest(lambda commit: self._push_in(commit, batch, delivery)[0], batch.size))

    def push_many(self, payloads: Iterable[Any], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; the options, those of `push`, are for all of them.

        A Draft among the payloads brings a kind, key, dedup key, headers and cause of its own.
        """
        rows = list(payloads)
        span = sending(self.name, "push", len(rows)) if "opentelemetry.trace" in modules else None
        try:
            batch, delivery = self._prepare_many(rows, options)
            receipts = self._writer.run(WriteRequest(self._push_in, batch.size, (batch, delivery)))
        finally:
            if span is not None:
                span.end()
        self._counters.pushed.inc(len(receipts))
        return receipts

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
        """The next message, for this consumer until it is settled or its lease ends; None when there is none.

        `wait`: how long to wait for one. `newest`: from the other end.
        """
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

    async def take_async(
        self,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> LocalDelivery | None:
        """`take` for an event loop."""
        request = self._request(1, group, consumer, lease, newest)
        found = await take_waiting_async(self, request, seconds(wait, "wait"))
        self._counters.delivered.inc(len(found))
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
        found = await take_waiting_async(
            self, self._request(limit, group, consumer, lease, newest), seconds(wait, "wait")
        )
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
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns how many were still held.

        Unknown, repeated, settled and lost ones count 0.
        """
        handles = list(deliveries)
        if not handles:
            return 0
        together, tokens = self._by_hold(handles)
        count = self._writer.run(WriteRequest(self._ack_many_in, 0, (together, tokens)))
        for handle in handles:
            if handle.__class__ is LocalDelivery:
                handle._settled = True
        self._note_acks(count)
        return count

    def delivery(self, token: str) -> LocalDelivery:
        """The delivery a token names, as its holder has it; StaleDelivery when its lease is gone."""
        return find_delivery(self, token)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, seq: int) -> Event | None:
        """The message at a position, without taking it; None when it is settled or never was."""
        return positions.get(self, check_position(seq, "seq"))

    def peek(self, limit: int = 1, *, group: str = DEFAULT_GROUP) -> list[Event]:
        """The messages that would be taken next, without taking them."""
        check_limit(limit)
        return positions.peek(self, limit, check_consumer(group, "group"))

    def __iter__(self) -> Iterator[Event]:
        """Everything not acknowledged, in order of position: ready, in flight, delayed and failed."""
        return positions.unsettled_events(self)

    def __len__(self) -> int:
        """Messages that are ready, in flight or delayed; in fanout, for the group that has most left."""
        return stats.length(self)

    def stats(self, group: str = DEFAULT_GROUP) -> QueueStats:
        """How many messages are in which state; costs the same whatever the queue holds."""
        return stats.stats(self, check_consumer(group, "group"))

    def _settle_times(self, group: str) -> dict[int, int]:
        """How long messages took to be acknowledged, for the charts of the console."""
        return stats.settle_times(self, group)

    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""
        return listing.pending(self, None if group is None else check_consumer(group, "group"))

    def failed(self, group: str = DEFAULT_GROUP) -> Iterator[Event]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""
        return listing.failed(self, check_consumer(group, "group"))

    def failures(self, group: str = DEFAULT_GROUP) -> Iterator[FailedMessage]:
        """The same with the reason each was given up for."""
        return failures(self, check_consumer(group, "group"))

    def dead_letters(self) -> Iterator[FailedMessage]:
        """The queue's dead letters with the reason each was given up for; of a dead-letter queue, all it holds."""
        return dead_letters(self)

    def messages(
        self,
        state: MessageState | None = None,
        *,
        group: str | None = None,
        after: int = 0,
        limit: int = MESSAGES_LISTED,
    ) -> list[QueueMessage]:
        """Messages that are not settled, with their state, attempts, last error, due time, priority and group.

        `state`: only those that are ready, delayed, in_flight or failed. In order of position, `limit` positions from
        `after` on: the next page begins after the last one's `seq`. In fanout mode each group that has not settled a
        message has an entry of its own; `group` asks for one group's.
        """
        check_limit(limit)
        name = None if group is None else check_consumer(group, "group")
        return list(messages.messages(self, messages.check_state(state), name, check_position(after, "after"), limit))

    def consumers(self) -> list[QueueConsumer]:
        """Workers, and other consumers that gave their name: where, since when, last seen when, and what they hold."""
        return listing.consumers(self)

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
        """Takes over deliveries that nobody has extended for `min_idle`, whether or not their lease has ended.

        A claim is a new delivery: a new token, one more attempt; the old handle is stale.
        """
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
        """Sends dead letters back to the queue they come from (or `to`), and makes failed messages ready again.

        Call it on a dead-letter queue for all of its letters, or on a queue for its own failed messages and its own
        letters. They get a fresh budget and go back with their key and priority; in fanout mode, to the group that gave
        them up. Returns how many; `dry_run` only counts. The result's `left` names the letters that have nowhere to
        go, because their queue or their group is gone.
        """
        check_limit(limit)
        return moving.redrive(self, None if to is None else self._registry.own(to), limit, predicate(where), dry_run)

    def move(self, to: Queue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that nobody holds to the end of another queue, all or nothing; returns how many.

        Delays, priorities (where the other queue has any) and retry budgets go with them.
        """
        check_limit(limit)
        return moving.move(self, self._registry.own(to), limit, predicate(where))

    def purge(self) -> int:
        """Removes every message, also those in flight; returns how many. The policy and the positions stay."""
        count = repair.purge(self)
        if count:
            self.journal._writer.reclaim()
        return count

    def drop(self) -> int:
        """Removes the queue with its messages, groups and schedules; returns how many messages that were.

        The topic stays, and with it the count of positions: a queue made again under this name goes on from there.
        """
        return repair.drop(self)

    def discard(self, seqs: Iterable[int]) -> int:
        """Settles messages that nobody holds, by their positions, as if they had been taken and acknowledged.

        Positions that are unknown, settled or in flight count 0; failed messages can be discarded too.
        """
        return repair.discard_many(self, [check_position(seq, "seq") for seq in seqs])

    def run_now(self, seqs: Iterable[int], *, group: str | None = None) -> int:
        """Makes delayed messages ready at once, also those that wait for their retry; returns how many did.

        By their positions, for one group or for all. Positions that do not wait for their time count 0.
        """
        wanted = [check_position(seq, "seq") for seq in seqs]
        name = None if group is None else check_consumer(group, "group")
        return self._writer.run(
            WriteRequest(lambda commit: run_now(commit, self._cache.state(commit, self.name), wanted, name))
        )

    def configure(self, **policy: Unpack[PolicyArguments]) -> QueuePolicy:
        """Changes the policy; deliveries under way finish under the old mode."""
        changes = checked(policy, self.name)

        def apply(commit: Commit) -> QueuePolicy:
            state = self._cache.state(commit, self.name)
            window = commit.ensure(self.name).settings.dedup_window  # the topic may have been given another one
            old = msgspec.structs.replace(state.policy, dedup_window=window)
            new = msgspec.structs.replace(old, **changes)
            check_together(new, self.name)
            if new == old:
                return new
            state.change_policy(commit, new)
            if new.mode != old.mode:
                change_mode(commit, state)
            commit.touched.setdefault(self.name, 0)
            return new

        return self._writer.run(WriteRequest(apply))

    # ── pausing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def pause(self, group: str | None = None) -> bool:
        """Hands nothing out any more, to one group or to all, until `resume`; False when that was so already.

        It is stored, and holds for every process. What is in flight goes on and can be settled; pushes are taken in.
        """
        return self._set_paused(pausing.pause, group)

    def resume(self, group: str | None = None) -> bool:
        """Ends a pause: takes that wait wake up. False when there was none.

        The pause of the whole queue and the pauses of its groups are ended each on its own.
        """
        return self._set_paused(pausing.resume, group)

    def pauses(self) -> list[Pause]:
        """The pauses that have not ended, that of the whole queue first."""
        with positions.looking(self) as (_, state):
            return pausing.pauses(state.record)

    def _set_paused(self, change: Callable[[Commit, QueueState, str | None], bool], group: str | None) -> bool:
        name = None if group is None else check_consumer(group, "group")
        return self._writer.run(WriteRequest(lambda commit: change(commit, self._cache.state(commit, self.name), name)))

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""
        return listing.groups(self)

    def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets what comes after a position; one that exists already is left as it is.

        In work mode the name is only kept: all takes share the messages, whatever group they name.
        """
        check_consumer(name, "group")
        if after != "latest":
            check_position(after, "after")

        def apply(commit: Commit) -> None:
            state = self._cache.state(commit, self.name)
            if name in state.record.groups:
                return
            latest = commit.latest(self.name)
            start = latest if after == "latest" else after
            if start > latest:
                raise ConfigError(
                    f"group {name!r} of queue {self.name!r} cannot begin after {start}: the queue ends at {latest}"
                )
            add_group(commit, state, name, start)

        self._writer.run(WriteRequest(apply))

    def remove_group(self, name: str) -> bool:
        """Forgets a group, so that messages no longer wait for it; False when there is none of that name."""
        check_consumer(name, "group")
        return self._writer.run(
            WriteRequest(lambda commit: remove_group(commit, self._cache.state(commit, self.name), name))
        )

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def worker(
        self,
        handler: Callable[[LocalDelivery], Any],
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Seconds | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> QueueWorker:
        """A worker that gives messages to `handler` (a function or a coroutine function), `concurrency` at a time.

        A handler that returns acknowledges, one that raises gives the message back. Leases are renewed meanwhile, also
        those of messages taken ahead. `start()` it, `run()` it, or use it as a context manager.
        """
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
        self.journal._workers.add(worker)
        return worker

    def every(
        self,
        interval: Seconds | str,
        payload: Any = None,
        *,
        name: str,
        timezone: str = "UTC",
        missed: Literal["all", "last", "none"] = "all",
        kind: str = "message",
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> Schedule:
        """Pushes a message periodically: every `interval` seconds, or by a cron line ("0 6 * * mon").

        Exactly one push per tick, however many processes have the queue open. The schedule is stored under `name`
        and goes on after restarts, wherever the queue is opened; the same name with the same arguments changes
        nothing, with others it replaces the schedule. `missed`: what to do about ticks that nobody was there for.
        """
        return schedule.add(self, interval, payload, name, timezone, missed, kind, headers, key=key, priority=priority)

    def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""
        return schedule.listed(self)

    def unschedule(self, name: str) -> bool:
        """Removes a periodic message; False when there is none of that name."""
        return schedule.remove(self, check_consumer(name, "schedule"))
