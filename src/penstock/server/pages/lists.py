"""Tables of which a page shows fifty rows: filtered, put in order, turned over, and all of it kept in the address.

However many topics, queues, groups, workers, schedules or consumers there are, a page costs what fifty rows cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from penstock.documents.conditions import Where
from penstock.errors import ConfigError
from penstock.observe.sample import FailedMessage
from penstock.queue.letters import DeadLetterCursor
from penstock.server.pages.parts import Pager, Row, Table

ROWS = 50
"""Rows of a table on one page."""

T = TypeVar("T")


class ListColumn(msgspec.Struct, Generic[T]):
    """A column of a list, which rows can be put in order by."""

    title: str
    name: str
    cell: Callable[[T], str]
    value: Callable[[T], float] | None = None
    """Of numbers: what they are compared by, the largest first. Text begins with its first."""
    minor: bool = False
    """Whether a phone has no room for it."""


class Listing(Generic[T]):
    """Which rows of a list a request asks for: `ID-sort`, `ID-page` and, to filter them, `ID-q`."""

    def __init__(
        self,
        request: Request,
        id: str,
        columns: tuple[ListColumn[T], ...],
        row: Callable[[T, list[str]], Row],
        *,
        usual: str,
        empty: str,
        has_buttons: bool = False,
    ) -> None:
        self.id = id
        self.columns = columns
        self.row = row
        self.empty = empty
        self.has_buttons = has_buttons
        self.query = dict(request.query_params)
        self._filter = f"{id}-q"
        self._wanted = self.query.get(self._filter, "").strip()[:200].lower()
        sort = self.query.get(f"{id}-sort", usual)
        self._backwards = sort.startswith("-")
        self._column = next((column for column in columns if column.name == sort.lstrip("-")), columns[0])
        text = self.query.get(f"{id}-page", "1")
        self._page = max(1, int(text)) if text.isdecimal() and len(text) < 6 else 1

    def table(self, items: Iterable[T]) -> Table:
        """The rows of this page, and how to come to the others."""
        found = list(items)
        whole = len(found)
        if self._wanted:
            found = [one for one in found if any(self._wanted in column.cell(one).lower() for column in self.columns)]
        pages = max(1, -(-len(found) // ROWS))
        page = min(self._page, pages)
        shown = self._sorted(found)[(page - 1) * ROWS : page * ROWS]
        rows = [self.row(one, [column.cell(one) for column in self.columns]) for one in shown]
        titles = [column.title for column in self.columns]
        numeric = [at for at, column in enumerate(self.columns) if column.value is not None]
        sorts = self._sorts() if whole > 1 else []
        pager = self._pager(page, pages, len(found)) if whole > ROWS or self._wanted else None
        minor = [at for at, column in enumerate(self.columns) if column.minor]
        return Table(
            self.id, titles, rows, numeric, self.empty, sorts, has_buttons=self.has_buttons, pager=pager, minor=minor
        )

    def _sorted(self, found: list[T]) -> list[T]:
        """Rows in the order that was asked for; those that are alike by their first column."""
        found.sort(key=self.columns[0].cell)
        value = self._column.value
        if value is None:
            found.sort(key=self._column.cell, reverse=self._backwards)
        else:
            found.sort(key=value, reverse=not self._backwards)
        return found

    def _pager(self, page: int, pages: int, total: int) -> Pager:
        own = f"{self.id}-page"
        before = urlencode({**self.query, own: page - 1}) if page > 1 else None
        after = urlencode({**self.query, own: page + 1}) if page < pages else None
        kept = [(name, value) for name, value in self.query.items() if name not in (own, self._filter)]
        return Pager(page, pages, total, before, after, self._filter, self._wanted, kept)

    def _sorts(self) -> list[tuple[str, str]]:
        """For each column the query that puts rows in its order, and how they are in its order now."""
        found = []
        for column in self.columns:
            current = column is self._column
            again = f"-{column.name}" if current and not self._backwards else column.name
            query = urlencode({**self.query, f"{self.id}-sort": again, f"{self.id}-page": 1})
            ascending = (column.value is None) != self._backwards
            found.append((query, ("ascending" if ascending else "descending") if current else "none"))
        return found


class Turning(msgspec.Struct):
    """Some of many messages that are not counted, and the pages before and after them."""

    items: list[FailedMessage]
    name: str
    where: str = ""
    """The condition that chose them."""
    problem: str | None = None
    """What is wrong with the condition."""
    first: str | None = None
    before: str | None = None
    after: str | None = None
    kept: list[tuple[str, str]] = []
    """What else the address says."""


TRAIL = 20
"""Pages whose beginnings the address remembers: so far one can turn back, and from there to the first."""


def turned(request: Request, name: str, behind: Callable[[str], Iterable[FailedMessage]]) -> Turning:
    """The page of a long list that a request asks for, of those for which `NAME-where` holds. `NAME-after` has the
    places where this page and those before it begin; `behind` reads on from a place: no page costs more than the first.
    """
    query = dict(request.query_params)
    own, chosen_by = f"{name}-after", f"{name}-where"
    where = query.get(chosen_by, "").strip()
    trail = [place for place in query.get(own, "").split(" ") if place][-TRAIL:]
    kept = [(key, value) for key, value in query.items() if key not in (own, chosen_by)]
    try:
        condition = Where(where) if where else None
    except ConfigError as error:
        return Turning([], name, where, str(error), kept=kept)
    chosen = (one for one in behind(trail[-1] if trail else "") if condition is None or condition.matches(one.event))
    items = list(islice(chosen, ROWS + 1))

    def to(places: list[str]) -> str:
        return urlencode({**query, own: " ".join(places)})

    after = to([*trail, str(DeadLetterCursor.of(items[ROWS - 1].event))]) if len(items) > ROWS else None
    first = to([]) if len(trail) > 1 else None
    return Turning(items[:ROWS], name, where, None, first, to(trail[:-1]) if trail else None, after, kept)
