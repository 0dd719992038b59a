"""An act of the console: its name, the role it needs, its fields as a form sends them, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError, UnknownQueue
from penstock.protocol.operation import Role
from penstock.units import parse_duration, parse_moment, parse_size

if TYPE_CHECKING:
    from penstock.local.journal import LocalJournal
    from penstock.surface.queue import Queue
    from penstock.surface.topic import Topic

Value = str | list[str]
"""A field as a form sends it: text, or several texts."""


class ActCall:
    """One request to do something, or to say what would be done."""

    def __init__(
        self,
        journal: LocalJournal,
        fields: dict[str, Value],
        preview: bool,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.journal = journal
        self.fields = fields
        self.preview = preview
        """Whether only the question is wanted."""
        self.stopping = stopping
        """Whether the server ends; what an act does in the background ends with it."""

    # ── fields ───────────────────────────────────────────────────────────────────────────────────────────────────────
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

    def several(self, name: str) -> list[str]:
        """A field that may have several values."""
        value = self.fields.get(name, [])
        return [value] if isinstance(value, str) else value

    def whole(self, name: str) -> int | None:
        """A whole number of at least 0."""
        text = self.optional(name)
        if text is None:
            return None
        plain = text.replace(",", "").replace("_", "")
        if not plain.isascii() or not plain.isdigit() or len(plain) > 18:
            raise ConfigError(f"{name.replace('_', ' ')} is a whole number, like 1200, not {text[:40]!r}")
        return int(plain)

    def duration(self, name: str) -> float | None:
        """Seconds, written as 90s, 5m, 1h30m, 7d."""
        text = self.optional(name)
        return None if text is None else parse_duration(text)

    def size(self, name: str) -> int | None:
        """Bytes, written as 1000, 64KiB, 2GiB."""
        text = self.optional(name)
        return None if text is None else parse_size(text)

    def moment(self, name: str) -> datetime:
        """A time, or how long ago."""
        return parse_moment(self.text(name), datetime.now(UTC))

    def yes(self, name: str) -> bool:
        return self.optional(name) is not None

    def payload(self, name: str = "payload") -> object:
        """JSON that a person typed; ConfigError says where it is wrong."""
        text = self.fields.get(name, "")
        if not isinstance(text, str) or not text.strip():
            return None
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the {name} is no JSON: {error}") from error
        except RecursionError:
            raise ConfigError(f"the {name} is nested too deeply") from None

    # ── what they name ───────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str = "topic") -> Topic:
        """A topic that is there."""
        found = self.text(name)
        if found not in self.journal.topics():
            raise ConfigError(f"there is no topic {found[:80]!r}")
        return self.journal.topic(found)

    def queue(self, name: str = "queue") -> Queue:
        """A queue that is there: a mistyped name must not make one."""
        found = self.text(name)
        try:
            return self.journal.queue(found, create=False)
        except UnknownQueue:
            raise UnknownQueue(f"there is no queue {found[:80]!r}") from None


Perform = Callable[[ActCall], str]
"""Answers the question of a preview (empty when there is nothing to ask), or does the act and says what was done."""


class Act(msgspec.Struct, frozen=True):
    """Something a person can do."""

    name: str
    role: Role
    subject: str
    """The field that names what the act is about."""
    fields: frozenset[str]
    perform: Perform
    on_system: bool = False
    """Whether it may be about a topic of penstock's own."""


ACTS: dict[str, Act] = {}


def act(role: Role, subject: str, *fields: str, on_system: bool = False) -> Callable[[Perform], Perform]:
    """Registers a function as the act of its name; `fields` are the others it takes."""

    def register(perform: Perform) -> Perform:
        name = perform.__name__.replace("_", "-")
        ACTS[name] = Act(name, role, subject, frozenset((subject, *fields)), perform, on_system)
        return perform

    return register


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 message, 12 messages."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def happened(count: int, one: str, done: str) -> str:
    """What was done to so many: 1 message was deleted, 12 messages were deleted."""
    return f"{counted(count, one)} {'was' if count == 1 else 'were'} {done}"
