"""Topics over the wire, and the journal as a whole: append, read, follow, cursors, settings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.core.documents.cloudevents import BATCH, BINARY, STRUCTURED
from penstock.core.documents.events import DraftDocument, ReceiptDocument
from penstock.core.events import Event
from penstock.core.journal.catalog import Settings
from penstock.core.journal.description import Description, Pressure
from penstock.core.journal.upkeep.dropping import DropReport
from penstock.core.journal.upkeep.erasing import EraseReport
from penstock.core.journal.upkeep.retention import CompactReport
from penstock.core.observe.sample import Sample
from penstock.core.protocol.fields import SettingsFields
from penstock.core.protocol.operation import (
    ARROW,
    JSON,
    LINES,
    SSE,
    After,
    Count,
    Limit,
    Operation,
    Role,
    declared_operations,
)
from penstock.errors import Conflict, FenceActive, PositionTrimmed, QueueFull, TopicInUse, UnknownTopic

E = TypeVar("E")
"""An event: an `Event` here, a document on the wire."""

TIME = "a time (ISO 8601), or how long ago: 15m, 1h, 7d"


class JournalDocument(Description, kw_only=True, frozen=True):
    """The description of a served journal."""

    version: str
    """Of the server's penstock."""
    id: str
    """The store's own: the same wherever, and under whatever address, the store is served."""
    pressure: Pressure
    staging: list[str] = []
    """Places in object stores from which blocks of new events are fetched: `stage_object`."""
    lakes: list[str] = []
    """Places that it seals to when a client asks for it: `seal_topic`."""
    role: Role = "read"
    """The role of the sender's token."""


class CausesQuery(msgspec.Struct, omit_defaults=True):
    after: Annotated[str | None, Meta(description="the `next` of the page before")] = None
    limit: Limit = None


