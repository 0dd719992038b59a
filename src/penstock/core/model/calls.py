"""Calls of tasks in messages: the arguments of a call, and the calls that follow it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

THEN: Final = "then"
"""The header of a message whose call is followed by another call: the task of the following call."""
JOIN: Final = "join"
"""The header of a message of a join: the id of the join, a slash, and the message's index."""


UNIQUE: Final = "unique"
"""The header of a message that is not pushed while another message with the same text waits in its queue."""


class NextCall(msgspec.Struct, omit_defaults=True):
    """A call that is pushed when the earlier call has returned: with the earlier result, then its own arguments."""

    queue: str
    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    key: str | None = None
    priority: int = 0
    max_attempts: int | None = None


class TaskArguments(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The payload of a call's message."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    then: list[NextCall] = []
    """The calls that follow, one after the other."""


class FirstCall(NextCall):
    """One of several calls that are pushed together."""

    then: list[NextCall] = []
    keep: float | None = None
    """Seconds for which its result is kept; None: it is not."""


class GatherRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Calls to push together, and the calls that follow with the list of the results when all of them have returned."""

    id: str
    """A new id for the group of calls."""
    calls: list[FirstCall]
    then: list[NextCall] = []
    keep: float | None = None
    """Seconds for which the result of the last call is kept; None: it is not."""
