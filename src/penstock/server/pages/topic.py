"""A topic's page: throughput, live tail with filters, consumers with seek. And its events: each in full, on a page of
its own or beside a list, and the tree of what caused what."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from penstock.entity.causality import tree
from penstock.errors import ConfigError, PenstockError, UnknownQueue
from penstock.events import Event
from penstock.journal.catalog import Settings
from penstock.journal.following import event_query
from penstock.names import is_system
from penstock.observe.sample import FailedMessage, Sample, TopicSample
from penstock.queue.inspect import QueueMessage, failures
from penstock.queue.letters import letter
from penstock.server.api.topics import existing
from penstock.server.forms import whole, write_field
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Tile, count_tile
from penstock.server.service import Refused, Service, guarded
from penstock.surface.topic import Topic
from penstock.units import parse_moment, show_size, write_size

SHOWN: Final = 50
"""Events a page begins with."""
SCANNED: Final = 20_000
"""Events a page looks at for its filter before it shows what it found."""
TABS: Final = {"events": "Events", "consumers": "Consumers", "settings": "Settings"}


class ConsumerPosition(msgspec.Struct):
    """How far a consumer of a topic is."""

    consumer: str
    at: int
    lag: int
    moved: float | None
    """When its cursor last moved, in seconds of the epoch."""


def _moved(one: ConsumerPosition) -> datetime | None:
    return None if one.moved is None else datetime.fromtimestamp(one.moved, UTC)


CONSUMER_COLUMNS: Final[parts.Columns[ConsumerPosition]] = (
    ListColumn("Consumer", lambda one: one.consumer),
    ListColumn("Position", lambda one: one.at, parts.number, True),
    ListColumn("Lag", lambda one: one.lag, parts.number),
    ListColumn("Last moved", _moved, parts.moment),
)


def topic_page(request: Request, service: Service, sample: Sample) -> Content:
    topic = existing(request, service)
    found = sample.topics.get(topic.name) or TopicSample(topic.name, 0, 0)
    is_own, may_write = is_system(topic.name), parts.can(request, "write")
    tabs = dict(TABS)
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
        ConsumerPosition(name, found.latest - lag, lag, found.moved.get(name)) for name, lag in found.lags.items()
    ]
    none, usual = "no consumer has committed a position", "consumer"
    shown = parts.listing(request, "consumers", CONSUMER_COLUMNS, consumers, row, none, usual=usual, buttons=may_write)

    def values() -> dict[str, object]:
        shared = {"tab": tab, "tabs": tabs, "topic": topic, "is_queue": topic.name in sample.queues, "is_own": is_own}
        if tab == "events":
            return shared | _tail(request, topic)
        return shared | {"consumer_names": sorted(topic.cursors()), "settings": settings_values(topic.settings)}

    return Content("topic.html", topic.name, tiles, {"consumers": shown}, values, "Topic")


def settings_values(settings: Settings) -> dict[str, str]:
    """What a topic keeps, in units a person can write back."""
    return {
        "max_age": write_field(settings.max_age),
        "max_events": write_field(settings.max_events),
        "max_bytes": "" if settings.max_bytes is None else write_size(settings.max_bytes),
        "by_key": "yes" if settings.by_key else "",
    }


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


def _events(request: Request, topic: Topic) -> tuple[list[Event], str | None]:
    """The newest chosen events, newest first, and what is wrong with the choice; its form sends empty fields along."""
    asked, now = request.query_params, datetime.now(UTC)
    given: dict[str, Any] = {
        name: asked.get(name, "").strip() or None for name in ("key", "key_prefix", "scope", "where")
    }
    try:
        given |= {name: parse_moment(asked[name], now) for name in ("since", "until") if asked.get(name)}
        through = max(0, whole(asked["before"]) - 1) if asked.get("before") else None
        kinds = [kind for kind in asked.getlist("kind") if kind] or None
        wanted = event_query(through=through, kind=kinds, reverse=True, **given)
        found = topic._at.read(replace(wanted, where=None))
        matching = found if wanted.where is None else filter(wanted.where, islice(found, SCANNED))
        return list(islice(matching, SHOWN)), None
    except ConfigError as error:
        return [], str(error)


# ── one event ────────────────────────────────────────────────────────────────────────────────────────────────────────
SHOWN_BYTES: Final = 1 << 20
"""Of a payload; the API has all of it."""
SHOWN_EFFECTS: Final = 20
"""Effects of an event that are listed; the tree shows more."""


class EventPayload(msgspec.Struct):
    """A payload as text, and what is to be known of it."""

    text: str
    size: str
    format: str
    """json, text or bytes."""
    cut: bool = False


def payload_of(event: Event) -> EventPayload:
    """A payload for reading: JSON in its own layout, bytes in hexadecimal."""
    raw = event.raw
    size = show_size(len(raw))
    if event.binary:
        return EventPayload(raw[:4096].hex(" ", 1), size, "bytes", len(raw) > 4096)
    if len(raw) > SHOWN_BYTES:
        return EventPayload(raw[:65_536].decode("utf-8", "replace"), size, "text", True)
    try:
        return EventPayload(msgspec.json.format(raw, indent=2).decode("utf-8", "replace"), size, "json")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EventPayload(raw.decode("utf-8", "replace"), size, "text")


def failure_of(request: Request, service: Service, event: Event) -> FailedMessage | None:
    """Why a message was given up: from a dead letter's headers, or from its queue."""
    if "dead-reason" in event.headers:
        return letter(event)
    group = request.query_params.get("group") or "default"
    try:
        failure = next(failures(service.journal._backend.queue(event.topic), group, event.seq - 1), None)
    except UnknownQueue:
        return None
    return failure if failure is not None and failure.event.id == event.id else None


