"""An operation: one thing that a server does and a client asks for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.errors import PenstockError

A = TypeVar("A", covariant=True)

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
"""Each may do what the ones before it may: look; append, push, take and settle; configure, redrive, compact, purge."""

JSON = "application/json"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
SSE = "text/event-stream"
BLOCKS = "application/vnd.penstock.blocks"
"""Stored blocks, each with its length (4 bytes, big-endian) before it."""
PROBLEM = "application/problem+json"

STAGED = "application/vnd.penstock.staged"
"""Blocks of new events on their way to a journal: msgpack of [topic, block] pairs."""

PREFIX = "/v1"
"""Where the operations are, below the server's address."""

WITH_SLASHES = frozenset(("consumer", "group", "schedule", "correlation"))
"""Names in paths that may contain slashes; they come last."""


class Operation(Generic[A]):
    """One declaration; `A` is what the answer decodes to."""

    def __init__(
        self,
        name: str,
        method: Method,
        path: str,
        summary: str,
        *,
        role: Role | None,
        answer: type[A],
        query: type[msgspec.Struct] | None = None,
        body: object = None,
        also: tuple[type, ...] = (),
        takes: str = JSON,
        media: tuple[str, ...] = (JSON,),
        status: int = 200,
        errors: tuple[type[PenstockError], ...] = (),
        missing: str | None = None,
        on_system: bool = False,
    ) -> None:
        self.name = name
        self.method: Method = method
        self.path = path
        """Below `PREFIX`, with names in braces: /topics/{topic}/events."""
        self.summary = summary
        self.role: Role | None = role
        """What a token must be allowed; None: no token is asked for."""
        self.answer = answer
        self.query = query
        self.body = body
        """What the request's JSON decodes to; bytes for another media type; None: it has no body."""
        self.takes = takes
        """The media type of the request's body; other ones than JSON are sent and taken as bytes."""
        self.also = also
        """Other shapes the answer may have, which clients of other languages may ask for."""
        self.media = media
        self.status = status
        self.errors = errors
        """Beside those that any operation may answer with."""
        self.missing = missing
        """The problem that says there is no such thing, for operations whose client then answers None."""
        self.on_system = on_system or role in (None, "read")
        """Whether it may name a topic of penstock's own; what changes something may not, unless it says so here."""
        self._pieces = path.split("/")

    def __repr__(self) -> str:
        return f"<operation {self.name}: {self.method} {self.path}>"

    @property
    def names(self) -> list[str]:
        """The names in the path, in order."""
        return [piece[1:-1] for piece in self._pieces if piece.startswith("{")]

    def target(self, names: Iterable[str], query: msgspec.Struct | None = None) -> str:
        """The path (below the server's address) and query string of a request."""
        values = iter(names)
        path = "/".join(quote(next(values), safe="") if piece.startswith("{") else piece for piece in self._pieces)
        return f"{PREFIX}{path}{_query_string(query)}"

    @cached_property
    def answer_decoder(self) -> msgspec.json.Decoder[A]:
        return msgspec.json.Decoder(self.answer)

    @cached_property
    def body_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.body)


def _query_string(query: msgspec.Struct | None) -> str:
    """Parameters that differ from their defaults."""
    if query is None:
        return ""
    given = {name: _text(value) for name, value in msgspec.to_builtins(query).items() if value is not None}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _text(value: object) -> object:
    return ("true" if value else "false") if isinstance(value, bool) else value
