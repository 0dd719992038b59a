"""Flow control in a policy, checked before it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.clock import seconds
from penstock.errors import ConfigError
from penstock.names import check_whole
from penstock.queue.flow.rate import LONGEST_PERIOD, check_rate
from penstock.queue.flow.turns import check_fair_by

if TYPE_CHECKING:
    from penstock.queue.policy import QueuePolicy

MOST_PER_KEY = 1024
"""In flight of one key: their positions are one row."""


def check_flow(fields: dict[str, Any]) -> None:
    """Puts the fields a caller gave into their stored form; ConfigError names the first bad one."""
    for name in ("rate", "rate_per_key", "breaker"):
        if name in fields:
            fields[name] = check_rate(fields[name], name)
    for name in ("throttle", "debounce", "debounce_limit", "breaker_pause"):
        if name in fields and (fields[name] is not None or name == "breaker_pause"):
            fields[name] = seconds(fields[name], name, minimum=0.001)
            if fields[name] > LONGEST_PERIOD:
                raise ConfigError(f"{name} must be at most a year, not {fields[name]:g} s")
    if "fair_by" in fields:
        fields["fair_by"] = check_fair_by(fields["fair_by"])
    if "max_in_flight_per_key" in fields:
        most = check_whole(fields["max_in_flight_per_key"], "max_in_flight_per_key")
        if most > MOST_PER_KEY:
            raise ConfigError(f"max_in_flight_per_key must be at most {MOST_PER_KEY}, not {most}")


def check_flow_together(policy: QueuePolicy, queue: str) -> None:
    """Refuses limits by key where messages have no keys, and what contradicts itself."""
    if policy.throttle is not None and policy.debounce is not None:
        raise ConfigError(f"queue {queue!r}: the first push wins (throttle) or the newest one (debounce), not both")
    if policy.debounce_limit is not None and (policy.debounce is None or policy.debounce_limit < policy.debounce):
        raise ConfigError(f"queue {queue!r}: debounce_limit= goes with debounce=, and is not shorter")
    if policy.priority and policy.fair_by is not None:
        raise ConfigError(
            f"queue {queue!r}: the highest priority goes first, or all have their turn (fair_by), not both"
        )
    if policy.priority:
        by_key = {
            "rate_per_key": policy.rate_per_key is not None,
            "max_in_flight_per_key": policy.max_in_flight_per_key != 1,
            "throttle": policy.throttle is not None,
            "debounce": policy.debounce is not None,
        }
        for name, is_given in by_key.items():
            if is_given:
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
        or policy.breaker is not None
        or policy.fair_by is not None
    )
