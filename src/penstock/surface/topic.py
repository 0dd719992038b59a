"""What every topic is, wherever its journal is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

from penstock.limits import ARROW_BATCH_ROWS, SUBSCRIPTION_BUFFER, WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.clock import Seconds
    from penstock.documents.conditions import Where
    from penstock.entity.projection import Projection
    from penstock.entity.proof import CheckReport, InclusionProof, TreeRoot
    from penstock.entity.rebuild import RebuildReport
    from penstock.entity.receipts import VerifyReport
    from penstock.entity.states import Freshness, Watch
    from penstock.events import Draft, Event, Receipt
    from penstock.journal.catalog import Settings
    from penstock.journal.cursors import TopicConsumer
    from penstock.journal.upkeep import CompactReport
    from penstock.surface.arguments import DraftArguments, SettingsArguments
    from penstock.surface.journal import Journal
    from penstock.surface.subscription import OnLag, Subscription
    from penstock.surface.worker import Worker
    from penstock.ticket import Ticket

P = TypeVar("P", bound="Projection")


class Topic(ABC):
    """A log: events in order, from position 1. A cheap handle; the topic exists from its first append."""

    journal: Journal
    name: str

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def append(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Receipt:
        """Appends one event and returns when it is durable. Keyword arguments are those of `Draft`."""

    @abstractmethod
    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing; one receipt each, in order."""

    @abstractmethod
    def submit(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        """Hands an event over and returns a ticket at once; waits only when the writer's capacity is full."""

    @abstractmethod
    def submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Hands a batch over: `append_many` with a ticket."""

    @abstractmethod
    def try_submit(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        """Like `submit`, but raises Backpressure(retry_after) instead of waiting when the writer is behind."""

    @abstractmethod
    def try_submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Like `submit_many`, but raises Backpressure(retry_after) instead of waiting."""

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    @abstractmethod
    def latest(self) -> int:
        """The highest position ever assigned (0: none); compaction never lowers it."""

    @property
    @abstractmethod
    def oldest(self) -> int:
        """The first position still stored (0: none)."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __bool__(self) -> bool:
        return True

    @abstractmethod
    def read(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        key: str | None = None,
        key_prefix: str | None = None,
        kind: str | Sequence[str] | None = None,
        scope: str | None = None,
        since: datetime | None = None,
        reverse: bool = False,
        where: Where | str | None = None,
    ) -> Iterator[Event]:
        """Streams events after a position, oldest first (newest first: `reverse`), up to the newest one now.

        `where` is a condition (see `documents.conditions`), asked where the store is. `after=0` starts at the oldest
        stored event; a position whose next event compaction removed raises PositionTrimmed.
        """

    @abstractmethod
    def read_arrow(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        batch_rows: int = ARROW_BATCH_ROWS,
        payload: Literal["string", "binary"] = "string",
    ) -> Iterator[pa.RecordBatch]:
        """Streams events as Arrow record batches of up to `batch_rows` rows, without touching rows one by one.

        Payloads are a column of JSON text; `payload="binary"` makes it one of bytes, which a topic needs whose payloads
        are bytes that are not text.
        """

    @abstractmethod
    def get(self, seq: int) -> Event | None:
        """The event at a position, or None."""

    @abstractmethod
    def find(self, id: str) -> Event | None:
        """The event with an id, or None."""

    @abstractmethod
    def position_at(self, time: datetime) -> int:
        """The last position recorded before a time; 0 for none."""

    @abstractmethod
    def subscribe(
        self,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: OnLag = "catch_up",
        key: str | None = None,
        key_prefix: str | None = None,
        kind: str | Sequence[str] | None = None,
        scope: str | None = None,
        where: Where | str | None = None,
    ) -> Subscription:
        """Follows the topic: the history after a position, then live; no gap and no duplicate at the seam.

        `key`, `key_prefix`, `kind`, `scope`, `where`: only such events, as in `read`. What is left out counts as seen.
        """

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def commit(self, consumer: str, seq: int) -> None:
        """Remembers durably that a consumer is done with everything through `seq`; a smaller one changes nothing."""

    @abstractmethod
    def seek(self, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor anywhere, also back."""

    @abstractmethod
    def forget(self, consumer: str) -> bool:
        """Drops a consumer's cursor, so that compaction no longer waits for it; False when there was none."""

    @abstractmethod
    def cursor(self, consumer: str) -> int | None:
        """How far a consumer has come, or None when it never committed."""

    @abstractmethod
    def cursors(self) -> dict[str, int]:
        """Every consumer and how far it has come."""

    @abstractmethod
    def consumers(self) -> list[TopicConsumer]:
        """Every consumer with its position, its lag, and when its cursor last moved."""

    @abstractmethod
    def lag(self, consumer: str) -> int:
        """How many positions a consumer is behind the newest event."""

    @abstractmethod
    def worker(
        self,
        consumer: str,
        handler: Callable[[list[Event]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
        key: str | None = None,
        key_prefix: str | None = None,
        kind: str | Sequence[str] | None = None,
        scope: str | None = None,
        where: Where | str | None = None,
    ) -> Worker:
        """A worker that hands this topic's events to `handler` in batches, at least once; `start()` or `run()` it.

        A handler that fails gets its batch again; one that fails more than `restarts` times within a minute makes the
        worker give up, which `penstock check` says until it is started again.

        `key`, `key_prefix`, `kind`, `scope`, `where`: only such events, as in `read`; the cursor moves past the others
        too.
        """

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    @abstractmethod
    def settings(self) -> Settings:
        """What the topic keeps and for how long."""

    @abstractmethod
    def configure(self, **changes: Unpack[SettingsArguments]) -> Settings:
        """Changes the topic's settings (see `Settings`): retention, compaction by key, the dedup window."""

    @abstractmethod
    def compact(self, through: int, *, force: bool = False) -> CompactReport:
        """Removes events through a position, inclusive; stops at the slowest cursor unless forced; frees the space."""

    @abstractmethod
    def compact_keys(self) -> int:
        """Keeps only the newest event of every key, now; returns how many went. See also `configure(by_key=True)`."""

    # ── entities ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def generation(self, key: str) -> int:
        """The position of an entity's newest event; 0 when it has none. What `expect=` is compared with."""

    @abstractmethod
    def entities(self) -> Iterator[str]:
        """Every key that has events, each once, in no particular order. In this process only."""

    @abstractmethod
    def reindex(self) -> None:
        """Throws the index of entities, causes and correlations away and builds it anew, beside everything else.

        In this process only.
        """

    # ── projections ──────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def project(self, projection: type[P], key: str | None = None, *, freshness: Freshness = "consistent") -> P | None:
        """An entity's state, folded from its events; None when it has none. Without a key: the whole topic's state.

        `freshness="cached"` may answer with a state folded earlier, without looking for newer events.
        """

    @abstractmethod
    def project_if_changed(self, projection: type[P], key: str | None, generation: int) -> tuple[int, P | None] | None:
        """None when the entity is still at `generation`, else its generation now and its state."""

    @abstractmethod
    def watch(self, projection: type[P], key: str | None = None) -> Watch[P]:
        """The entity's state now, and again whenever it has new events. In this process only."""

    @abstractmethod
    def rebuild(
        self,
        projection: type[P],
        *,
        whole: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RebuildReport:
        """Folds every entity anew and saves the states; `whole`: the whole topic's state instead.

        `progress` is called now and then with how many of how many events are done. On a served journal the events
        travel, and every state is in memory until all are folded; `penstock.spark.rebuild` folds what does not fit.
        """

    @abstractmethod
    def verify_states(self, projection: type[P]) -> list[str | None]:
        """Folds what every saved state was folded from again, and returns the keys of those that say something else.

        None among them is the state of the whole topic; `rebuild` mends all of them. In this process only.
        """

    # ── causality ────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        """The event, then its cause, its cause's cause, … in whichever topics they are."""

    @abstractmethod
    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        """What an event caused directly, in whichever topics that is."""

    @abstractmethod
    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, of all topics, in the order they were recorded."""

    # ── verification ─────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Reads the topic, names the first event that is damaged, and publishes a Merkle root over all of them.

        In a topic with `configure(verified=True)`, also an event that was changed, exchanged, added or removed behind
        the journal's back since its commit; in others, only what changes a root published before. In this process only.
        """

    @abstractmethod
    def check(self, receipt: Receipt) -> CheckReport:
        """Whether a receipt's event is still stored as it was when the receipt was given. In this process only."""

    @abstractmethod
    def proof(self, of: Receipt | Event | int, *, root: TreeRoot | None = None) -> InclusionProof:
        """Shows, to a reader who has the root, that an event is in this topic; `penstock.check_proof` checks it.

        Under the newest root that `verify` has published and that covers the event, or under `root`. Unprovable when
        there is none, or when events near it were removed since. In this process only.
        """

    # ── reactors and gates ───────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def react(
        self,
        consumer: str,
        handler: Callable[[Event], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> Worker:
        """A worker that appends the drafts `handler` returns for each event, caused by it: each event exactly once.

        A draft goes to the topic it names, else to this one. `start()` or `run()` it, like `worker`. In this process
        only.
        """

    @abstractmethod
    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: Topic | str | None = None,
    ) -> None:
        """Lets `check` see every draft for this topic before it is appended; it refuses by raising Denied.

        `kind` limits it to some kinds. `record` names a topic in which refusals are recorded as events. In this
        process only.
        """

    @abstractmethod
    def ungate(self, check: Callable[[Draft], None]) -> bool:
        """Takes a gate away again; False when it was not there. In this process only."""
