"""The request of a take, checked, and the fate of a message whose attempt failed."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from penstock.core.clock import Duration, seconds
from penstock.core.model.durations import Seconds
from penstock.core.names import check_consumer, check_limit
from penstock.errors import ConfigError

DEFAULT_GROUP = "default"

Outcome = Literal["requeued", "dead", "failed", "dropped"]
"""The fate of a message whose attempt failed."""


class TakeRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The messages to take, the group and consumer that take them, and the length of the lease."""

    limit: int = 1
    group: str = DEFAULT_GROUP
    consumer: str | None = None
    wait: Seconds = 0
    lease: Seconds | None = None
    newest: bool = False
    seq: int | None = None
    """Only the message at this position."""
    key: str | None = None
    """Only the next message of this ordering key."""
    host: str | None = None
    """The consumer's machine, for display; default: the address of the request."""
    since: datetime | None = None
    """The time when the consumer began."""


def check_taker(group: str, consumer: str | None) -> None:
    check_consumer(group, "group")
    if consumer is not None:
        check_consumer(consumer)


def take_request(
    limit: int,
    what: str,
    wait: Duration = 0,
    group: str = DEFAULT_GROUP,
    consumer: str | None = None,
    lease: Duration | None = None,
    newest: bool = False,
    seq: int | None = None,
    key: str | None = None,
) -> TakeRequest:
    """Returns the checked arguments of a take; `what` names the call in errors."""
    check_taking(limit, group, consumer, what)
    hold = None if lease is None else seconds(lease, "lease")
    return TakeRequest(limit, group, consumer, seconds(wait, "wait"), hold, newest, seq, key)


def check_taking(limit: int, group: str, consumer: str | None, what: str) -> None:
    """Refuses impossible arguments of a take; `what` names the call in errors."""
    if check_limit(limit) is None:
        raise ConfigError(f"{what} needs a limit: how many messages you can work on within one lease")
    check_taker(group, consumer)
