"""An operation: a request that a client sends and a server answers."""

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
"""The roles; each role includes the earlier roles. read: look. write: append, push, take and settle. admin:
configure, redrive, compact, purge.
"""

JSON = "application/json"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
SSE = "text/event-stream"
BLOCKS = "application/vnd.penstock.blocks"
"""The media type of stored blocks, each after its length (4 bytes, big-endian)."""
PROBLEM = "application/problem+json"

STAGED = "application/vnd.penstock.staged"
"""The media type of new blocks on their way to a journal: msgpack of [topic, block] pairs."""

PAGE_EVENTS = 1000
"""The events of a page without a limit."""
PAGE_BYTES = 8 << 20
"""The payload bytes after which a page of an answer, or a take over HTTP, ends early."""

READ_TOPICS = 10_000
"""The most topics of one request, because each page reads the end of each topic."""

PREFIX = "/v1"
"""The path of the operations, below the server's address."""

WITH_SLASHES = frozenset(("consumer", "group", "schedule", "correlation"))
"""The names in paths that may contain slashes; they are at the end of a path."""


Count = Annotated[int, Meta(ge=0, le=MAX_POSITION)]
"""A position, or a count."""
After = Annotated[Count, Meta(description="the position to go on from, exclusive")]
Limit = Annotated[Count | None, Meta(description="how many at the most")]


class Caller:
    """The caller of an operation.

    This class is a program with the store in its own process, which may do everything.
    """

    @property
    def owner(self) -> str:
        """The owner of blocks that the caller stages."""
        return "local"

    @property
    def host(self) -> str | None:
        """The machine that a request comes from."""
        return None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a request that apply to all its events: the trace context."""
        return {}

    @property
    def dedup(self) -> str | None:
        """The dedup key of a request with one event."""
        return None

    @property
    def role(self) -> Role:
        """The role of the caller."""
        return "admin"

    @property
    def staging(self) -> list[str]:
        """The places in object stores from which blocks are fetched for the caller."""
        return []

    @property
    def lakes(self) -> Mapping[str, str]:
        """The places to which the caller may seal history: the shown url, and the url with its hidden options."""
        return {}

    @property
    def sample(self) -> Sample | None:
        """The newest sample of the journal, if samples are taken continuously."""
        return None

    def require(self, role: Role, doing: str) -> None:
        """Refuses an action that needs a role which the caller does not have; `doing` names the action."""

    def check_append(self, topic: str) -> None:
        """Refuses an append to a topic that takes no events from the caller."""


class WaitingCaller(Caller):
    """A caller that may leave, or be told to stop waiting, before there is an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()
        """Set when waiting is useless."""
        self.patience = math.inf
        """The seconds to wait for a writer that is behind, before Backpressure."""
        self.gone = False
        """True if the caller has left and takes no answer."""
        self.wake: Callable[[], None] = lambda: None
        """The function that wakes the waiting operation, which sets it."""

    def stop(self) -> None:
        """Ends the wait; may be called from any thread."""
        self.stopping.set()
        self.wake()


class Rehearsal(msgspec.Struct, kw_only=True):
    """A request that may be a rehearsal without a change."""

    dry_run: bool = False


