"""A topic's log, for the layers: what is appended is prepared here, and what is stored is asked for here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from penstock.events import Draft, Event, parse_id
from penstock.journal.catalog import load_record
from penstock.journal.index.index import Lookup, entity_events, prefixed_events
from penstock.journal.prepare import FindCause, PreparedBatch, make_draft, prepare, prepare_one
from penstock.journal.reading import EVERYTHING, Bounds, EventQuery, TopicView

if TYPE_CHECKING:
    from penstock.journal.core import JournalCore

T = TypeVar("T")


class TopicLog:
    """One topic of an open journal: the core and a name. What it is asked is not checked again."""

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
        """The same for several events."""
        core = self.core
        if core.guards:
            drafts = list(drafts)
            for guard in core.guards:
                guard(self.name, drafts)
        return prepare(drafts, self.name, find_cause or core.find_cause)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, question: Callable[[TopicView], T], otherwise: T) -> T:
        """Asks the newest committed state; a topic that was never written to answers `otherwise`."""
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
        """The event at a position, or None."""
        return self.ask(lambda view: view.get(seq), None)

    def read(self, query: EventQuery = EVERYTHING) -> Iterator[Event]:
        """Streams the wanted events of one snapshot, which is taken when the first is asked for."""
        lookup = None if query.key is None else self.core.index.lookup(self.name)
        with self.core.engine.read() as snap:
            view = TopicView.open(snap, self.name, self.core.clock.now_ms())
            if view is not None:
                yield from read_view(view, query, lookup)

    def spans(
        self,
        query: EventQuery,
        *,
        occurred: Bounds | None = None,
        recorded: Bounds | None = None,
        correlation: str | None = None,
        id: str | None = None,
    ) -> list[Bounds]:
        """Where the wanted events may be: outside of these bounds there is none.

        For a planner of large reads: ask once, read each `first < position ≤ last` on its own, filter again. A key, a
        correlation and an id are looked up in the index, `recorded` (from, before) by halving, kinds, scope and
        `occurred` (from, through) in the summaries of ranges, so that it costs what is found and not what is stored;
        times are milliseconds. Several keys: ask for each and join what comes. Bounds are in order and do not overlap;
        neighbours that are near are one.
        """
        lookup = self.core.index.lookup(self.name)

        def found(view: TopicView) -> list[Bounds]:
            low, high = query.after, min(query.through, view.latest())
            if recorded is not None:
                low = max(low, view.position_before(recorded[0]))
                high = min(high, view.position_before(recorded[1]))
            if id is None and query.key is None and correlation is None:
                return list(view.spans(low, high, query, occurred=occurred))
            if id is not None:
                number = parse_id(id)
                event = None if number is None else view.find(number)
                places = [] if event is None else [event.seq]
            elif query.key is not None:
                pieces = lookup.open(view).pieces(query.key, low, high)
                places = [block.seq(row) for block, rows in pieces for row in rows]
            else:
                places = [event.seq for event in lookup.open(view).correlated(correlation or "")]
            return near_together(seq for seq in places if low < seq <= high)

        return self.ask(found, [])


_NEAR = 256
"""Positions between two wanted events that are read along rather than left out."""


def near_together(positions: Iterable[int]) -> list[Bounds]:
    """Bounds around ascending positions."""
    found: list[Bounds] = []
    for seq in positions:
        if found and seq - found[-1][1] <= _NEAR:
            found[-1] = found[-1][0], seq
        else:
            found.append((seq - 1, seq))
    return found


def read_view(view: TopicView, query: EventQuery, lookup: Lookup | None = None) -> Iterator[Event]:
    """The wanted events of one view of a topic; those of one entity through its index."""
    after, limit = query.after, query.rows_wanted
    view.check_not_trimmed(after)
    if query.since_ms is not None:
        after = max(after, view.position_before(query.since_ms))
    if lookup is not None:
        found = entity_events(lookup.open(view), query, after, limit, query.through, reverse=query.reverse)
    elif query.key_prefix:
        found = prefixed_events(view, query, after, limit)
    else:
        found = view.events(after, query.through, limit, query, reverse=query.reverse)
    return query.fulfilled(found)
