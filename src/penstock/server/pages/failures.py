"""Messages that were given up, as a page shows them: grouped by error, and one by one, newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from penstock.core.events import GivenUpEvent
from penstock.core.model.conditions import Where
from penstock.core.observe.failures import ErrorGroup, by_error, quoted
from penstock.core.observe.sample import FailedMessage
from penstock.core.queue.dead_letters import DeadLetterCursor
from penstock.errors import ConfigError
from penstock.server.pages.parts import ROWS


class FailurePage(msgspec.Struct):
    """A page of given-up messages, newest first, with the queries of the pages before and after."""

    items: list[FailedMessage]
    name: str
    where: str = ""
    """The condition that a person typed."""
    error: str = ""
    """The text that the errors contain."""
    chosen: str = ""
    """`where` and `error` as one condition."""
    problem: str | None = None
    """The error in the condition."""
    looked: int | None = None
    """The number of rows that were searched, when the search stopped before the end."""
    first: str | None = None
    before: str | None = None
    after: str | None = None
    kept: list[tuple[str, str]] = []
    """The other parameters of the address."""
    groups: list[ErrorGroup] = []
    """The newest of the messages, grouped by error, most frequent error first."""
    grouped: int | None = None
    """The number of failures that were grouped, when there are more failures."""
    full: str = ""
    """The query of the same page with whole errors, or with only the beginnings of errors."""
    is_full: bool = False


TRAIL: Final = 20
"""The number of pages whose beginnings the address remembers: a person can turn back that many pages, and from there
to the first page.
"""
GROUPED: Final = 1_000
"""The number of the newest given-up messages that a page groups by error."""
SOUGHT: Final = 2_000
"""The maximum number of given-up messages that a page searches for matches."""


def failure_page(request: Request, name: str, behind: Callable[[str], Iterable[FailedMessage]]) -> FailurePage:
    """Returns the page that a request asks for: messages that match `NAME-where`, with `NAME-error` in their errors.

    `NAME-after` has the cursors at which this page and the pages before it begin. `behind` continues reading at a
    cursor. So a page costs no more than the first page, however many messages were given up.
    """
    query = dict(request.query_params)
    own, chosen_by, text_key = f"{name}-after", f"{name}-where", f"{name}-error"
    where, words = query.get(chosen_by, "").strip(), query.get(text_key, "").strip()[:200]
    trail = [cursor for cursor in query.get(own, "").split(" ") if cursor][-TRAIL:]
    kept = [(key, value) for key, value in query.items() if key not in (own, chosen_by, text_key)]
    found = FailurePage([], name, where, words, kept=kept)
    wanted = [f"lower(error) contains {quoted(words.lower())}"] if words else []
    found.chosen = " and ".join([*wanted, *([f"({where})" if wanted else where] if where else [])])
    try:
        condition = Where(found.chosen) if found.chosen else None
    except ConfigError as error:
        found.problem = str(error)
        return found
    looked, last, more = 0, None, False
    for one in behind(trail[-1] if trail else ""):
        more = len(found.items) == ROWS or looked == SOUGHT
        if more:
            break
        looked, last = looked + 1, one
        if condition is None or condition.matches(GivenUpEvent.of(one.event, one)):
            found.items.append(one)

    def to(cursors: list[str]) -> str:
        return urlencode({**query, own: " ".join(cursors)})

    if more and last is not None:
        found.after = to([*trail, str(DeadLetterCursor.of(last.event))])
        found.looked = looked if len(found.items) < ROWS else None
    found.first = to([]) if len(trail) > 1 else None
    found.before = to(trail[:-1]) if trail else None
    found.is_full = "full" in query
    whole = {key: value for key, value in query.items() if key != "full"}
    found.full = urlencode(whole if found.is_full else {**whole, "full": 1})
    newest = list(islice(behind(""), GROUPED + 1))
    found.grouped = GROUPED if len(newest) > GROUPED else None
    found.groups = by_error(newest[:GROUPED])
    return found
