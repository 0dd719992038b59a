"""Which events are wanted: the one value that every read, subscription, worker, page and task of Spark says it with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from penstock.events import Event
from penstock.limits import MAX_POSITION

if TYPE_CHECKING:
    from penstock.documents.conditions import Where


class EventQuery(msgspec.Struct, frozen=True):
    """Which events of a topic are wanted: what every read, subscription, worker, page and Spark's task says it with."""

    key: str | None = None
    key_prefix: str | None = None
    kinds: frozenset[str] | None = None
    scope: str | None = None
    where: Where | None = None
    after: int = 0
    through: int = MAX_POSITION
    limit: int | None = None
    since_ms: int | None = None
    reverse: bool = False
    until_ms: int | None = None

    @property
    def everything(self) -> bool:
        """Whether all events between its positions are wanted."""
        return (
            self.key is None
            and self.key_prefix is None
            and self.kinds is None
            and self.scope is None
            and self.where is None
        )

    @property
    def nothing(self) -> bool:
        """Whether no event could be meant, whatever the topic holds."""
        return self.limit == 0 or self.kinds == frozenset()

    def matches(self, event: Event) -> bool:
        """Whether an event is wanted, wherever it stands."""
        return (
            (self.kinds is None or event.kind in self.kinds)
            and (self.key is None or event.key == self.key)
            and (self.key_prefix is None or (event.key or "").startswith(self.key_prefix))
            and (self.scope is None or event.scope == self.scope)
            and (self.where is None or self.where.matches(event))
        )

    def fulfilled(self, found: Iterator[Event]) -> Iterator[Event]:
        """Those of the events in wanted rows for which the condition holds; as many as are wanted."""
        return found if self.where is None else islice(filter(self.where, found), self.limit)

    @property
    def rows_wanted(self) -> int | None:
        """How many wanted rows to look for: all of them where a condition is to be asked."""
        return self.limit if self.where is None else None


EVERYTHING = EventQuery()