class FilterQuery(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The wanted events, beyond positions."""

    kind: Annotated[list[str], Meta(description="only events of this kind; may be given several times")] = []
    key: Annotated[str | None, Meta(description="only events of this entity")] = None
    key_prefix: Annotated[str | None, Meta(description="only events whose key begins so")] = None
    scope: Annotated[str | None, Meta(description="only events of this scope")] = None
    tag: Annotated[list[str], Meta(description="only events with this tag; given several times: with all of them")] = []
    where: Annotated[str | None, Meta(description="only events for which this condition holds: payload.total > 10")] = (
        None
    )


class HistoryQuery(FilterQuery, omit_defaults=True, kw_only=True):
    """The wanted events of what is there."""

    limit: Limit = None
    since: Annotated[str | None, Meta(description=f"only events recorded since {TIME}")] = None
    until: Annotated[str | None, Meta(description=f"only events recorded before {TIME}")] = None
    reverse: Annotated[bool, Meta(description="newest first")] = False


Topics = Annotated[list[str], Meta(description="names, and patterns like shop.*; none: all but penstock's own")]
AfterEach = Annotated[dict[str, Count], Meta(description="by topic, the position to go on from, exclusive")]


class AcrossRequest(HistoryQuery, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The wanted events of the wanted topics."""

    topics: Topics = []
    after: AfterEach = {}
    through: Annotated[dict[str, Count] | None, Meta(description="by topic, the last position wanted")] = None


class AcrossFollow(FilterQuery, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The wanted events of the wanted topics, as they come."""

    topics: Topics = []
    after: AfterEach = {}
    latest: Annotated[bool, Meta(description="only what comes from now on")] = False


class AcrossPage(msgspec.Struct, Generic[E]):
    """A page of the events of several topics, in the order of recording.

    For the next page, send `next` as `after` (reading backwards: as `through`); it is null at the end. `ends` are the
    positions where the topics end: sent back as `through`, all pages are of one state of the journal, and a topic that
    was read to its end is not asked again. One request reads at most 10,000 topics.
    """

    events: list[E]
    next: dict[str, int] | None
    ends: dict[str, int]


class PositionsDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A position in each of some topics."""

    positions: dict[str, Count]


class EventList(msgspec.Struct, Generic[E], omit_defaults=True):
    events: list[E]
    next: str | None = None
    """The token of the next page, where there are more events than fit: ask again with after=… set to it."""


class ReadQuery(HistoryQuery, omit_defaults=True, kw_only=True):
    after: After = 0
    through: Annotated[Count | None, Meta(description="the last position wanted")] = None
    payload: Annotated[Literal["string", "binary"], Meta(description="the payload column's type, for Arrow")] = "string"


class AppendQuery(msgspec.Struct, omit_defaults=True):
    patient: Annotated[bool, Meta(description="false: when the writer is behind, the answer is 503 at once")] = True


class LiveQuery(FilterQuery, omit_defaults=True, kw_only=True):
    after: Annotated[Count | Literal["latest"], Meta(description="exclusive, or latest; Last-Event-ID goes first")] = 0


class PositionQuery(msgspec.Struct, omit_defaults=True):
    time: Annotated[str, Meta(description=TIME)] = ""


class TopicDocument(msgspec.Struct):
    """A topic: its ends, its consumers, its settings."""

    name: str
    events: int
    oldest: int
    latest: int
    cursors: dict[str, int]
    settings: Settings


class EventPage(msgspec.Struct, Generic[E]):
    """A page of events; ask again with after=… (reading backwards: through=…) set to `next`, which is null at the
    end.he end."""

    events: list[E]
    next: int | None
    latest: int


class LeftQuery(msgspec.Struct, omit_defaults=True):
    after: After = 0


class CursorDocument(msgspec.Struct):
    """The position of a consumer."""

    consumer: str
    position: int | None
    lag: int
    """The number of events that the consumer has left to read."""
    moved_at: datetime | None = None
    """The time when the cursor last moved."""


class CursorList(msgspec.Struct):
    cursors: list[CursorDocument]
    latest: int


class CursorChange(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The target of a cursor: a position, a time, or one of the ends. `seek` may go back; a commit never does."""

    position: Count | None = None
    time: str | None = None
    to: Literal["start", "end"] | None = None
    seek: bool = False


class CompactRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The history to remove: everything through a position, or all but the newest event of every key."""

    through: Count | None = None
    keys: bool = False
    force: bool = False


class EraseRequest(FilterQuery, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The events to erase, by position or by what they say; with `fields`, to mask."""

    seqs: Annotated[list[Count] | None, Meta(description="only the events at these positions")] = None
    fields: Annotated[
        list[str], Meta(description="the fields of the payload to blank (address.street), and nothing else")
    ] = []
    by: Annotated[str | None, Meta(description="who asks for it: said in every event that is erased")] = None


class DropTopicQuery(msgspec.Struct, omit_defaults=True):
    force: Annotated[bool, Meta(description="also with cursors, sealed files, or a queue")] = False


DESCRIBE_JOURNAL = Operation("GET ", "read", None, JournalDocument, "The description of the served journal")
READ_OPENAPI = Operation("GET /openapi.json", None, None, dict[str, Any], "This document")
READ_STATS = Operation("GET /stats", "read", None, Sample, "Every topic and queue with rates, backlogs and lags")
FOLLOW_STATS = Operation("GET /stats/live", "read", None, Sample, "The same, whenever it changes", media=(SSE,))
FLUSH_JOURNAL = Operation("POST /flush -> flushed", "write", None, bool, "Returns when everything submitted is on disk")
MAINTAIN_JOURNAL = Operation(
    "POST /maintain -> maintained", "admin", None, bool, "Merges small blocks and applies retention, now"
)
APPEND_SEVERAL = Operation(
    "POST /append -> receipts",
    "write",
    list[DraftDocument],
    list[ReceiptDocument],
    "Appends drafts to several topics, all or nothing; each names its topic",
    status=201,
    errors=(Conflict, FenceActive, QueueFull),
    commits=True,
)
READ_CORRELATED = Operation(
    "GET /correlated/{correlation}",
    "read",
    CausesQuery,
    EventList[Event],
    "Every event of a correlation, of all topics, in the order they were recorded; in a page, causes before effects",
    errors=(PositionTrimmed,),
)
READ_ANCESTORS = Operation(
    "GET /ancestors/{event}",
    "read",
    CausesQuery,
    EventList[Event],
    "The event with an id, then its cause, its cause's cause, … in whichever topics they are",
    errors=(PositionTrimmed,),
)
READ_EFFECTS = Operation(
    "GET /effects/{event}",
    "read",
    CausesQuery,
    EventList[Event],
    "The events that the event with an id caused directly, in any topics",
    errors=(PositionTrimmed,),
)
READ_ACROSS = Operation(
    "POST /read",
    "read",
    AcrossRequest,
    AcrossPage[Event],
    "Events of several topics in the order they were recorded, a page of them",
    errors=(PositionTrimmed,),
)
FOLLOW_ACROSS = Operation(
    "POST /follow",
    "read",
    AcrossFollow,
    Event,
    "Follows several topics: what is there, then what comes",
    media=(SSE,),
    errors=(PositionTrimmed,),
)
READ_CURSORS = Operation(
    "GET /cursors/{consumer} -> positions",
    "read",
    None,
    dict[str, int],
    "How far a consumer has come, in every topic where it has a cursor",
)
MOVE_CURSORS = Operation(
    "PUT /cursors/{consumer} -> positions",
    "write",
    PositionsDocument,
    dict[str, int],
    "Commits a position in each of several topics, in one commit; never back",
    on_system=True,
)

LIST_TOPICS = Operation("GET /topics -> topics", "read", None, list[str], "The names of all topics")
READ_TOPIC = Operation(
    "GET /topics/{topic}", "read", None, TopicDocument, "One topic: its ends, its consumers, its settings"
)
CONFIGURE_TOPIC = Operation(
    "PATCH /topics/{topic}/settings", "admin", SettingsFields, Settings, "Changes what a topic keeps"
)
DROP_TOPIC = Operation(
    "DELETE /topics/{topic}",
    "admin",
    DropTopicQuery,
    DropReport,
    "Removes a topic and everything that belongs to it",
    errors=(UnknownTopic, TopicInUse, FenceActive),
)
READ_EVENTS = Operation(
    "GET /topics/{topic}/events",
    "read",
    ReadQuery,
    EventPage[Event],
    "Events after a position: a page of JSON or CloudEvents, a stream of lines, or Arrow record batches",
    media=(JSON, LINES, ARROW, BATCH),
    errors=(PositionTrimmed,),
)
APPEND_EVENTS = Operation(
    "POST /topics/{topic}/events -> receipts",
    "write",
    DraftDocument | list[DraftDocument],
    list[ReceiptDocument],
    "Appends one event or many, or CloudEvents, all or nothing; `dedup` makes a repeat harmless",
    also=(ReceiptDocument,),
    status=201,
    query=AppendQuery,
    errors=(Conflict, FenceActive),
    on_system=True,
    commits=True,
)
READ_EVENT = Operation(
    "GET /topics/{topic}/events/{event}",
    "read",
    None,
    Event,
    "One event by its position or its id",
    media=(JSON, STRUCTURED, BINARY),
    missing="UnknownEvent",
)
FOLLOW_TOPIC = Operation(
    "GET /topics/{topic}/live",
    "read",
    LiveQuery,
    Event,
    "Follows a topic; resumes after Last-Event-ID",
    media=(SSE,),
    errors=(PositionTrimmed,),
)
FIND_POSITION = Operation(
    "GET /topics/{topic}/position -> position", "read", PositionQuery, int, "The last position before a time"
)
READ_LEFT = Operation(
    "GET /topics/{topic}/left -> left", "read", LeftQuery, int, "How many events are left to read after a position"
)
LIST_CURSORS = Operation(
    "GET /topics/{topic}/cursors", "read", None, CursorList, "Every consumer and how far it has come"
)
READ_CURSOR = Operation(
    "GET /topics/{topic}/cursors/{consumer}", "read", None, CursorDocument, "One consumer's cursor and lag"
)
MOVE_CURSOR = Operation(
    "PUT /topics/{topic}/cursors/{consumer}",
    "write",
    CursorChange,
    CursorDocument,
    "Commits a position (never back), or with `seek` moves anywhere",
    on_system=True,
)
FORGET_CURSOR = Operation(
    "DELETE /topics/{topic}/cursors/{consumer} -> forgotten", "write", None, bool, "Forgets a consumer", on_system=True
)
COMPACT_TOPIC = Operation("POST /topics/{topic}/compact", "admin", CompactRequest, CompactReport, "Removes history")
ERASE_EVENTS = Operation(
    "POST /topics/{topic}/erase",
    "admin",
    EraseRequest,
    EraseReport,
    "Erases the contents of events wherever they are stored, or blanks fields of their payloads; positions stay",
    errors=(UnknownTopic,),
)

OPERATIONS = declared_operations(globals())
