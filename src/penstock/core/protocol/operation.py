"""An operation: one thing that a server does and a client asks for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import GenericAlias, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from penstock.core.clock import seconds
from penstock.core.documents.events import EventDocument
from penstock.core.events import Event
from penstock.core.observe.sample import Sample
from penstock.errors import ConfigError, PenstockError, UnknownQueue
from penstock.limits import MAX_POSITION

A = TypeVar("A", covariant=True)
T = TypeVar("T")

_UNSENDABLE = (TypeError, UnicodeError, OverflowError, RecursionError, msgspec.MsgspecError)
"""The errors of encoders for values that have no form on the wire."""
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

PAGE_EVENTS = 1000
"""Events of a page that says no limit."""
PAGE_BYTES = 8 << 20
"""Payload bytes after which a page of an answer, or a take over HTTP, ends early."""

READ_TOPICS = 10_000
"""Topics that one request may read at once: a page asks each of them where it goes on."""

PREFIX = "/v1"
"""The path of the operations, below the server's address."""

WITH_SLASHES = frozenset(("consumer", "group", "schedule", "correlation"))
"""Names in paths that may contain slashes; they come last."""


Count = Annotated[int, Meta(ge=0, le=MAX_POSITION)]
"""A position, or a number of things."""
After = Annotated[Count, Meta(description="the position to go on from, exclusive")]
Limit = Annotated[Count | None, Meta(description="how many at the most")]


class Caller:
    """Who asks for an operation: by itself a program that has the store in its own process, and may do everything."""

    @property
    def owner(self) -> str:
        """Whose the blocks are that it stages."""
        return "local"

    @property
    def host(self) -> str | None:
        """The machine that a request comes from."""
        return None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers by which a request describes all its events: the trace that they belong to."""
        return {}

    @property
    def dedup(self) -> str | None:
        """The dedup key of a request's one event."""
        return None

    @property
    def role(self) -> Role:
        """The role that it has."""
        return "admin"

    @property
    def staging(self) -> list[str]:
        """Places in object stores from which blocks are fetched for it."""
        return []

    @property
    def lakes(self) -> Mapping[str, str]:
        """Places that history may be sealed to for it: a url as it is shown, and with the options that are not."""
        return {}

    @property
    def sample(self) -> Sample | None:
        """The newest sample of the journal, where samples are taken all the time."""
        return None

    def require(self, role: Role, doing: str) -> None:
        """Refuses what needs a role that the caller does not have; `doing` is what needs it."""

    def check_append(self, topic: str) -> None:
        """Refuses an append to a topic that takes none from the caller."""


