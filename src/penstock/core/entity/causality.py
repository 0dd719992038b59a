"""Causes, effects and correlations, across the topics of a journal.

Every event may name the event that caused it and the correlation that they share. Causes are found by id; effects and
correlations are found through the index (see `penstock.core.journal.index.index`) of candidate topics. A causal walk
sees one snapshot, or one snapshot for each page, and no event past its topic's `max_age`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace, merge, nsmallest
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.events import Event, Receipt, format_id, parse_id
from penstock.core.journal.index.index import Lookup
from penstock.core.journal.locating import find_event, topics_naming
from penstock.core.journal.reading import TopicView
from penstock.core.names import check_text
from penstock.errors import ConfigError, PositionTrimmed

if TYPE_CHECKING:
    from penstock.core.engine.contract import Snapshot
    from penstock.core.journal.core import JournalCore


def ancestors(core: JournalCore, event: Event | Receipt | str) -> Iterator[Event]:
    """Yields the event, its cause, its cause's cause, …, as far as they are stored."""
    with core.engine.read() as snap:
        yield from _ancestors(core, snap, event if isinstance(event, Event) else id_of(event))


def _ancestors(core: JournalCore, snap: Snapshot, begin: Event | str) -> Iterator[Event]:
    now = core.clock.now_ms()
    found = find_event(snap, begin, now) if isinstance(begin, str) else begin
    seen: set[str] = set()
    while found is not None and found.id not in seen:
        yield found
        seen.add(found.id)
        cause = found.causation_id
        found = find_event(snap, cause, now) if cause is not None else None


def effects(core: JournalCore, event: Event | Receipt | str) -> Iterator[Event]:
    """Returns the events that an event caused directly, in the order of recording."""
    id = id_of(event)
    with core.engine.read() as snap:
        yield from merge(*_effects(core, snap, id), key=recorded)


def _effects(core: JournalCore, snap: Snapshot, id: str, since: int = 0) -> list[Iterator[Event]]:
    return [lookup.caused_by(id, since) for lookup in _opened(core, snap, id)]


def correlated(core: JournalCore, correlation_id: str) -> Iterator[Event]:
    """Yields every event of a correlation, including its first event: in the order of recording, with causes before
    their effects.
    """
    check_text(correlation_id, "correlation_id")
    with core.engine.read() as snap:
        yield from causes_first(merge(*_correlated(core, snap, correlation_id), key=recorded))


def _correlated(core: JournalCore, snap: Snapshot, id: str, since: int = 0) -> list[Iterator[Event]]:
    # The first event of a chain has no correlation id: its own id is the correlation id of the others.
    first = find_event(snap, id, core.clock.now_ms())
    begins = first is not None and first.correlation_id != id and recorded(first)[0] >= since
    found = [lookup.correlated(id, since) for lookup in _opened(core, snap, id)]
    return [iter([first]), *found] if first is not None and begins else found


def causes_first(events: Iterable[Event]) -> list[Event]:
    """Returns events in their order, but no event before its cause: ids of one millisecond have no order across
    topics.
    """
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
    """An event that a walk has reached."""

    id: str
    cause: str | None
    """The event from which the walk reached this event; None at the beginning."""
    at: int
    """The index of the event among its cause's effects, from 0,"""
    of: int
    """of how many."""


def walk(causes: Mapping[str, str | None]) -> Iterator[WalkStep]:
    """Walks from causes to effects, whole branches together: yields each event once, after its cause.

    `causes` maps the id of every event, in order, to the id of its cause. A loop of causes has no beginning, so the
    walk enters it at its first event. There is no recursion, because chains may be long.
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
    """Returns the id of an event, a receipt, or the id itself."""
    if isinstance(event, Event | Receipt):
        return event.id
    if isinstance(event, str):
        return check_text(event, "an event's id")
    raise ConfigError(f"name an event by itself, its receipt or its id, not by {event!r:.80}")


def _opened(core: JournalCore, snap: Snapshot, id: str) -> Iterator[Lookup]:
    """Yields look-ups in the topics of a snapshot that may name an id, without events past their topic's `max_age`."""
    now = core.clock.now_ms()
    for name in topics_naming(snap, id):
        view = TopicView.open(snap, name, now)
        if view is not None:
            yield core.index.open(view)


def recorded(event: Event) -> tuple[int, str]:
    """Returns the key by which the events of several topics are ordered."""
    return event._identity(), event.topic


# ── In pages, each from the newest snapshot ──
# A page ends with the name of the next event, so that read events may be removed before the next page is requested. The
# removal of an event still to come would not be noticed. So the token of the page also holds the next event of each
# topic, and PositionTrimmed is raised when such an event is gone.


_MOST_HEADS = 256
"""The most topics whose next event a page's token holds."""


class CausesPage(NamedTuple):
    """A page of the events of a walk."""

    events: list[Event]
    next: str | None
    """The token of the next page; None at the end."""


