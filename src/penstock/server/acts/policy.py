"""A queue's policy as people read and write it: one line for each of its fields, for the page, the form and the act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import ConfigError
from penstock.queue.policy import DEFAULT, QueuePolicy
from penstock.queue.retry import Retry
from penstock.server.acts.act import ActCall
from penstock.units import parse_duration, show_duration, write_duration

AS_IT_IS = "as it is"
"""What the form says of a retry that it cannot write: a linear or random one is kept unless it is changed."""


class PolicyField(msgspec.Struct, frozen=True):
    """How one field of a policy is read from a form, written into it, and said in words."""

    name: str
    label: str
    read: Callable[[str], object]
    write: Callable[[Any], str]
    show: Callable[[Any], str]
    example: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """The texts to choose from, each with what it means; none: it is typed."""


class FormField(msgspec.Struct, frozen=True):
    """A field of the form with what it holds now."""

    name: str
    label: str
    value: str
    example: str
    choices: tuple[tuple[str, str], ...]


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_retry(text: str) -> Retry | None:
    """A retry as people write it: `default`, `at once`, `30s`, `5s, 1m, 10m`, `1s x 2 up to 5m`."""
    plain = text.strip().lower()
    try:
        if plain == "default":
            return None
        if plain in ("at once", "immediate", "0"):
            return Retry.immediate()
        if "x" in plain:
            first, _, rest = plain.partition("x")
            factor, _, cap = rest.partition("up to")
            limit = parse_duration(cap) if cap.strip() else None
            return Retry.exponential(parse_duration(first), factor=float(factor), cap=limit)
        delays = [parse_duration(part) for part in plain.split(",")]
        return Retry.fixed(delays[0]) if len(delays) == 1 else Retry.schedule(*delays)
    except ValueError as error:
        said = f"{text[:60]!r} is no retry: write `default`, `at once`, `30s`, `5s, 1m, 10m` or `1s x 2 up to 5m`"
        raise ConfigError(said) from error


def retry_value(retry: Retry | None) -> str:
    """A retry in the form that its field takes."""
    if retry is None:
        return "default"
    delays = ", ".join(write_duration(delay) for delay in retry.delays)
    if retry.curve == "exponential" and not retry.jitter:
        cap = "" if retry.cap is None else f" up to {write_duration(retry.cap)}"
        return f"{delays} x {retry.factor:g}{cap}"
    return {"immediate": "at once", "fixed": delays, "schedule": delays}.get(retry.curve, AS_IT_IS)


def retry_words(retry: Retry | None) -> str:
    """When a message is tried again, in words."""
    if retry is None:
        return f"by workers {retry_words(Retry.WORKER)}; given back by hand, at once"
    delays = ", ".join(show_duration(delay) for delay in retry.delays)
    cap = "" if retry.cap is None else f", at most {show_duration(retry.cap)}"
    jitter = f", up to {retry.jitter:.0%} less at random" if retry.jitter else ""
    return {
        "immediate": "at once",
        "fixed": f"after {delays}",
        "linear": f"after {delays}, and that much longer each time{cap}",
        "exponential": f"after {delays}, {retry.factor:g} times longer each time{cap}{jitter}",
        "schedule": f"after {delays}, then the last again",
    }[retry.curve]


# ── the other fields ─────────────────────────────────────────────────────────────────────────────────────────────────
def _whole(text: str) -> int:
    plain = text.replace(",", "").replace("_", "")
    if not plain.isascii() or not plain.isdigit() or len(plain) > 18:
        raise ConfigError(f"{text[:40]!r} is no whole number: write one like 1200")
    return int(plain)


def _typed(value: object) -> str:
    return "" if value is None else str(value)


def _number(value: int | None) -> str:
    return "no limit" if value is None else f"{value:,}"


def _time(name: str, label: str, without: str, example: str) -> PolicyField:
    """A duration; `without`: what it says where there is none."""
    return PolicyField(
        name,
        label,
        parse_duration,
        lambda value: "" if value is None else write_duration(value),
        lambda value: without if value is None else show_duration(value),
        example,
    )


def _count(name: str, label: str) -> PolicyField:
    return PolicyField(name, label, _whole, _typed, _number, "no limit")


def _text(name: str, label: str, without: str, example: str) -> PolicyField:
    return PolicyField(name, label, str, _typed, lambda value: value or without, example)


def _choice(name: str, label: str, **choices: str) -> PolicyField:
    return PolicyField(name, label, str, str, lambda value: f"{value}: {choices[value]}", "", tuple(choices.items()))


POLICY: tuple[PolicyField, ...] = (
    _choice("mode", "Mode", work="each message to one consumer", fanout="every group gets every message"),
    PolicyField(
        "lease",
        "Lease",
        parse_duration,
        write_duration,
        lambda value: show_duration(value) if value else "until the process that took it ends",
        "30s",
    ),
    PolicyField("max_attempts", "Attempts", _whole, str, _number, "3"),
    PolicyField("retry", "Retry", read_retry, retry_value, retry_words, "5s, 1m, 10m or 1s x 2 up to 5m"),
    _text("dead_letter", "Dead letters go to", "nowhere: they stay, failed", "a queue's name"),
    _time("ttl", "Time to live", "for ever", "7d"),
    _choice(
        "retention",
        "Messages older than the topic keeps",
        hold="kept until they are settled",
        dead_letter="go to the dead letters",
    ),
    _count("max_size", "Most messages"),
    _count("max_in_flight", "Most in flight"),
    PolicyField("max_in_flight_per_key", "Most in flight of one key", _whole, str, _number, "1"),
    _text("rate", "Deliveries, at most", "no limit", "100/s"),
    _text("rate_per_key", "Deliveries of one key, at most", "no limit", "10/m"),
    _text("fair_by", "Fair share by", "nothing: in order", "tenant, key or key:/"),
    _time("throttle", "The first push of a key wins for", "not at all", "10s"),
    _time("debounce", "The newest push of a key wins within", "not at all", "10s"),
    _time("debounce_limit", "But is delivered after", "no limit", "1m"),
    _text("breaker", "Circuit breaker opens at failures", "never", "5/1m"),
    _time("breaker_pause", "Circuit breaker stays open for", "30 s", "30s"),
    PolicyField(
        "priority",
        "Priorities",
        lambda text: {"yes": True, "no": False}.get(text, text),
        lambda value: "yes" if value else "no",
        lambda value: "yes" if value else "no",
        choices=(("no", "by position"), ("yes", "higher ones first")),
    ),
    PolicyField(
        "dedup_window",
        "Remembers dedup keys for",
        lambda text: None if text == "ever" else parse_duration(text),
        lambda value: "ever" if value is None else write_duration(value),
        lambda value: "ever" if value is None else show_duration(value),
        "5m or ever",
    ),
)


def policy_words(policy: QueuePolicy) -> list[tuple[str, str]]:
    """A policy as people would say it."""
    values = msgspec.structs.asdict(policy)
    return [(field.label, field.show(values[field.name])) for field in POLICY]


def policy_form(policy: QueuePolicy) -> list[FormField]:
    """What can be changed of a policy, as its form shows it, in units a person can write back."""
    values = msgspec.structs.asdict(policy)
    return [
        FormField(one.name, one.label, one.write(values[one.name]), one.example, one.choices)
        for one in POLICY
        if one.name != "mode"
    ]


def policy_given(call: ActCall, *, emptied: bool) -> dict[str, object]:
    """The policy that a form asks for. A field that it does not have is not in it, nor, unless `emptied`, an empty one.

    A field that a person emptied has its default again: no limit, where that is the default.
    """
    defaults = msgspec.structs.asdict(DEFAULT)
    given: dict[str, object] = {}
    for field in POLICY:
        text = call.optional(field.name)
        if text is None:
            if emptied and field.name in call.fields:
                given[field.name] = defaults[field.name]
        elif field.name != "retry" or text != AS_IT_IS:
            try:
                given[field.name] = field.read(text)
            except ConfigError as error:
                raise ConfigError(f"{field.label}: {error}") from error
    return given