class WaitingCaller(Caller):
    """A caller that may go away, or be told to stop waiting, before there is an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()
        """Set when there is no use in waiting any more."""
        self.patience = math.inf
        """Seconds to wait for a writer that is behind, before Backpressure."""
        self.gone = False
        """True if the caller has left, and takes no answer."""
        self.wake: Callable[[], None] = lambda: None
        """Wakes what waits for the caller; what waits says how."""

    def stop(self) -> None:
        """Ends the wait; may be called from any thread."""
        self.stopping.set()
        self.wake()


class Rehearsal(msgspec.Struct, kw_only=True):
    """A request that may only say what it would do."""

    dry_run: bool = False


class Operation(msgspec.Struct, Generic[A], dict=True, eq=False):
    """The declaration of an operation: method and path, role, request, answer (which decodes to `A`), and what it does.

    The request of a GET or DELETE stands in the query string, of others in the body; `query` is for those with both.
    "POST /queues/{queue}/move -> moved" answers `{"moved": …}`; without an arrow the answer is written as it is.
    """

    route: str
    """The method, the path below `PREFIX` with names in braces, and, after an arrow, the answer's one field."""
    role: Role | None
    """The role that a token needs; None: no token is asked for."""
    request: object
    answer: type[A]
    """The type that an implementation returns, and that a client gets back; `wire_answer` is how that is written."""
    summary: str
    query: type[msgspec.Struct] | None = None
    also: tuple[type, ...] = ()
    """Other shapes the answer may have, which clients of other languages may ask for."""
    media: tuple[str, ...] = (JSON,)
    """The media types of the answer."""
    status: int = 200
    errors: tuple[type[PenstockError], ...] = ()
    """Beside those that any operation may answer with; a queue in the path may always be missing, unless PUT makes it.
    """
    missing: str | None = None
    """The problem that says there is no such thing, for operations whose client then answers None."""
    on_system: bool = False
    """True if it may name a topic of penstock's own; what changes something may not, unless it says so here."""
    commits: bool = False
    """True if its implementation gives a `PendingCommit`, which holds no thread while it waits."""
    name: str = ""
    """The name of the constant that holds it, in small letters: `declared_operations` sets it."""

    def __post_init__(self) -> None:
        if self._is_in_query:
            self.query = self.request  # type: ignore[assignment]
        if "{queue}" in self.path and self.method != "PUT":
            self.errors = (UnknownQueue, *self.errors)
        self.on_system = self.on_system or self.role in (None, "read")

    def __repr__(self) -> str:
        return f"<operation {self.name}: {self.method} {self.path}>"

    @cached_property
    def method(self) -> Method:
        method: Method = msgspec.convert(self.route.partition(" ")[0], Method)
        return method

    @cached_property
    def path(self) -> str:
        """The path below `PREFIX`, with names in braces: /topics/{topic}/events."""
        return self.route.partition(" -> ")[0].partition(" ")[2]

    @cached_property
    def field(self) -> str:
        """The one field of the JSON object that holds the answer: `{"moved": 3}`. Empty: the answer is an object."""
        return self.route.partition(" -> ")[2]

    @property
    def _is_in_query(self) -> bool:
        """True if the query string holds the request."""
        return self.query in (None, self.request) and self.method in ("GET", "DELETE")

    @cached_property
    def body(self) -> object:
        """The type that the request's JSON decodes to; bytes for another media type; None: it has no body."""
        return None if self._is_in_query else self.request

    @property
    def takes(self) -> str:
        """The media type of the request's body; other ones than JSON are sent and taken as bytes."""
        return STAGED if self.request is bytes else JSON

    @cached_property
    def paged(self) -> bool:
        """True if a page is asked for: a server bounds its `limit`, and has a usual one."""
        return "limit" in _fields_of(self.query if self.query is not None or self.role != "read" else self.body)

    @cached_property
    def waits(self) -> bool:
        """True if it may wait for long: its implementation is a coroutine function, told a `WaitingCaller`."""
        return "wait" in _fields_of(self.body)

    def changes(self, request: object = None) -> bool:
        """Returns True if a request of it may change something: not with GET, nor with the role read, nor rehearsed."""
        rehearsed = isinstance(request, Rehearsal) and request.dry_run
        return self.method != "GET" and self.role not in (None, "read") and not rehearsed

    @cached_property
    def _pieces(self) -> list[str]:
        return self.path.split("/")

    @property
    def names(self) -> list[str]:
        """The names in the path, in order."""
        return [piece[1:-1] for piece in self._pieces if piece.startswith("{")]

    def target(self, names: Iterable[str], query: msgspec.Struct | None = None) -> str:
        """The path (below the server's address) and query string of a request."""
        values = iter(names)
        try:
            path = "/".join(quote(next(values), safe="") if piece.startswith("{") else piece for piece in self._pieces)
            return f"{PREFIX}{path}{_query_string(query)}"
        except _UNSENDABLE as error:
            raise ConfigError(f"the arguments of {self.name} cannot be sent: {error}") from error

    def write_body(self, request: object) -> bytes:
        """A request's body as JSON; ConfigError when an argument has no form there."""
        try:
            return msgspec.json.encode(request)
        except _UNSENDABLE as error:
            raise ConfigError(f"the arguments of {self.name} cannot be sent: {error}") from error

    @cached_property
    def wire_answer(self) -> Any:
        """The answer as it is written: documents in the place of events."""
        return _wire_type(self.answer)

    @cached_property
    def _answer_decoder(self) -> msgspec.json.Decoder[Any]:
        kind = self.wire_answer
        return msgspec.json.Decoder(msgspec.defstruct("Answer", [(self.field, kind)]) if self.field else kind)

    def read_answer(self, data: bytes) -> A:
        """The answer that a server's JSON says; what `msgspec` raises where it says none."""
        found = self._answer_decoder.decode(data)
        answer: A = getattr(found, self.field) if self.field else found
        return answer

    def enveloped(self, answer: object) -> object:
        """An answer as the object that is written."""
        return {self.field: answer} if self.field else answer

    @cached_property
    def body_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(_with_durations(self.body))


