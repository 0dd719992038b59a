"""What caused what as a picture: boxes in columns by depth, lines from cause to effect. No styles inside: the page's
content security policy allows none."""

from __future__ import annotations

from urllib.parse import quote

from penstock.entity.causality.walk import branches
from penstock.events import Event
from penstock.server.pages.html import Html, el

WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 46, 46, 14
LETTERS = 24


def drawing(events: list[Event], base: str) -> Html:
    """The events of a correlation; each box leads to its event."""
    places = _places(events)
    by_id = {event.id: event for event in events}
    lines, boxes = [], []
    for event in events:
        x, y = places[event.id]
        cause = by_id.get(event.causation_id or "")
        if cause is not None and cause is not event:
            from_x, from_y = places[cause.id]
            start_x, start_y, end_y = from_x + WIDTH, from_y + HEIGHT / 2, y + HEIGHT / 2
            bend = (start_x + x) / 2
            lines.append(
                el(
                    "path",
                    d=f"M{start_x} {start_y} C{bend} {start_y} {bend} {end_y} {x} {end_y}",
                    class_="edge",
                    fill="none",
                )
            )
        boxes.append(
            el(
                "a",
                el("title", f"{event.topic}#{event.seq} {event.kind}"),
                el("rect", x=x, y=y, width=WIDTH, height=HEIGHT, rx=6, class_="node"),
                el("text", _short(event.kind), x=x + 10, y=y + 19, class_="name"),
                el("text", _short(f"{event.topic} #{event.seq}"), x=x + 10, y=y + 36, class_="place"),
                href=f"{base}/topics/{quote(event.topic)}/events/{event.seq}",
            )
        )
    width = max(x for x, _ in places.values()) + WIDTH + 2
    height = max(y for _, y in places.values()) + HEIGHT + 2
    return el(
        "svg",
        *lines,
        *boxes,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label="causes",
    )


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
