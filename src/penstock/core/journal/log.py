"""A topic's log for the layers above: prepares appends, and answers questions about stored events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal.catalog import load_record
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.index import read_view
from penstock.core.journal.prepare import (
    FindCause,
    PreparedBatch,
    make_draft,
    plain_columns,
    prepare,
    prepare_one,
    sized_batch,
)
from penstock.core.journal.reading import TopicView
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.query import EVERYTHING, EventQuery
from penstock.core.names import check_items
from penstock.core.observe.tracing import trace_headers

if TYPE_CHECKING:
    from penstock.core.documents.events import PlainDraft
    from penstock.core.journal.core import JournalCore

T = TypeVar("T")


class TopicLog:
    """A topic of an open journal: the core and a name. Arguments are not checked again."""

    __slots__ = ("core", "name")

    def __init__(self, core: JournalCore, name: str) -> None:
        self.core = core
        self.name = name

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def prepare(
        self, kind: object, payload: object, draft: Mapping[str, object], find_cause: FindCause | None = None
    ) -> PreparedBatch:
        """Checks and encodes one event, and asks the gates and fences that may refuse it."""
        core = self.core
        if core.guards:
            made = make_draft(kind, payload, draft)
            for guard in core.guards:
                guard(self.name, (made,))
        if draft:
            return prepare((make_draft(kind, payload, draft),), self.name, find_cause or core.find_cause)
        return prepare_one(kind, payload)

    def prepare_many(self, drafts: Iterable[Draft], find_cause: FindCause | None = None) -> PreparedBatch:
        """Checks and encodes several events, and asks the gates and fences that may refuse them."""
        core = self.core
        if core.guards:
            drafts = check_items(drafts, "drafts")
            for guard in core.guards:
                guard(self.name, drafts)
        return prepare(drafts, self.name, find_cause or core.find_cause)

    def prepare_plain(self, drafts: Sequence[PlainDraft]) -> PreparedBatch:
        """Checks and encodes several plain events, with less work for each."""
        if self.core.guards or trace_headers() is not None:
            return self.prepare_many(one.draft() for one in drafts)
        kinds, payloads = [one.kind for one in drafts], [one.payload for one in drafts]
        return sized_batch(plain_columns(kinds, payloads, [one.key for one in drafts]))

    def appending(self, batch: PreparedBatch) -> WriteRequest[list[Receipt]]:
        """Returns the append of a batch, for the writer."""
        return WriteRequest(Commit.append, batch.size, (self.name, batch))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, question: Callable[[TopicView], T], otherwise: T) -> T:
        """Asks a question of the newest committed state; returns `otherwise` for a topic that was never written to."""
        with self.core.engine.read() as snap:
            record = load_record(snap, self.name)
            if record is None:
                return otherwise
            aged = record.settings.max_age is not None
            now_ms = self.core.clock.now_ms() if aged else None
            return question(TopicView(snap, self.name, record, now_ms))

    @property
    def latest(self) -> int:
        """The highest position ever assigned; 0 for none."""
        return self.ask(TopicView.latest, 0)

    @property
    def oldest(self) -> int:
        """The first position still stored; 0 for none."""
        return self.ask(TopicView.oldest, 0)

    def get(self, seq: int) -> Event | None:
        """Returns the event at a position, or None."""
        return self.ask(lambda view: view.get(seq), None)

    def read(self, query: EventQuery = EVERYTHING) -> Iterator[Event]:
        """Streams the wanted events of one snapshot, which is taken when the first event is requested."""
        with self.core.engine.read() as snap:
            view = TopicView.open(snap, self.name, self.core.clock.now_ms())
            if view is not None:
                yield from read_view(view, query, self.core.index.open)
