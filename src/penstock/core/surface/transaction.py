"""A transaction of a journal in this process, which holds the writer for changes of topics and queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from penstock.core.clock import Duration, seconds
from penstock.core.consuming.delivery import Delivery
from penstock.core.engine.contract import SqlParameters, SqlRow
from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal.cursors import move_cursor, read_cursor
from penstock.core.journal.transaction import HeldWriter
from penstock.core.model.arguments import (
    DraftArguments,
    FilterArguments,
    PushArguments,
    TakeArguments,
    query_fields,
    show_arguments,
)
from penstock.core.model.conditions import EventChoice, Where, check_events_chosen, predicate
from penstock.core.model.failure import check_nack
from penstock.core.model.push import PushOptions
from penstock.core.model.query import EventQuery
from penstock.core.model.take import TakeRequest, take_request
from penstock.core.names import check_consumer, check_items, check_limit, check_name, check_position, is_whole
from penstock.core.queue.operations import settle
from penstock.core.queue.operations.repair import Redriven, move_in, purge_in, redrive_in
from penstock.core.queue.operations.take import check_take, take
from penstock.core.queue.state.cache import unknown_queue
from penstock.core.schema import MESSAGE_KIND
from penstock.core.surface.queue import Queue, push_options
from penstock.core.surface.topic import Topic
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.core.journal.commit import Commit
    from penstock.core.journal.log import TopicLog
    from penstock.core.local.backend import LocalBackend
    from penstock.core.queue.queue import LocalQueue
    from penstock.core.surface.journal import Journal

T = TypeVar("T")


class Transaction:
    """All or nothing across topics and queues: a clean exit of the `with` block commits, an exception rolls back.

    A transaction holds the writer, so keep it short. Inside it, append through its own methods and not through topics.
    """

    def __init__(self, journal: Journal, store: LocalBackend) -> None:
        self._journal = journal
        self._store = store
        self._held = HeldWriter(store.core, Transaction.__enter__.__code__, Transaction.__exit__.__code__)
        self._settled: list[Delivery] = []
        self._extended: list[tuple[Delivery, int]] = []
        """The extended deliveries, each with its earlier deadline."""

    def __enter__(self) -> Transaction:
        self._held.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._held.end(kind, error)
        finally:
            if not self._held.committed:  # an interrupt that waited for the commit arrives after it
                self._reopen()

    def __del__(self) -> None:
        try:
            held = self._held
        except AttributeError:  # interrupted before the constructor ended
            return
        if held.is_open:
            held.drop("it was dropped, and its block had not ended")

    def _reopen(self) -> None:
        """Restores the settled deliveries, because their settlement is rolled back."""
        for delivery in self._settled:
            delivery._settled = False
        for delivery, deadline in reversed(self._extended):
            delivery._deadline = deadline

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @show_arguments(DraftArguments, Draft)
    def append(
        self, topic: Topic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]
    ) -> Receipt:
        """Appends an event; its position is final if the transaction commits."""
        self._held.check_open()
        log = self._log(topic)
        if isinstance(topic, Topic) and topic._payload is not None:
            kind, payload = topic._payload.draft(kind, payload)
        batch = log.prepare(kind, payload, draft, self._held.find_cause)
        return self._held.change(lambda commit: commit.append(log.name, batch)[0])

    def append_many(self, topic: Topic | str, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends several events at consecutive positions."""
        self._held.check_open()
        log = self._log(topic)
        if isinstance(topic, Topic) and topic._payload is not None:
            drafts = topic._payload.drafts(drafts)
        batch = log.prepare_many(drafts, self._held.find_cause)
        return self._held.change(lambda commit: commit.append(log.name, batch))

    def commit(self, topic: Topic | str, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor forward together with the rest."""
        check_consumer(consumer)
        check_position(seq, "seq")
        name = self._log(topic).name
        self._held.change(lambda commit: move_cursor(commit, name, consumer, seq, back=False))

    def cursor(self, topic: Topic | str, consumer: str) -> int | None:
        """Returns the position of a consumer, as this transaction sees it."""
        check_consumer(consumer)
        self._held.check_open()
        name = self._log(topic).name

        def look(commit: Commit) -> int | None:
            head = commit.head(name)
            return read_cursor(commit.tx, head.topic_id, consumer) if head else None

        return self._held.look(look)

    @show_arguments(FilterArguments, None)
    def read(
        self,
        topic: Topic | str,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reverse: bool = False,
        **filter: Unpack[FilterArguments],
    ) -> Iterator[Event]:
        """Reads a topic, including this transaction's own appends; the arguments are the arguments of `Topic.read`."""
        self._held.check_open()
        query = EventQuery(
            **query_fields(filter),
            after=after,
            through=through,
            limit=limit,
            since=since,
            until=until,
            reverse=reverse,
        )
        found = self._held.read(self._log(topic).name, query)
        typed = None if isinstance(topic, str) else topic._payload
        return found if typed is None else map(typed.typed, found)

    def sql(self, statement: str, parameters: SqlParameters = ()) -> list[SqlRow]:
        """Runs SQL on your own tables in the journal's SQLite file, and returns its rows.

        Its changes commit with the appends, pushes and acks of this transaction, or not at all. `parameters` are the
        values of `?`, or by name of `:name`. A failed statement changes nothing, and the transaction can continue. The
        store's own table, PRAGMA, ATTACH, BEGIN and temporary tables are refused, also in triggers.
        """
        if not isinstance(statement, str) or isinstance(parameters, str | bytes):
            raise ConfigError("tx.sql takes a statement, and a list or mapping of its parameters")
        return self._held.change(lambda commit: commit.tx.sql(statement, parameters))

    def get_mark(self, name: str) -> int | None:
        """Returns a mark: a named number that commits with transactions, by which an exactly-once writer recognises
        finished work.
        """
        self._held.check_open()
        check_consumer(name, "mark")
        return self._held.look(lambda commit: commit.get_mark(name))

    def set_mark(self, name: str, value: int) -> None:
        """Sets a mark, which is stored if, and only if, the transaction commits."""
        check_consumer(name, "mark")
        if not is_whole(value) or not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(f"a mark is a whole number of 64 bits, not {value!r:.80}")
        self._held.change(lambda commit: commit.set_mark(name, value))

    def _log(self, topic: Topic | str) -> TopicLog:
        if isinstance(topic, str):
            return self._store.log(topic)
        if not isinstance(topic, Topic):
            raise ConfigError(f"a topic is a Topic or its name, not {topic!r:.80}")
        if topic.journal is not self._journal:
            raise ConfigError(f"topic {topic.name!r} belongs to another journal than this transaction")
        return self._store.log(topic.name)

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @show_arguments(PushArguments, PushOptions)
    def push(self, queue: Queue | str, payload: object, **options: Unpack[PushArguments]) -> Receipt:
        """Pushes a message; no consumer is woken or sees it before the transaction commits."""
        if isinstance(queue, Queue) and queue._payload is not None:
            payload = queue._payload.accept(payload, options.get("kind", MESSAGE_KIND))
        own = self._queue(queue)
        batch, delivery = own.prepare(payload, push_options(options), self._held.find_cause)
        return self._held.change(lambda commit: own.push_in(commit, batch, delivery)[0])

    @show_arguments(PushArguments, PushOptions)
    def push_many(
        self, queue: Queue | str, payloads: Iterable[object], **options: Unpack[PushArguments]
    ) -> list[Receipt]:
        """Pushes several messages at consecutive positions."""
        if isinstance(queue, Queue) and queue._payload is not None:
            payloads = queue._payload.messages(check_items(payloads, "payloads"), options.get("kind", MESSAGE_KIND))
        own = self._queue(queue)
        batch, delivery = own.prepare_many(payloads, push_options(options), self._held.find_cause)
        return self._held.change(lambda commit: own.push_in(commit, batch, delivery))

    @show_arguments(TakeArguments, TakeRequest)
    def take(self, queue: Queue | str, **options: Unpack[TakeArguments]) -> Delivery | None:
        """Takes the next message if the transaction commits, this transaction's own pushes included; never waits.

        After a rollback the message is as before, and the delivery is stale.
        """
        found = self.take_many(queue, 1, **options)
        return found[0] if found else None

    @show_arguments(TakeArguments, TakeRequest)
    def take_many(self, queue: Queue | str, limit: int, **options: Unpack[TakeArguments]) -> list[Delivery]:
        """Takes up to `limit` messages if the transaction commits."""
        wanted = take_request(limit, "take_many", **options)
        found: list[Delivery] = []
        own, more = self._queue(queue), bool(limit)
        check_take(wanted)
        while more and not found:
            self._held.flush()
            taken = self._held.change(lambda commit: take(commit, own, wanted))
            found, more = taken.deliveries, taken.more
        return found if isinstance(queue, str) else queue._typed(found)

    def extend(self, delivery: Delivery, lease: Duration | None = None) -> None:
        """Keeps a delivery's message for longer if the transaction commits; see `Delivery.extend`."""
        held = None if lease is None else seconds(lease, "lease")
        deadline = self._change(delivery, partial(settle.extend, patient=False), [delivery], held)
        self._extended.append((delivery, delivery._deadline))
        delivery._deadline = deadline

    def release(self, delivery: Delivery) -> None:
        """Gives a delivery's message back if the transaction commits, without counting the attempt."""
        self._change(delivery, settle.release, [delivery])
        self._settle(delivery)

    def purge(self, queue: Queue | str) -> int:
        """Removes every message of a queue if the transaction commits; returns the number of messages."""
        own = self._queue(queue)
        return self._held.change(lambda commit: purge_in(commit, own))

    def move(
        self, queue: Queue | str, to: Queue | str, *, limit: int | None = None, where: EventChoice | None = None
    ) -> int:
        """Moves messages to another queue if the transaction commits; see `Queue.move`."""
        own, target, chosen = self._queue(queue), self._queue(to), (check_limit(limit), predicate(where))
        if isinstance(chosen[1], Where):
            check_events_chosen(chosen[1])
        if own is target:
            raise ConfigError(f"queue {own.name!r} cannot be moved to itself")
        self._held.flush()
        return self._held.change(lambda commit: move_in(commit, own, target.name, *chosen))

    def redrive(
        self,
        queue: Queue | str,
        *,
        to: Queue | str | None = None,
        limit: int | None = None,
        where: EventChoice | None = None,
    ) -> Redriven:
        """Sends dead letters back, and makes failed messages ready, if the transaction commits; see `Queue.redrive`."""
        own, target = self._queue(queue), None if to is None else self._queue(to)
        chosen = check_limit(limit), predicate(where)
        self._held.flush()
        return self._held.change(lambda commit: redrive_in(commit, own, target, *chosen))

    def ack(self, delivery: Delivery) -> None:
        """Settles a delivery if, and only if, the transaction commits.

        Raises StaleDelivery when the delivery is no longer held.
        """
        own = self._queue_of(delivery)
        self._held.change(lambda commit: own.ack_in(commit, delivery))
        self._settle(delivery)

    def nack(
        self,
        delivery: Delivery,
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        dead: bool = False,
    ) -> None:
        """Gives a delivery back if the transaction commits; see `Delivery.nack`."""
        self._change(delivery, settle.nack, delivery, check_nack(error, delay=delay, dead=dead))
        self._settle(delivery)

    def _queue(self, queue: Queue | str) -> LocalQueue:
        """Returns an existing queue of this journal; the transaction itself may have made it, for dead letters."""
        if not isinstance(queue, Queue | str):
            raise ConfigError(f"a queue is a Queue or its name, not {queue!r:.80}")
        if isinstance(queue, Queue) and queue.journal is not self._journal:
            raise ConfigError(f"queue {queue.name!r} belongs to another journal")
        name, registry = queue if isinstance(queue, str) else queue.name, self._store.queues
        check_name(name, "queue")
        if self._held.look(lambda commit: registry.cache.find(commit, name)) is None:
            raise unknown_queue(name, registry.names())
        return registry.handle(name)

    def _queue_of(self, delivery: Delivery) -> LocalQueue:
        """Returns the queue of a delivery of this journal."""
        if not isinstance(delivery, Delivery):
            raise ConfigError(f"a transaction settles Delivery objects, not {delivery!r:.80}")
        return self._queue(delivery.queue)

    def _change(self, delivery: Delivery, apply: Callable[..., T], *args: object) -> T:
        """Changes the state of a delivery's queue."""
        own = self._queue_of(delivery)
        return self._held.change(lambda commit: apply(commit, own.cache.state(commit, own.name), *args))

    def _settle(self, delivery: Delivery) -> None:
        delivery._settled = True
        self._settled.append(delivery)
