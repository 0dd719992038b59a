"""Flow control in a policy, checked before it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.names import check_whole
from penstock.queue.flow.rate import check_rate

if TYPE_CHECKING:
    from penstock.queue.policy import QueuePolicy

MOST_PER_KEY = 1024
"""In flight of one key: their positions are one row."""


def check_flow(fields: dict[str, Any]) -> None:
    """Puts the fields a caller gave into their stored form; ConfigError names the first bad one."""
    for name in ("rate", "rate_per_key"):
        if name in fields:
            fields[name] = check_rate(fields[name], name)
    if "max_in_flight_per_key" in fields:
        most = check_whole(fields["max_in_flight_per_key"], "max_in_flight_per_key")
        if most > MOST_PER_KEY:
            raise ConfigError(f"max_in_flight_per_key must be at most {MOST_PER_KEY}, not {most}")


def check_flow_together(policy: QueuePolicy, queue: str) -> None:
    """Refuses limits by key where messages have no keys."""
    if policy.priority:
        for name in ("rate_per_key", "max_in_flight_per_key"):
            if getattr(policy, name) not in (None, 1):
                raise ConfigError(
                    f"queue {queue!r} has priorities, and messages with priorities have no ordering keys: "
                    f"{name} would never apply"
                )


def shapes_takes(policy: QueuePolicy) -> bool:
    """Whether a take has more to think of than which message comes next."""
    return (
        policy.ttl is not None
        or policy.max_in_flight is not None
        or policy.rate is not None
        or policy.rate_per_key is not None
    )
