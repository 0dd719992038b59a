"""Where the boxes and lines of a picture of causes and effects go: columns by depth, lines from cause to effect."""

from __future__ import annotations

import msgspec

from penstock.entity.causality.walk import branches
from penstock.events import Event

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
    starts, effects = branches(events)
    places: dict[str, tuple[int, int]] = {}
    row = 0
    for start in starts:
        stack = [(start, 0, True)]
        while stack:
            event, depth, first = stack.pop()
            if event.id in places:
                continue
            if not first or (depth == 0 and places):
                row += 1
            places[event.id] = (1 + depth * (WIDTH + GAP_X), 1 + row * (HEIGHT + GAP_Y))
            following = effects.get(event.id, [])
            stack.extend((following[at], depth + 1, at == 0) for at in range(len(following) - 1, -1, -1))
    return places


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
