"""Causes, effects and correlations, across the topics of a journal.

Every event may name the event that caused it and the correlation they share. Causes are found by id; effects and
correlations through the index (see `penstock.journal.index.index`) of the topics that may have some. A causal walk
sees one snapshot, and no event that is past its topic's `max_age`, removed or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ConfigError
from penstock.events import Event, Receipt
from penstock.journal.index.index import Lookup
from penstock.journal.locating import find_event, topics_naming
from penstock.journal.reading import TopicView
from penstock.names import check_text

if TYPE_CHECKING:
    from penstock.engine.contract import Snapshot
    from penstock.journal.core import JournalCore


def ancestors(core: JournalCore, event: Event | Receipt | str) -> Iterator[Event]:
    """The event, its cause, its cause's cause, … as far as they are stored."""
    now = core.clock.now_ms()
    with core.engine.read() as snap:
        found = event if isinstance(event, Event) else find_event(snap, id_of(event), now)
        seen: set[str] = set()
        while found is not None and found.id not in seen:
            yield found
            seen.add(found.id)
            cause = found.causation_id
            found = find_event(snap, cause, now) if cause is not None else None


def effects(core: JournalCore, event: Event | Receipt | str) -> Iterator[Event]:
    """What an event caused directly, in the order it was recorded."""
    id = id_of(event)
    with core.engine.read() as snap:
        found = [lookup.caused_by(id) for lookup in _opened(core, snap, id)]
        yield from merge(*found, key=_order)


def correlated(core: JournalCore, correlation_id: str) -> Iterator[Event]:
    """Every event of a correlation, the one that began it included: as recorded, causes before their effects."""
    check_text(correlation_id, "correlation_id")
    with core.engine.read() as snap:
        # The first event of a chain has no correlation id: its own id is that of all others.
        first = find_event(snap, correlation_id, core.clock.now_ms())
        found = [lookup.correlated(correlation_id) for lookup in _opened(core, snap, correlation_id)]
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


class WalkStep(NamedTuple):
    """One event that a walk has come to."""

    id: str
    cause: str | None
    """The event it was reached from; None where the walk began."""
    at: int
    """Which of its cause's effects it is, from 0,"""
    of: int
    """of how many."""


def walk(causes: Mapping[str, str | None]) -> Iterator[WalkStep]:
    """Goes from causes to effects, whole branches together: each event once, after the one it is reached from.

    `causes` has the id of every event, in order, and that of its cause. A loop of causes has no beginning: it is
    entered at its first event. Without recursion: chains may be long.
    """
    effects: dict[str, list[str]] = {}
    beginnings = []
    for id, cause in causes.items():
        if cause is not None and cause in causes and cause != id:
            effects.setdefault(cause, []).append(id)
        else:
            beginnings.append(id)
    seen: set[str] = set()
    for beginning in (*beginnings, *causes):
        stack = [WalkStep(beginning, None, 0, 1)]
        while stack:
            step = stack.pop()
            if step.id in seen:
                continue
            seen.add(step.id)
            yield step
            following = effects.get(step.id, ())
            count = len(following)
            stack.extend(WalkStep(following[at], step.id, at, count) for at in range(count - 1, -1, -1))


def id_of(event: Event | Receipt | str) -> str:
    """The id of an event, a receipt, or the id itself."""
    if isinstance(event, Event | Receipt):
        return event.id
    if isinstance(event, str):
        return check_text(event, "an event's id")
    raise ConfigError(f"name an event by itself, its receipt or its id, not by {event!r:.80}")


def _opened(core: JournalCore, snap: Snapshot, id: str) -> Iterator[Lookup]:
    """Look-ups in the topics of a snapshot that may name an id, without what is too old for a reader."""
    now = core.clock.now_ms()
    for name in topics_naming(snap, id):
        view = TopicView.open(snap, name, now)
        if view is not None:
            yield core.index.open(view)


def _order(event: Event) -> int:
    return event._identity()


# ── A correlation's events drawn: as a tree of lines for terminals and pages, or as Mermaid for Markdown ──


def tree(events: Iterable[Event]) -> Iterator[tuple[str, Event]]:
    """Each event below its cause, with the stems that lead to it."""
    by_id = {event.id: event for event in events}
    below: dict[str, str] = {}
    for step in walk({event.id: event.causation_id for event in by_id.values()}):
        if step.cause is None:
            stem = below[step.id] = ""
        else:
            last, before = step.at == step.of - 1, below[step.cause]
            stem = before + ("└─ " if last else "├─ ")
            below[step.id] = before + ("   " if last else "│  ")
        yield stem, by_id[step.id]


def mermaid(events: Iterable[Event]) -> str:
    """A Mermaid flowchart: a box for each event, an arrow from each cause to its effects."""
    found = causes_first(events)
    names = {event.id: f"e{number}" for number, event in enumerate(found, 1)}
    lines = ["flowchart TD"]
    for event in found:
        place = f"{event.topic}#{event.seq}" + (f" · {event.key}" if event.key is not None else "")
        texts = (event.kind, place, event.recorded_at.isoformat(timespec="milliseconds"))
        lines.append(f'  {names[event.id]}["{"<br/>".join(map(_quoted, texts))}"]')
    for event in found:
        cause = event.causation_id
        if cause in names and cause != event.id:
            lines.append(f"  {names[cause]} --> {names[event.id]}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    marked = text.replace("#", "#35;").replace("&", "#38;").replace('"', "#quot;")
    return marked.replace("<", "#lt;").replace(">", "#gt;").replace("\n", " ")