def _fields_of(kind: object) -> tuple[str, ...]:
    return kind.__struct_fields__ if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def _with_durations(kind: Any) -> Any:
    """A request whose durations may be text in JSON: each is read when the request was decoded."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return kind
    fields = {one.name: one for one in msgspec.structs.fields(kind)}
    spans = {name: wider for name, one in fields.items() if (wider := _or_text(one.type)) != one.type}
    if not spans:
        return kind

    def read(request: msgspec.Struct) -> None:
        for name in spans:
            given = getattr(request, name)
            if isinstance(given, str):
                msgspec.structs.force_setattr(request, name, seconds(given, name))
            elif isinstance(given, tuple):
                msgspec.structs.force_setattr(request, name, tuple([seconds(one, name) for one in given]))

    changed = [(name, wider, _default_of(fields[name])) for name, wider in spans.items()]
    return msgspec.defstruct(kind.__name__, changed, bases=(kind,), namespace={"__post_init__": read}, kw_only=True)


def _default_of(field: FieldInfo) -> Any:
    return msgspec.field() if field.required else msgspec.field(default=field.default)


def _or_text(kind: Any) -> Any:
    """The type of a field, with text beside each duration."""
    if get_origin(kind) is Annotated:
        marks = (one.extra for one in kind.__metadata__ if isinstance(one, Meta))
        return float | str if any(one and one.get("duration") for one in marks) else kind
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        wider: Any = Union[tuple(map(_or_text, get_args(kind)))]  # noqa: UP007
        return wider
    if get_origin(kind) is tuple:
        return GenericAlias(tuple, tuple(map(_or_text, get_args(kind))))
    return _with_durations(kind)


def declared_operations(names: dict[str, object]) -> tuple[Operation[object], ...]:
    """The operations that a module declares, in order, each named as the constant that holds it."""
    found = {name.lower(): one for name, one in names.items() if isinstance(one, Operation)}
    for name, one in found.items():
        one.name = name
    return tuple(found.values())


WRITTEN: dict[type, Any] = {Event: EventDocument}
"""Values that are written as documents; modules that declare answers with further ones add them."""


def _wire_type(answer: Any) -> Any:
    kinds = [WRITTEN.get(kind, kind) for kind in get_args(answer)]
    return WRITTEN.get(answer, answer) if kinds == list(get_args(answer)) else get_origin(answer)[tuple(kinds)]


def convert_answer(answer: Any, kinds: Mapping[type, Any], event: Callable[[Any], object]) -> Any:
    """An answer whose values, itself or in its lists, are of another kind: documents for values, or values again.

    `kinds` says what becomes what (`WRITTEN`, or the other way round), `event` converts an event.
    """

    def convert(one: Any) -> object:
        if isinstance(one, Event | EventDocument):
            return event(one)
        return kinds[type(one)](**(msgspec.structs.asdict(one) | {"event": event(one.event)}))

    if type(answer) in kinds:
        return convert(answer)
    if isinstance(answer, msgspec.Struct):
        for name in answer.__struct_fields__:
            found = getattr(answer, name)
            if isinstance(found, list) and found and type(found[0]) in kinds:
                setattr(answer, name, list(map(convert, found)))
    return answer


def _query_string(query: msgspec.Struct | None) -> str:
    """Parameters that differ from their defaults."""
    if query is None:
        return ""
    given = {name: _text(value) for name, value in msgspec.to_builtins(query).items() if value is not None}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _text(value: object) -> object:
    return ("true" if value else "false") if isinstance(value, bool) else value


def page_of(items: Iterable[T], limit: int | None, size: Callable[[T], int]) -> tuple[list[T], T | None]:
    """As many as an answer has room for, in number and in bytes; and the last of them when others follow."""
    found: list[T] = []
    left = PAGE_BYTES
    for one in items:
        if len(found) == limit or left <= 0:
            return found, found[-1] if found else None
        found.append(one)
        left -= size(one)
    return found, None
