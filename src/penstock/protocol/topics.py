"""Topics over the wire: append, read, follow, cursors, settings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, Literal

import msgspec
from msgspec import Meta

from penstock.documents.cloudevents import BATCH, BINARY, STRUCTURED
from penstock.documents.events import DraftDocument, ReceiptDocument
from penstock.errors import Conflict, FenceActive, PositionTrimmed, TopicInUse, UnknownTopic
from penstock.events import Event
from penstock.journal.catalog import Settings
from penstock.journal.dropping import DropReport
from penstock.journal.upkeep import CompactReport
from penstock.protocol.fields import SettingsFields
from penstock.protocol.journal import TIME, E, FilterQuery, Receipts
from penstock.protocol.operation import ARROW, JSON, LINES, SSE, After, Count, Limit, Operation


class ReadQuery(FilterQuery, omit_defaults=True, kw_only=True):
    after: After = 0
    through: Annotated[Count | None, Meta(description="the last position wanted")] = None
    limit: Limit = None
    since: Annotated[str | None, Meta(description=f"only events recorded since {TIME}")] = None
    until: Annotated[str | None, Meta(description=f"only events recorded before {TIME}")] = None
    reverse: Annotated[bool, Meta(description="newest first")] = False
    payload: Annotated[Literal["string", "binary"], Meta(description="the payload column's type, for Arrow")] = "string"


class LiveQuery(FilterQuery, omit_defaults=True, kw_only=True):
    after: Annotated[Count | Literal["latest"], Meta(description="exclusive, or latest; Last-Event-ID goes first")] = 0


class PositionQuery(msgspec.Struct, omit_defaults=True):
    time: Annotated[str, Meta(description=TIME)] = ""


class TopicNames(msgspec.Struct):
    topics: list[str]


class TopicDocument(msgspec.Struct):
    """A topic: its ends, its consumers, its settings."""

    name: str
    events: int
    oldest: int
    latest: int
    cursors: dict[str, int]
    settings: Settings


class EventPage(msgspec.Struct, Generic[E]):
    """Some events; ask again with after=… (reading backwards: through=…) set to `next`, which is null at the end."""

    events: list[E]
    next: int | None
    latest: int


class PositionDocument(msgspec.Struct):
    position: int


class CursorDocument(msgspec.Struct):
    """How far a consumer has come."""

    consumer: str
    position: int | None
    lag: int
    moved_at: datetime | None = None
    """When the cursor last moved."""


class CursorList(msgspec.Struct):
    cursors: list[CursorDocument]
    latest: int


class CursorChange(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where to: a position, a time, or one of the ends. `seek` may go back; a commit never does."""

    position: Count | None = None
    time: str | None = None
    to: Literal["start", "end"] | None = None
    seek: bool = False


class Forgotten(msgspec.Struct):
    forgotten: bool


class CompactRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What may go: everything through a position, or all but the newest event of every key."""

    through: Count | None = None
    keys: bool = False
    force: bool = False


class DropTopicQuery(msgspec.Struct, omit_defaults=True):
    force: Annotated[bool, Meta(description="also with cursors, sealed files, or a queue")] = False


_TOPIC = "/topics/{topic}"
_CURSOR = _TOPIC + "/cursors/{consumer}"

LIST_TOPICS = Operation("list_topics", "GET", "/topics", "The names of all topics", role="read", answer=TopicNames)
READ_TOPIC = Operation(
    "read_topic", "GET", _TOPIC, "One topic: its ends, its consumers, its settings", role="read", answer=TopicDocument
)
CONFIGURE_TOPIC = Operation(
    "configure_topic",
    "PATCH",
    _TOPIC + "/settings",
    "Changes what a topic keeps",
    role="admin",
    body=SettingsFields,
    answer=Settings,
)
DROP_TOPIC = Operation(
    "drop_topic",
    "DELETE",
    _TOPIC,
    "Removes a topic and everything that belongs to it",
    role="admin",
    query=DropTopicQuery,
    answer=DropReport,
    errors=(UnknownTopic, TopicInUse, FenceActive),
)
READ_EVENTS = Operation(
    "read_events",
    "GET",
    _TOPIC + "/events",
    "Events after a position: a page of JSON or CloudEvents, a stream of lines, or Arrow record batches",
    role="read",
    query=ReadQuery,
    answer=EventPage[Event],
    media=(JSON, LINES, ARROW, BATCH),
    errors=(PositionTrimmed,),
)
APPEND_EVENTS = Operation(
    "append_events",
    "POST",
    _TOPIC + "/events",
    "Appends one event or many, or CloudEvents, all or nothing; `dedup` makes a repeat harmless",
    role="write",
    body=DraftDocument | list[DraftDocument],
    answer=Receipts,
    also=(ReceiptDocument,),
    status=201,
    errors=(Conflict, FenceActive),
    on_system=True,
)
READ_EVENT = Operation(
    "read_event",
    "GET",
    _TOPIC + "/events/{event}",
    "One event by its position or its id",
    role="read",
    answer=Event,
    media=(JSON, STRUCTURED, BINARY),
    missing="UnknownEvent",
)
FOLLOW_TOPIC = Operation(
    "follow_topic",
    "GET",
    _TOPIC + "/live",
    "Follows a topic; resumes after Last-Event-ID",
    role="read",
    query=LiveQuery,
    answer=Event,
    media=(SSE,),
    errors=(PositionTrimmed,),
)
FIND_POSITION = Operation(
    "find_position",
    "GET",
    _TOPIC + "/position",
    "The last position before a time",
    role="read",
    query=PositionQuery,
    answer=PositionDocument,
)
LIST_CURSORS = Operation(
    "list_cursors",
    "GET",
    _TOPIC + "/cursors",
    "Every consumer and how far it has come",
    role="read",
    answer=CursorList,
)
READ_CURSOR = Operation(
    "read_cursor", "GET", _CURSOR, "One consumer's cursor and lag", role="read", answer=CursorDocument
)
MOVE_CURSOR = Operation(
    "move_cursor",
    "PUT",
    _CURSOR,
    "Commits a position (never back), or with `seek` moves anywhere",
    role="write",
    body=CursorChange,
    answer=CursorDocument,
    on_system=True,
)
FORGET_CURSOR = Operation(
    "forget_cursor", "DELETE", _CURSOR, "Forgets a consumer", role="write", answer=Forgotten, on_system=True
)
COMPACT_TOPIC = Operation(
    "compact_topic",
    "POST",
    _TOPIC + "/compact",
    "Removes history",
    role="admin",
    body=CompactRequest,
    answer=CompactReport,
)

OPERATIONS: tuple[Operation[object], ...] = (
    LIST_TOPICS,
    READ_TOPIC,
    CONFIGURE_TOPIC,
    DROP_TOPIC,
    READ_EVENTS,
    APPEND_EVENTS,
    READ_EVENT,
    FOLLOW_TOPIC,
    FIND_POSITION,
    LIST_CURSORS,
    READ_CURSOR,
    MOVE_CURSOR,
    FORGET_CURSOR,
    COMPACT_TOPIC,
)
