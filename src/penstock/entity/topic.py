"""What event sourcing adds to a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.clock import Seconds
from penstock.entity.causality.walk import ancestors, correlated, effects
from penstock.entity.chain import VerifyReport, check, verify
from penstock.entity.projection.projection import Projection, check_projection
from penstock.entity.projection.states import Freshness, project
from penstock.entity.receipts.proof import CheckReport, InclusionProof, TreeRoot
from penstock.entity.receipts.publishing import prove
from penstock.events import Draft, Event, Receipt
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.writer import WriteRequest
from penstock.journal.index.directory import drop_index
from penstock.journal.reading import TopicView
from penstock.journal.topic import BaseTopic
from penstock.limits import WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.names import check_consumer, check_position, check_text
from penstock.surface.topic import Topic
from penstock.surface.worker import Worker

if TYPE_CHECKING:
    from penstock.entity.journal import EntityJournal
    from penstock.entity.projection.rebuild import RebuildReport
    from penstock.entity.projection.watch import Watch

P = TypeVar("P", bound=Projection)


class EntityTopic(BaseTopic):
    """A topic as an event store."""

    journal: EntityJournal

    # ── entities ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, key: str) -> int:
        """The position of an entity's newest event; 0 when it has none. What `expect=` is compared with."""
        check_text(key, "key")
        lookup = self.journal._index.lookup(self.name)

        def newest(view: TopicView) -> int:
            event = lookup.open(view).newest(key)
            return event.seq if event is not None else 0

        return self._lookup(newest, 0)

    def entities(self) -> Iterator[str]:
        """Every key that has events, each once, in no particular order."""
        lookup = self.journal._index.lookup(self.name)
        with self.journal._engine.read() as snap:
            view = TopicView.open(snap, self.name)
            if view is not None:
                yield from lookup.open(view).entities()

    def reindex(self) -> None:
        """Throws the index of entities, causes and correlations away and builds it anew, beside everything else."""
        name = self.name

        def drop(commit: Commit) -> None:
            head = commit.head(name)
            if head is not None:
                drop_index(commit.tx, head.number, name)

        self._writer.run(WriteRequest(drop))
        self.journal._indexer.request(name)

    # ── projections ──────────────────────────────────────────────────────────────────────────────────────────────────
    def project(self, projection: type[P], key: str | None = None, *, freshness: Freshness = "consistent") -> P | None:
        """An entity's state, folded from its events; None when it has none. Without a key: the whole topic's state.

        `freshness="cached"` may answer with a state folded earlier, without looking for newer events.
        """
        return project(self, projection, key, freshness)[1]

    def project_if_changed(self, projection: type[P], key: str | None, generation: int) -> tuple[int, P | None] | None:
        """None when the entity is still at `generation`, else its generation now and its state."""
        check_position(generation, "generation")
        check_projection(projection)
        if (self.generation(key) if key is not None else self.latest) == generation:
            return None
        newest, state = project(self, projection, key, "consistent")
        return None if newest == generation else (newest, state)

    def watch(self, projection: type[P], key: str | None = None) -> Watch[P]:
        """The entity's state now, and again whenever it has new events."""
        from penstock.entity.projection.watch import Watch

        return Watch(self, projection, key)

    def rebuild(
        self,
        projection: type[P],
        *,
        whole: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RebuildReport:
        """Folds every entity anew and saves the states; `whole`: the whole topic's state instead.

        `progress` is called now and then with how many of how many events are done.
        """
        from penstock.entity.projection.rebuild import rebuild

        return rebuild(self, projection, whole=whole, progress=progress)

    # ── causality ────────────────────────────────────────────────────────────────────────────────────────────────────
    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        """The event, then its cause, its cause's cause, … in whichever topics they are."""
        return ancestors(self.journal, event)

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        """What an event caused directly, in whichever topics that is."""
        return effects(self.journal, event)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, of all topics, in the order they were recorded."""
        return correlated(self.journal, correlation_id)

    # ── hash chains ──────────────────────────────────────────────────────────────────────────────────────────────────
    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Recomputes the hash chain of every entity and names the first broken link. See `configure(chained=True)`."""
        return verify(self, progress=progress)

    def check(self, receipt: Receipt) -> CheckReport:
        """Whether a receipt's event is still stored as it was when the receipt was given."""
        return check(self, receipt)

    def proof(self, of: Receipt | Event | int, *, root: TreeRoot | None = None) -> InclusionProof:
        """Shows, to anybody who has the root, that an event is in this topic; `penstock.check_proof` checks it.

        Under the newest root that `verify` has published and that covers the event, or under `root`. Unprovable when
        there is none, or when events near it were removed since.
        """
        return prove(self, of, root)

    # ── reactors ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def react(
        self,
        consumer: str,
        handler: Callable[[Event], Any],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> Worker:
        """A worker that appends the drafts `handler` returns for each event, caused by it: each event exactly once.

        A draft goes to the topic it names, else to this one. `start()` or `run()` it, like `worker`.
        """
        check_consumer(consumer)
        from penstock.entity.staging.reactor import Reactor

        reactor = Reactor(self, consumer, handler, batch=batch, idle=idle, restarts=restarts)
        self.journal._workers.add(reactor)
        return reactor

    # ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: Topic | str | None = None,
    ) -> None:
        """Lets `check` see every draft for this topic before it is appended; it refuses by raising Denied.

        `kind` limits it to some kinds. `record` names a topic in which refusals are recorded as events.
        """
        recorded = record.name if isinstance(record, Topic) else record
        self.journal._gates.add(self.name, check, kind=kind, name=name, record=recorded)

    def ungate(self, check: Callable[[Draft], None]) -> bool:
        """Takes a gate away again; False when it was not there."""
        return self.journal._gates.remove(self.name, check)
