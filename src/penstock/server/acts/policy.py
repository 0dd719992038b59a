"""A queue's policy as a form: every field of the struct, in the units people write, with what it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.queue.policy import DEFAULT, QueuePolicy
from penstock.server.acts.forms import AS_IT_IS, Value, choices_of, read_field, struct_fields, write_field

MEANINGS: Final[Mapping[str, tuple[str, str]]] = {
    "lease": ("30s", "how long a consumer may hold a message; 0s: until the process that took it ends"),
    "max_attempts": ("3", "deliveries, each counted once"),
    "dead_letter": ("a queue's name", "where messages that were given up go; empty: they stay, failed"),
    "retry": (
        "default",
        "immediate, fixed:5s, linear:10s:5m, exponential:1s:60s, schedule:5s,5m,30m; default: workers' own",
    ),
    "max_size": ("no limit", "unsettled messages; a push above it is refused"),
    "max_in_flight": ("no limit", "messages of a group that are held at once"),
    "max_in_flight_per_key": ("1", "the same for one key; 1 keeps its order"),
    "rate": ("100/s", "deliveries per group"),
    "rate_per_key": ("10/m", "deliveries per group and key"),
    "fair_by": ("tenant", "a header, key, or key:/ – what takes turns"),
    "throttle": ("10s", "of pushes of one key within this time the first wins"),
    "debounce": ("10s", "of pushes of one key within this time the newest wins"),
    "debounce_limit": ("1m", "how long debounce may hold a message back"),
    "breaker": ("5/1m", "so many failures stop a group's deliveries"),
    "breaker_pause": ("30s", "for how long the breaker stops them"),
    "ttl": ("7d", "older messages are not delivered any more"),
    "retention": ("", "what becomes of unsettled messages that the topic's retention passes"),
    "priority": ("", "whether messages have priorities"),
    "dedup_window": ("5m", "how long a dedup key is remembered, or ever"),
}
"""Of each field that can be changed an example, and its meaning in the words of the guide."""


class PolicyField(msgspec.Struct, frozen=True):
    """A field of the form with what it holds now."""

    name: str
    value: str
    example: str
    says: str
    choices: Iterable[str]
    """The texts to choose from; none: it is typed."""


def policy_form(policy: QueuePolicy) -> list[PolicyField]:
    """What can be changed of a policy, as its form shows it."""
    values = msgspec.structs.asdict(policy)
    unset = {"retry": "default", "dedup_window": "ever"}
    return [
        PolicyField(
            field.name,
            write_field(values[field.name]) or unset.get(field.name, ""),
            *MEANINGS[field.name],
            choices_of(field),
        )
        for field in struct_fields(QueuePolicy)
        if field.name != "mode"
    ]


def policy_given(fields: Mapping[str, Value], *, emptied: bool) -> dict[str, object]:
    """The policy that a form asks for. A field that it does not have is not in it, nor, unless `emptied`, an empty one.

    A field that a person emptied has its default again: no limit, where that is the default.
    """
    defaults = msgspec.structs.asdict(DEFAULT)
    given: dict[str, object] = {}
    for field in struct_fields(QueuePolicy):
        text = str(fields.get(field.name, "")).strip()
        if text and text != AS_IT_IS:
            given[field.name] = read_field(field, text)
        elif emptied and not text and field.name in fields:
            given[field.name] = defaults[field.name]
    return given
