"""The search: topics and queues by a part of their names, events by their id, their key or a text in their payload."""

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
"""Events after which a search stops."""
FOUND_SECONDS: Final = 1.0
"""The time for which a search looks for events of a key."""


def search_page(request: Request, service: Service, sample: Sample) -> Content:
    """Topics and queues by a part of their names, events by their id, their key or a text in their payload."""
    tables = {"topics": topic_table(request, sample), "queues": queue_table(request, sample)}

    def values() -> dict[str, object]:
        query = sought(request)
        events, following = found_events(service, query, request.query_params.get("from", ""))
        within = search_payloads(service, query, request.query_params.get("text-from", ""))
        return {"found": query, "events": events, "following": following, "within": within}

    return Content("search.html", "Search", [], tables, values)


class PayloadSearch(msgspec.Struct):
    """The result of a search in payloads, with how far it looked."""

    events: list[Event] = []
    looked: int = 0
    """Events."""
    topics: int = 0
    older: list[tuple[str, int]] = []
    """Topics with older events that the search did not look at, and the last position that it looked at."""
    following: str | None = None
    """The topic to go on with."""


SEARCHED: Final = 2_000
"""Events of a topic, the newest, in whose payloads a search looks."""


def search_payloads(service: Service, text: str, first: str) -> PayloadSearch:
    """The newest events whose payload has a text in it, in upper or lower case, topic by topic from `first` on."""
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
    """A text that payloads are searched for, as people see it and as JSON writes it."""

    def __init__(self, text: str) -> None:
        lower = text.lower()
        self._forms = {lower.encode(), msgspec.json.encode(lower)[1:-1]}

    def is_in(self, event: Event) -> bool:
        """Returns True when a payload has the text in it."""
        raw = event.raw.lower()
        return any(form in raw for form in self._forms)


def _searched(service: Service) -> list[str]:
    return sorted([*own_topics(service.sampler.newest), *service.sampler.newest.queues])


def found_events(service: Service, query: str, first: str) -> tuple[list[Event], str | None]:
    """The event of an id, then the newest of a key, topic by topic from `first` on, for as long as a person waits; and
    the topic to go on with, when it did not come through all of them."""
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
        with suppress(PenstockError):  # dropped or damaged, or no key that an event can have
            topic = service.journal.topic(name)
            of_key = topic.read(key=query, reverse=True, limit=10)
            newest = chain(of_key, topic.read(tags=query, reverse=True, limit=10))
            found += {event.id: event for event in newest}.values()
    return found, None


def names_from(first: str, names: list[str]) -> Iterator[str]:
    return (name for name in names if name >= first)
