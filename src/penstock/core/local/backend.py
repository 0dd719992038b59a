"""The backend of a journal in this process.

An operation of the protocol is a function with the operation's name (`local.topics`, `local.queues`, `local.bulk`). A
call over HTTP runs the same function. Calls that are hot, stream or wait are methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from sys import modules
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from penstock.core.clock import Clock
from penstock.core.engine.contract import Engine
from penstock.core.entity.registry import EntityRegistry
from penstock.core.events import Draft, Event, Receipt, parse_id
from penstock.core.journal import keys
from penstock.core.journal.catalog import Settings
from penstock.core.journal.commit import Commit
from penstock.core.journal.core import JournalCore
from penstock.core.journal.log import TopicLog
from penstock.core.journal.owners import this_process
from penstock.core.journal.prepare import prepare_one
from penstock.core.journal.reading import TopicView
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.query import EventQuery
from penstock.core.names import AUDIT, check_items, check_name
from penstock.core.observe.tracing import sending
from penstock.core.surface.backend import JournalAddress
from penstock.core.surface.journal import Journal
from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock import Description, Pressure, Queue, RebuildReport, Ticket, Topic
    from penstock.core.consuming.subscription import OnLag
    from penstock.core.entity.outbox import Staged
    from penstock.core.entity.projection import Projection
    from penstock.core.entity.states import Freshness
    from penstock.core.journal.across import AcrossQuery, LocalJournalSubscription
    from penstock.core.journal.following import LocalSubscription
    from penstock.core.journal.worker import TopicWorker
    from penstock.core.model.arguments import DraftArguments
    from penstock.core.model.calls import GatherRequest
    from penstock.core.model.plan import BatchPlan
    from penstock.core.observe.sample import Sample
    from penstock.core.protocol.operation import Operation
    from penstock.core.queue.queue import LocalQueue
    from penstock.core.queue.registry import QueueRegistry
    from penstock.core.surface.backend import TopicScan
    from penstock.core.units import Progress


A = TypeVar("A")
P = TypeVar("P", bound="Projection")

# Modules that a program on topics does not need are imported on use, so that such a program starts in half the time.


def implementation(name: str) -> Callable[..., Any]:
    """Returns the function of an operation's name; it takes the backend, the names in the path, and the request.

    Operations on queues, and bulk operations, are imported on first use, because most commands need none.
    """
    from penstock.core.local import topics

    known: dict[str, Callable[..., Any]] = vars(topics)
    if name not in known:
        from penstock.core.local import queues

        known = vars(queues)
    if name not in known:
        from penstock.core.local import bulk

        known = vars(bulk)
    return known[name]


def is_told_caller(run: Callable[..., Any]) -> bool:
    """Returns True if an implementation takes the caller: its second parameter is named `caller`."""
    return run.__code__.co_varnames[1:2] == ("caller",)


class PendingCommit(msgspec.Struct, Generic[A], frozen=True):
    """An operation that waits for its commit; its implementation neither waits nor reads the store."""

    prepare: Callable[[], WriteRequest[A]]
    """The function that checks and encodes the change."""
    at_once: bool
    """True if `prepare` runs no check of the program and does not read the store, so that it may run in an event
    loop.
    """
    done: Callable[[A], object] | None = None
    """The function that is called after the commit."""


def can_prepare_at_once(at: LocalBackend, drafts: Iterable[Draft]) -> bool:
    """Returns True if drafts can be prepared without waiting: no gate or fence sees them, and no cause must be
    looked up.
    """
    return not at.core.guards and not any(isinstance(draft.cause, str) for draft in drafts)


class LocalBackend:
    """Runs operations on the store itself."""

    def __init__(self, journal: LocalJournal, core: JournalCore) -> None:
        self.journal = journal
        self.core = core
        self.engine = core.engine
        self.clock = core.clock
        self.workers = core.workers
        self.entities = EntityRegistry(core)
        self._queues: QueueRegistry | None = None
        self._making_queues = threading.RLock()  # a signal handler may close the journal in the middle
        self._queues_closed = False
        core.holds.append(self._hold_messages)
        core.trims.append(lambda commit, topic, through: self.queues.upkeep.trimmed(commit, topic, through))
        core.owner_of_topic = lambda snap, name: self.queues.owner_of_topic(snap, name)
        keeper = core.housekeeper
        keeper.holds.append(self._hold_messages)
        keeper.before_retention.append(lambda commit, topic, end: self.queues.upkeep.give_way(commit, topic, end))
        keeper.chores.append(lambda topic: self.queues.upkeep.maintain(topic))
        keeper.drop_rules.users.append(lambda commit, topic: self.queues.users(commit, topic))
        keeper.drop_rules.hooks.append(lambda commit, topic, topic_id: self.queues.drop(commit, topic, topic_id))
        keeper.drop_rules.rows.append(lambda topic_id: self.queues.rows_of(topic_id))
        core.erase_messages.append(lambda topic, seqs, whole: self.queues.erase(topic, seqs, whole))
        core.find_copies.append(lambda topic, seqs: self.queues.find_copies(topic, seqs))
        core.find_former.append(lambda topic, wanted: self.queues.find_former(topic, wanted))
        core.before_close.append(self._close_queues)

    @property
    def queues(self) -> QueueRegistry:
        """The queues of the journal, made at first use by a program or by the upkeep of a topic."""
        return self._queues or self._make_queues()

    def _make_queues(self) -> QueueRegistry:
        from penstock.core.queue.registry import QueueRegistry

        with self._making_queues:
            if self._queues is None:
                made = QueueRegistry(self.core, self._handle_on)
                self._queues = self._queues or made
                if self._queues_closed:
                    self._queues.close()
            return self._queues

    def _hold_messages(self, commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
        return self.queues.upkeep.holds(commit, topic)

    def _close_queues(self) -> None:
        with self._making_queues:
            self._queues_closed = True
            made = self._queues
        if made is not None:
            made.close()

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def id(self) -> str:
        return self.core.id

    @property
    def closed(self) -> bool:
        return self.core.closed

    def call(self, operation: Operation[A], *names: str, request: object = None) -> A:
        """Returns the answer of an operation; `names` are the names in its path."""
        run = implementation(operation.name)
        asked: list[object] = []
        if is_told_caller(run):
            from penstock.core.protocol.operation import Caller

            asked.append(Caller())
        asked += names if request is None else (*names, request)
        found = run(self, *asked)
        if operation.commits:
            found = self.commit(found)
        answer: A = found
        return answer

    def commit(self, change: PendingCommit[A]) -> A:
        """Commits a change and returns its answer."""
        answer = self.core.writer.run(change.prepare())
        if change.done is not None:
            change.done(answer)
        return answer

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """Returns the answer to a look-up; None when the thing does not exist."""
        return self.call(operation, *names)

    def store(self, what: str, instead: str) -> LocalBackend:
        return self

    def push_together(self, calls: GatherRequest) -> list[Receipt]:
        receipts: list[Receipt] = implementation("push_together")(self, calls)
        return receipts

    def open_core(self) -> JournalCore:
        """Returns the core; raises Closed for a closed journal."""
        self.core.check_open()
        return self.core

    # ── topics and queues ────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str) -> LocalTopic:
        return LocalTopic(self, name)

    def log(self, name: str) -> TopicLog:
        """Returns a topic's log."""
        return TopicLog(self.core, check_name(name))

    def open_queue(self, journal: Journal, name: str, policy: Mapping[str, object], create: bool) -> Queue:
        self.core.check_open()
        return self.queues.queue(name, policy, create=create).handle

    def _handle_on(self, queue: LocalQueue) -> Queue:
        from penstock.core.surface.queue import Queue

        return Queue(self.journal, queue)

    def queue(self, name: str) -> LocalQueue:
        """Returns an existing queue."""
        return self.queues.existing(name)

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def append_staged(self, staged: list[Staged]) -> list[Receipt]:
        from penstock.core.entity.outbox import append_staged

        return append_staged(self.core, staged)

    def submit_staged(self, staged: list[Staged]) -> Ticket[list[Receipt]]:
        from penstock.core.entity.outbox import submit_staged

        return submit_staged(self.core, staged)

    def read(self, query: AcrossQuery) -> Iterator[Event]:
        from penstock.core.journal.across import read_across

        return read_across(self.core, query)

    def subscribe(self, query: AcrossQuery, buffer: int, *, latest: bool) -> LocalJournalSubscription:
        from penstock.core.journal.across import LocalJournalSubscription, topic_ends

        if latest:
            query = msgspec.structs.replace(query, after=topic_ends(self.core, query))
        return LocalJournalSubscription(self.core, query, buffer)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        from penstock.core.entity.causality import correlated

        return correlated(self.core, correlation_id)

    def scans(self, names: Iterable[str]) -> AbstractContextManager[dict[str, TopicScan]]:
        from penstock.core.local.scanning import open_scans

        return open_scans(self.open_core(), names)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def pressure(self) -> Pressure:
        return self.core.pressure()

    def address(self) -> JournalAddress:
        engine = self.engine
        if not engine.shared or engine.location is None:
            raise ConfigError(
                f"{self!r} is for one process: several need a SQLite store, or a server (`penstock serve`)"
            )
        return JournalAddress(f"{engine.scheme}:{Path(engine.location).resolve()}", None, engine.durability)

    def describe(self) -> Description:
        return self.core.describe(self.queues.names(), self.queues.paused(), self.entities.gates.describe())

    def stats(self) -> Sample:
        from penstock.core.sampling.collect import take_sample

        return take_sample(self.journal)

    def flush(self) -> None:
        self.core.flush()

    def audit(self, kind: str, subject: str, record: dict[str, object]) -> None:
        self.journal.topic(AUDIT).append(kind, {"who": this_process(), **record}, key=subject)

    def close(self) -> None:
        self.core.close()


