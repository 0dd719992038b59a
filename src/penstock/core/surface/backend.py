"""The interface beneath a handle: a journal's store in this process, or a server that has it.

A handle checks its arguments once and calls its backend. Most calls are operations of the protocol: `call` runs the
implementation here (`penstock.core.local`) or sends a request (`penstock.remote`). Hot, streaming and waiting calls are
methods, which both backends implement.
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
    """The arguments with which another process opens a journal."""

    url: str
    token: str | None = None
    durability: Durability | None = None


class Backend(Protocol):
    """The place of a journal."""

    clock: Clock
    workers: WeakSet[Worker]
    """The workers that are stopped when the journal is closed."""

    @property
    def id(self) -> str:
        """The store's own name."""

    @property
    def closed(self) -> bool:
        """True if the journal is closed."""

    def call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None) -> A:
        """Returns the answer of an operation; `names` are the names in its path."""

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """Returns the answer to a look-up; None when the thing does not exist."""

    def store(self, what: str, instead: str) -> LocalBackend:
        """Returns the store itself.

        Raises ConfigError for a served journal; the error says that `what` is not served, and what to do `instead`.
        """

    def topic(self, name: str) -> TopicBackend:
        """Returns the interface beneath a topic's handle."""

    def open_queue(self, journal: Journal, name: str, policy: Mapping[str, object], create: bool) -> Queue:
        """Returns the handle of a queue, and makes a missing queue if `create` allows it."""

    def append_staged(self, staged: list[Staged]) -> list[Receipt]:
        """Appends drafts for several topics, all or nothing, and empties the list; after an error the list keeps its
        drafts.
        """

    def submit_staged(self, staged: list[Staged]) -> Ticket[list[Receipt]]:
        """Appends drafts for several topics and returns a ticket at once; the list does not change."""

    def read(self, query: AcrossQuery) -> Iterator[Event]:
        """Streams the wanted events of several topics, from one state of the journal, in the order of recording."""

    def subscribe(self, query: AcrossQuery, buffer: int, *, latest: bool) -> JournalSubscription:
        """Follows several topics; `latest` begins at their current ends."""

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Yields every event of a correlation, in the order of recording."""

    def scans(self, names: Iterable[str]) -> AbstractContextManager[dict[str, TopicScan]]:
        """Opens scans of the existing topics, in one state, by name."""

    def push_together(self, calls: GatherRequest) -> list[Receipt]:
        """Pushes calls of tasks in one commit."""

    def pressure(self) -> Pressure:
        """Returns the number of submissions that wait for the writer."""

    def address(self) -> JournalAddress:
        """Returns the arguments with which another process opens the journal; raises ConfigError when only one
        process can open it.
        """

    def describe(self) -> Description:
        """Returns the description of the journal."""

    def stats(self) -> Sample:
        """Returns every topic and queue with its backlogs and lags."""

    def flush(self) -> None:
        """Waits until everything submitted so far is on disk."""

    def audit(self, kind: str, subject: str, record: dict[str, object]) -> None:
        """Records a program's change in the store; for a served journal, the program's log records it."""

    def close(self) -> None:
        """Stops workers, finishes pending work, and releases the store or the connections."""


class TopicBackend(Protocol):
    """A topic's hot paths, streams and folds. Positions, names and queries are already checked, but drafts are not."""

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object, draft: DraftArguments) -> Receipt:
        """Appends an event and returns when it is durable."""

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing."""

    def submit(self, kind: object, payload: object, draft: DraftArguments, *, patient: bool) -> Ticket[Receipt]:
        """Appends and returns a ticket; where the writer is behind, `patient` waits and other callers get
        Backpressure.
        """

    def submit_many(self, drafts: Iterable[Draft], *, patient: bool) -> Ticket[list[Receipt]]:
        """Does what `append_many` does, and returns a ticket at once."""

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
        """Returns the event at a position, or None."""

    def find(self, id: str) -> Event | None:
        """Returns the event with an id, or None."""

    def subscribe(self, after: int | Literal["latest"], buffer: int, on_lag: OnLag, wanted: EventQuery) -> Subscription:
        """Follows the topic."""

    def worker(self, topic: Topic, plan: BatchPlan) -> Worker:
        """Returns a worker over the topic of a handle."""

    # ── event sourcing ───────────────────────────────────────────────────────────────────────────────────────────────
    def position_of(self, key: str) -> int:
        """Returns the position of an entity's newest event."""

    def project(self, projection: type[P], key: str | None, freshness: Freshness) -> P | None:
        """Returns an entity's state, or the whole topic's."""

    def project_if_changed(self, projection: type[P], key: str | None, position: int) -> tuple[int, P | None] | None:
        """Returns None when the newest event of the entity is still at `position`, else its new position and the
        state.
        """

    def rebuild(self, projection: type[P], *, whole: bool, progress: Progress | None) -> RebuildReport:
        """Folds every entity anew and saves the states."""

    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        """Yields the event, then its cause, its cause's cause, …"""

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        """Returns the events that an event caused directly."""


