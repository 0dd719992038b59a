"""Events on a terminal: one line each, or everything about one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.output import paint, safe
from penstock.errors import PoisonMessage
from penstock.units import show_moment, show_size

if TYPE_CHECKING:
    from penstock.events import Event

WIDEST = 4000
"""Characters of a payload on one line, at the most; `show` and --json give all of it."""


def payload_text(event: Event) -> str:
    """A payload on one line."""
    raw = event.raw
    if event.binary:
        return f"<{show_size(len(raw))} of bytes> {raw[:32].hex(' ')}{' …' if len(raw) > 32 else ''}"
    text = safe(raw[: WIDEST * 4].decode("utf-8", "replace").replace("\n", " "))
    return text if len(text) <= WIDEST else f"{text[:WIDEST]} … ({show_size(len(raw))})"


def event_line(event: Event, *, color: bool, topic: bool = False) -> str:
    """An event on one line: position, time, kind, key, payload."""
    parts = [
        paint(f"{event.topic}#{event.seq}" if topic else f"#{event.seq}", "cyan", color),
        paint(show_moment(event.recorded_at), "dim", color),
        paint(safe(event.kind), "bold", color),
    ]
    if event.key is not None:
        parts.append(paint(f"[{safe(event.key)}]", "yellow", color))
    parts.append(payload_text(event))
    return "  ".join(parts)


def event_record(event: Event) -> dict[str, object]:
    """Everything about an event but its payload, by name."""
    values: dict[str, object] = {"seq": event.seq, "topic": event.topic, "kind": event.kind, "id": event.id}
    optional = {
        "key": event.key,
        "scope": event.scope,
        "correlation": event.correlation_id,
        "caused by": event.causation_id,
    }
    values |= {name: value for name, value in optional.items() if value is not None}
    values |= {"recorded": event.recorded_at, "occurred": event.occurred_at}
    values |= {f"header {name}": value for name, value in event.headers.items()}
    return values


def pretty_payload(event: Event) -> str:
    """A payload laid out for reading."""
    if event.binary:
        return payload_text(event)
    import msgspec

    try:
        event.payload  # noqa: B018 - asks whether it decodes
    except PoisonMessage as error:
        return f"{error}\n{payload_text(event)}"
    text = msgspec.json.format(event.raw, indent=2).decode("utf-8", "replace")
    return "\n".join(safe(line) for line in text.splitlines())


def raw_payload(event: Event) -> str:
    """A payload as it is stored, on one line."""
    raw = event.raw
    if not event.binary and b"\n" in raw:
        import msgspec

        raw = msgspec.json.format(raw, indent=-1)
    return raw.decode("utf-8", "replace")
