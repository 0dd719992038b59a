"""The page of one event, and of related events: causes and effects."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.entity.causality import tree
from penstock.core.events import Event
from penstock.core.observe.sample import FailedMessage
from penstock.core.queue import inspect
from penstock.core.queue.dead_letters import letter
from penstock.core.units import show_size
from penstock.errors import PenstockError, UnknownQueue
from penstock.server.pages import parts
from penstock.server.pages.parts import Content
from penstock.server.service import Refused, Service, existing_topic, guarded

SHOWN_BYTES: Final = 1 << 20
"""The number of payload bytes on a page. The API returns the whole payload."""
SOUGHT_EFFECTS: Final = 100
"""The number of a message's effects that are searched for its dead letter."""
SHOWN_EFFECTS: Final = 20
"""The number of an event's effects in the list. The tree shows more effects."""


class EventPayload(msgspec.Struct):
    """A payload as text, with its format."""

    text: str
    size: str
    format: str
    """The format: json, text or bytes."""
    cut: bool = False


def payload_of(event: Event) -> EventPayload:
    """Returns a payload for reading: JSON keeps its layout, bytes are in hexadecimal."""
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
    """Returns why a message was given up, from a dead letter's headers or from its queue."""
    if "dead-reason" in event.headers:
        return letter(event)
    group = request.query_params.get("group") or "default"
    try:
        failure = next(inspect.failures(service.journal.backend.queue(event.topic), group, event.seq - 1), None)
    except UnknownQueue:
        return None
    return failure if failure is not None and failure.event.id == event.id else None


def _letter_of(event: Event, effects: Iterable[Event]) -> Event | None:
    """Returns the newest dead letter among the effects of a message; None when there is none."""
    ids = [one for one in effects if one.headers.get("dead-id") == event.id]
    return max(ids, key=lambda one: one.recorded_at, default=None)


def _original(service: Service, failure: FailedMessage) -> Event | None:
    """Returns the message that became a dead letter; None when the message is not stored any more.

    A settled message may be removed.
    """
    seq = failure.event.headers.get("dead-seq", "")
    if not (seq.isascii() and seq.isdigit() and len(seq) <= 18):
        return None
    with suppress(PenstockError):  # any client may push such headers: they may name nothing
        return service.journal.topic(failure.queue).get(int(seq))
    return None


def _waits(service: Service, died: Event) -> bool:
    """Returns True if a dead letter is still in its queue."""
    try:
        return service.journal.queue(died.topic, create=False).get(died.seq) is not None
    except UnknownQueue:
        return False


def message_of(service: Service, event: Event) -> list[inspect.QueueMessage] | None:
    """Returns the state of an event as a message, with each group that has not settled it.

    Returns None when its topic is not a queue.
    """
    try:
        found = service.journal.queue(event.topic, create=False).messages(after=event.seq - 1, limit=1)
    except UnknownQueue:
        return None
    return [one for one in found if one.event.id == event.id]


@guarded("read")
def event_page(request: Request, service: Service) -> Response:
    """Returns an event as a page, or, with `part=1`, as the part that lists show beside themselves."""
    topic = existing_topic(request, service)
    name = request.path_params["event"]
    event = topic.get(int(name)) if name.isdecimal() and len(name) <= 18 else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    cause = None
    if event.causation_id is not None:
        cause = next((found for found in topic.ancestors(event) if found.id == event.causation_id), None)
    message, effects = message_of(service, event), list(islice(topic.effects(event), SOUGHT_EFFECTS))
    failure, died = failure_of(request, service, event), None
    if message == [] and failure is None:
        died = _letter_of(event, effects)
        failure = None if died is None else letter(died)
    values: dict[str, object] = {
        "event": event,
        "payload": payload_of(event),
        "group": request.query_params.get("group", ""),
        "failure": failure,
        "died": died,
        "original": None if failure is None else _original(service, failure),
        "died_waits": died is not None and _waits(service, died),
        "cause": cause,
        "effects": effects[: SHOWN_EFFECTS + 1],
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
"""The maximum number of events of a correlation on a page. More events are not readable."""


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
