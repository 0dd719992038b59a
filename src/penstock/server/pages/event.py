"""One event in full, on a page of its own or beside a list, and the picture of what caused what."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.entity.causality.walk import walk
from penstock.errors import PenstockError, UnknownQueue
from penstock.events import Event
from penstock.observe.sample import FailedMessage
from penstock.server.api.topics import existing
from penstock.server.pages import rendering
from penstock.server.problems import Refused
from penstock.server.service import Service, guarded
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.queue.inspect.messages import QueueMessage
    from penstock.queue.queue import LocalQueue

SHOWN_BYTES = 1 << 20
"""Of a payload; the API has all of it."""
SHOWN_EFFECTS = 20
"""Effects of an event that are listed; the picture shows more."""
MOST_DRAWN = 200
"""Events of a correlation that are drawn; more is a wall, not a picture."""


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
    from penstock.queue.inspect.failures import failures, letter

    if "dead-reason" in event.headers:
        return letter(event)
    group = request.query_params.get("group") or "default"
    try:
        queue: LocalQueue = service.journal.queue(event.topic, create=False)
        failure = next(failures(queue, group, event.seq - 1), None)
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
    values = {
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
        return rendering.part(request, "event_part.html", **values)
    title = f"{topic.name} #{event.seq}"
    return rendering.page(request, service, "event.html", title, live="/live/health", kind="Event", **values)


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@guarded("read")
def graph_page(request: Request, service: Service) -> Response:
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
        kind="Correlation",
        correlation=correlation,
        note=note,
        drawing=drawing(events),
        events=events,
    )


WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 46, 46, 14
LETTERS = 24


class Box(msgspec.Struct):
    """An event's box and where it is drawn."""

    event: Event
    x: int
    y: int
    name: str
    place: str


class CauseDrawing(msgspec.Struct):
    """Boxes and the lines between them."""

    width: int
    height: int
    edges: list[str]
    boxes: list[Box]
    box_width: int = WIDTH
    box_height: int = HEIGHT


def drawing(events: list[Event]) -> CauseDrawing:
    """The events of a correlation as boxes, with a line from each cause to its effects."""
    places = _places(events)
    by_id = {event.id: event for event in events}
    edges, boxes = [], []
    for event in events:
        x, y = places[event.id]
        cause = by_id.get(event.causation_id or "")
        if cause is not None and cause is not event:
            from_x, from_y = places[cause.id]
            start_x, start_y, end_y = from_x + WIDTH, from_y + HEIGHT / 2, y + HEIGHT / 2
            bend = (start_x + x) / 2
            edges.append(f"M{start_x} {start_y} C{bend} {start_y} {bend} {end_y} {x} {end_y}")
        boxes.append(Box(event, x, y, _short(event.kind), _short(f"{event.topic} #{event.seq}")))
    width = max(x for x, _ in places.values()) + WIDTH + 2
    height = max(y for _, y in places.values()) + HEIGHT + 2
    return CauseDrawing(width, height, edges, boxes)


def _places(events: list[Event]) -> dict[str, tuple[int, int]]:
    """Where each event is drawn: a column for its depth, a row of its own unless it goes on from its cause."""
    depth: dict[str, int] = {}
    places: dict[str, tuple[int, int]] = {}
    row = 0
    for step in walk({event.id: event.causation_id for event in events}):
        depth[step.id] = 0 if step.cause is None else depth[step.cause] + 1
        if step.at or (step.cause is None and places):
            row += 1
        places[step.id] = (1 + depth[step.id] * (WIDTH + GAP_X), 1 + row * (HEIGHT + GAP_Y))
    return places


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
