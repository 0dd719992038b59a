"""One event in full, on a page of its own or beside a list, and the tree of what caused what."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.entity.causality import tree
from penstock.errors import PenstockError, UnknownQueue
from penstock.events import Event
from penstock.observe.sample import FailedMessage
from penstock.server.api.topics import existing
from penstock.server.pages import rendering
from penstock.server.pages.rendering import Content
from penstock.server.problems import Refused
from penstock.server.service import Service, guarded
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.queue.inspect import QueueMessage

SHOWN_BYTES = 1 << 20
"""Of a payload; the API has all of it."""
SHOWN_EFFECTS = 20
"""Effects of an event that are listed; the tree shows more."""
MOST_SHOWN = 200
"""Events of a correlation that are shown; more is a wall, not a picture."""


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
    from penstock.queue.inspect import failures
    from penstock.queue.letters import letter

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
        return rendering.part(request, "event_part.html", **values)
    title = f"{topic.name} #{event.seq}"
    return rendering.page(request, service, Content("event.html", title, values=lambda: values, kind="Event"))


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
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
    values: dict[str, object] = {"correlation": correlation, "note": note, "tree": tree(events), "events": events}
    content = Content("graph.html", "What caused what", values=lambda: values, kind="Correlation")
    return rendering.page(request, service, content)