class TopicScan(Protocol):
    """A topic in one state, for a query over many of its events. Any one thread at a time may use it."""

    after: int
    """The position up to which no event is stored any more."""
    through: int
    """The newest position."""
    columns: str
    """The typed columns of its sealed history."""

    def files(self) -> tuple[list[SealedBytes], int]:
        """Returns the readable Parquet files of the oldest events, and the position through which they hold events."""

    def position_before(self, ms: int) -> int:
        """Returns the last position recorded before a time; 0 for none."""

    def spans(self, after: int, through: int, kinds: frozenset[str]) -> Iterable[Bounds]:
        """Returns the spans that may have events of some kinds; other positions in after < position ≤ through have
        none.
        """

    def blocks(self, after: int, through: int) -> Iterator[Block]:
        """Returns the blocks with events in after < position ≤ through."""

    def events(self, query: EventQuery) -> Iterator[Event]:
        """Returns the events of a key between two positions."""


class QueueBackend(Protocol):
    """A queue's hot paths and waits. Arguments are checked already."""

    name: str
    handle: Queue

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def policy(self) -> QueuePolicy:
        """Returns the stored policy of the queue."""

    def length(self) -> int:
        """Returns the number of messages that are ready, in flight or delayed."""

    def groups(self) -> list[str]:
        """Returns the names of the queue's groups, sorted."""

    def pauses(self) -> list[Pause]:
        """Returns the pauses that have not ended."""

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, payload: object, options: PushOptions) -> Receipt:
        """Adds a message and returns when it is durable."""

    def submit(self, payload: object, options: PushOptions) -> Ticket[Receipt]:
        """Does what `push` does, and returns a ticket at once."""

    def push_many(self, payloads: list[object], options: PushOptions) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing."""

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """Returns messages under a lease; waits for the first message, or until `stopping` is set and `nudge` was
        called.
        """

    async def take_async(self, wanted: TakeRequest, stopping: threading.Event | None = None) -> list[Delivery]:
        """Does what `take` does, for an event loop; a cancelled call leaves no message taken."""

    def claim(self, wanted: TakeRequest, min_idle: float) -> list[Delivery]:
        """Takes over deliveries that no consumer has extended for `min_idle` seconds."""

    def delivery(self, token: str) -> Delivery:
        """Returns the delivery a token names; StaleDelivery when its lease is gone."""

    def nudge(self) -> None:
        """Wakes waiting takes, so that they notice a request to stop."""

    def check_may_wait(self) -> None:
        """Raises ConfigError where a worker could not end while this thread waits for it."""

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def ack(self, delivery: Delivery, result: object) -> None:
        """Settles a delivery, durably."""

    async def ack_async(self, delivery: Delivery, result: object) -> None:
        """Does what `ack` does, for an event loop."""

    def ack_and_take(self, delivery: Delivery, result: object, wanted: TakeRequest) -> list[Delivery]:
        """Settles a delivery and takes available messages without waiting, in one commit."""

    def ack_many(self, deliveries: list[Delivery | str]) -> int:
        """Settles deliveries, or their tokens, in one commit; returns the number that were still held."""

    def nack(self, delivery: Delivery, options: NackRequest) -> Outcome:
        """Gives a message back, or up; returns its new state."""

    def extend(self, deliveries: list[Delivery], lease: float | None, *, patient: bool = False) -> int:
        """Extends leases; returns the new deadline. `patient` ignores deliveries whose lease is lost."""

    def steps(self, delivery: Delivery) -> dict[str, bytes]:
        """Returns the results of the steps of a delivery's message so far, as JSON, by name."""

    def store_step(self, delivery: Delivery, name: str, result: bytes) -> None:
        """Stores the result of a step durably; raises StaleDelivery when the lease was lost."""

    def note_progress(self, delivery: Delivery, share: float, text: str | None, step: str | None = None) -> None:
        """Stores the progress that a message's handler reports, and its current step."""

    def release(self, deliveries: list[Delivery], delay: float = 0.0) -> None:
        """Gives messages back without counting the attempt; they are ready after `delay`. Never fails."""
