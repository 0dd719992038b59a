"""How a message wants to be delivered: what a push says of it, checked."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from penstock.clock import Clock, Seconds, to_ms
from penstock.errors import ConfigError
from penstock.names import is_whole
from penstock.queue.policy import check_attempts, duration_ms
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueState


class DeliveryOptions:
    """How a message (or every message of a batch) wants to be delivered, where that is not the usual way."""

    __slots__ = ("due", "max_attempts", "priority", "since")

    def __init__(self, priority: int = 0, due: int = 0, max_attempts: int | None = None, since: int = 0) -> None:
        self.priority = priority
        self.due = due
        self.since = since
        """When the delay began that ends when it is due; 0: a moment was named."""
        self.max_attempts = max_attempts


def read_delivery_options(
    clock: Clock,
    key: str | None,
    priority: int | Literal["front"],
    delay: Seconds,
    not_before: datetime | None,
    max_attempts: int | None,
) -> DeliveryOptions | None:
    """A push's arguments, checked; None when they ask for nothing special."""
    if priority == "front":
        if key is not None:
            raise ConfigError('key= cannot be combined with priority="front": a key\'s messages keep their order')
        priority = keys.FRONT
    if not is_whole(priority):
        raise ConfigError(f'priority must be a whole number or "front", not {priority!r}')
    if not keys.LOWEST_PRIORITY <= priority <= keys.HIGHEST_PRIORITY:
        raise ConfigError(
            f"priority must fit 32 bits ({keys.LOWEST_PRIORITY} to {keys.HIGHEST_PRIORITY}), not {priority}"
        )
    if max_attempts is not None:
        check_attempts(max_attempts)
    due, now = 0, clock.now_ms()
    if not_before is not None:
        if delay != 0:
            raise ConfigError("give delay= or not_before=, not both")
        due = to_ms(not_before, "not_before")
    elif delay != 0:
        due = now + duration_ms(delay, "delay")
    due = due if due > now else 0
    if key is not None and (due or delay != 0 or not_before is not None):
        raise ConfigError("key= cannot be combined with delay= or not_before=: a key's messages keep their order")
    if key is not None and priority != 0:
        raise ConfigError("key= cannot be combined with priority=: a key's messages keep their order")
    if not priority and not due and max_attempts is None:
        return None
    return DeliveryOptions(priority, due, max_attempts, now if due and not_before is None else 0)


def check_rank(queue: QueueState, priority: int) -> None:
    """ConfigError when a queue does not know a priority."""
    if priority == keys.FRONT:
        if queue.policy.fair_by is not None:
            raise ConfigError(f"queue {queue.name!r} gives all their turn (fair_by): it has no front to push to")
    elif not queue.policy.priority:
        raise ConfigError(
            f"queue {queue.name!r} has no priorities: make it with priority=True, or change it with configure"
        )
