"""The values an application handles: Event (read), Draft (to be written), Receipt (what was written).

Programs handle events and receipts by the million, so these objects are thin: an event is a row of its block, and its
fields are looked up on access.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from penstock.core.clock import from_ms
from penstock.core.names import check_items, unpack_tags
from penstock.core.schema import PayloadSchema, PayloadT, decode_event
from penstock.errors import ConfigError, PoisonMessage

if TYPE_CHECKING:
    from penstock.core.model.query import EventQuery
else:
    EventQuery = object  # `inspect.signature` needs a name here, and the module of queries needs this module

T = TypeVar("T")

EVENT_FIELDS = (
    *("seq", "topic", "kind", "key", "scope", "id", "occurred_at", "recorded_at"),
    *("correlation_id", "causation_id", "tags", "headers", "payload"),
)
"""The names of an event's fields."""
ERASED_AT, ERASED_BY = "erased-at", "erased-by"
"""The headers of an erased event, the only ones that it has."""
MASKED_AT, MASKED_BY, MASKED_FIELDS = "masked-at", "masked-by", "masked-fields"
"""The headers of an event whose payload has blanked fields, beside its own."""
MARKS = frozenset((ERASED_AT, ERASED_BY, MASKED_AT, MASKED_BY, MASKED_FIELDS))
_json_decode = msgspec.json.Decoder().decode
_HEX_ID = re.compile("[0-9a-fA-F]{32}")


def is_marked(headers: Mapping[str, str]) -> bool:
    """Returns True if the headers of an event say that it was erased or masked."""
    return ERASED_AT in headers or MASKED_AT in headers


class EventRows(Protocol):
    """The source of events: rows that return their fields by index."""

    topic: str

    def seq(self, row: int) -> int: ...
    def kind(self, row: int) -> str: ...
    def is_binary(self, row: int) -> bool: ...
    def raw_payload(self, row: int) -> memoryview: ...
    def key(self, row: int) -> str | None: ...
    def scope(self, row: int) -> str | None: ...
    def headers(self, row: int) -> Mapping[str, str]: ...
    def occurred_ms(self, row: int) -> int: ...
    def recorded_ms(self, row: int) -> int: ...
    def id_number(self, row: int) -> int: ...
    def correlation(self, row: int) -> str | None: ...
    def causation(self, row: int) -> str | None: ...
    def tags(self, row: int) -> str | None: ...
    def extract(self, row: int) -> bytes: ...


