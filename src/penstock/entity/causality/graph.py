"""A correlation's events drawn: as a tree of lines for terminals and pages, or as Mermaid for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.entity.causality.walk import causes_first, walk
from penstock.events import Event


def tree(events: Iterable[Event]) -> Iterator[tuple[str, Event]]:
    """Each event below its cause, with the stems that lead to it."""
    by_id = {event.id: event for event in events}
    below: dict[str, str] = {}
    for step in walk({event.id: event.causation_id for event in by_id.values()}):
        if step.cause is None:
            stem = below[step.id] = ""
        else:
            last, before = step.at == step.of - 1, below[step.cause]
            stem = before + ("└─ " if last else "├─ ")
            below[step.id] = before + ("   " if last else "│  ")
        yield stem, by_id[step.id]


def mermaid(events: Iterable[Event]) -> str:
    """A Mermaid flowchart: a box for each event, an arrow from each cause to its effects."""
    found = causes_first(events)
    names = {event.id: f"e{number}" for number, event in enumerate(found, 1)}
    lines = ["flowchart TD"]
    for event in found:
        place = f"{event.topic}#{event.seq}" + (f" · {event.key}" if event.key is not None else "")
        texts = (event.kind, place, event.recorded_at.isoformat(timespec="milliseconds"))
        lines.append(f'  {names[event.id]}["{"<br/>".join(map(_quoted, texts))}"]')
    for event in found:
        cause = event.causation_id
        if cause in names and cause != event.id:
            lines.append(f"  {names[cause]} --> {names[event.id]}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    marked = text.replace("#", "#35;").replace("&", "#38;").replace('"', "#quot;")
    return marked.replace("<", "#lt;").replace(">", "#gt;").replace("\n", " ")
