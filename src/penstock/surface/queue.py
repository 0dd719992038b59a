"""What every queue is, wherever its journal is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from penstock.limits import MESSAGES_LISTED

if TYPE_CHECKING:
    from penstock.clock import Seconds
    from penstock.documents.conditions import EventChoice
    from penstock.events import Event, Receipt
    from penstock.observe.sample import FailedMessage
    from penstock.queue.inspect import MessageState, PendingDelivery, QueueConsumer, QueueMessage, QueueStats
    from penstock.queue.operations.groups import Pause
    from penstock.queue.operations.repair import Redriven
    from penstock.queue.policy import QueuePolicy
    from penstock.queue.results.ticket import ResultTicket
    from penstock.queue.run.middleware import Middleware
    from penstock.queue.run.schedule import Schedule
    from penstock.surface.arguments import PolicyArguments, PushArguments, TakeArguments
    from penstock.surface.delivery import Delivery
    from penstock.surface.journal import Journal
    from penstock.surface.receiving import Receiver
    from penstock.surface.worker import Worker
    from penstock.ticket import Ticket


DEFAULT_GROUP = "default"


class Queue(ABC):
    """Messages handed out under leases, over the topic of the same name. Thread-safe; get one from `journal.queue`."""

    journal: Journal
    name: str

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self.journal!r}>"

    @property
    @abstractmethod
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @overload
    def push(self, payload: object, *, reply: Literal[False] = False, **options: Unpack[PushArguments]) -> Receipt: ...

    @overload
    def push(self, payload: object, *, reply: Literal[True], **options: Unpack[PushArguments]) -> ResultTicket: ...

    @abstractmethod
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
        """Adds a message and returns when it is durable.

        A payload of a declared event type brings its kind along, and `delivery.as_(type)` gives it back.
        `key`: messages of one key are delivered in order, one at a time. `delay`, `not_before`: not earlier than that.
        `priority`: for queues that have priorities; "front" for any: before all that wait. `dedup`: within the policy's
        window the same key gives the first message's receipt again. `max_attempts`: its own retry budget.
        `reply`: returns a ticket for what a worker's handler returns.
        """

    @abstractmethod
    def submit(self, payload: object, **options: Unpack[PushArguments]) -> Ticket[Receipt]:
        """`push` with a ticket: hands the message over and returns at once; await the ticket, or ask it later."""

    @abstractmethod
    def push_many(self, payloads: Iterable[object], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; the options, those of `push`, are for all of them.

        A Draft among the payloads brings a kind, key, dedup key, headers and cause of its own.
        """

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def receive(self, *, wait: Seconds | None = 0, **options: Unpack[TakeArguments]) -> Receiver:
        """Messages to work on: `with queue.receive(wait=1) as delivery` for one, or None when none came in that time;
        `for delivery in queue.receive(wait=1)` for one after the other until none came. `wait=None` waits for ever.

        The `with` block acknowledges its message, or gives it back with the error that left the block. In a loop, put
        each one in a `with` of its own. `async with` and `async for` do the same. Options are those of `take`.
        """
        from penstock.surface.receiving import Receiver

        return Receiver(self, wait, options)

    @abstractmethod
    def take(
        self,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> Delivery | None:
        """The next message, for this consumer until it is settled or its lease ends; None when there is none.

        `wait`: how long to wait for one. `newest`: from the other end.
        """

    @abstractmethod
    def take_many(
        self,
        limit: int,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> Sequence[Delivery]:
        """Up to `limit` messages, as many as there are; `wait`: how long to wait for the first."""

    @abstractmethod
    async def take_async(
        self,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> Delivery | None:
        """`take` for an event loop."""

    @abstractmethod
    async def take_many_async(
        self,
        limit: int,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> Sequence[Delivery]:
        """`take_many` for an event loop."""

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def ack_many(self, deliveries: Iterable[Delivery | str]) -> int:
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns how many were still held.

        Unknown, repeated, settled and lost ones count 0.
        """

    @abstractmethod
    def delivery(self, token: str) -> Delivery:
        """The delivery a token names, as its holder has it; StaleDelivery when its lease is gone."""

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def get(self, seq: int) -> Event | None:
        """The message at a position, without taking it; None when it is settled or never was."""

    @abstractmethod
    def peek(self, limit: int = 1, *, group: str = DEFAULT_GROUP) -> list[Event]:
        """The messages that would be taken next, without taking them."""

    @abstractmethod
    def __iter__(self) -> Iterator[Event]:
        """Everything not acknowledged, in order of position: ready, in flight, delayed and failed."""

    @abstractmethod
    def __len__(self) -> int:
        """Messages that are ready, in flight or delayed; in fanout, for the group that has most left."""

    def __bool__(self) -> bool:
        return True

    @abstractmethod
    def stats(self, group: str = DEFAULT_GROUP) -> QueueStats:
        """How many messages are in which state; costs the same whatever the queue holds."""

    @abstractmethod
    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""

    @abstractmethod
    def failed(self, group: str = DEFAULT_GROUP) -> Iterator[Event]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""

    @abstractmethod
    def failures(self, group: str = DEFAULT_GROUP) -> Iterator[FailedMessage]:
        """The same with the reason each was given up for."""

    @abstractmethod
    def dead_letters(self) -> Iterator[FailedMessage]:
        """The queue's dead letters with the reason each was given up for; of a dead-letter queue, all it holds."""

    @abstractmethod
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

    @abstractmethod
    def consumers(self) -> list[QueueConsumer]:
        """Workers, and other consumers that gave their name: where, since when, last seen when, and what they hold."""

    # ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def claim(
        self,
        *,
        min_idle: Seconds,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        limit: int = 1,
        lease: Seconds | None = None,
    ) -> Sequence[Delivery]:
        """Takes over deliveries that no consumer has extended for `min_idle`, whether or not their lease has ended.

        A claim is a new delivery: a new token, one more attempt; the old handle is stale.
        """

    @abstractmethod
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

    @abstractmethod
    def move(self, to: Queue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that are not in flight to the end of another queue, all or nothing; returns how many.

        Delays, priorities (where the other queue has any) and retry budgets go with them.
        """

    @abstractmethod
    def discard(self, seqs: Iterable[int]) -> int:
        """Settles messages that are not in flight, by their positions, as if they had been taken and acknowledged.

        Positions that are unknown, settled or in flight count 0; failed messages can be discarded too.
        """

    @abstractmethod
    def run_now(self, seqs: Iterable[int], *, group: str | None = None) -> int:
        """Makes delayed messages ready at once, also those that wait for their retry; returns how many did.

        By their positions, for one group or for all. Positions that do not wait for their time count 0.
        """

    @abstractmethod
    def purge(self) -> int:
        """Removes every message, also those in flight; returns how many. The policy and the positions stay."""

    @abstractmethod
    def drop(self) -> int:
        """Removes the queue with its messages, groups and schedules; returns how many messages that were.

        The topic stays, and with it the count of positions: a queue made again under this name goes on from there.
        """

    @abstractmethod
    def configure(self, **policy: Unpack[PolicyArguments]) -> QueuePolicy:
        """Changes the policy, all but the mode: a queue keeps the one it was made with."""

    # ── pausing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def pause(self, group: str | None = None) -> bool:
        """Hands nothing out any more, to one group or to all, until `resume`; False when that was so already.

        It is stored, and holds for every process. What is in flight goes on and can be settled; pushes are taken in.
        """

    @abstractmethod
    def resume(self, group: str | None = None) -> bool:
        """Ends a pause: takes that wait wake up. False when there was none.

        The pause of the whole queue and the pauses of its groups are ended each on its own.
        """

    @abstractmethod
    def pauses(self) -> list[Pause]:
        """The pauses that have not ended, that of the whole queue first."""

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""

    @abstractmethod
    def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets what comes after a position; one that exists already is left as it is.

        In work mode the name is only kept: all takes share the messages, whatever group they name.
        """

    @abstractmethod
    def remove_group(self, name: str) -> bool:
        """Forgets a group, so that messages no longer wait for it; False when there is none of that name."""

    # ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
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
    ) -> Worker:
        """A worker that gives messages to `handler` (a function or a coroutine function), `concurrency` at a time.

        A handler that returns acknowledges, one that raises gives the message back. Leases are renewed meanwhile, also
        those of messages taken ahead. `start()` it, `run()` it, or use it as a context manager. `ahead` and
        `middleware`: in this process only.
        """

    @abstractmethod
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
        """Pushes a message periodically: every `interval` seconds, or by a cron line of five fields ("0 6 * * mon").

        Exactly one push per tick, however many processes have the queue open. The schedule is stored under `name`
        and goes on after restarts, wherever the queue is opened; the same name with the same arguments changes
        nothing, with others it replaces the schedule. `missed`: what to do about ticks
        during which no process had the queue open.
        """

    @abstractmethod
    def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""

    @abstractmethod
    def unschedule(self, name: str) -> bool:
        """Removes a periodic message; False when there is none of that name."""
