"""A query for events, for every read, subscription, worker, page and Spark task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr

from penstock.core.clock import to_ms
from penstock.core.events import Event
from penstock.core.names import TAG_END, check_limit, check_position, check_tags, check_unicode
from penstock.errors import ConfigError
from penstock.limits import MAX_POSITION

if TYPE_CHECKING:
    from penstock.core.model.conditions import Where


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A query for events: `EventQuery(kinds={"paid"}, where="payload.total > 10")`. An event must match all fields."""

    key: str | None = None
    """Only events of this entity."""
    key_prefix: str | None = None
    """Only events whose key begins with this text."""
    kinds: frozenset[str] | None = None
    """Only events of these kinds: a collection of texts, or one text."""
    scope: str | None = None
    """Only events of this scope."""
    tags: frozenset[str] | None = None
    """Only events with all of these tags: a collection of texts, or one text."""
    where: str | None = None
    """The text of a condition: only events for which it holds. A `Where` may be given."""
    after: int = 0
    """Only events at later positions."""
    through: int = MAX_POSITION
    """The last wanted position; None for no end."""
    limit: int | None = None
    """The most events to return."""
    since: datetime | None = None
    """Only events recorded at or after this time."""
    until: datetime | None = None
    """Only events recorded before this time."""
    reverse: bool = False
    """The newest events first."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            key: str | None = None,
            key_prefix: str | None = None,
            kinds: Collection[str] | None = None,
            scope: str | None = None,
            tags: Collection[str] | None = None,
            where: Where | str | None = None,
            after: int = 0,
            through: int | None = None,
            limit: int | None = None,
            since: datetime | None = None,
            until: datetime | None = None,
            reverse: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Checks the fields, and derives filters from the condition that an index or a summary can look up."""
        check_position(self.after, "after")
        check_limit(self.limit)
        force_setattr(self, "through", _end(self.through))
        for text, what in ((self.key, "key"), (self.scope, "scope"), (self.key_prefix, "key_prefix")):
            if text is not None:
                check_unicode(text, what)
        if self.key is not None and self.key_prefix is not None:
            raise ConfigError("give key= for one entity or key_prefix= for those whose key begins so, not both")
        if self.kinds is not None:
            force_setattr(self, "kinds", _kinds(self.kinds))
        if self.tags is not None:
            force_setattr(self, "tags", frozenset(check_tags(self.tags)) or None)
        if self.key_prefix == "":
            force_setattr(self, "key_prefix", None)
        for time, what in ((self.since, "since"), (self.until, "until")):
            if time is not None:
                to_ms(time, what)
        if self.where is not None:
            from penstock.core.model.conditions import Where, check_events_chosen

            given: object = self.where
            asked = given.text if isinstance(given, Where) else given
            if not isinstance(asked, str):
                raise ConfigError(f"a condition is text, not {type(asked).__name__}")
            condition = check_events_chosen(_parsed(asked))
            force_setattr(self, "where", asked)
            for field, value in _implied(self, condition).items():
                force_setattr(self, field, value)

    @property
    def condition(self) -> Where | None:
        """The condition that `where` is the text of, parsed once for every text."""
        return None if self.where is None else _parsed(self.where)

    @property
    def since_ms(self) -> int | None:
        """The time of recording from which events are wanted, in milliseconds."""
        return None if self.since is None else to_ms(self.since, "since")

    @property
    def until_ms(self) -> int | None:
        """The time of recording before which events are wanted, in milliseconds."""
        return None if self.until is None else to_ms(self.until, "until")

    @property
    def everything(self) -> bool:
        """True if all events between the positions are wanted."""
        return (
            self.key is None
            and self.key_prefix is None
            and self.kinds is None
            and self.scope is None
            and self.tags is None
            and self.where is None
        )

    @property
    def indexed(self) -> bool:
        """True if the index finds the wanted events: the cost of a read grows with its answer."""
        return self.key is not None or self.tags is not None

    @property
    def nothing(self) -> bool:
        """True if no event can match."""
        return self.limit == 0 or self.kinds == frozenset()

    def matches(self, event: Event) -> bool:
        """Returns True if an event is wanted, whatever its position."""
        return (
            (self.kinds is None or event.kind in self.kinds)
            and (self.key is None or event.key == self.key)
            and (self.key_prefix is None or (event.key or "").startswith(self.key_prefix))
            and (self.scope is None or event.scope == self.scope)
            and (self.tags is None or self.tags.issubset(event.tags))
            and (self.where is None or _parsed(self.where).matches(event))
        )

    def fulfilled(self, found: Iterator[Event]) -> Iterator[Event]:
        """Yields the events in wanted rows for which the condition holds, up to the limit."""
        condition = self.condition
        return found if condition is None else islice(filter(condition, found), self.limit)

    @property
    def rows_wanted(self) -> int | None:
        """The number of wanted rows to look for: unlimited when a condition must be checked."""
        return self.limit if self.where is None else None


def check_follower(wanted: EventQuery) -> EventQuery:
    """Returns the query of a follower; raises ConfigError when no future event can match."""
    if wanted.nothing:
        raise ConfigError("a follower of no kind would never get an event: leave kind= out for all of them")
    return wanted


@lru_cache(maxsize=256)
def _parsed(text: str) -> Where:
    from penstock.core.model.conditions import Where

    return Where(text)


def _end(through: int | None) -> int:
    return MAX_POSITION if through is None else check_position(through, "through")


def _kinds(kinds: Iterable[str]) -> frozenset[str]:
    given = (kinds,) if isinstance(kinds, str) or not isinstance(kinds, Iterable) else tuple(kinds)
    for one in given:
        if not isinstance(one, str):
            raise ConfigError(f"kind must be text or several texts, not {kinds!r:.80}")
    return frozenset(given)


def _implied(wanted: EventQuery, condition: Where) -> dict[str, Any]:
    """Returns the filters that a condition implies, for fields that the query does not filter.

    The condition itself is still checked.
    """
    found: dict[str, Any] = {}
    by_key = wanted.key is None and wanted.key_prefix is None
    for part in condition.parts:
        match part:
            case "key", "==", str(value) if by_key and value:
                found |= {"key": value, "key_prefix": None}
            case "key", "startswith", str(value) if by_key and found.get("key") is None and value:
                found["key_prefix"] = value
            case "kind", "==", str(value) if wanted.kinds is None and "kinds" not in found:
                found["kinds"] = frozenset({value})
            case "kind", "in", [*values] if wanted.kinds is None and "kinds" not in found:
                if kinds := frozenset(value for value in values if isinstance(value, str)):
                    found["kinds"] = kinds
            case "scope", "==", str(value) if wanted.scope is None and "scope" not in found:
                found["scope"] = value
            case "tags", "contains", str(value) if value and TAG_END not in value:
                found["tags"] = frozenset({value, *(found.get("tags") or wanted.tags or ())})
    return found


EVERYTHING = EventQuery()