def message_of(service: Service, event: Event) -> list[QueueMessage] | None:
    """How an event stands as a message, with each group that has not settled it; None when its topic is no queue."""
    try:
        found = service.journal.queue(event.topic, create=False).messages(after=event.seq - 1, limit=1)
    except UnknownQueue:
        return None
    return [one for one in found if one.event.id == event.id]


@guarded("read")
def event_page(request: Request, service: Service) -> Response:
    """An event as a page, or, with `part=1`, as the part of one that lists show beside themselves."""
    topic = existing(request, service)
    name = request.path_params["event"]
    event = topic.get(int(name)) if name.isdecimal() and len(name) <= 18 else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    cause = None
    if event.causation_id is not None:
        cause = next((found for found in topic.ancestors(event) if found.id == event.causation_id), None)
    message = message_of(service, event)
    values: dict[str, object] = {
        "event": event,
        "payload": payload_of(event),
        "failure": failure_of(request, service, event),
        "cause": cause,
        "effects": list(islice(topic.effects(event), SHOWN_EFFECTS + 1)),
        "shown_effects": SHOWN_EFFECTS,
        "oldest": topic.oldest,
        "latest": topic.latest,
        "is_queue": message is not None,
        "message": message or [],
        "consumer_names": sorted(topic.cursors()),
    }
    if "part" in request.query_params:
        return parts.part(request, "event_part.html", values)
    title = f"{topic.name} #{event.seq}"
    return parts.page(request, service, Content("event.html", title, values=lambda: values, kind="Event"))


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
MOST_SHOWN: Final = 200
"""Events of a correlation that are shown; more is a wall, not a picture."""


@guarded("read")
def graph_page(request: Request, service: Service) -> Response:
    correlation = request.path_params["correlation"]
    try:
        events = list(islice(service.journal.correlated(correlation), MOST_SHOWN + 1))
    except PenstockError as error:
        raise Refused(400, type(error).__name__, str(error)) from error
    if not events:
        raise Refused(404, "UnknownEvent", f"no event belongs to {correlation[:80]!r}")
    note = f"The first {MOST_SHOWN:,} events." if len(events) > MOST_SHOWN else f"{len(events):,} events."
    events = events[:MOST_SHOWN]
    values = {"correlation": correlation, "note": note, "tree": tree(events), "events": events}
    content = Content("graph.html", "What caused what", values=lambda: values, kind="Correlation")
    return parts.page(request, service, content)
