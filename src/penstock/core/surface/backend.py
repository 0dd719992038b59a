"""The interface beneath a handle: a journal's store in this process, or a server that has it.

A handle checks what it is given, once, and asks its backend. Most of what it asks is an operation of the protocol:
`call` runs its implementation here (`penstock.core.local`) or sends it (`penstock.remote`). The rest, what is hot,
streams or waits, are methods, which both homes write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Literal
    from weakref import WeakSet

    import msgspec
    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.core.consuming.delivery import Delivery
    from penstock.core.consuming.subscription import JournalSubscription, OnLag, Subscription
    from penstock.core.consuming.worker import Worker
    from penstock.core.engine.contract import Durability
    from penstock.core.entity.outbox import Staged
    from penstock.core.entity.projection import Projection
    from penstock.core.entity.states import Freshness, RebuildReport
    from penstock.core.events import Draft, Event, Receipt
    from penstock.core.journal.across import AcrossQuery
    from penstock.core.journal.blocks import Block
    from penstock.core.journal.catalog import Settings
    from penstock.core.journal.description import Description, Pressure
    from penstock.core.journal.reading import Bounds
    from penstock.core.journal.sealed.files import SealedBytes
    from penstock.core.local.backend import LocalBackend
    from penstock.core.model.arguments import DraftArguments
    from penstock.core.model.calls import GatherRequest
    from penstock.core.model.failure import NackRequest
    from penstock.core.model.plan import BatchPlan
    from penstock.core.model.push import PushOptions
    from penstock.core.model.query import EventQuery
    from penstock.core.model.take import Outcome, TakeRequest
    from penstock.core.observe.sample import Sample
    from penstock.core.protocol.operation import Operation
    from penstock.core.queue.operations.groups import Pause
    from penstock.core.queue.policy import QueuePolicy
    from penstock.core.surface.journal import Journal
    from penstock.core.surface.queue import Queue
    from penstock.core.surface.topic import Topic
    from penstock.core.ticket import Ticket
    from penstock.core.units import Progress

A = TypeVar("A")
P = TypeVar("P", bound="Projection")


class JournalAddress(NamedTuple):
    """What another process opens a journal with."""

    url: str
    token: str | None = None
    durability: Durability | None = None


class Backend(Protocol):
    """The place of a journal."""

    clock: Clock
    workers: WeakSet[Worker]
    """Those that are stopped when the journal is closed."""

    @property
    def id(self) -> str:
        """The store's own name."""

    @property
    def closed(self) -> bool:
        """True if it was closed."""

    def call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None) -> A:
        """An operation's answer; `names` are those in its path."""

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """The answer to a look-up; None when there is no such thing."""

    def store(self, what: str, instead: str) -> LocalBackend:
        """The store itself; ConfigError when it is at a server: `what` is not served, and what to do `instead`."""

    def topic(self, name: str) -> TopicBackend:
        """Returns the interface beneath a topic's handle."""

    def open_queue(self, journal: Journal, name: str, policy: Mapping[str, object], create: bool) -> Queue:
        """The handle of a queue, which is made when it is not there and may be."""

    def append_staged(self, staged: list[Staged]) -> list[Receipt]:
        """Appends drafts for several topics, all or nothing, and empties the list; on an error they stay in it."""

    def submit_staged(self, staged: list[Staged]) -> Ticket[list[Receipt]]:
        """Does the same with a ticket; the list stays as it is."""

    def read(self, query: AcrossQuery) -> Iterator[Event]:
        """Streams the wanted events of several topics, of one state of the journal, in the order of recording."""

    def subscribe(self, query: AcrossQuery, buffer: int, *, latest: bool) -> JournalSubscription:
        """Follows several topics; `latest`: from where they end now."""

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, in the order they were recorded."""

    def scans(self, names: Iterable[str]) -> AbstractContextManager[dict[str, TopicScan]]:
        """Those of the topics that are there, in one state, by name."""

    def push_together(self, calls: GatherRequest) -> list[Receipt]:
        """Pushes calls of tasks in one commit."""

    def pressure(self) -> Pressure:
        """Returns the number of submissions wait for the writer."""

    def address(self) -> JournalAddress:
        """Returns what another process opens the journal with; ConfigError when only one process can."""

    def describe(self) -> Description:
        """Returns the description of the journal."""

    def stats(self) -> Sample:
        """Every topic and queue with its backlogs and lags."""

    def flush(self) -> None:
        """Returns when everything submitted so far is on disk."""

    def audit(self, kind: str, subject: str, record: dict[str, object]) -> None:
        """Writes down what a program changed, in the store; of a served journal the program's log says so."""

    def close(self) -> None:
        """Stops workers, finishes what is pending, lets go of the store or the connections."""


