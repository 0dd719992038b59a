"""A topic's page: throughput, live tail with filters, consumers with seek."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from penstock.clock import to_ms
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.catalog import Settings
from penstock.journal.keys import MAX_SEQ
from penstock.names import is_system
from penstock.observe.sample import Sample, TopicSample
from penstock.server.acts.forms import write_field
from penstock.server.api import parameters
from penstock.server.api.topics import existing
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.parts import ActButton, Row, Table, Tile
from penstock.server.pages.rendering import Content
from penstock.server.service import Service
from penstock.units import write_size

if TYPE_CHECKING:
    from penstock.surface.topic import Topic

SHOWN = 50
"""Events a page begins with."""
SCANNED = 20_000
"""Events a page looks at for its filter before it shows what it found."""


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────
class ConsumerPosition(msgspec.Struct):
    """How far a consumer of a topic is."""

    consumer: str
    at: int
    lag: int
    moved: float | None
    """When its cursor last moved, in seconds of the epoch."""


def _moved(one: ConsumerPosition) -> str:
    return "–" if one.moved is None else datetime.fromtimestamp(one.moved, UTC).isoformat(timespec="milliseconds")


CONSUMER_COLUMNS: tuple[ListColumn[ConsumerPosition], ...] = (
    ListColumn("Consumer", "consumer", lambda one: one.consumer),
    ListColumn("Position", "position", lambda one: parts.number(one.at), lambda one: one.at, True),
    ListColumn("Lag", "lag", lambda one: parts.number(one.lag), lambda one: one.lag),
    ListColumn("Last moved", "moved", _moved),
)


class ConsumerRows:
    """Which consumers of a topic a request asks for."""

    def __init__(self, request: Request, topic: str) -> None:
        self._topic = topic
        may_write = rendering.can(request, "write")

        def row(one: ConsumerPosition, cells: list[str]) -> Row:
            fields = {"topic": topic, "consumer": one.consumer}
            return Row(one.consumer, cells, buttons=[ActButton("Forget", "forget", fields)] if may_write else [])

        empty = "no consumer has committed a position"
        self._list = Listing(
            request, "consumers", CONSUMER_COLUMNS, row, usual="consumer", empty=empty, has_buttons=may_write
        )

    def table(self, sample: Sample) -> Table:
        found = sample.topics.get(self._topic) or TopicSample(self._topic, 0, 0)
        return self._list.table(
            ConsumerPosition(name, found.latest - lag, lag, found.moved.get(name)) for name, lag in found.lags.items()
        )


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _events(request: Request, topic: Topic) -> tuple[list[Event], str | None]:
    """The newest chosen events, newest first, and what is wrong with the choice."""
    try:
        wanted = parameters.page_filter(request)
        before = parameters.number(request, "before")
        asked = request.query_params
        since, until = parameters.moment(asked.get("since")), parameters.moment(asked.get("until"))
        through = MAX_SEQ if before is None else max(0, before - 1)
        if until is not None:
            through = min(topic.position_at(until), through)
        since_ms = None if since is None else to_ms(since, "since")
        rows = replace(wanted, where=None, through=through, since_ms=since_ms, reverse=True)
        found = topic._at.read(rows)
        scanned = islice(found, SCANNED) if wanted.where is not None else found
        return list(islice((e for e in scanned if wanted.where is None or wanted.where.matches(e)), SHOWN)), None
    except ConfigError as error:
        return [], str(error)


TABS = (("events", "Events"), ("consumers", "Consumers"), ("settings", "Settings"))


def settings_values(settings: Settings) -> dict[str, str]:
    """What a topic keeps, in units a person can write back."""
    return {
        "max_age": write_field(settings.max_age),
        "max_events": write_field(settings.max_events),
        "max_bytes": "" if settings.max_bytes is None else write_size(settings.max_bytes),
        "by_key": "yes" if settings.by_key else "",
    }


def tiles(name: str, sample: Sample) -> list[Tile]:
    """The topic in five numbers."""
    found = sample.topics.get(name) or TopicSample(name, 0, 0)
    return [
        Tile("rate", "Events a second", parts.rate(found.rate)),
        Tile("events", "Events stored", parts.number(found.events)),
        Tile("latest", "Latest position", parts.number(found.latest)),
        Tile("consumer-count", "Consumers", parts.number(len(found.lags))),
        Tile("worst-lag", "Worst lag", parts.number(max(found.lags.values(), default=None))),
    ]


def topic_page(request: Request, service: Service, sample: Sample) -> Content:
    topic = existing(request, service)
    is_own = is_system(topic.name)
    tabs = TABS if rendering.can(request, "admin") and not is_own else TABS[:2]
    wanted = request.query_params.get("tab", "")
    tab = wanted if wanted in dict(tabs) else "events"
    tables = {"consumers": ConsumerRows(request, topic.name).table(sample)}

    def values() -> dict[str, object]:
        shared = {"tab": tab, "tabs": tabs, "topic": topic, "is_queue": topic.name in sample.queues, "is_own": is_own}
        if tab == "events":
            return shared | _tail(request, topic)
        return shared | {"consumer_names": sorted(topic.cursors()), "settings": settings_values(topic.settings)}

    return Content("topic.html", topic.name, tiles(topic.name, sample), tables, values, "Topic")


def _tail(request: Request, topic: Topic) -> dict[str, object]:
    """The newest events, and the position that the page follows from."""
    after = topic.latest  # before the events: a page that shows none follows what comes after this
    events, problem = _events(request, topic)
    older = None
    if events and events[-1].seq > topic.oldest:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
        older = urlencode([*kept, ("before", events[-1].seq)])
    templates = [event for event in events[:5] if not event.binary]
    found = {"events": events, "problem": problem, "after": after, "older": older, "templates": templates}
    return {**found, "charts": charts.TOPIC}
