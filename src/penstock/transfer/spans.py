"""Where in a topic the events of a large read may be: asked once, where it is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice

import msgspec

from penstock.journal.log import TopicLog
from penstock.journal.reading import Bounds, EventQuery
from penstock.protocol.bulk import Wanted

MOST_TERMS = 1_000
"""Keys, ids and correlations that are looked up; of more, all blocks are read."""


def spans_of(log: TopicLog, after: int, through: int, wanted: Wanted) -> list[Bounds]:
    """Outside of these bounds, in after < position ≤ through, there is no wanted event."""
    scope = wanted.scopes[0] if wanted.scopes is not None and len(wanted.scopes) == 1 else None
    kinds = None if wanted.kinds is None else frozenset(wanted.kinds)
    query = EventQuery(kinds=kinds, scope=scope, after=after, through=through)
    found = log.spans(query, occurred=wanted.occurred)
    lookup = log.core.index.lookup(log.name)
    known = min(through, log.ask(lambda view: lookup.open(view).known, 0))
    if known <= after:
        return found
    keys = wanted.keys
    if keys is None and wanted.key_prefix:
        keys = _keys_with(log, wanted.key_prefix)
    place = EventQuery(after=after, through=known)
    ask: tuple[tuple[tuple[str, ...] | None, Callable[[str], list[Bounds]]], ...] = (
        (keys, lambda key: log.spans(msgspec.structs.replace(place, key=key))),
        (wanted.ids, lambda id: log.spans(place, id=id)),
        (wanted.correlations, lambda id: log.spans(place, correlation=id)),
    )
    for terms, look_up in ask:
        if terms is not None and len(terms) <= MOST_TERMS:
            found = both(found, _joined([*map(look_up, terms), [(known, through)] if known < through else []]))
    return found


def _keys_with(log: TopicLog, prefix: str) -> tuple[str, ...]:
    """The keys of a topic that begin so; at most one more than can be looked up."""
    lookup = log.core.index.lookup(log.name)
    found: list[str] = log.ask(
        lambda view: list(
            islice((key for key in lookup.open(view).entities() if key.startswith(prefix)), MOST_TERMS + 1)
        ),
        [],
    )
    return tuple(found)


def _joined(several: Iterable[list[Bounds]]) -> list[Bounds]:
    """What is in any of several lists of bounds."""
    found: list[Bounds] = []
    for low, high in merge(*several):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def both(some: Sequence[Bounds], others: Sequence[Bounds]) -> list[Bounds]:
    """What is in both of two lists of bounds, each in order and without overlaps."""
    found: list[Bounds] = []
    at = other = 0
    while at < len(some) and other < len(others):
        low, high = max(some[at][0], others[other][0]), min(some[at][1], others[other][1])
        if low < high:
            found.append((low, high))
        if some[at][1] < others[other][1]:
            at += 1
        else:
            other += 1
    return found
