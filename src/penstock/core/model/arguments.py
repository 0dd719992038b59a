"""The keyword arguments that several calls share, each with its type, so that a type checker finds a misspelt argument.

A method takes them as `**options: Unpack[…]`; `show_arguments` lets `help`, `inspect.signature` and IPython show each
argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import msgspec

if TYPE_CHECKING:
    from penstock.core.clock import Duration
    from penstock.core.consuming.delivery import Delivery
    from penstock.core.events import Event, Receipt
    from penstock.core.model.conditions import Where
    from penstock.core.model.query import EventQuery
    from penstock.core.queue.policy import Retry
    from penstock.core.surface.queue import Queue

F = TypeVar("F", bound=Callable[..., Any])


def show_arguments(arguments: type, default: object = ...) -> Callable[[F], F]:
    """Makes a function's signature show its arguments one by one.

    `default` is the default of every argument, or the struct whose fields have the defaults. `...` means that a missing
    argument changes nothing.
    """
    defaults = dict.fromkeys(arguments.__annotations__, default)
    if isinstance(default, type) and issubclass(default, msgspec.Struct):
        given = default.__struct_defaults__
        defaults = dict(zip(default.__struct_fields__[-len(given) :], given, strict=True))

    def show(function: F) -> F:
        signature, kind = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        shown = [
            inspect.Parameter(name, kind, default=defaults.get(name, ...), annotation=hint.__forward_arg__)
            for name, hint in arguments.__annotations__.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *shown])
        return function

    return show


class DraftArguments(TypedDict, total=False):
    """The arguments of an append; see `Draft`."""

    key: str | None
    scope: str | None
    headers: Mapping[str, str] | None
    occurred_at: datetime | None
    dedup: str | None
    cause: Event | Receipt | str | int | None
    correlation: str | None
    expect: int | None
    tags: Iterable[str] | None
    unless: EventQuery | Sequence[EventQuery] | None
    after: int | None


class FilterArguments(TypedDict, total=False):
    """The arguments that choose events; see `EventQuery`."""

    key: str | None
    key_prefix: str | None
    kind: str | Collection[str] | None
    scope: str | None
    tags: str | Collection[str] | None
    where: Where | str | None


def query_fields(given: FilterArguments) -> dict[str, Any]:
    """Returns the fields of an `EventQuery` that arguments stand for."""
    return {"kinds" if name == "kind" else name: value for name, value in given.items()}


class SettingsArguments(TypedDict, total=False):
    """The arguments of `Topic.configure`; see `Settings`."""

    max_age: Duration | None
    max_events: int | None
    max_bytes: int | None
    by_key: bool
    dedup_window: Duration | None
    verified: bool
    indexed: bool


class PushArguments(TypedDict, total=False):
    """The arguments of a push; see `Queue.push`."""

    kind: str
    key: str | None
    priority: int | Literal["front"]
    delay: Duration
    not_before: datetime | None
    dedup: str | None
    max_attempts: int | None
    headers: Mapping[str, str] | None
    cause: Event | Receipt | Delivery | str | int | None


class TakeManyArguments(TypedDict, total=False):
    """The group, the consumer and the lease of a take; see `Queue.take_many`."""

    group: str
    consumer: str | None
    lease: Duration | None
    newest: bool


class TakeArguments(TakeManyArguments, total=False):
    """The arguments of a take of one message, which may name the message; see `Queue.take`."""

    seq: int | None
    key: str | None


class PolicyArguments(TypedDict, total=False):
    """The arguments of a queue's policy; see `QueuePolicy`."""

    mode: Literal["work", "fanout"]
    lease: Duration
    max_attempts: int
    dead_letter: str | Queue | None
    retry: Retry | Duration | None
    max_size: int | None
    max_in_flight: int | None
    max_in_flight_per_key: int
    rate: str | None
    rate_per_key: str | None
    fair_by: str | None
    throttle: Duration | None
    debounce: Duration | None
    debounce_limit: Duration | None
    breaker: str | None
    breaker_pause: Duration
    ttl: Duration | None
    warn_after: Duration | None
    retention: Literal["hold", "dead_letter"]
    priority: bool
    feed: bool
    dedup_window: Duration | None
