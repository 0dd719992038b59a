"""The journal as a whole over the wire: what it is, how it does, and batches over several topics."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from penstock.documents.events import DraftDocument, ReceiptDocument
from penstock.errors import Conflict, FenceActive, PositionTrimmed, QueueFull
from penstock.events import Event
from penstock.journal.description import Description, Pressure
from penstock.observe.sample import Sample
from penstock.protocol.operation import SSE, Count, Limit, Operation, Role

E = TypeVar("E")
"""An event: an `Event` here, a document on the wire."""

TIME = "a time (ISO 8601), or how long ago: 15m, 1h, 7d"


class JournalDocument(Description, kw_only=True, frozen=True):
    """What a served journal is."""

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
    """What the sender's token may do."""


class Flushed(msgspec.Struct):
    flushed: bool


class Maintained(msgspec.Struct):
    maintained: bool


class Receipts(msgspec.Struct):
    """One receipt for each event, in order."""

    receipts: list[ReceiptDocument]


class CausesQuery(msgspec.Struct, omit_defaults=True):
    after: Annotated[str | None, Meta(description="the `next` of the page before")] = None
    limit: Limit = None


class FilterQuery(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Which events, beyond positions."""

    kind: Annotated[list[str], Meta(description="only events of this kind; may be given several times")] = []
    key: Annotated[str | None, Meta(description="only events of this entity")] = None
    key_prefix: Annotated[str | None, Meta(description="only events whose key begins so")] = None
    scope: Annotated[str | None, Meta(description="only events of this scope")] = None
    where: Annotated[str | None, Meta(description="only events for which this condition holds: payload.total > 10")] = (
        None
    )


class AcrossFilter(FilterQuery, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Which events of which topics."""

    topics: Annotated[list[str], Meta(description="names, and patterns like shop.*; none: all but penstock's own")] = []
    after: Annotated[dict[str, Count], Meta(description="by topic, the position to go on from, exclusive")] = {}


class AcrossRequest(AcrossFilter, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    through: Annotated[dict[str, Count] | None, Meta(description="by topic, the last position wanted")] = None
    limit: Limit = None
    since: Annotated[str | None, Meta(description=f"only events recorded since {TIME}")] = None
    until: Annotated[str | None, Meta(description=f"only events recorded before {TIME}")] = None
    reverse: Annotated[bool, Meta(description="newest first")] = False


class AcrossFollow(AcrossFilter, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    latest: Annotated[bool, Meta(description="only what comes from now on")] = False


class AcrossPage(msgspec.Struct, Generic[E]):
    """Some events of several topics, in the order of recording.

    For the next page, send `next` as `after` (reading backwards: as `through`); it is null at the end. `ends` are the
    positions where the topics end: sent back as `through`, all pages are of one state of the journal.
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
    """Where there are more events than fit: ask again with after=… set to it."""


READ_ACROSS = Operation(
    "read_across",
    "POST",
    "/read",
    "Events of several topics in the order they were recorded, a page of them",
    role="read",
    body=AcrossRequest,
    answer=AcrossPage[Event],
    errors=(PositionTrimmed,),
)
FOLLOW_ACROSS = Operation(
    "follow_across",
    "POST",
    "/follow",
    "Follows several topics: what is there, then what comes",
    role="read",
    body=AcrossFollow,
    answer=Event,
    media=(SSE,),
    errors=(PositionTrimmed,),
)
READ_CURSORS = Operation(
    "read_cursors",
    "GET",
    "/cursors/{consumer}",
    "How far a consumer has come, in every topic where it has a cursor",
    role="read",
    answer=PositionsDocument,
)
MOVE_CURSORS = Operation(
    "move_cursors",
    "PUT",
    "/cursors/{consumer}",
    "Commits a position in each of several topics, in one commit; never back",
    role="write",
    body=PositionsDocument,
    answer=PositionsDocument,
    on_system=True,
)
DESCRIBE_JOURNAL = Operation(
    "describe_journal", "GET", "", "What the served journal is", role="read", answer=JournalDocument
)
READ_OPENAPI = Operation("read_openapi", "GET", "/openapi.json", "This document", role=None, answer=dict[str, Any])
READ_STATS = Operation(
    "read_stats", "GET", "/stats", "Every topic and queue with rates, backlogs and lags", role="read", answer=Sample
)
FOLLOW_STATS = Operation(
    "follow_stats",
    "GET",
    "/stats/live",
    "The same, whenever it changes",
    role="read",
    answer=Sample,
    media=(SSE,),
)
FLUSH_JOURNAL = Operation(
    "flush_journal", "POST", "/flush", "Returns when everything submitted is on disk", role="write", answer=Flushed
)
MAINTAIN_JOURNAL = Operation(
    "maintain_journal",
    "POST",
    "/maintain",
    "Merges small blocks and applies retention, now",
    role="admin",
    answer=Maintained,
)
APPEND_SEVERAL = Operation(
    "append_several",
    "POST",
    "/append",
    "Appends drafts to several topics, all or nothing; each names its topic",
    role="write",
    body=list[DraftDocument],
    answer=Receipts,
    status=201,
    errors=(Conflict, FenceActive, QueueFull),
)
READ_CORRELATED = Operation(
    "read_correlated",
    "GET",
    "/correlated/{correlation}",
    "Every event of a correlation, of all topics, in the order they were recorded",
    role="read",
    query=CausesQuery,
    answer=EventList[Event],
)
READ_ANCESTORS = Operation(
    "read_ancestors",
    "GET",
    "/ancestors/{event}",
    "The event with an id, then its cause, its cause's cause, … in whichever topics they are",
    role="read",
    query=CausesQuery,
    answer=EventList[Event],
)
READ_EFFECTS = Operation(
    "read_effects",
    "GET",
    "/effects/{event}",
    "What the event with an id caused directly, in whichever topics that is",
    role="read",
    query=CausesQuery,
    answer=EventList[Event],
)

OPERATIONS: tuple[Operation[object], ...] = (
    DESCRIBE_JOURNAL,
    READ_OPENAPI,
    READ_STATS,
    FOLLOW_STATS,
    FLUSH_JOURNAL,
    MAINTAIN_JOURNAL,
    APPEND_SEVERAL,
    READ_CORRELATED,
    READ_ANCESTORS,
    READ_EFFECTS,
    READ_ACROSS,
    FOLLOW_ACROSS,
    READ_CURSORS,
    MOVE_CURSORS,
)
