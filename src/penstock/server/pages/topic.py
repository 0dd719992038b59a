"""A topic's page: throughput, live tail with filters, one event in full, consumers with seek."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError, PenstockError, PoisonMessage
from penstock.events import Event
from penstock.observe.sample import Sample, TopicSample
from penstock.server.api import parameters
from penstock.server.api.problems import Refused
from penstock.server.api.topics import existing
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.parts import Row, Table, Tile, Update
from penstock.server.service import Service, guarded
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.api import LocalTopic

SHOWN = 50
"""Events a page begins with."""
SCANNED = 20_000
"""Events a page looks at for its filter before it shows what it found."""


def pretty(event: Event) -> str:
    """A payload laid out for reading."""
    if event.binary:
        raw = event.raw
        return f"{show_size(len(raw))} of bytes\n" + raw[:4096].hex(" ", 1)
    try:
        event.payload  # noqa: B018 - asks whether it decodes
    except PoisonMessage as error:
        return str(error)
    return msgspec.json.format(event.raw, indent=2).decode("utf-8", "replace")


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────
def consumer_table(topic: str, sample: Sample) -> Table:
    found = sample.topics.get(topic)
    rows = []
    if found is not None:
        for consumer, lag in sorted(found.lags.items()):
            cells = [consumer, parts.number(found.latest - lag), parts.number(lag)]
            rows.append(Row(consumer, cells))
    return Table("consumers", ["Consumer", "Position", "Lag"], rows, [1, 2], "no consumer has committed a position")


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _events(request: Request, topic: LocalTopic) -> tuple[list[Event], str | None]:
    """The newest chosen events, newest first, and what is wrong with the choice."""
    try:
        wanted = parameters.Wanted(request)
        before = parameters.number(request, "before")
        since = parameters.moment(request, "since")
        through = None if before is None else max(0, before - 1)
        if through == 0:
            return [], None
        found = topic.read(through=through, reverse=True, since=since, **wanted.read())
        looked = islice(found, SCANNED) if wanted.where is not None else found
        return list(islice((e for e in looked if wanted.where is None or wanted.where.matches(e)), SHOWN)), None
    except ConfigError as error:
        return [], str(error)


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


@guarded("read")
def topic_page(request: Request, service: Service) -> Response:
    topic = existing(request, service)
    service.sampler.start()
    sample = service.sampler.newest
    events, problem = _events(request, topic)
    older = None
    if events and events[-1].seq > topic.oldest:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
        older = urlencode([*kept, ("before", events[-1].seq)])
    return rendering.page(
        request,
        service,
        "topic.html",
        topic.name,
        live=f"/live/topics/{quote(topic.name)}",
        topic=topic,
        is_queue=topic.name in service.journal.queues(),
        tiles=tiles(topic.name, sample),
        charts=charts.TOPIC,
        consumers=consumer_table(topic.name, sample),
        consumer_names=sorted(topic.cursors()),
        events=events,
        problem=problem,
        older=older,
    )


@guarded("read")
async def live_topic(request: Request, service: Service) -> Response:
    name = request.path_params["topic"]

    def render(sample: Sample) -> Update:
        return parts.update(tiles(name, sample), consumer_table(name, sample))

    return rendering.stream(request, service, render)


# ── one event ────────────────────────────────────────────────────────────────────────────────────────────────────────
@guarded("read")
def event_page(request: Request, service: Service) -> Response:
    topic = existing(request, service)
    name = request.path_params["event"]
    event = topic.get(int(name)) if name.isdigit() and len(name) <= 18 else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    return rendering.page(
        request,
        service,
        "event.html",
        f"{topic.name} #{event.seq}",
        live="/live/health",
        event=event,
        here=f"{rendering.base_of(request)}/topics/{quote(topic.name)}",
        oldest=topic.oldest,
        latest=topic.latest,
        payload=pretty(event),
    )


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
MOST_DRAWN = 200
"""Events of a correlation that are drawn; more is a wall, not a picture."""


@guarded("read")
def graph_page(request: Request, service: Service) -> Response:
    from penstock.server.pages.graph import drawing

    correlation = request.path_params["correlation"]
    try:
        events = list(islice(service.journal.correlated(correlation), MOST_DRAWN + 1))
    except PenstockError as error:
        raise Refused(400, type(error).__name__, str(error)) from error
    if not events:
        raise Refused(404, "UnknownEvent", f"no event belongs to {correlation[:80]!r}")
    note = f"The first {MOST_DRAWN:,} events." if len(events) > MOST_DRAWN else f"{len(events):,} events."
    events = events[:MOST_DRAWN]
    return rendering.page(
        request,
        service,
        "graph.html",
        "What caused what",
        live="/live/health",
        correlation=correlation,
        note=note,
        drawing=drawing(events),
        events=events,
    )
