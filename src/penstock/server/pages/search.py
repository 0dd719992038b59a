"""The search: topics and queues by a part of their names; events by id, by key, or by a text in their payloads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

import msgspec
from starlette.requests import Request

from penstock.core.events import Event
from penstock.core.journal.locating import find_event
from penstock.core.observe.sample import Sample
from penstock.errors import PenstockError
from penstock.server.pages.overview import own_topics, queue_table, sought, topic_table
from penstock.server.pages.parts import Content
from penstock.server.service import Service

FOUND: Final = 50
"""The number of found events after which a search stops."""
FOUND_SECONDS: Final = 1.0
"""The time for which a search looks for events of a key."""


def search_page(request: Request, service: Service, sample: Sample) -> Content:
    """Returns topics and queues by a part of their names, and events by id, by key, or by a text in their payloads."""
    tables = {"topics": topic_table(request, sample), "queues": queue_table(request, sample)}

    def values() -> dict[str, object]:
        query = sought(request)
        events, following = found_events(service, query, request.query_params.get("from", ""))
        within = search_payloads(service, query, request.query_params.get("text-from", ""))
        return {"found": query, "events": events, "following": following, "within": within}

    return Content("search.html", "Search", [], tables, values)


class PayloadSearch(msgspec.Struct):
    """The result of a search in payloads, with the extent of the search."""

    events: list[Event] = []
    looked: int = 0
    """The number of events that were searched."""
    topics: int = 0
    older: list[tuple[str, int]] = []
    """Topics with older events that were not searched, each with the last position that was searched."""
    following: str | None = None
    """The topic at which the search continues."""


SEARCHED: Final = 2_000
"""The number of the newest events of a topic whose payloads are searched."""


def search_payloads(service: Service, text: str, first: str) -> PayloadSearch:
    """Returns the newest events whose payloads contain a text, in upper or lower case, topic by topic from `first`
    on.
    """
    found = PayloadSearch()
    if not text:
        return found
    needle, until = Needle(text), time.monotonic() + FOUND_SECONDS
    for name in names_from(first, _searched(service)):
        if found.topics and (len(found.events) >= FOUND or time.monotonic() > until):
            found.following = name
            break
        with suppress(PenstockError):  # dropped, or damaged
            topic, looked, last = service.journal.topic(name), 0, 0
            for event in topic.read(reverse=True, limit=SEARCHED):
                looked, last = looked + 1, event.seq
                if needle.is_in(event):
                    found.events.append(event)
                if len(found.events) >= FOUND or (looked % 100 == 0 and time.monotonic() > until):
                    break
            found.looked, found.topics = found.looked + looked, found.topics + 1
            if last > topic.oldest:
                found.older.append((name, last))
    return found


class Needle:
    """A text to find in payloads, in the form that people see and in the form that JSON has."""

    def __init__(self, text: str) -> None:
        lower = text.lower()
        self._forms = {lower.encode(), msgspec.json.encode(lower)[1:-1]}

    def is_in(self, event: Event) -> bool:
        """Returns True if a payload contains the text."""
        raw = event.raw.lower()
        return any(form in raw for form in self._forms)


def _searched(service: Service) -> list[str]:
    return sorted([*own_topics(service.sampler.newest), *service.sampler.newest.queues])


def found_events(service: Service, query: str, first: str) -> tuple[list[Event], str | None]:
    """Returns the event with an id, then the newest events of a key, topic by topic from `first` on, within a time
    limit. Also returns the topic to continue with, when the search did not reach all topics.
    """
    if not query:
        return [], None
    found: list[Event] = []
    if not first:
        with service.journal.backend.engine.read() as snap:
            event = find_event(snap, query)
        found = [] if event is None else [event]
    until = time.monotonic() + FOUND_SECONDS
    for name in names_from(first, _searched(service)):
        if name != first and (len(found) >= FOUND or time.monotonic() > until):
            return found, name
        with suppress(PenstockError):  # dropped or damaged, or a key that no event can have
            topic = service.journal.topic(name)
            of_key = topic.read(key=query, reverse=True, limit=10)
            newest = chain(of_key, topic.read(tags=query, reverse=True, limit=10))
            found += {event.id: event for event in newest}.values()
    return found, None


def names_from(first: str, names: list[str]) -> Iterator[str]:
    return (name for name in names if name >= first)
