"""An act of the console: the operation it stands for, the question that is asked first, and what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import msgspec

from penstock.errors import ConfigError, UnknownTopic
from penstock.local.journal import LocalJournal
from penstock.protocol.operation import Operation, Role
from penstock.server.acts.forms import Value, filled, whole
from penstock.surface.queue import Queue
from penstock.surface.topic import Topic

A = TypeVar("A")
S = TypeVar("S", bound=msgspec.Struct)

Danger = Literal["", "red", "typed"]
"""How an act is asked for: plainly, in red, or in red with the name of what it destroys to be typed."""


class ActCall:
    """One request to do something, or to say what would be done."""

    def __init__(
        self, journal: LocalJournal, fields: dict[str, Value], stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.journal = journal
        self.fields = fields
        self.stopping = stopping
        """Whether the server ends; what an act does in the background ends with it."""

    def run(self, operation: Operation[A], request: msgspec.Struct | None = None) -> A:
        """What an operation answers; the form has the names in its path."""
        return self.journal._backend.call(operation, *map(self.text, operation.names), request=request)

    def filled(self, kind: type[S], **other: object) -> S:
        """The form as a request."""
        return filled(kind, self.fields, **other)

    def optional(self, name: str) -> str | None:
        """A field's text; None when it was left empty."""
        value = self.fields.get(name, "")
        if not isinstance(value, str):
            raise ConfigError(f"{name} is one value, not several")
        return value.strip() or None

    def text(self, name: str) -> str:
        """A field that must be filled in."""
        value = self.optional(name)
        if value is None:
            raise ConfigError(f"{name.replace('_', ' ')} is missing: fill it in")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number of at least 0."""
        text = self.optional(name)
        try:
            return None if text is None else whole(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    @property
    def topic(self) -> Topic:
        """The topic, which must be there: a mistyped name must not make one."""
        found = self.text("topic")
        if found not in self.journal.topics():
            raise UnknownTopic(f"there is no topic {found[:80]!r}")
        return self.journal.topic(found)

    @property
    def queue(self) -> Queue:
        """The queue, which must be there."""
        return self.journal.queue(self.text("queue"), create=False)


class ActPlan(msgspec.Struct):
    """What an act would do."""

    do: Callable[[], str]
    """Does it, and says what was done."""
    ask: Callable[[], str] = str
    """The question to ask first; empty when there is nothing to ask. ConfigError when it makes no sense to ask."""


class Act:
    """Something a person can do. Role, names and whose topics it may touch are those of its operation."""

    def __init__(
        self,
        plan: Callable[[ActCall], ActPlan],
        operation: Operation[Any],
        *,
        danger: Danger = "",
        fields: Iterable[str] = (),
        role: Role | None = None,
        subject: str | None = None,
        on_system: bool | None = None,
    ) -> None:
        needed = role or operation.role
        assert needed is not None, f"{operation.name} needs no role: that is no act"
        self.role: Role = needed
        self.subject = subject or operation.names[0]
        """The field that names what the act is about."""
        self.plan = plan
        """Reads a form; ConfigError when it says nothing that could be done."""
        self.danger: Danger = danger
        request = operation.query or operation.body
        taken = request.__struct_fields__ if isinstance(request, msgspec.StructMeta) else ()
        self.fields = frozenset((self.subject, *operation.names, *taken, *fields))
        self.on_system = operation.on_system if on_system is None else on_system
        """Whether it may be about a topic of penstock's own."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 message, 12 messages."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def happened(count: int, one: str, done: str) -> str:
    """What was done to so many: 1 message was deleted, 12 messages were deleted."""
    return f"{counted(count, one)} {'was' if count == 1 else 'were'} {done}"
