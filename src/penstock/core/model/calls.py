"""Calls of tasks as messages say them: the arguments of a call, and the calls that follow it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

THEN: Final = "then"
"""The header of a message whose call is followed by another: that one's task."""
JOIN: Final = "join"
"""The header of a message whose result others wait for: the id of their join, a slash, and its place among them."""


UNIQUE: Final = "unique"
"""The header of a message that is not pushed while another one with the same text waits in its queue."""


class NextCall(msgspec.Struct, omit_defaults=True):
    """A call to be pushed when the one before it has returned: with what that returned, then its own arguments."""

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
    """Calls to push together, and those that follow when all of them have returned, with the list of the results."""

    id: str
    """A new id for the whole."""
    calls: list[FirstCall]
    then: list[NextCall] = []
    keep: float | None = None
    """Seconds for which the result of the last call is kept; None: it is not."""
