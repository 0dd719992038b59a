"""A correlation's events as a picture: DOT for Graphviz, Mermaid for Markdown, SVG to look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from penstock.entity.causality.walk import causes_first, walk
from penstock.errors import ConfigError
from penstock.events import Event

GraphFormat = Literal["dot", "mermaid", "svg"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 54, 26, 48, 24
_CHARACTERS = 26


def escape(text: str) -> str:
    """Text as XML says it; the standard library's own brings half of its networking along."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Node(msgspec.Struct, frozen=True):
    """An event in a graph."""

    id: str
    title: str
    place: str
    time: str
    cause: str | None
    """The id of its cause, when that is in the graph, too."""


class CauseGraph(msgspec.Struct, frozen=True):
    """Events and what caused what; causes come before effects."""

    nodes: list[Node]

    def render(self, format: GraphFormat) -> str:
        """The graph as text in a format: "dot", "mermaid" or "svg"."""
        match format:
            case "dot":
                return _dot(self)
            case "mermaid":
                return _mermaid(self)
            case "svg":
                return _svg(self)
        raise ConfigError(f'a graph is drawn as "dot", "mermaid" or "svg", not {format!r}')

    @property
    def edges(self) -> list[tuple[str, str]]:
        """Pairs of cause and effect."""
        return [(node.cause, node.id) for node in self.nodes if node.cause is not None]


def graph_of(events: Iterable[Event]) -> CauseGraph:
    """The graph of some events."""
    found = causes_first(events)
    ids = {event.id for event in found}
    nodes = [
        Node(
            event.id,
            event.kind,
            f"{event.topic}#{event.seq}" + (f" · {event.key}" if event.key is not None else ""),
            event.recorded_at.isoformat(timespec="milliseconds"),
            event.causation_id if event.causation_id in ids and event.causation_id != event.id else None,
        )
        for event in found
    ]
    return CauseGraph(nodes)


def _names(graph: CauseGraph) -> dict[str, str]:
    return {node.id: f"e{number}" for number, node in enumerate(graph.nodes, 1)}


def _dot(graph: CauseGraph) -> str:
    names = _names(graph)
    lines = ["digraph causes {", '  node [shape=box, fontname="sans-serif"];']
    for node in graph.nodes:
        label = "\\n".join(_quoted_dot(text) for text in (node.title, node.place, node.time))
        lines.append(f'  {names[node.id]} [label="{label}", tooltip="{node.id}"];')
    lines.extend(f"  {names[cause]} -> {names[effect]};" for cause, effect in graph.edges)
    return "\n".join([*lines, "}", ""])


def _quoted_dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _mermaid(graph: CauseGraph) -> str:
    names = _names(graph)
    lines = ["flowchart TD"]
    for node in graph.nodes:
        label = "<br/>".join(_quoted_mermaid(text) for text in (node.title, node.place, node.time))
        lines.append(f'  {names[node.id]}["{label}"]')
    lines.extend(f"  {names[cause]} --> {names[effect]}" for cause, effect in graph.edges)
    return "\n".join([*lines, ""])


def _quoted_mermaid(text: str) -> str:
    marked = text.replace("#", "#35;").replace("&", "#38;").replace('"', "#quot;")
    return marked.replace("<", "#lt;").replace(">", "#gt;").replace("\n", " ")


# ── SVG ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _svg(graph: CauseGraph) -> str:
    """Layers from causes to effects; every node stands under the middle of what it caused."""
    places = _layout(graph)
    width = max((x for x, _ in places.values()), default=0.0) + _WIDTH + 2 * _MARGIN
    height = max((y for _, y in places.values()), default=0.0) + _HEIGHT + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="{-_MARGIN} {-_MARGIN} {width:g} {height:g}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#667"/></marker></defs>',
    ]
    for cause, effect in graph.edges:
        (x1, y1), (x2, y2) = places[cause], places[effect]
        start, stop, middle = x1 + _WIDTH / 2, x2 + _WIDTH / 2, (y1 + _HEIGHT + y2) / 2
        lines.append(
            f'<path d="M{start:g} {y1 + _HEIGHT:g} C{start:g} {middle:g} {stop:g} {middle:g} {stop:g} {y2:g}" '
            'fill="none" stroke="#667" marker-end="url(#arrow)"/>'
        )
    for node in graph.nodes:
        x, y = places[node.id]
        lines.append(
            f'<g><title>{escape(node.id)}</title><rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
            'fill="#eef3f8" stroke="#456"/>'
        )
        texts = (
            (node.title, 16, "bold", "#123"),
            (node.place, 31, "normal", "#345"),
            (node.time, 46, "normal", "#678"),
        )
        for text, below, weight, colour in texts:
            lines.append(
                f'<text x="{x + _WIDTH / 2:g}" y="{y + below:g}" text-anchor="middle" font-weight="{weight}" '
                f'fill="{colour}">{escape(_short(text))}</text>'
            )
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _layout(graph: CauseGraph) -> dict[str, tuple[float, float]]:
    depth: dict[str, int] = {}
    effects: dict[str | None, list[str]] = {}
    for step in walk({node.id: node.cause for node in graph.nodes}):
        depth[step.id] = 0 if step.cause is None else depth[step.cause] + 1
        effects.setdefault(step.cause, []).append(step.id)
    across: dict[str, float] = {}
    free = 0.0
    for id in reversed(depth):
        own = effects.get(id, [])
        if own:
            across[id] = (across[own[0]] + across[own[-1]]) / 2
        else:
            across[id] = free
            free += 1
    rightmost = max(across.values(), default=0.0)
    # Leaves were placed from the last to the first: turned round, earlier effects stand on the left.
    return {
        id: ((rightmost - place) * (_WIDTH + _GAP_X), depth[id] * (_HEIGHT + _GAP_Y)) for id, place in across.items()
    }


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