class LocalTopic(TopicLog):
    """The base of a `Topic` of a journal in this process: the topic's log and its event sourcing."""

    __slots__ = ("_entities", "_writer")

    def __init__(self, backend: LocalBackend, name: str) -> None:
        super().__init__(backend.core, name)
        self._writer = backend.core.writer
        self._entities = backend.entities

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object, draft: DraftArguments) -> Receipt:
        span = sending(self.name, "append", None, draft.get("headers")) if "opentelemetry.trace" in modules else None
        try:
            if draft or self.core.guards:
                batch = self.prepare(kind, payload, draft)
            else:
                batch = prepare_one(kind, payload)
            return self._writer.run(WriteRequest(Commit.append, batch.size, (self.name, batch)))[0]
        finally:
            if span is not None:
                span.end()

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        rows = check_items(drafts, "drafts")
        span = sending(self.name, "append", len(rows)) if "opentelemetry.trace" in modules else None
        try:
            batch = self.prepare_many(rows)
            self.core.indexer.make_room(self.name)
            return self._writer.run(self.appending(batch))
        finally:
            if span is not None:
                span.end()

    def submit(self, kind: object, payload: object, draft: DraftArguments, *, patient: bool) -> Ticket[Receipt]:
        batch = self.prepare(kind, payload, draft)
        return self._writer.submit(WriteRequest(Commit.append_one, batch.size, (self.name, batch)), patient=patient)

    def submit_many(self, drafts: Iterable[Draft], *, patient: bool) -> Ticket[list[Receipt]]:
        return self._writer.submit(self.appending(self.prepare_many(drafts)), patient=patient)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def length(self) -> int:
        return self.ask(TopicView.count, 0)

    def settings(self) -> Settings:
        return self.ask(lambda view: view.record.settings, Settings())

    def read_arrow(
        self, after: int, limit: int | None, through: int | None, rows: int, payload: Literal["string", "binary"]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.core.journal.to_arrow import read_batches

        end = keys.MAX_SEQ if through is None else through
        core = self.core
        return read_batches(core.engine, self.name, after, limit, end, rows, payload, core.clock.now_ms())

    def find(self, id: str) -> Event | None:
        number = parse_id(id)
        return None if number is None else self.ask(lambda view: view.find(number), None)

    def subscribe(
        self, after: int | Literal["latest"], buffer: int, on_lag: OnLag, wanted: EventQuery
    ) -> LocalSubscription:
        from penstock.core.journal.following import LocalSubscription

        return LocalSubscription(self, after, buffer=buffer, on_lag=on_lag, wanted=wanted)

    def worker(self, topic: Topic, plan: BatchPlan) -> TopicWorker:
        from penstock.core.journal.worker import TopicWorker

        return TopicWorker(self, plan)

    # ── event sourcing ───────────────────────────────────────────────────────────────────────────────────────────────
    def position_of(self, key: str) -> int:
        from penstock.core.entity.states import newest_position

        return newest_position(self, key)

    def project(self, projection: type[P], key: str | None, freshness: Freshness) -> P | None:
        from penstock.core.entity.states import project

        return project(self, self._entities.states, projection, key, freshness)[1]

    def project_if_changed(self, projection: type[P], key: str | None, position: int) -> tuple[int, P | None] | None:
        from penstock.core.entity.states import project_if_changed

        return project_if_changed(self, self._entities.states, projection, key, position)

    def rebuild(self, projection: type[P], *, whole: bool, progress: Progress | None) -> RebuildReport:
        from penstock.core.entity.states import rebuild

        return rebuild(self, self._entities.states, projection, whole=whole, progress=progress)

    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.core.entity.causality import ancestors

        return ancestors(self.core, event)

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.core.entity.causality import effects

        return effects(self.core, event)


class LocalJournal(Journal):
    """A journal in this process, for the parts of penstock that need its store."""

    _backend: LocalBackend
    backend: LocalBackend
    """The backend, for parts of penstock that need more than the handles: the core, the engine, the registries."""

    def __init__(self, engine: Engine, *, clock: Clock | None = None, capacity: int, pressure: float) -> None:
        self._core = JournalCore(self, engine, clock=clock, capacity=capacity, pressure=pressure)
        super().__init__(LocalBackend(self, self._core))
        self.backend = self._backend
        self._engine = engine
        self._entities = self._backend.entities

    @property
    def _registry(self) -> QueueRegistry:
        return self.backend.queues