class TopicBackend(Protocol):
    """A topic's hot paths, streams and folds. Positions, names and queries are checked already, drafts are not."""

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object, draft: DraftArguments) -> Receipt:
        """Appends an event and returns when it is durable."""

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing."""

    def submit(self, kind: object, payload: object, draft: DraftArguments, *, patient: bool) -> Ticket[Receipt]:
        """`append` with a ticket; where the writer is behind, `patient` waits and others get Backpressure."""

    def submit_many(self, drafts: Iterable[Draft], *, patient: bool) -> Ticket[list[Receipt]]:
        """`append_many` with a ticket."""

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def latest(self) -> int:
        """The highest position ever assigned."""

    @property
    def oldest(self) -> int:
        """The first position still stored."""

    def length(self) -> int:
        """Returns the number of stored events."""

    def settings(self) -> Settings:
        """Returns the settings of the topic's retention."""

    def read(self, query: EventQuery) -> Iterator[Event]:
        """Streams the wanted events of one state of the topic."""

    def read_arrow(
        self, after: int, limit: int | None, through: int | None, rows: int, payload: Literal["string", "binary"]
    ) -> Iterator[pa.RecordBatch]:
        """Streams events as record batches of up to so many rows."""

    def get(self, seq: int) -> Event | None:
        """The event at a position, or None."""

    def find(self, id: str) -> Event | None:
        """The event with an id, or None."""

    def subscribe(self, after: int | Literal["latest"], buffer: int, on_lag: OnLag, wanted: EventQuery) -> Subscription:
        """Follows the topic."""

    def worker(self, topic: Topic, plan: BatchPlan) -> Worker:
        """A worker over the topic of a handle."""

    # ── event sourcing ───────────────────────────────────────────────────────────────────────────────────────────────
    def position_of(self, key: str) -> int:
        """The position of an entity's newest event."""

    def project(self, projection: type[P], key: str | None, freshness: Freshness) -> P | None:
        """An entity's state, or the whole topic's."""

    def project_if_changed(self, projection: type[P], key: str | None, position: int) -> tuple[int, P | None] | None:
        """None when the newest event of the entity is still at `position`, else where it is now, and the state."""

    def rebuild(self, projection: type[P], *, whole: bool, progress: Progress | None) -> RebuildReport:
        """Folds every entity anew and saves the states."""

    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        """The event, then its cause, its cause's cause, …"""

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        """Returns the events that an event caused directly."""


class TopicScan(Protocol):
    """A topic in one state, for a query over many of its events. Any one thread at a time may use it."""

    after: int
    """Up to here nothing is stored any more."""
    through: int
    """The newest position."""
    columns: str
    """The typed columns of its sealed history."""

    def files(self) -> tuple[list[SealedBytes], int]:
        """The Parquet files that hold the oldest events, where they can be read here; and through which position."""

    def position_before(self, ms: int) -> int:
        """The last position recorded before a time; 0 for none."""

    def spans(self, after: int, through: int, kinds: frozenset[str]) -> Iterable[Bounds]:
        """Returns the spans that may have events of some kinds: elsewhere in after < position ≤ through there
        is none."""

    def blocks(self, after: int, through: int) -> Iterator[Block]:
        """The blocks with events in after < position ≤ through."""

    def events(self, query: EventQuery) -> Iterator[Event]:
        """The events of a key between two positions."""


class QueueBackend(Protocol):
    """A queue's hot paths and waits. Arguments are checked already."""

    name: str
    handle: Queue

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def policy(self) -> QueuePolicy:
        """Returns the stored policy of the queue."""

    def length(self) -> int:
        """Messages that are ready, in flight or delayed."""

    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""

    def pauses(self) -> list[Pause]:
        """The pauses that have not ended."""

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, payload: object, options: PushOptions) -> Receipt:
        """Adds a message and returns when it is durable."""

    def submit(self, payload: object, options: PushOptions) -> Ticket[Receipt]:
        """`push` with a ticket."""

    def push_many(self, payloads: list[object], options: PushOptions) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing."""

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """Messages under a lease; waits for the first, or until `stopping` is set and `nudge` was called."""

    async def take_async(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """`take` for an event loop. Cancelled, it leaves nothing taken."""

    def claim(self, wanted: TakeRequest, min_idle: float) -> list[Delivery]:
        """Takes over deliveries that no consumer has extended for `min_idle` seconds."""

    def delivery(self, token: str) -> Delivery:
        """The delivery a token names; StaleDelivery when its lease is gone."""

    def nudge(self) -> None:
        """Wakes the takes that wait, so that they see that they should stop."""

    def check_may_wait(self) -> None:
        """ConfigError where a worker could not end while this thread waits for it."""

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, delivery: Delivery, result: object) -> None:
        """Settles a delivery, durably."""

    async def ack_async(self, delivery: Delivery, result: object) -> None:
        """`ack` for an event loop."""

    def ack_and_take(self, delivery: Delivery, result: object, wanted: TakeRequest) -> list[Delivery]:
        """Settles a delivery and takes what is there without waiting, in one commit."""

    def ack_many(self, deliveries: list[Delivery | str]) -> int:
        """Settles deliveries, or their tokens, in one commit; returns how many were still held."""

    def nack(self, delivery: Delivery, options: NackRequest) -> Outcome:
        """Gives a message back, or up; returns what became of it."""

    def extend(self, deliveries: list[Delivery], lease: float | None, *, patient: bool = False) -> int:
        """Keeps messages for longer; returns until when. `patient`: those that are lost already are no error."""

    def steps(self, delivery: Delivery) -> dict[str, bytes]:
        """What the steps of a delivery's message returned so far, as JSON, by name."""

    def store_step(self, delivery: Delivery, name: str, result: bytes) -> None:
        """Keeps what a step returned, durably; StaleDelivery when the lease was lost."""

    def note_progress(self, delivery: Delivery, share: float, text: str | None, step: str | None = None) -> None:
        """Keeps the progress that a message's handler reports, and the step that it is in."""

    def release(self, deliveries: list[Delivery], delay: float = 0.0) -> None:
        """Gives messages back without counting the attempt, to be ready after `delay`. Never fails."""
