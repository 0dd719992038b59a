"""Which events a reader or follower wants: by key, kind, scope, and by a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import to_ms
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.index.lookup import Lookup, entity_events
from penstock.journal.reading import EventFilter, TopicView
from penstock.journal.storage import keys
from penstock.names import check_limit, check_position

if TYPE_CHECKING:
    from penstock.documents.conditions import Where
    from penstock.journal.log import TopicLog

SEARCHED = 4096
"""Fewer positions than this are read block by block also for one entity: its index would cost more."""
STEP = 65_536
"""Positions that one snapshot is searched through: none is held long, however few events are chosen."""


def event_filter(
    key: str | None, kind: str | Sequence[str] | None, scope: str | None, key_prefix: str | None = None
) -> EventFilter:
    """A caller's wishes, checked."""
    for text, what in ((key, "key"), (scope, "scope"), (key_prefix, "key_prefix")):
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"{what} must be text, not {text!r:.80}")
    if key is not None and key_prefix is not None:
        raise ConfigError("give key= for one entity or key_prefix= for those whose key begins so, not both")
    if kind is None:
        return EventFilter(key, None, scope, key_prefix or None)
    kinds = (kind,) if isinstance(kind, str) else tuple(kind) if isinstance(kind, Iterable) else (kind,)
    for one in kinds:
        if not isinstance(one, str):
            raise ConfigError(f"kind must be text or several texts, not {kind!r:.80}")
    return EventFilter(key, frozenset(kinds), scope, key_prefix or None)


class EventQuery(msgspec.Struct, frozen=True):
    """What a reader wants of a topic: which events, between which positions, how many."""

    after: int
    limit: int | None
    through: int | None
    wanted: EventFilter
    since_ms: int | None
    where: Where | None

    @property
    def nothing(self) -> bool:
        """Whether no event could be meant, whatever the topic holds."""
        return self.limit == 0 or self.wanted.kinds == frozenset()

    @property
    def last(self) -> int:
        """The last position that is meant."""
        return keys.MAX_SEQ if self.through is None else self.through

    def chosen(self, read: Callable[[int | None], Iterator[Event]]) -> Iterator[Event]:
        """Those of what `read` finds that fulfil the condition; `read` is told how many to look for."""
        return read(self.limit) if self.where is None else islice(filter(self.where, read(None)), self.limit)


def reading(
    after: int = 0,
    limit: int | None = None,
    *,
    through: int | None = None,
    key: str | None = None,
    key_prefix: str | None = None,
    kind: str | Sequence[str] | None = None,
    scope: str | None = None,
    since: datetime | None = None,
    where: Where | str | None = None,
) -> EventQuery:
    """A reader's wishes, checked."""
    check_position(after, "after")
    check_limit(limit)
    if through is not None:
        check_position(through, "through")
    wanted = event_filter(key, kind, scope, key_prefix)
    return EventQuery(after, limit, through, wanted, None if since is None else to_ms(since, "since"), condition(where))


def condition(where: Where | str | None) -> Where | None:
    """A caller's condition, parsed."""
    if where is None:
        return None
    from penstock.documents.conditions import Where

    return where if isinstance(where, Where) else Where(where)


class Selection(msgspec.Struct, frozen=True):
    """What a follower wants of a topic."""

    wanted: EventFilter
    where: Where | None

    def select(
        self, log: TopicLog, after: int, limit: int, begin: Callable[[TopicView | None], int] | None = None
    ) -> tuple[list[Event], int]:
        """The next chosen events after a position, and how far that went: one step of a search.

        `begin` may say, once the topic (or that there is none) is seen, that the search begins later.
        """
        core = log.core
        lookup = None if self.wanted.key is None else core.index.lookup(log.name)
        with core.engine.read() as snap:
            view = TopicView.open(snap, log.name, core.clock.now_ms())
            if begin is not None:
                after = max(after, begin(view))
            latest = 0 if view is None else view.latest()
            if view is None or after >= latest:
                return [], after
            view.check_not_trimmed(after)
            through = latest if lookup is not None else min(latest, after + STEP)
            events = list(self._events(view, after, through, limit, lookup))
        return events, events[-1].seq if len(events) == limit else through

    def _events(self, view: TopicView, after: int, through: int, limit: int, lookup: Lookup | None) -> Iterator[Event]:
        """The chosen events between two positions; blocks that cannot hold one are not decoded."""
        found: Iterator[Event]
        if lookup is not None and through - after > SEARCHED:
            found = entity_events(lookup.open(view), self.wanted, after, None, through, reverse=False)
        else:
            found = view.events(after, through, None, self.wanted)
        return islice(found if self.where is None else filter(self.where, found), limit)


def select(
    key: str | None,
    key_prefix: str | None,
    kind: str | Sequence[str] | None,
    scope: str | None,
    where: Where | str | None,
) -> Selection | None:
    """A follower's wishes, checked; None for everything."""
    wanted = event_filter(key, kind, scope, key_prefix)
    if wanted.kinds is not None and not wanted.kinds:
        raise ConfigError("a follower of no kind would never get an event: leave kind= out for all of them")
    if wanted.everything and where is None:
        return None
    return Selection(wanted, condition(where))