class Event(msgspec.Struct, Generic[PayloadT], frozen=True, eq=False, gc=False, weakref=False):
    """Something that happened, as stored: immutable, with its position, times, payload and causes."""

    _rows: EventRows
    _row: int

    @property
    def seq(self) -> int:
        """Position in its topic, from 1."""
        return self._rows.seq(self._row)

    @property
    def topic(self) -> str:
        """The topic it was appended to."""
        return self._rows.topic

    @property
    def kind(self) -> str:
        """The kind of the event."""
        return self._rows.kind(self._row)

    @property
    def payload(self) -> PayloadT:
        """The payload, decoded: a JSON-like value, or bytes when bytes were appended; PoisonMessage if it cannot be.

        For a handle with a payload type, the payload is a value of this type.
        """
        raw = self._rows.raw_payload(self._row)
        if self._rows.is_binary(self._row):
            return bytes(raw)  # type: ignore[return-value]  # it is Any, unless it is a TypedEvent
        try:
            return _json_decode(raw)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PoisonMessage(
                f"the payload of event {self.seq} of topic {self.topic!r} is not JSON: {error}", raw=bytes(raw)
            ) from error

    @property
    def raw(self) -> bytes:
        """The payload's stored bytes: JSON text, or the bytes that were appended."""
        return bytes(self._rows.raw_payload(self._row))

    @property
    def binary(self) -> bool:
        """True when the payload was appended as bytes, not as a JSON-like value."""
        return self._rows.is_binary(self._row)

    @property
    def key(self) -> str | None:
        """The entity it belongs to; in a queue, the ordering key."""
        return self._rows.key(self._row)

    @property
    def scope(self) -> str | None:
        """The tenant, region or other partition the producer named."""
        return self._rows.scope(self._row)

    @property
    def headers(self) -> Mapping[str, str]:
        """Text about the event that is not part of the payload."""
        return self._rows.headers(self._row)

    @property
    def erased(self) -> bool:
        """True if the event's contents were erased; the headers `erased-at` and `erased-by` say when and by whom."""
        return ERASED_AT in self.headers

    @property
    def occurred_at(self) -> datetime:
        """The producer's time; the journal's when the producer gave none."""
        return from_ms(self._rows.occurred_ms(self._row))

    @property
    def recorded_at(self) -> datetime:
        """The journal's time: never decreasing within a topic."""
        return from_ms(self._rows.recorded_ms(self._row))

    @property
    def id(self) -> str:
        """A globally unique, sortable identifier (UUIDv7)."""
        return format_id(self._rows.id_number(self._row))

    @property
    def correlation_id(self) -> str | None:
        """The id that all events of a chain of causes and effects share."""
        return self._rows.correlation(self._row)

    @property
    def causation_id(self) -> str | None:
        """The id of the event that caused this one."""
        return self._rows.causation(self._row)

    @property
    def tags(self) -> tuple[str, ...]:
        """The names by which the event is found besides its key, such as "course:1", in order."""
        return unpack_tags(self._rows.tags(self._row))

    def as_(self, type: type[T]) -> T:
        """Returns the payload as a value of a declared event type, upcast to its newest version."""
        return decode_event(self, type)

    def as_dict(self) -> dict[str, Any]:
        """Returns every field by name, for printing, JSON and tests; times are datetimes."""
        return {**{name: getattr(self, name) for name in EVENT_FIELDS}, "headers": dict(self.headers)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self.seq == other.seq and self.topic == other.topic and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> int:
        return self._rows.id_number(self._row)

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key is not None else ""
        raw = self._rows.raw_payload(self._row)
        shown = bytes(raw[:80]).decode("utf-8", "replace") + ("…" if len(raw) > 80 else "")
        return f"Event({self.topic}#{self.seq} {self.kind!r}{key} {shown})"

    def __reduce__(self) -> tuple[Callable[..., Event], tuple[str, bytes]]:
        return _restore, (self.topic, self._rows.extract(self._row))


class Failure(Protocol):
    """Why a message was given up."""

    @property
    def error(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def at(self) -> datetime | None: ...


class GivenUpEvent(Event, frozen=True, eq=False, gc=False, weakref=False):
    """The event of a message that was given up, with the reason."""

    failure: Failure

    @classmethod
    def of(cls, event: Event, failure: Failure) -> GivenUpEvent:
        """Returns the event together with its failure."""
        return cls(event._rows, event._row, failure)


class TypedEvent(Event[PayloadT], frozen=True, eq=False, gc=False, weakref=False):
    """An event that was read through a handle with a type for its payloads. Pickled, it is a plain event again."""

    _type: PayloadSchema[PayloadT]

    @property
    def payload(self) -> PayloadT:
        """The payload as a value of the handle's type; PoisonMessage names the field that does not fit."""
        return self._type.decode(self)


def _restore(topic: str, block: bytes) -> Event:
    from penstock.core.journal.blocks import read_block

    return Event(read_block(block, topic), 0)


class _DraftHead(msgspec.Struct):
    kind: Any
    payload: Any = None


class Draft(_DraftHead, kw_only=True):
    """An event not yet appended. `kind` may also be an instance of a declared event type; then `payload` is omitted."""

    topic: str | None = None
    key: str | None = None
    scope: str | None = None
    headers: Mapping[str, str] | None = None
    occurred_at: datetime | None = None
    dedup: str | None = None
    cause: Event | Receipt | str | int | None = None
    correlation: str | None = None
    expect: int | None = None
    tags: Iterable[str] | None = None
    unless: EventQuery | Sequence[EventQuery] | None = None
    after: int | None = None


class PayloadType(PayloadSchema[PayloadT]):
    """The type of a handle's payloads: written payloads are checked, read payloads are decoded on access."""

    __slots__ = ()

    def drafts(self, drafts: Iterable[Draft]) -> list[Draft]:
        """Drafts whose payloads fit."""
        found = []
        for draft in check_items(drafts, "drafts"):
            if not isinstance(draft, Draft):
                raise ConfigError(f"drafts are made with Draft(kind, payload), not {draft!r:.80}")
            kind, payload = self.draft(draft.kind, draft.payload)
            found.append(msgspec.structs.replace(draft, kind=kind, payload=payload))
        return found

    def messages(self, payloads: list[object], kind: str) -> list[object]:
        """Payloads that fit, drafts among them."""
        found: list[object] = []
        for one in payloads:
            if isinstance(one, Draft):
                found += self.drafts([one])
            else:
                found.append(self.accept(one, kind))
        return found

    def typed(self, event: Event) -> Event[PayloadT]:
        """Returns an event whose payload is of the type."""
        return TypedEvent(event._rows, event._row, self)

    def typed_all(self, events: list[Event]) -> list[Event[PayloadT]]:
        """Returns the events with typed payloads, as `typed` does for a single event."""
        return list(map(self.typed, events))


class Receipt(msgspec.Struct, frozen=True, eq=False, gc=False, weakref=False):
    """Proof of an append: the position and the id of the event."""

    topic: str
    seq: int
    _number: int
    correlation_id: str | None = None
    duplicate: bool = False

    @property
    def id(self) -> str:
        """The event's id; of the original event when `duplicate` is True."""
        return format_id(self._number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return (self.topic, self.seq, self._number) == (other.topic, other.seq, other._number)

    def __hash__(self) -> int:
        return hash((self.topic, self._number))

    def __repr__(self) -> str:
        duplicate = ", duplicate" if self.duplicate else ""
        return f"Receipt({self.topic}#{self.seq} {self.id}{duplicate})"


def format_id(number: int) -> str:
    """Returns a 128-bit id in the usual spelling of a UUID."""
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse_id(text: str) -> int | None:
    """Returns the number behind an id's text, or None when it is not a UUID."""
    plain = text.replace("-", "")
    return int(plain, 16) if _HEX_ID.fullmatch(plain) else None
