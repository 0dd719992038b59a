"""Causes, effects and correlations, across the topics of a journal.

Every event may name the event that caused it and the correlation they share. Causes are found by id; effects and
correlations through the index (see `penstock.journal.index.lookup`), topic by topic. A causal walk sees one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.events import Event, Receipt
from penstock.journal.index.lookup import Lookup
from penstock.journal.reading import TopicView, find_event
from penstock.names import check_text

if TYPE_CHECKING:
    from penstock.engine.contract import Snapshot
    from penstock.journal.journal import BaseJournal


def ancestors(journal: BaseJournal, event: Event | Receipt | str) -> Iterator[Event]:
    """The event, its cause, its cause's cause, … as far as they are stored."""
    with journal._engine.read() as snap:
        found = event if isinstance(event, Event) else find_event(snap, id_of(event))
        seen: set[str] = set()
        while found is not None and found.id not in seen:
            yield found
            seen.add(found.id)
            cause = found.causation_id
            found = find_event(snap, cause) if cause is not None else None


def effects(journal: BaseJournal, event: Event | Receipt | str) -> Iterator[Event]:
    """What an event caused directly, in the order it was recorded."""
    id = id_of(event)
    looks = _looks(journal)
    with journal._engine.read() as snap:
        found = [lookup.open(view).caused_by(id) for lookup, view in _opened(snap, looks)]
        yield from merge(*found, key=_order)


def correlated(journal: BaseJournal, correlation_id: str) -> Iterator[Event]:
    """Every event of a correlation, the one that began it included: as recorded, causes before their effects."""
    check_text(correlation_id, "correlation_id")
    looks = _looks(journal)
    with journal._engine.read() as snap:
        # The first event of a chain has no correlation id: its own id is everybody else's.
        first = find_event(snap, correlation_id)
        found = [lookup.open(view).correlated(correlation_id) for lookup, view in _opened(snap, looks)]
        beginning = [first] if first is not None and first.correlation_id != correlation_id else []
        yield from causes_first(merge(beginning, *found, key=_order))


def causes_first(events: Iterable[Event]) -> list[Event]:
    """Events in their order, but none before its cause: ids of one millisecond are in no order across topics."""
    waiting = {event.id: event for event in events}
    ordered: dict[str, Event] = {}
    for event in waiting.values():
        chain: dict[str, Event] = {}
        step: Event | None = event
        while step is not None and step.id not in ordered and step.id not in chain:
            chain[step.id] = step
            step = waiting.get(step.causation_id or "")
        ordered.update(reversed(chain.items()))
    return list(ordered.values())


def branches(events: list[Event]) -> tuple[list[Event], dict[str, list[Event]]]:
    """Where walks from cause to effect begin, and what each event caused among these, by its id.

    A loop of causes has no beginning: every event follows once more after those that have no cause here, so a walk that
    passes over what it has seen reaches all of them.
    """
    ids = {event.id for event in events}
    caused: dict[str, list[Event]] = {}
    beginnings = []
    for event in events:
        if event.causation_id in ids and event.causation_id != event.id:
            caused.setdefault(str(event.causation_id), []).append(event)
        else:
            beginnings.append(event)
    return [*beginnings, *events], caused


def id_of(event: Event | Receipt | str) -> str:
    """The id of an event, a receipt, or the id itself."""
    if isinstance(event, Event | Receipt):
        return event.id
    if isinstance(event, str):
        return check_text(event, "an event's id")
    raise ConfigError(f"name an event by itself, its receipt or its id, not by {event!r:.80}")


def _looks(journal: BaseJournal) -> list[Lookup]:
    return [journal._index.lookup(name) for name in journal.topics()]


def _opened(snap: Snapshot, looks: list[Lookup]) -> Iterator[tuple[Lookup, TopicView]]:
    for lookup in looks:
        view = TopicView.open(snap, lookup.topic)
        if view is not None:
            yield lookup, view


def _order(event: Event) -> int:
    return event._identity()
