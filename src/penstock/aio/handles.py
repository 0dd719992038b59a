"""The handles for event loops. Made by scripts/async_handles.py: change that, or the handle for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, overload

from penstock.aio.running import AsyncHandle, AsyncReceiver, in_pieces, in_thread, plain, submitted
from penstock.entity.outbox import Outbox
from penstock.limits import (
    ARROW_BATCH_ROWS,
    MESSAGES_LISTED,
    SUBSCRIPTION_BUFFER,
    WORKER_BATCH,
    WORKER_IDLE,
    WORKER_RESTARTS,
)
from penstock.schema import PayloadT
from penstock.surface.delivery import Delivery
from penstock.surface.journal import Journal
from penstock.surface.queue import DEFAULT_GROUP, Queue
from penstock.surface.topic import Topic

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from types import UnionType
    from typing import Any, Generic, Literal, Self, Unpack, overload

    import pyarrow as pa

    from penstock.clock import Clock, Seconds
    from penstock.documents.conditions import EventChoice
    from penstock.entity.copying import CopyFormat, ExportReport, ImportReport
    from penstock.entity.projection import Projection
    from penstock.entity.proof import CheckReport, InclusionProof, TreeRoot
    from penstock.entity.receipts import VerifyReport
    from penstock.entity.states import Freshness, RebuildReport, Watch
    from penstock.errors import PoisonMessage
    from penstock.events import Draft, Event, Receipt
    from penstock.journal.catalog import Settings
    from penstock.journal.cursors import TopicConsumer
    from penstock.journal.description import Description, Pressure
    from penstock.journal.dropping import DropReport
    from penstock.journal.moving import CopyReport
    from penstock.journal.upkeep import CompactReport
    from penstock.observe.sample import FailedMessage, Sample
    from penstock.queue.inspect import MessageState, PendingDelivery, QueueConsumer, QueueMessage, QueueStats
    from penstock.queue.operations.groups import Pause
    from penstock.queue.operations.repair import Redriven
    from penstock.queue.policy import QueuePolicy
    from penstock.queue.results.ticket import ResultTicket
    from penstock.queue.run.middleware import Middleware
    from penstock.queue.run.schedule import Schedule
    from penstock.queue.run.worker import QueueWorker
    from penstock.surface.arguments import (
        DraftArguments,
        FilterArguments,
        PolicyArguments,
        PushArguments,
        SettingsArguments,
        TakeArguments,
    )
    from penstock.surface.subscription import JournalSubscription, OnLag, Subscription
    from penstock.surface.worker import Worker

P = TypeVar("P", bound="Projection")
T = TypeVar("T")


class AsyncJournal(AsyncHandle[Journal]):
    """A set of topics and queues in one store, with one commit order; `penstock.open` gives one."""

    __slots__ = ()

    @property
    def clock(self) -> Clock:
        return self._sync.clock

    @property
    def id(self) -> str:
        """The store's own name: the same wherever, and under whatever address, the store is opened."""
        return self._sync.id

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._sync.closed

    def topic(self, name: str, *, payload: type[PayloadT] | UnionType | None = None) -> AsyncTopic[PayloadT]:
        """A handle on a topic; the topic exists from its first append.

        `payload`: the type of its payloads (a msgspec Struct, a dataclass, a TypedDict, a pydantic model, a union of
        declared events): what is appended through this handle must fit, what is read is a value of it.
        """
        return AsyncTopic(self._sync.topic(name, payload=payload))

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await in_thread(self._sync.topics)

    async def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and everything that belongs to it; a topic of this name made later is another one.

        TopicInUse when it has cursors, sealed files or a queue; `force` drops it with them. UnknownTopic when there is
        none. It is gone when this returns; its rows are cleared away in passing, or by `maintain`.
        """
        return await in_thread(self._sync.drop_topic, name, force)

    async def queue(
        self,
        name: str,
        *,
        create: bool = True,
        policy: Literal["match", "update"] = "match",
        payload: type[PayloadT] | UnionType | None = None,
        **options: Unpack[PolicyArguments],
    ) -> AsyncQueue[PayloadT]:
        """A queue over the topic of that name; it is made on first use. See `QueuePolicy` for the options.

        `create=False` makes none: a queue that is not there raises UnknownQueue, which names the nearest one.

        Options that differ from the stored ones raise PolicyMismatch, so that two programs that disagree find out.
        `policy="update"` changes the stored ones instead, and the log and `penstock.audit` say what; the mode stays.

        `payload`: the type of its messages' payloads, as in `topic`. A message that does not fit it fails where its
        payload is asked for, and goes the way of one whose handler failed.
        """
        return AsyncQueue(
            await in_thread(lambda: self._sync.queue(name, create=create, policy=policy, payload=payload, **options))
        )

    async def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return await in_thread(self._sync.queues)

    def read(
        self,
        topics: str | Sequence[str] | None = None,
        after: Mapping[str, int] | None = None,
        limit: int | None = None,
        *,
        through: Mapping[str, int] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reverse: bool = False,
        **wanted: Unpack[FilterArguments],
    ) -> AsyncGenerator[Event, None]:
        """Streams the events of several topics in the order they were recorded, of one state of the journal.

        `topics` are names and patterns like "shop.*"; without it, all but those that penstock writes for itself
        (`penstock.*`, a queue's results). `after` and `through` are positions by topic: a topic that is not in `after`
        is read from its beginning, one that is not in `through` not at all. The rest is as in `Topic.read`. To go on
        later, keep `positions[event.topic] = event.seq`, or `commit` it.
        """
        return in_pieces(
            self._sync.read, topics, after, limit, through=through, since=since, until=until, reverse=reverse, **wanted
        )

    async def subscribe(
        self,
        topics: str | Sequence[str] | None = None,
        after: Mapping[str, int] | Literal["latest"] | None = None,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        **wanted: Unpack[FilterArguments],
    ) -> JournalSubscription:
        """Follows several topics: their history after positions as `read` gives it, then live; no gap, no duplicate.

        Topics that are made later and match are followed from their beginning. `after="latest"`: only what comes.
        """
        return await in_thread(lambda: self._sync.subscribe(topics, after, buffer=buffer, **wanted))

    async def commit(self, consumer: str, positions: Mapping[str, int]) -> None:
        """Remembers durably that a consumer is done with everything through a position in each topic, in one commit.

        It is the consumer's cursor in each of these topics: compaction waits for it, and a smaller position changes
        nothing. Topics that were dropped meanwhile are left out.
        """
        await in_thread(self._sync.commit, consumer, positions)

    async def cursor(self, consumer: str) -> dict[str, int]:
        """How far a consumer has come in each topic where it has committed: what `read` and `subscribe` take."""
        return await in_thread(self._sync.cursor, consumer)

    def outbox(self) -> AsyncOutbox:
        """Gathers drafts for any topics locally and appends them as one atomic batch."""
        return AsyncOutbox(self._sync.outbox())

    async def mark(self, name: str) -> int | None:
        """The newest committed value of a mark (see `Transaction.set_mark`). In this process only."""
        return await in_thread(self._sync.mark, name)

    def correlated(self, correlation_id: str) -> AsyncGenerator[Event, None]:
        """Every event of a correlation, of all topics, in the order they were recorded."""
        return in_pieces(self._sync.correlated, correlation_id)

    async def graph(self, correlation_id: str) -> str:
        """What caused what within a correlation, as a Mermaid flowchart."""
        return await in_thread(self._sync.graph, correlation_id)

    async def pressure(self) -> Pressure:
        """How many submissions wait for the writer."""
        return await in_thread(self._sync.pressure)

    async def describe(self) -> Description:
        """What this journal is: engine, place, size, durability, topics, queues, gates."""
        return await in_thread(self._sync.describe)

    async def stats(self) -> Sample:
        """Every topic and queue with its backlogs and lags, at one time; of a served journal with rates as well."""
        return await in_thread(self._sync.stats)

    async def flush(self) -> None:
        """Returns when everything submitted so far is on disk, whatever the durability."""
        await in_thread(self._sync.flush)

    async def maintain(self) -> None:
        """Does all housekeeping now: merges small blocks, applies retention. It also happens in passing."""
        await in_thread(self._sync.maintain)

    async def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a consistent copy while the journal is in use; the same engine opens it.

        A journal in a bucket takes a path, or a url in the same bucket. In this process only.
        """
        await in_thread(self._sync.backup, destination)

    async def copy_to(
        self,
        url: str | os.PathLike[str],
        *,
        store_options: Mapping[str, object] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CopyReport:
        """Copies the whole journal into a new place on any engine, while it is in use, and compares every row.

        Positions, ids, cursors, queues, snapshots and marks come along; the copy is the state at its end. One that was
        interrupted goes on when called again. `progress` is told how many of how many bytes are done. In this process
        only.
        """
        return await in_thread(self._sync.copy_to, url, store_options=store_options, progress=progress)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        format: CopyFormat | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Writes topics (all, unless named) into a folder, as JSON Lines or Parquet; run again, it goes on.

        A path that ends with .jsonl, .parquet, .arrow or .csv is a file, and takes the one topic that is named.
        `progress` is called now and then with how many of how many events are done. In this process only.
        """
        return await in_thread(self._sync.export, path, topics=topics, format=format, progress=progress)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        start_over: bool = False,
    ) -> ImportReport:
        """Reads what `export` wrote into topics of the same names: the same positions, ids, times and causes.

        A file's events go to the one topic that is named, which may have another name.
        Events that are there already, from an import that was interrupted, are skipped. `start_over`: a name whose
        topic was dropped gets its positions from the export, though they were given out before. In this process only.
        """
        return await in_thread(self._sync.import_, path, topics=topics, progress=progress, start_over=start_over)

    async def close(self) -> None:
        """Stops workers, commits what is pending, lets go of the store. A second call does nothing.

        When a worker had failed, its failure is raised here, after everything is closed.
        """
        await in_thread(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncTopic(AsyncHandle[Topic[PayloadT]], Generic[PayloadT]):
    """A log: events in order, from position 1. A cheap handle; the topic exists from its first append."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._sync.name

    async def append(self, kind: object, payload: PayloadT | None = None, **draft: Unpack[DraftArguments]) -> Receipt:
        """Appends one event and returns when it is durable. Keyword arguments are those of `Draft`."""
        return await submitted(lambda: self._sync.try_submit(kind, payload, **draft))

    async def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing; one receipt each, in order."""
        return await submitted(lambda: self._sync.try_submit_many(drafts))

    @property
    def latest(self) -> Awaitable[int]:
        """The highest position ever assigned (0: none); compaction never lowers it."""
        return in_thread(lambda: self._sync.latest)

    @property
    def oldest(self) -> Awaitable[int]:
        """The first position still stored (0: none)."""
        return in_thread(lambda: self._sync.oldest)

    def read(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reverse: bool = False,
        **wanted: Unpack[FilterArguments],
    ) -> AsyncGenerator[Event[PayloadT], None]:
        """Streams events after a position, oldest first (newest first: `reverse`), up to the newest one now.

        `since` and `until` are times of recording, from the first and before the second; `wanted`: only such events,
        by key, key_prefix, kind, scope, where. `after=0` starts at the oldest stored event; a position whose next event
        compaction removed raises PositionTrimmed.
        """
        return in_pieces(
            self._sync.read, after, limit, through=through, since=since, until=until, reverse=reverse, **wanted
        )

    def read_arrow(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        batch_rows: int = ARROW_BATCH_ROWS,
        payload: Literal["string", "binary"] = "string",
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Streams events as Arrow record batches of up to `batch_rows` rows, without touching rows one by one.

        Payloads are a column of JSON text; `payload="binary"` makes it one of bytes, which a topic needs whose payloads
        are bytes that are not text.
        """
        return in_pieces(self._sync.read_arrow, after, limit, through=through, batch_rows=batch_rows, payload=payload)

    async def get(self, seq: int) -> Event[PayloadT] | None:
        """The event at a position, or None."""
        return await in_thread(self._sync.get, seq)

    async def find(self, id: str) -> Event[PayloadT] | None:
        """The event with an id, or None."""
        return await in_thread(self._sync.find, id)

    async def position_at(self, time: datetime) -> int:
        """The last position recorded before a time; 0 for none."""
        return await in_thread(self._sync.position_at, time)

    async def subscribe(
        self,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: OnLag = "catch_up",
        **wanted: Unpack[FilterArguments],
    ) -> Subscription[PayloadT]:
        """Follows the topic: the history after a position, then live; no gap and no duplicate at the seam.

        `wanted`: only such events, as in `read`. What is left out counts as seen.
        """
        return await in_thread(lambda: self._sync.subscribe(after, buffer=buffer, on_lag=on_lag, **wanted))

    async def commit(self, consumer: str, seq: int) -> None:
        """Remembers durably that a consumer is done with everything through `seq`; a smaller one changes nothing."""
        await in_thread(self._sync.commit, consumer, seq)

    async def seek(self, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor anywhere, also back."""
        await in_thread(self._sync.seek, consumer, seq)

    async def forget(self, consumer: str) -> bool:
        """Drops a consumer's cursor, so that compaction no longer waits for it; False when there was none."""
        return await in_thread(self._sync.forget, consumer)

    async def cursor(self, consumer: str) -> int | None:
        """How far a consumer has come, or None when it never committed."""
        return await in_thread(self._sync.cursor, consumer)

    async def cursors(self) -> dict[str, int]:
        """Every consumer and how far it has come."""
        return await in_thread(self._sync.cursors)

    async def consumers(self) -> list[TopicConsumer]:
        """Every consumer with its position, its lag, and when its cursor last moved."""
        return await in_thread(self._sync.consumers)

    async def lag(self, consumer: str) -> int:
        """How many positions a consumer is behind the newest event."""
        return await in_thread(self._sync.lag, consumer)

    def worker(
        self,
        consumer: str,
        handler: Callable[[list[Event[PayloadT]]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
        **wanted: Unpack[FilterArguments],
    ) -> Worker:
        """A worker that hands this topic's events to `handler` in batches, at least once; `start()` or `run()` it.

        A handler that fails gets its batch again; one that fails more than `restarts` times within a minute makes the
        worker give up, which `penstock check` says until it is started again.

        `wanted`: only such events, as in `read`; the cursor moves past the others too.
        """
        return self._sync.worker(consumer, handler, batch=batch, idle=idle, restarts=restarts, **wanted)

    @property
    def settings(self) -> Awaitable[Settings]:
        """What the topic keeps and for how long."""
        return in_thread(lambda: self._sync.settings)

    async def configure(self, **changes: Unpack[SettingsArguments]) -> Settings:
        """Changes the topic's settings (see `Settings`): retention, compaction by key, the dedup window."""
        return await in_thread(lambda: self._sync.configure(**changes))

    async def compact(self, through: int, *, force: bool = False) -> CompactReport:
        """Removes events through a position, inclusive; stops at the slowest cursor unless forced; frees the space."""
        return await in_thread(self._sync.compact, through, force=force)

    async def compact_keys(self) -> int:
        """Keeps only the newest event of every key, now; returns how many went. See also `configure(by_key=True)`."""
        return await in_thread(self._sync.compact_keys)

    async def position_of(self, key: str) -> int:
        """The position of an entity's newest event; 0 when it has none. What `expect=` is compared with."""
        return await in_thread(self._sync.position_of, key)

    def entities(self) -> AsyncGenerator[str, None]:
        """Every key that has events, each once, in no particular order. In this process only."""
        return in_pieces(self._sync.entities)

    async def reindex(self) -> None:
        """Throws the index of entities, causes and correlations away and builds it anew, beside everything else.

        In this process only.
        """
        await in_thread(self._sync.reindex)

    async def project(
        self,
        projection: type[P],
        key: str | None = None,
        *,
        freshness: Freshness = "consistent",
        through: int | None = None,
        as_of: datetime | None = None,
    ) -> P | None:
        """An entity's state, folded from its events; None when it has none. Without a key: the whole topic's state.

        `through`, `as_of`: the state as it was after a position, or when a time came; folded from the events that are
        stored, so PositionTrimmed where they were compacted away. `freshness="cached"` may answer with a state folded
        earlier, without looking for newer events.
        """
        return await in_thread(self._sync.project, projection, key, freshness=freshness, through=through, as_of=as_of)

    async def project_if_changed(
        self, projection: type[P], key: str | None, position: int
    ) -> tuple[int, P | None] | None:
        """None when the newest event of the entity is still at `position`, else where it is now, and the state."""
        return await in_thread(self._sync.project_if_changed, projection, key, position)

    async def watch(self, projection: type[P], key: str | None = None) -> Watch[P]:
        """The entity's state now, and again whenever it has new events. In this process only."""
        return await in_thread(self._sync.watch, projection, key)

    async def rebuild(
        self, projection: type[P], *, whole: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> RebuildReport:
        """Folds every entity anew and saves the states; `whole`: the whole topic's state instead.

        `progress` is called now and then with how many of how many events are done. On a served journal the events
        travel, and every state is in memory until all are folded; `penstock.spark.rebuild` folds what does not fit.
        """
        return await in_thread(self._sync.rebuild, projection, whole=whole, progress=progress)

    async def verify_states(self, projection: type[P]) -> list[str | None]:
        """Folds what every saved state was folded from again, and returns the keys of those that say something else.

        None among them is the state of the whole topic; `rebuild` mends all of them. In this process only.
        """
        return await in_thread(self._sync.verify_states, projection)

    def ancestors(self, event: Event | Receipt | str) -> AsyncGenerator[Event, None]:
        """The event, then its cause, its cause's cause, … in whichever topics they are."""
        return in_pieces(self._sync.ancestors, event)

    def effects(self, event: Event | Receipt | str) -> AsyncGenerator[Event, None]:
        """What an event caused directly, in whichever topics that is."""
        return in_pieces(self._sync.effects, event)

    def correlated(self, correlation_id: str) -> AsyncGenerator[Event, None]:
        """Every event of a correlation, of all topics, in the order they were recorded."""
        return in_pieces(self._sync.correlated, correlation_id)

    async def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Reads the topic, names the first event that is damaged, and publishes a Merkle root over all of them.

        In a topic with `configure(verified=True)`, also an event that was changed, exchanged, added or removed behind
        the journal's back since its commit; in others, only what changes a root published before. In this process only.
        """
        return await in_thread(self._sync.verify, progress=progress)

    async def check(self, receipt: Receipt) -> CheckReport:
        """Whether a receipt's event is still stored as it was when the receipt was given. In this process only."""
        return await in_thread(self._sync.check, receipt)

    async def proof(self, of: Receipt | Event | int, *, root: TreeRoot | None = None) -> InclusionProof:
        """Shows, to a reader who has the root, that an event is in this topic; `penstock.check_proof` checks it.

        Under the newest root that `verify` has published and that covers the event, or under `root`. Unprovable when
        there is none, or when events near it were removed since. In this process only.
        """
        return await in_thread(self._sync.proof, of, root=root)

    def react(
        self,
        consumer: str,
        handler: Callable[[Event[PayloadT]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> Worker:
        """A worker that appends the drafts `handler` returns for each event, caused by it: each event exactly once.

        A draft goes to the topic it names, else to this one. `start()` or `run()` it, like `worker`. In this process
        only.
        """
        return self._sync.react(consumer, handler, batch=batch, idle=idle, restarts=restarts)

    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: AsyncTopic | str | None = None,
    ) -> None:
        """Lets `check` see every draft for this topic before it is appended; it refuses by raising Denied.

        `kind` limits it to some kinds. `record` names a topic in which refusals are recorded as events. In this
        process only.
        """
        return self._sync.gate(check, kind=kind, name=name, record=plain(record))

    def ungate(self, check: Callable[[Draft], None]) -> bool:
        """Takes a gate away again; False when it was not there. In this process only."""
        return self._sync.ungate(check)

    async def length(self) -> int:
        """How many events are stored."""
        return await in_thread(len, self._sync)


class AsyncQueue(AsyncHandle[Queue[PayloadT]], Generic[PayloadT]):
    """Messages handed out under leases, over the topic of the same name. Thread-safe; get one from `journal.queue`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._sync.name

    @property
    def policy(self) -> Awaitable[QueuePolicy]:
        """How the queue delivers, as stored."""
        return in_thread(lambda: self._sync.policy)

    async def push_many(self, payloads: Iterable[PayloadT | Draft], **options: Unpack[PushArguments]) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; the options, those of `push`, are for all of them.

        A Draft among the payloads brings a kind, key, dedup key, headers and cause of its own.
        """
        return await in_thread(lambda: self._sync.push_many(payloads, **options))

    async def take(
        self,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> AsyncDelivery[PayloadT] | None:
        """The next message, for this consumer until it is settled or its lease ends; None when there is none.

        `wait`: how long to wait for one. `newest`: from the other end.
        """
        found = await self._sync.take_async(group=group, consumer=consumer, wait=wait, lease=lease, newest=newest)
        return None if found is None else AsyncDelivery(found)

    async def take_many(
        self,
        limit: int,
        *,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> Sequence[AsyncDelivery[PayloadT]]:
        """Up to `limit` messages, as many as there are; `wait`: how long to wait for the first."""
        return [
            AsyncDelivery(one)
            for one in await self._sync.take_many_async(
                limit, group=group, consumer=consumer, wait=wait, lease=lease, newest=newest
            )
        ]

    async def ack_many(self, deliveries: Iterable[AsyncDelivery | str]) -> int:
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns how many were still held.

        Unknown, repeated, settled and lost ones count 0.
        """
        return await in_thread(self._sync.ack_many, plain(deliveries))

    async def delivery(self, token: str) -> AsyncDelivery[PayloadT]:
        """The delivery a token names, as its holder has it; StaleDelivery when its lease is gone."""
        return AsyncDelivery(await in_thread(self._sync.delivery, token))

    async def get(self, seq: int) -> Event[PayloadT] | None:
        """The message at a position, without taking it; None when it is settled or never was."""
        return await in_thread(self._sync.get, seq)

    async def peek(self, limit: int = 1, *, group: str = DEFAULT_GROUP) -> list[Event[PayloadT]]:
        """The messages that would be taken next, without taking them."""
        return await in_thread(self._sync.peek, limit, group=group)

    async def stats(self, group: str = DEFAULT_GROUP) -> QueueStats:
        """How many messages are in which state; costs the same whatever the queue holds."""
        return await in_thread(self._sync.stats, group)

    async def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""
        return await in_thread(self._sync.pending, group)

    def failed(self, group: str = DEFAULT_GROUP) -> AsyncGenerator[Event, None]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""
        return in_pieces(self._sync.failed, group)

    def failures(self, group: str = DEFAULT_GROUP) -> AsyncGenerator[FailedMessage, None]:
        """The same with the reason each was given up for."""
        return in_pieces(self._sync.failures, group)

    def dead_letters(self) -> AsyncGenerator[FailedMessage, None]:
        """The queue's dead letters with the reason each was given up for; of a dead-letter queue, all it holds."""
        return in_pieces(self._sync.dead_letters)

    async def messages(
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
        return await in_thread(self._sync.messages, state, group=group, after=after, limit=limit)

    async def consumers(self) -> list[QueueConsumer]:
        """Workers, and other consumers that gave their name: where, since when, last seen when, and what they hold."""
        return await in_thread(self._sync.consumers)

    async def claim(
        self,
        *,
        min_idle: Seconds,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        limit: int = 1,
        lease: Seconds | None = None,
    ) -> Sequence[AsyncDelivery[PayloadT]]:
        """Takes over deliveries that no consumer has extended for `min_idle`, whether or not their lease has ended.

        A claim is a new delivery: a new token, one more attempt; the old handle is stale.
        """
        return [
            AsyncDelivery(one)
            for one in await in_thread(
                self._sync.claim, min_idle=min_idle, group=group, consumer=consumer, limit=limit, lease=lease
            )
        ]

    async def redrive(
        self,
        *,
        to: AsyncQueue | None = None,
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
        return await in_thread(self._sync.redrive, to=plain(to), limit=limit, where=where, dry_run=dry_run)

    async def move(self, to: AsyncQueue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that are not in flight to the end of another queue, all or nothing; returns how many.

        Delays, priorities (where the other queue has any) and retry budgets go with them.
        """
        return await in_thread(self._sync.move, plain(to), limit=limit, where=where)

    async def discard(self, seqs: Iterable[int]) -> int:
        """Settles messages that are not in flight, by their positions, as if they had been taken and acknowledged.

        Positions that are unknown, settled or in flight count 0; failed messages can be discarded too.
        """
        return await in_thread(self._sync.discard, seqs)

    async def run_now(self, seqs: Iterable[int], *, group: str | None = None) -> int:
        """Makes delayed messages ready at once, also those that wait for their retry; returns how many did.

        By their positions, for one group or for all. Positions that do not wait for their time count 0.
        """
        return await in_thread(self._sync.run_now, seqs, group=group)

    async def purge(self) -> int:
        """Removes every message, also those in flight; returns how many. The policy and the positions stay."""
        return await in_thread(self._sync.purge)

    async def drop(self) -> int:
        """Removes the queue with its messages, groups and schedules; returns how many messages that were.

        The topic stays, and with it the count of positions: a queue made again under this name goes on from there.
        """
        return await in_thread(self._sync.drop)

    async def configure(self, **policy: Unpack[PolicyArguments]) -> QueuePolicy:
        """Changes the policy, all but the mode: a queue keeps the one it was made with."""
        return await in_thread(lambda: self._sync.configure(**policy))

    async def pause(self, group: str | None = None) -> bool:
        """Hands nothing out any more, to one group or to all, until `resume`; False when that was so already.

        It is stored, and holds for every process. What is in flight goes on and can be settled; pushes are taken in.
        """
        return await in_thread(self._sync.pause, group)

    async def resume(self, group: str | None = None) -> bool:
        """Ends a pause: takes that wait wake up. False when there was none.

        The pause of the whole queue and the pauses of its groups are ended each on its own.
        """
        return await in_thread(self._sync.resume, group)

    async def pauses(self) -> list[Pause]:
        """The pauses that have not ended, that of the whole queue first."""
        return await in_thread(self._sync.pauses)

    async def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""
        return await in_thread(self._sync.groups)

    async def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets what comes after a position; one that exists already is left as it is.

        In work mode the name is only kept: all takes share the messages, whatever group they name.
        """
        await in_thread(self._sync.add_group, name, after=after)

    async def remove_group(self, name: str) -> bool:
        """Forgets a group, so that messages no longer wait for it; False when there is none of that name."""
        return await in_thread(self._sync.remove_group, name)

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
        batch: int | None = None,
        wait: Seconds = 0,
    ) -> QueueWorker:
        """A worker that gives messages to `handler` (a function or a coroutine function), `concurrency` at a time.

        A handler that returns acknowledges, one that raises gives the message back. Leases are renewed meanwhile, also
        those of messages taken ahead. `start()` it, `run()` it, or use it as a context manager.

        `batch`: the handler gets a list of up to so many deliveries, and `wait` is how long a batch that is not full
        waits for more. What it has not settled itself is acknowledged in one commit when it returns, and given back,
        each by itself, when it raises.
        """
        return self._sync.worker(
            handler,
            group=group,
            concurrency=concurrency,
            consumer=consumer,
            ahead=ahead,
            lease=lease,
            middleware=middleware,
            batch=batch,
            wait=wait,
        )

    async def every(
        self,
        interval: Seconds | str,
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
        """Pushes a message periodically: every `interval` seconds, or by a cron line of five fields ("0 6 * * mon").

        Exactly one push per tick, however many processes have the queue open. The schedule is stored under `name`
        and goes on after restarts, wherever the queue is opened; the same name with the same arguments changes
        nothing, with others it replaces the schedule. `missed`: which of the ticks during which no process had the
        queue open are made up for.
        """
        return await in_thread(
            self._sync.every,
            interval,
            payload,
            name=name,
            timezone=timezone,
            missed=missed,
            kind=kind,
            headers=headers,
            key=key,
            priority=priority,
        )

    async def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""
        return await in_thread(self._sync.schedules)

    async def unschedule(self, name: str) -> bool:
        """Removes a periodic message; False when there is none of that name."""
        return await in_thread(self._sync.unschedule, name)

    async def length(self) -> int:
        """Messages that are ready, in flight or delayed."""
        return await in_thread(len, self._sync)

    def __aiter__(self) -> AsyncGenerator[Event[PayloadT], None]:
        return in_pieces(self._sync.__iter__)

    @overload
    async def push(
        self, payload: PayloadT, *, reply: Literal[False] = False, **options: Unpack[PushArguments]
    ) -> Receipt: ...

    @overload
    async def push(
        self, payload: PayloadT, *, reply: Literal[True], **options: Unpack[PushArguments]
    ) -> ResultTicket: ...

    async def push(
        self, payload: PayloadT, *, reply: bool = False, **options: Unpack[PushArguments]
    ) -> Receipt | ResultTicket:
        """Adds a message and returns when it is durable; with `reply`, a ticket for what its handler returns.

        The options are those of `penstock.Queue.push`.
        """
        if reply:
            return await in_thread(lambda: self._sync.push(payload, reply=True, **options))
        return await in_thread(lambda: self._sync.push(payload, **options))

    def receive(self, *, wait: Seconds | None = 0, **options: Unpack[TakeArguments]) -> AsyncReceiver[PayloadT]:
        """`async with` it for one message or None, `async for` one after the other; options are those of `take`.

        An `async with` block acknowledges its message, or gives it back with the error that left the block.
        """
        return AsyncReceiver(self, wait, options)


class AsyncDelivery(AsyncHandle[Delivery[PayloadT]], Generic[PayloadT]):
    """A message that is yours until `deadline`: `ack` it, `nack` it, or use it as a context manager that does."""

    __slots__ = ()

    @property
    def event(self) -> Event[PayloadT]:
        return self._sync.event

    @property
    def attempt(self) -> int:
        return self._sync.attempt

    @property
    def token(self) -> str:
        """The delivery's name: 24 characters of a-z and 2-7, new for every delivery."""
        return self._sync.token

    @property
    def group(self) -> str:
        """The group it was taken for."""
        return self._sync.group

    @property
    def consumer(self) -> str | None:
        """The consumer that took it, if it gave its name."""
        return self._sync.consumer

    @property
    def queue(self) -> AsyncQueue[PayloadT]:
        """The queue it was taken from."""
        return AsyncQueue(self._sync.queue)

    @property
    def deadline(self) -> datetime:
        """When the lease ends; datetime.max for one that lasts as long as this process."""
        return self._sync.deadline

    @property
    def seq(self) -> int:
        """The message's position in its queue."""
        return self._sync.seq

    @property
    def payload(self) -> PayloadT:
        """The message's payload, decoded now; PoisonMessage (with the raw bytes) when it does not decode."""
        return self._sync.payload

    def as_(self, type: type[T]) -> T:
        """The payload as a value of a declared event type, upcast to its newest version."""
        return self._sync.as_(type)

    @property
    def poison(self) -> PoisonMessage | None:
        """The error that decoding the payload raises, or None when it decodes."""
        return self._sync.poison

    @property
    def kind(self) -> str:
        """The message's kind."""
        return self._sync.kind

    @property
    def key(self) -> str | None:
        """The message's ordering key."""
        return self._sync.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self._sync.headers

    async def ack(self, *, result: object = None) -> None:
        """Settles the message, durably. StaleDelivery when the lease was lost, or the delivery was settled already.

        `result`: what the one who pushed it with `reply=True` is told; over HTTP, JSON and no bytes.
        """
        await self._sync.ack_async(result=result)

    async def nack(
        self, *, delay: Seconds | None = None, error: str | BaseException | None = None, dead: bool = False
    ) -> None:
        """Gives the message back to its position, after `delay` (the policy's, unless given); `dead` gives it up.

        `error`: why, in text, or the exception: then its traceback is kept as well.
        """
        await self._sync.nack_async(delay=delay, error=error, dead=dead)

    async def extend(self, lease: Seconds | None = None) -> None:
        """Keeps the message for `lease` more seconds from now (the policy's lease, unless given)."""
        await in_thread(self._sync.extend, lease)

    async def release(self) -> None:
        """Gives the message back at once without counting the attempt: for shutting down. Never fails."""
        await in_thread(self._sync.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._sync.__aexit__(kind, error, trace)


class AsyncOutbox(AsyncHandle[Outbox]):
    """Gathers drafts for any topics of a journal and appends them together. Not shared between threads."""

    __slots__ = ()

    def stage(
        self, topic: AsyncTopic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]
    ) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is written yet."""
        return self._sync.stage(plain(topic), kind, payload, **draft)

    def clear(self) -> None:
        """Drops everything staged."""
        return self._sync.clear()

    async def flush(self) -> list[Receipt]:
        """Appends everything staged, all or nothing; one receipt each, in order. On an error it stays staged."""
        return await in_thread(self._sync.flush)

    def __len__(self) -> int:
        return len(self._sync)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            await self.flush()
        else:
            self.clear()
