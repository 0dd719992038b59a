"""The page of a topic: throughput, a live tail with filters, consumers that a person can move, and settings."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from penstock.core.events import Event
from penstock.core.journal.catalog import Settings
from penstock.core.model.query import EventQuery
from penstock.core.names import is_system
from penstock.core.observe.sample import Sample, TopicSample
from penstock.core.surface.topic import Topic
from penstock.core.units import parse_moment, write_size
from penstock.errors import ConfigError
from penstock.server.forms import whole, write_field
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Tile, count_tile
from penstock.server.pages.search import FOUND_SECONDS, Needle
from penstock.server.service import Service, existing_topic

SHOWN: Final = 50
"""The number of events that a page shows at first."""
PAGE_SCAN_LIMIT: Final = 20_000
"""The number of events that a page filters before it shows the matches."""
TOPIC_TABS: Final = {"events": "Events", "consumers": "Consumers", "settings": "Settings"}


class ConsumerPosition(msgspec.Struct):
    """The position of a consumer of a topic."""

    consumer: str
    at: int
    lag: int
    moved: float | None
    """The time when its cursor last moved, in seconds of the epoch."""


def _moved(one: ConsumerPosition) -> datetime | None:
    return None if one.moved is None else datetime.fromtimestamp(one.moved, UTC)


POSITION_COLUMNS: Final[parts.Columns[ConsumerPosition]] = (
    ListColumn("Consumer", lambda one: one.consumer),
    ListColumn("Position", lambda one: one.at, parts.number, True),
    ListColumn("Lag", lambda one: one.lag, parts.number),
    ListColumn("Last moved", _moved, parts.moment),
)


def topic_page(request: Request, service: Service, sample: Sample) -> Content:
    topic = existing_topic(request, service)
    found = sample.topics.get(topic.name) or TopicSample(topic.name, 0, 0)
    is_own, may_write = is_system(topic.name), parts.can(request, "write")
    tabs = dict(TOPIC_TABS)
    if is_own or not parts.can(request, "admin"):
        del tabs["settings"]
    wanted = request.query_params.get("tab", "")
    tab = wanted if wanted in tabs else "events"
    tiles = [
        Tile("rate", "Events a second", parts.rate(found.rate)),
        count_tile("events", "Events stored", found.events),
        count_tile("latest", "Latest position", found.latest),
        count_tile("consumer-count", "Consumers", len(found.lags)),
        Tile("worst-lag", "Worst lag", parts.number(max(found.lags.values(), default=None))),
    ]

    def row(one: ConsumerPosition, cells: list[str]) -> Row:
        fields = {"topic": topic.name, "consumer": one.consumer}
        return Row(one.consumer, cells, buttons=[ActButton("Forget", "forget", fields)] if may_write else [])

    consumers = [
        ConsumerPosition(name, at, found.lags[name], found.moved.get(name)) for name, at in found.positions.items()
    ]
    none, usual = "no consumer has committed a position", "consumer"
    shown = parts.listing(request, "consumers", POSITION_COLUMNS, consumers, row, none, usual=usual, buttons=may_write)

    def values() -> dict[str, object]:
        shared = {"tab": tab, "tabs": tabs, "topic": topic, "is_queue": topic.name in sample.queues, "is_own": is_own}
        if tab == "events":
            return shared | _tail(request, topic)
        return shared | {"consumer_names": sorted(topic.cursors()), "settings": settings_values(topic.settings)}

    return Content("topic.html", topic.name, tiles, {"consumers": shown}, values, "Topic")


def settings_values(settings: Settings) -> dict[str, str]:
    """Returns the settings of a topic, in units that a person can type."""
    return {
        "max_age": write_field(settings.max_age),
        "max_events": write_field(settings.max_events),
        "max_bytes": "" if settings.max_bytes is None else write_size(settings.max_bytes),
        "by_key": "yes" if settings.by_key else "",
    }


def _tail(request: Request, topic: Topic) -> dict[str, object]:
    """Returns the newest events, and the position after which the page follows the topic."""
    after = topic.latest  # read before the events: an empty page follows from this position
    look, problem = _look(request, topic)
    older = None
    if look.last > topic.oldest:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
        older = urlencode([*kept, ("before", look.last)])
    templates = [event for event in look.events[:5] if not event.binary]
    found = {"look": look, "problem": problem, "after": after, "older": older, "templates": templates}
    return {**found, "charts": charts.TOPIC}


class TopicLook(msgspec.Struct):
    """The newest chosen events of a topic, newest first, and the extent of the search."""

    events: list[Event] = []
    last: int = 0
    """The position of the last event that was read."""
    looked: int | None = None
    """The number of events that were read, when the search stopped before it found enough events."""


def _look(request: Request, topic: Topic) -> tuple[TopicLook, str | None]:
    """Returns the newest chosen events, and the error in the choice. The form also sends its empty fields."""
    asked, now = request.query_params, datetime.now(UTC)
    given: dict[str, Any] = {
        name: asked.get(name, "").strip() or None for name in ("key", "key_prefix", "scope", "where")
    }
    look, text = TopicLook(), asked.get("text", "").strip()[:200]
    needle, until = Needle(text) if text else None, time.monotonic() + FOUND_SECONDS
    try:
        given |= {name: parse_moment(asked[name], now) for name in ("since", "until") if asked.get(name)}
        through = max(0, whole(asked["before"]) - 1) if asked.get("before") else None
        kinds, tags = ([one for one in map(str.strip, asked.getlist(name)) if one] for name in ("kind", "tag"))
        wanted = EventQuery(through=through, kinds=kinds or None, tags=tags or None, reverse=True, **given)
        condition = wanted.condition
        for looked, event in enumerate(topic._at.read(replace(wanted, where=None)), 1):
            look.last = event.seq
            if (condition is None or condition.matches(event)) and (needle is None or needle.is_in(event)):
                look.events.append(event)
            if len(look.events) == SHOWN:
                break
            if looked >= PAGE_SCAN_LIMIT or (looked % 100 == 0 and time.monotonic() > until):
                look.looked = looked
                break
        return look, None
    except ConfigError as error:
        return TopicLook(), str(error)
