"""The handles for event loops: each method has the name, the arguments and the types of the handle for threads.

Only methods that take or return other handles are written out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from types import UnionType
from typing import TYPE_CHECKING, Generic, Literal, Self, Unpack, overload

from penstock.aio.running import (
    AsyncHandle,
    Field,
    Look,
    acquired,
    at_once,
    awaited,
    close,
    finished,
    in_pieces,
    in_thread,
    plain,
    streamed,
    threaded,
    ticketed,
)
from penstock.core.clock import Clock, Duration
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.handover import hand_over
from penstock.core.entity.outbox import Outbox
from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal.catalog import Settings
from penstock.core.model.arguments import (
    DraftArguments,
    PolicyArguments,
    PushArguments,
    TakeArguments,
    TakeManyArguments,
    show_arguments,
)
from penstock.core.model.push import PushOptions
from penstock.core.model.take import DEFAULT_GROUP, TakeRequest
from penstock.core.queue.policy import QueuePolicy
from penstock.core.schema import PayloadT
from penstock.core.surface.journal import Journal
from penstock.core.surface.queue import Queue
from penstock.core.surface.receiving import AsyncReceiver
from penstock.core.surface.topic import Topic
from penstock.errors import PoisonMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.model.conditions import EventChoice
    from penstock.core.queue.operations.repair import Redriven
    from penstock.core.queue.results import ResultTicket


class AsyncJournal(AsyncHandle[Journal]):
    """A set of topics and queues in one store, with one commit order; `penstock.aio.open` gives one."""

    __slots__ = ()

    clock = Field[Clock]("clock")
    id = Field[str]("id")
    closed = Field[bool]("closed")

    def topic(self, name: str, *, payload: type[PayloadT] | UnionType | None = None) -> AsyncTopic[PayloadT]:
        """Returns a handle on a topic; see `penstock.Journal.topic`."""
        return AsyncTopic(self._sync.topic(name, payload=payload))

    @show_arguments(PolicyArguments, QueuePolicy)
    async def queue(
        self,
        name: str,
        *,
        create: bool = True,
        policy: Literal["match", "update"] = "match",
        payload: type[PayloadT] | UnionType | None = None,
        **options: Unpack[PolicyArguments],
    ) -> AsyncQueue[PayloadT]:
        """Returns a queue over the topic of that name; see `penstock.Journal.queue`."""
        return AsyncQueue(
            await in_thread(lambda: self._sync.queue(name, create=create, policy=policy, payload=payload, **options))
        )

    def outbox(self) -> AsyncOutbox:
        """Gathers drafts for any topics locally and appends them as one atomic batch."""
        return AsyncOutbox(self._sync.outbox())

    topics = threaded(Journal.topics)
    drop_topic = threaded(Journal.drop_topic)
    queues = threaded(Journal.queues)
    read = streamed(Journal.read)
    subscribe = acquired(Journal.subscribe, close)
    commit = threaded(Journal.commit)
    cursor = threaded(Journal.cursor)
    mark = threaded(Journal.mark)
    correlated = streamed(Journal.correlated)
    graph = threaded(Journal.graph)
    task = threaded(Journal.task)
    push_together = threaded(Journal.push_together)
    sql = threaded(Journal.sql)
    pressure = threaded(Journal.pressure)
    describe = threaded(Journal.describe)
    stats = threaded(Journal.stats)
    flush = threaded(Journal.flush)
    maintain = threaded(Journal.maintain)
    backup = threaded(Journal.backup)
    copy_to = threaded(Journal.copy_to)
    export = threaded(Journal.export)
    import_ = threaded(Journal.import_)
    close = finished(Journal.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncTopic(AsyncHandle[Topic[PayloadT]], Generic[PayloadT]):
    """A log: events in order, from position 1. A cheap handle; the topic exists from its first append."""

    __slots__ = ()

    name = Field[str]("name")
    latest = Look[int]("latest")
    oldest = Look[int]("oldest")
    length = threaded(Topic.__len__)
    settings = Look[Settings]("settings")

    append = ticketed(Topic.try_submit, Topic.append)
    append_many = ticketed(Topic.try_submit_many, Topic.append_many)
    read = streamed(Topic.read)
    read_arrow = streamed(Topic.read_arrow)
    get = threaded(Topic.get)
    find = threaded(Topic.find)
    position_at = threaded(Topic.position_at)
    subscribe = acquired(Topic.subscribe, close)
    commit = threaded(Topic.commit)
    seek = threaded(Topic.seek)
    forget = threaded(Topic.forget)
    cursor = threaded(Topic.cursor)
    cursors = threaded(Topic.cursors)
    consumers = threaded(Topic.consumers)
    lag = threaded(Topic.lag)
    left = threaded(Topic.left)
    worker = at_once(Topic.worker)
    configure = threaded(Topic.configure)
    compact = threaded(Topic.compact)
    erase = threaded(Topic.erase)
    mask = threaded(Topic.mask)
    compact_keys = threaded(Topic.compact_keys)
    position_of = threaded(Topic.position_of)
    entities = streamed(Topic.entities)
    reindex = threaded(Topic.reindex)
    project = threaded(Topic.project)
    project_if_changed = threaded(Topic.project_if_changed)
    watch = acquired(Topic.watch, close)
    rebuild = threaded(Topic.rebuild)
    verify_states = threaded(Topic.verify_states)
    ancestors = streamed(Topic.ancestors)
    effects = streamed(Topic.effects)
    correlated = streamed(Topic.correlated)
    verify = threaded(Topic.verify)
    check = threaded(Topic.check)
    proof = threaded(Topic.proof)
    react = at_once(Topic.react)
    ungate = at_once(Topic.ungate)

    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: AsyncTopic | str | None = None,
    ) -> None:
        """Lets `check` see every draft for this topic before it is appended; see `penstock.Topic.gate`."""
        self._sync.gate(check, kind=kind, name=name, record=plain(record))


class AsyncQueue(AsyncHandle[Queue[PayloadT]], Generic[PayloadT]):
    """Messages handed out under leases, over the topic of the same name; get one from `journal.queue`."""

    __slots__ = ()

    name = Field[str]("name")
    policy = Look[QueuePolicy]("policy")
    length = threaded(Queue.__len__)

    @overload
    async def push(
        self, payload: PayloadT, *, reply: Literal[False] = False, **options: Unpack[PushArguments]
    ) -> Receipt: ...

    @overload
    async def push(
        self, payload: PayloadT, *, reply: Literal[True], **options: Unpack[PushArguments]
    ) -> ResultTicket: ...

    @show_arguments(PushArguments, PushOptions)
    async def push(
        self, payload: PayloadT, *, reply: bool = False, **options: Unpack[PushArguments]
    ) -> Receipt | ResultTicket:
        """Adds a message and returns when it is durable; with `reply`, returns a ticket for the handler's result.

        The options are the options of `penstock.Queue.push`.
        """
        if reply:
            return await in_thread(lambda: self._sync.push(payload, reply=True, **options))
        return await in_thread(lambda: self._sync.push(payload, **options))

    @show_arguments(TakeArguments, TakeRequest)
    def receive(
        self, *, wait: Duration | None = 0, **options: Unpack[TakeArguments]
    ) -> AsyncReceiver[AsyncDelivery[PayloadT]]:
        """Returns a receiver: `async with` it for one message or None, or iterate with `async for`.

        The options are the options of `take`.

        An `async with` block acknowledges its message, or gives it back with the error that left the block.
        """
        return AsyncReceiver(lambda wait: self.take(wait=wait, **options), wait)

    @show_arguments(TakeArguments, TakeRequest)
    async def take(self, *, wait: Duration = 0, **options: Unpack[TakeArguments]) -> AsyncDelivery[PayloadT] | None:
        """Returns the next message, until it is settled or its lease ends; see `penstock.Queue.take`."""
        found = await self._sync.take_async(wait=wait, **options)
        return None if found is None else AsyncDelivery(found)

    @show_arguments(TakeManyArguments, TakeRequest)
    async def take_many(
        self, limit: int, *, wait: Duration = 0, **options: Unpack[TakeManyArguments]
    ) -> list[AsyncDelivery[PayloadT]]:
        """Returns up to `limit` messages; `wait` is the time to wait for the first message."""
        return [AsyncDelivery(one) for one in await self._sync.take_many_async(limit, wait=wait, **options)]

    async def claim(
        self,
        *,
        min_idle: Duration,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        limit: int = 1,
        lease: Duration | None = None,
    ) -> list[AsyncDelivery[PayloadT]]:
        """Takes over deliveries that no consumer has extended for `min_idle`; see `penstock.Queue.claim`."""
        claimed = await hand_over(
            lambda: self._sync.claim(min_idle=min_idle, group=group, consumer=consumer, limit=limit, lease=lease),
            _release,
        )
        return [AsyncDelivery(one) for one in claimed]

    async def delivery(self, token: str) -> AsyncDelivery[PayloadT]:
        """Returns the delivery of a token, as its holder has it; raises StaleDelivery when its lease is gone."""
        return AsyncDelivery(await in_thread(self._sync.delivery, token))

    async def ack_many(self, deliveries: Iterable[AsyncDelivery[PayloadT] | str]) -> int:
        """Settles deliveries (or their tokens) in one commit; returns the number that were still held."""
        return await in_thread(self._sync.ack_many, plain(deliveries))

    async def redrive(
        self,
        *,
        to: AsyncQueue | None = None,
        limit: int | None = None,
        where: EventChoice | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Sends dead letters back to their original queues, or to `to`; see `penstock.Queue.redrive`."""
        return await in_thread(self._sync.redrive, to=plain(to), limit=limit, where=where, dry_run=dry_run)

    async def move(self, to: AsyncQueue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that are not in flight to the end of another queue, all or nothing; returns their number."""
        return await in_thread(self._sync.move, plain(to), limit=limit, where=where)

    def __aiter__(self) -> AsyncGenerator[Event[PayloadT], None]:
        return in_pieces(self._sync.__iter__)

    push_many = threaded(Queue.push_many)
    get = threaded(Queue.get)
    peek = threaded(Queue.peek)
    stats = threaded(Queue.stats)
    pending = threaded(Queue.pending)
    failed = streamed(Queue.failed)
    failures = streamed(Queue.failures)
    dead_letters = streamed(Queue.dead_letters)
    messages = threaded(Queue.messages)
    consumers = threaded(Queue.consumers)
    task_times = threaded(Queue.task_times)
    discard = threaded(Queue.discard)
    run_now = threaded(Queue.run_now)
    purge = threaded(Queue.purge)
    drop = threaded(Queue.drop)
    configure = threaded(Queue.configure)
    pause = threaded(Queue.pause)
    resume = threaded(Queue.resume)
    pauses = threaded(Queue.pauses)
    groups = threaded(Queue.groups)
    add_group = threaded(Queue.add_group)
    remove_group = threaded(Queue.remove_group)
    worker = at_once(Queue.worker)
    every = threaded(Queue.every)
    schedules = threaded(Queue.schedules)
    unschedule = threaded(Queue.unschedule)


def _release(deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        delivery.release()


class AsyncDelivery(AsyncHandle[Delivery[PayloadT]], Generic[PayloadT]):
    """A message under your lease until `deadline`: `ack` it, `nack` it, or use it as a context manager, which
    settles it.
    """

    __slots__ = ()

    event = Field[Event[PayloadT]]("event")
    attempt = Field[int]("attempt")
    token = Field[str]("token")
    group = Field[str]("group")
    consumer = Field[str | None]("consumer")
    deadline = Field[datetime]("deadline")
    seq = Field[int]("seq")
    payload = Field[PayloadT]("payload")
    poison = Field[PoisonMessage | None]("poison")
    kind = Field[str]("kind")
    key = Field[str | None]("key")
    headers = Field[Mapping[str, str]]("headers")
    as_ = at_once(Delivery.as_)
    ack = awaited(Delivery.ack_async)
    nack = awaited(Delivery.nack_async)
    extend = threaded(Delivery.extend)
    release = threaded(Delivery.release)

    @property
    def queue(self) -> AsyncQueue[PayloadT]:
        """The queue that the message was taken from."""
        return AsyncQueue(self._sync.queue)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._sync.__aexit__(kind, error, trace)


class AsyncOutbox(AsyncHandle[Outbox]):
    """Gathers drafts for any topics of a journal and appends them together. Not shared between threads."""

    __slots__ = ()

    clear = at_once(Outbox.clear)
    flush = threaded(Outbox.flush)

    @show_arguments(DraftArguments, Draft)
    def stage(
        self, topic: AsyncTopic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]
    ) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is written yet."""
        return self._sync.stage(plain(topic), kind, payload, **draft)

    def __len__(self) -> int:
        return len(self._sync)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            await self.flush()
        else:
            self.clear()
