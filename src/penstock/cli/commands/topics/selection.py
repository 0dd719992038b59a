"""Which events a command is about: the options `read`, `tail` and `export` share, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.values import condition, time

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.documents.conditions import Where
    from penstock.events import Event
    from penstock.surface.topic import Topic

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--since", type=time, help="only events recorded since a time (2024-05-01T12:00Z) or so long ago (1h)"
    ),
    click.option("--until", type=time, help="only events recorded before a time"),
    click.option("--kind", multiple=True, help="only events of this kind; may be given several times"),
    click.option("--key", help="only events of this entity"),
    click.option("--key-prefix", help="only events whose key begins so"),
    click.option("--scope", help="only events of this scope"),
    click.option(
        "--where",
        type=condition,
        help="only events for which this holds: payload.total > 10 and has(payload.coupon)",
    ),
)


def selecting(function: F) -> F:
    """Gives a command the options that choose events; it passes them on to `EventSelection`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class EventSelection:
    """Which events are wanted, beyond positions."""

    def __init__(
        self,
        since: datetime | None,
        until: datetime | None,
        kind: Sequence[str],
        key: str | None,
        key_prefix: str | None,
        scope: str | None,
        where: Where | None,
    ) -> None:
        self.since = since
        self.until = until
        self.kinds = set(kind)
        self.key = key
        self.key_prefix = key_prefix
        self.scope = scope
        self.where = where

    def read(
        self,
        topic: Topic,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Event]:
        """The chosen events of a topic."""
        if self.until is not None:
            last = topic.position_at(self.until)
            through = last if through is None else min(last, through)
        return topic.read(after, limit, through=through, since=self.since, reverse=reverse, **self.filters())

    def filters(self) -> dict[str, Any]:
        """As `Topic.read` and `Topic.subscribe` take them."""
        given = {"key": self.key, "key_prefix": self.key_prefix, "scope": self.scope, "where": self.where}
        return {**given, "kind": sorted(self.kinds) or None}