class _PageStart(NamedTuple):
    """The place where a page in the order of recording begins."""

    first: tuple[int, str]
    """The next event: its id and topic."""
    heads: frozenset[int]
    """The end of the id of the next event in each topic."""

    def text(self) -> str:
        packed = struct.pack(f"<{len(self.heads)}I", *sorted(self.heads))
        return f"{format_id(self.first[0])}.{packed.hex()}.{self.first[1]}"


_BEGIN = _PageStart((0, ""), frozenset())


def _ahead(text: str | None) -> _PageStart:
    if text is None:
        return _BEGIN
    number, heads, topic = _parts(text)
    try:
        packed = bytes.fromhex(heads)
        return _PageStart((number, topic), frozenset(struct.unpack(f"<{len(packed) // 4}I", packed)))
    except (ValueError, struct.error):
        raise _no_end(text) from None


def _parts(text: str) -> tuple[int, str, str]:
    """Returns the number of the next event, and the other parts of a page's token."""
    id, _, rest = text.partition(".")
    number, (more, dot, last) = parse_id(id), rest.partition(".")
    if number is None or not dot:
        raise _no_end(text)
    return number, more, last


def _no_end(text: str) -> ConfigError:
    return ConfigError(f"after must be the `next` of the page before, not {text!r:.80}")


def _short_id(event: Event) -> int:
    return event._identity() & 0xFFFFFFFF


def effects_page(core: JournalCore, id: str, after: str | None, limit: int, most_bytes: int) -> CausesPage:
    """Returns the next events that an event caused."""
    ahead = _ahead(after)
    with core.engine.read() as snap:
        return _page(_effects(core, snap, id_of(id), ahead.first[0]), ahead, limit, most_bytes)


def correlated_page(core: JournalCore, id: str, after: str | None, limit: int, most_bytes: int) -> CausesPage:
    """Returns the next events of a correlation in the order of recording; within a page, causes go before their
    effects.
    """
    ahead = _ahead(after)
    with core.engine.read() as snap:
        streams = _correlated(core, snap, check_text(id, "correlation_id"), ahead.first[0])
        events, end = _page(streams, ahead, limit, most_bytes)
    return CausesPage(causes_first(events), end)


def _page(streams: Iterable[Iterator[Event]], ahead: _PageStart, limit: int, most_bytes: int) -> CausesPage:
    waiting: list[tuple[tuple[int, str], int, Event, Iterator[Event]]] = []
    for number, stream in enumerate(streams):
        event = next((event for event in stream if recorded(event) >= ahead.first), None)
        if event is not None:
            waiting.append((recorded(event), number, event, stream))
    if not ahead.heads <= {_short_id(event) for _, _, event, _ in waiting}:
        raise _removed()
    heapify(waiting)
    found: list[Event] = []
    while waiting and len(found) < limit and most_bytes > 0:
        _, number, event, stream = waiting[0]
        found.append(event)
        most_bytes -= len(event.raw)
        following = next(stream, None)
        if following is None:
            heappop(waiting)
        else:
            heapreplace(waiting, (recorded(following), number, following, stream))
    if not waiting:
        return CausesPage(found, None)
    heads = frozenset(_short_id(event) for _, _, event, _ in nsmallest(_MOST_HEADS, waiting))
    return CausesPage(found, _PageStart(waiting[0][0], heads).text())


def ancestors_page(core: JournalCore, id: str, after: str | None, limit: int, most_bytes: int) -> CausesPage:
    """Returns the next causes of an event.

    A loop of causes ends at an event with which an earlier page ended. The token keeps events whose number is a power
    of two, so a loop of any length ends.
    """
    begin, pages, ended = id_of(id), 0, ""
    if after is not None:
        number, text, ended = _parts(after)
        if not text.isdecimal():
            raise _no_end(after)
        begin, pages = format_id(number), int(text[:9])
    found: list[Event] = []
    with core.engine.read() as snap:
        for event in _ancestors(core, snap, begin):
            if event.id == ended:
                return CausesPage(found, None)
            if len(found) >= limit or most_bytes <= 0:
                pages += 1
                if found and pages & (pages - 1) == 0:
                    ended = found[-1].id
                return CausesPage(found, f"{event.id}.{pages}.{ended}")
            found.append(event)
            most_bytes -= len(event.raw)
    if after is not None and not found:
        raise _removed()
    return CausesPage(found, None)


def _removed() -> PositionTrimmed:
    return PositionTrimmed(
        "events that come next in this walk were removed since the page before: walk again from the beginning", oldest=0
    )


# ── A correlation's events drawn: as a tree of lines for terminals and pages, or as Mermaid for Markdown ──


def tree(events: Iterable[Event]) -> Iterator[tuple[str, Event]]:
    """Yields each event below its cause, with the lines that lead to it."""
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
    """Returns a Mermaid flowchart: a box for each event, an arrow from each cause to its effects."""
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
