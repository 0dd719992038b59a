"""Messages over the wire: pushed, listed, looked at, given up; none of these takes one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.documents.events import DraftDocument, EventDocument, ReceiptDocument
from penstock.errors import QueueFull, UnknownQueue
from penstock.events import Event
from penstock.observe.sample import FailedMessage
from penstock.protocol.journal import EventList, Receipts
from penstock.protocol.operation import WRITTEN, After, Count, Limit, Operation
from penstock.protocol.queues import QUEUE, GroupQuery
from penstock.queue.inspect import ListedMessage, MessageState, QueueMessage
from penstock.surface.failure import Attempt

M = TypeVar("M")
"""A message, or one that was given up: a value here, a document on the wire."""


class MessageQuery(msgspec.Struct, omit_defaults=True):
    state: Annotated[MessageState | None, Meta(description="only messages in this state")] = None
    group: Annotated[str | None, Meta(description="as this group has them")] = None
    key: Annotated[str | None, Meta(description="only messages of this ordering key")] = None
    after: After = 0
    limit: Limit = None


class PeekQuery(GroupQuery):
    limit: Annotated[Count, Meta(description="how many at the most")] = 1


class DeadLetterQuery(msgspec.Struct, omit_defaults=True):
    after: Annotated[str, Meta(description="behind which letter to go on: `next` of the page before")] = ""
    limit: Limit = None


class FailedQuery(GroupQuery):
    after: After = 0
    limit: Limit = None


class PushRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message to push; several share everything but what their drafts say."""

    payload: Any = None
    kind: str = "message"
    key: str | None = None
    priority: int | Literal["front"] = 0
    """In a queue that has priorities; "front" in any: before all that wait."""
    delay: float = 0
    not_before: datetime | None = None
    dedup: str | None = None
    max_attempts: int | None = None
    headers: dict[str, str] | None = None
    cause: str | None = None
    binary: bool = False
    payloads: list[Any] | None = None
    """Several payloads that share everything else."""
    messages: list[DraftDocument] | None = None
    """Several messages, each with its own kind, key, dedup, headers and cause."""


class MessageDocument(ListedMessage[EventDocument], frozen=True):
    """A message that is not settled, as one group has it."""


class MessagePage(msgspec.Struct, Generic[M]):
    """Some messages; ask again with after=… set to `next`, which is null at the end."""

    messages: list[M]
    next: int | None = None


class FailureDocument(msgspec.Struct):
    """A message that was given up, and why."""

    queue: str
    attempts: int
    reason: str
    error: str | None
    at: datetime | None
    event: EventDocument
    traceback: str | None = None
    failed_attempts: list[Attempt] = []
    """The newest ten, the oldest of them first."""


WRITTEN[QueueMessage] = MessageDocument
WRITTEN[FailedMessage] = FailureDocument


class FailedList(msgspec.Struct, Generic[M]):
    failed: list[M]
    next: int | None = None


class DeadLetterList(msgspec.Struct, Generic[M]):
    dead: list[M]
    next: str | None = None


LIST_MESSAGES = Operation(
    "list_messages",
    "GET",
    QUEUE + "/messages",
    "Everything not settled, with its state, in order of position, a page at a time",
    role="read",
    query=MessageQuery,
    answer=MessagePage[QueueMessage],
    errors=(UnknownQueue,),
)
PUSH_MESSAGES = Operation(
    "push_messages",
    "POST",
    QUEUE + "/messages",
    "Pushes a message, or several",
    role="write",
    body=PushRequest,
    answer=Receipts,
    also=(ReceiptDocument,),
    status=201,
    errors=(UnknownQueue, QueueFull),
)
READ_MESSAGE = Operation(
    "read_message",
    "GET",
    QUEUE + "/messages/{seq}",
    "One message, without taking it",
    role="read",
    answer=Event,
    errors=(UnknownQueue,),
    missing="UnknownEvent",
)
PEEK_MESSAGES = Operation(
    "peek_messages",
    "GET",
    QUEUE + "/peek",
    "What would be taken next",
    role="read",
    query=PeekQuery,
    answer=EventList[Event],
    errors=(UnknownQueue,),
)
LIST_FAILED = Operation(
    "list_failed",
    "GET",
    QUEUE + "/failed",
    "Messages given up, with the reason",
    role="read",
    query=FailedQuery,
    answer=FailedList[FailedMessage],
    errors=(UnknownQueue,),
)
LIST_DEAD_LETTERS = Operation(
    "list_dead_letters",
    "GET",
    QUEUE + "/dead",
    "Dead letters, with the reason",
    role="read",
    query=DeadLetterQuery,
    answer=DeadLetterList[FailedMessage],
    errors=(UnknownQueue,),
)

OPERATIONS: tuple[Operation[object], ...] = (
    LIST_MESSAGES,
    PUSH_MESSAGES,
    READ_MESSAGE,
    PEEK_MESSAGES,
    LIST_FAILED,
    LIST_DEAD_LETTERS,
)
