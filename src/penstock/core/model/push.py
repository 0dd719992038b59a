"""The options of a push, for handles, the wire, schedules and moves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from penstock.core.clock import Duration


class PushOptions(msgspec.Struct):
    """The options of a push; see `Queue.push`."""

    kind: str = "message"
    key: str | None = None
    priority: int | Literal["front"] = 0
    """The priority, in a queue with priorities; "front", in any queue, goes before all waiting messages."""
    delay: Duration = 0
    not_before: datetime | None = None
    dedup: str | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = None
    cause: object = None