class Operation(msgspec.Struct, Generic[A], dict=True, eq=False):
    """The declaration of an operation: method and path, role, request, answer (which decodes to `A`), and a
    description.

    The request of a GET or DELETE is in the query string, of other methods in the body; `query` is for operations with
    both. "POST /queues/{queue}/move -> moved" answers `{"moved": …}`; without an arrow the answer is written as it is.
    """

    route: str
    """The method, the path below `PREFIX` with names in braces, and, after an arrow, the only field of the answer."""
    role: Role | None
    """The role that a token needs; None for an operation without a token."""
    request: object
    answer: type[A]
    """The type that an implementation returns, and that a client gets; `wire_answer` is its form on the wire."""
    summary: str
    query: type[msgspec.Struct] | None = None
    also: tuple[type, ...] = ()
    """Other forms of the answer, for clients of other languages."""
    media: tuple[str, ...] = (JSON,)
    """The media types of the answer."""
    status: int = 200
    errors: tuple[type[PenstockError], ...] = ()
    """The errors beside the errors of every operation; a queue in the path may always be missing, unless PUT makes
    it.
    """
    missing: str | None = None
    """The problem of a missing result, for operations whose client then returns None."""
    on_system: bool = False
    """True if the operation may name a topic of penstock's own.

    Operations with changes must not, unless this is set.
    """
    commits: bool = False
    """True if the implementation returns a `PendingCommit`, which needs no thread while it waits."""
    name: str = ""
    """The name of the operation's constant, in lower case, which `declared_operations` sets."""

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
        """The only field of the JSON object of the answer: `{"moved": 3}`. Empty when the answer is an object."""
        return self.route.partition(" -> ")[2]

    @property
    def _is_in_query(self) -> bool:
        """True if the query string holds the request."""
        return self.query in (None, self.request) and self.method in ("GET", "DELETE")

    @cached_property
    def body(self) -> object:
        """The type of the request's JSON; bytes for another media type; None without a body."""
        return None if self._is_in_query else self.request

    @property
    def takes(self) -> str:
        """The media type of the request's body; all types except JSON are sent and received as bytes."""
        return STAGED if self.request is bytes else JSON

    @cached_property
    def paged(self) -> bool:
        """True if the answer is a page: a server bounds its `limit`, and has a default."""
        return "limit" in _fields_of(self.query if self.query is not None or self.role != "read" else self.body)

    @cached_property
    def waits(self) -> bool:
        """True if the operation may wait for long: its implementation is a coroutine function, which gets a
        `WaitingCaller`.
        """
        return "wait" in _fields_of(self.body)

    def changes(self, request: object = None) -> bool:
        """Returns True if a request may change something: not with GET, with the role read, or as a rehearsal."""
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
        """Returns the path (below the server's address) and query string of a request."""
        values = iter(names)
        try:
            path = "/".join(quote(next(values), safe="") if piece.startswith("{") else piece for piece in self._pieces)
            return f"{PREFIX}{path}{_query_string(query)}"
        except _UNSENDABLE as error:
            raise ConfigError(f"the arguments of {self.name} cannot be sent: {error}") from error

    def write_body(self, request: object) -> bytes:
        """Returns a request's body as JSON; raises ConfigError when an argument has no JSON form."""
        try:
            return msgspec.json.encode(request)
        except _UNSENDABLE as error:
            raise ConfigError(f"the arguments of {self.name} cannot be sent: {error}") from error

    @cached_property
    def wire_answer(self) -> Any:
        """The form of the answer on the wire: documents in place of events."""
        return _wire_type(self.answer)

    @cached_property
    def _answer_decoder(self) -> msgspec.json.Decoder[Any]:
        kind = self.wire_answer
        return msgspec.json.Decoder(msgspec.defstruct("Answer", [(self.field, kind)]) if self.field else kind)

    def read_answer(self, data: bytes) -> A:
        """Returns the answer in a server's JSON; raises the error of `msgspec` for invalid JSON."""
        found = self._answer_decoder.decode(data)
        answer: A = getattr(found, self.field) if self.field else found
        return answer

    def enveloped(self, answer: object) -> object:
        """Returns an answer as the object that is written."""
        return {self.field: answer} if self.field else answer

    @cached_property
    def body_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(_with_durations(self.body))


def _fields_of(kind: object) -> tuple[str, ...]:
    return kind.__struct_fields__ if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def _with_durations(kind: Any) -> Any:
    """Returns the type of a request whose durations may be text in JSON; they are parsed after decoding."""
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
    """Returns the type of a field, with text beside each duration."""
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
    """Returns the operations of a module, in order, each named after its constant."""
    found = {name.lower(): one for name, one in names.items() if isinstance(one, Operation)}
    for name, one in found.items():
        one.name = name
    return tuple(found.values())


WRITTEN: dict[type, Any] = {Event: EventDocument}
"""The values that are written as documents; modules with further such values add them."""


def _wire_type(answer: Any) -> Any:
    kinds = [WRITTEN.get(kind, kind) for kind in get_args(answer)]
    return WRITTEN.get(answer, answer) if kinds == list(get_args(answer)) else get_origin(answer)[tuple(kinds)]


def convert_answer(answer: Any, kinds: Mapping[type, Any], event: Callable[[Any], object]) -> Any:
    """Returns an answer with converted values, also in its lists: documents for values, or values for documents.

    `kinds` maps types to types (`WRITTEN`, or its inverse); `event` converts an event.
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
    """Returns the query string of parameters that differ from their defaults."""
    if query is None:
        return ""
    given = {name: _text(value) for name, value in msgspec.to_builtins(query).items() if value is not None}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _text(value: object) -> object:
    return ("true" if value else "false") if isinstance(value, bool) else value


def page_of(items: Iterable[T], limit: int | None, size: Callable[[T], int]) -> tuple[list[T], T | None]:
    """Returns as many items as an answer has room for, by number and bytes; and the last item when others follow."""
    found: list[T] = []
    left = PAGE_BYTES
    for one in items:
        if len(found) == limit or left <= 0:
            return found, found[-1] if found else None
        found.append(one)
        left -= size(one)
    return found, None
