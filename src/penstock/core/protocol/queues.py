"""Queues over the wire: policies and numbers, messages, deliveries under leases, groups, schedules, and repair."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, UnsetType

from penstock.core.documents.events import DraftDocument, EventDocument, ReceiptDocument
from penstock.core.events import Event
from penstock.core.model.calls import GatherRequest
from penstock.core.model.durations import Seconds
from penstock.core.model.failure import NackRequest
from penstock.core.model.push import PushOptions
from penstock.core.model.take import Outcome, TakeRequest
from penstock.core.observe.sample import FailedMessage, GivenUpMessage
from penstock.core.protocol.fields import PolicyFields
from penstock.core.protocol.operation import WRITTEN, After, Count, Limit, Operation, Rehearsal, declared_operations
from penstock.core.protocol.topics import EventList
from penstock.core.queue.inspect import (
    ListedMessage,
    MessageState,
    PendingDelivery,
    QueueConsumer,
    QueueMessage,
    QueueStats,
)
from penstock.core.queue.operations.groups import Pause
from penstock.core.queue.operations.repair import LettersLeft
from penstock.core.queue.schedule import Schedule
from penstock.core.queue.tasks.state import TaskState, TaskTimes
from penstock.errors import PolicyMismatch, QueueFull, StaleDelivery

MOST_TAKEN = 10_000
"""The most messages of one take."""

Group = Annotated[str, Meta(description="the group; default unless given")]


class GroupQuery(msgspec.Struct, omit_defaults=True):
    group: Group = "default"


class QueueDocument(msgspec.Struct):
    """A queue: its policy, its groups, its numbers."""

    name: str
    length: int
    policy: PolicyFields
    groups: list[str]
    stats: dict[str, QueueStats]
    """The statistics by group; a work queue has one group, "default"."""
    pauses: list[Pause] = []
    """The pauses of the whole queue, and of single groups."""


class NewGroup(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    after: Count | Literal["latest"] = 0


class NewSchedule(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A periodic message: by seconds, or by a cron line."""

    name: str
    interval: Seconds | None = None
    cron: str | None = None
    payload: Any = None
    binary: bool = False
    timezone: str = "UTC"
    missed: Literal["all", "last", "none"] = "last"
    kind: str = "message"
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0


class RedriveRequest(Rehearsal, forbid_unknown_fields=True, omit_defaults=True):
    """The messages to send back: messages that match `where`, or messages with these ids, or all."""

    to: str | None = None
    limit: Count | None = None
    where: str | None = None
    ids: list[str] | None = None


class RedriveAnswer(msgspec.Struct, omit_defaults=True):
    """The number of messages that were sent back, or with `dry_run` would be; and the letters that can go nowhere."""

    redriven: int | UnsetType = msgspec.UNSET
    would_redrive: int | UnsetType = msgspec.UNSET
    left: tuple[LettersLeft, ...] = ()


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The group to pause or resume; null for the whole queue."""

    group: str | None = None


class PauseAnswer(msgspec.Struct):
    """The answer of a pause: whether it changed anything, and the current pauses."""

    changed: bool
    pauses: list[Pause]


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    to: str
    limit: Count | None = None
    where: str | None = None
    ids: list[str] | None = None


class DiscardRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The positions of messages that are not in flight."""

    seqs: list[Count]


class RunNowRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The positions of delayed messages, for one group; null for all groups."""

    seqs: list[Count]
    group: str | None = None


M = TypeVar("M")
"""A message or a given-up message: a value here, a document on the wire."""


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


class PushRequest(PushOptions, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to push; several messages share all fields except the fields of their drafts."""

    delay: Seconds = 0
    headers: dict[str, str] | None = None
    cause: str | None = None
    payload: Any = None
    binary: bool = False
    payloads: list[Any] | None = None
    """Several payloads, which share all other fields."""
    messages: list[DraftDocument] | None = None
    """Several messages, each with its own kind, key, dedup, headers and cause."""


class MessageDocument(ListedMessage[EventDocument], frozen=True):
    """An unsettled message in one group."""


class MessagePage(msgspec.Struct, Generic[M]):
    """A page of messages; request the next page with after=… set to `next`, which is null at the end."""

    messages: list[M]
    next: int | None = None


class FailureDocument(GivenUpMessage[EventDocument], frozen=True):
    """A given-up message with its reason."""


WRITTEN[QueueMessage] = MessageDocument
WRITTEN[FailedMessage] = FailureDocument


class FailedList(msgspec.Struct, Generic[M]):
    failed: list[M]
    next: int | None = None


class DeadLetterList(msgspec.Struct, Generic[M]):
    dead: list[M]
    next: str | None = None


class PendingQuery(msgspec.Struct, omit_defaults=True):
    group: Annotated[str | None, Meta(description="of this group only")] = None
    limit: Limit = None


class LeaveRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The consumer that has ended."""

    consumer: str
    group: str = "default"


class ClaimRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The deliveries to take over, which no consumer has extended for `min_idle` seconds."""

    min_idle: Seconds
    group: str = "default"
    consumer: str | None = None
    limit: int = 1
    lease: Seconds | None = None


class DeliveryDocument(msgspec.Struct):
    """A message under a lease."""

    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: EventDocument


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[str]


class AckResult(msgspec.Struct, forbid_unknown_fields=True):
    """The result for the pusher of a message with `reply=True`."""

    result: Any = None


class NextRequest(TakeRequest, omit_defaults=True):
    """The message to take next, and the result for the pusher of the message before with `reply=True`."""

    result: Any = None


class ExtendRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    lease: Seconds | None = None


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The time at which the message is ready again: after `delay` seconds."""

    delay: Seconds = 0.0


class StepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a step."""

    name: str
    result: Any = None


class ProgressRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The progress of a handler, from 0 to 1, and the step that it is in."""

    share: float
    text: str | None = None
    step: str | None = None


class Settled(msgspec.Struct, omit_defaults=True):
    settled: Literal["ack", "nack", "release", "nothing"]
    outcome: Outcome | None = None
    """The new state of a message that was given back: ready or waiting again, a dead letter, failed, or gone."""


_STALE = (StaleDelivery,)

LIST_QUEUES = Operation("GET /queues -> queues", "read", None, list[str], "The names of all queues")
READ_QUEUE = Operation(
    "GET /queues/{queue}", "read", None, QueueDocument, "One queue: its policy, its groups, its numbers"
)
OPEN_QUEUE = Operation(
    "PUT /queues/{queue}",
    "write",
    PolicyFields,
    QueueDocument,
    "Makes a queue; another policy than the stored one is refused, and a topic with a history needs the role admin",
    errors=(PolicyMismatch,),
)
CONFIGURE_QUEUE = Operation(
    "PATCH /queues/{queue}",
    "admin",
    PolicyFields,
    PolicyFields,
    "Changes a queue's policy",
    errors=(PolicyMismatch,),
)
DROP_QUEUE = Operation("DELETE /queues/{queue} -> removed", "admin", None, int, "Removes a queue with its messages")
READ_QUEUE_STATS = Operation(
    "GET /queues/{queue}/stats", "read", GroupQuery, QueueStats, "How many messages are in which state"
)
ADD_GROUP = Operation("POST /queues/{queue}/groups -> groups", "write", NewGroup, list[str], "Adds a group", status=201)
REMOVE_GROUP = Operation("DELETE /queues/{queue}/groups/{group} -> removed", "admin", None, bool, "Forgets a group")
LIST_SCHEDULES = Operation(
    "GET /queues/{queue}/schedules -> schedules", "read", None, list[Schedule], "Periodic messages"
)
ADD_SCHEDULE = Operation(
    "POST /queues/{queue}/schedules", "write", NewSchedule, Schedule, "Adds a periodic message", status=201
)
REMOVE_SCHEDULE = Operation(
    "DELETE /queues/{queue}/schedules/{schedule} -> removed", "write", None, bool, "Removes a periodic message"
)
REDRIVE_QUEUE = Operation(
    "POST /queues/{queue}/redrive",
    "admin",
    RedriveRequest,
    RedriveAnswer,
    "Sends dead letters and failed messages back",
)
MOVE_MESSAGES = Operation(
    "POST /queues/{queue}/move -> moved",
    "admin",
    MoveRequest,
    int,
    "Moves messages that are not in flight to another queue",
)
DISCARD_MESSAGES = Operation(
    "POST /queues/{queue}/discard -> discarded",
    "admin",
    DiscardRequest,
    int,
    "Settles messages that are not in flight, by their positions",
)
RUN_NOW = Operation(
    "POST /queues/{queue}/run-now -> made_ready",
    "admin",
    RunNowRequest,
    int,
    "Makes delayed messages ready at once, by their positions",
)
PURGE_QUEUE = Operation("POST /queues/{queue}/purge -> removed", "admin", None, int, "Removes every message")
PAUSE_QUEUE = Operation(
    "POST /queues/{queue}/pause",
    "admin",
    PauseRequest,
    PauseAnswer,
    "Hands nothing out any more, to one group or to all",
)
RESUME_QUEUE = Operation(
    "POST /queues/{queue}/resume", "admin", PauseRequest, PauseAnswer, "Ends a pause: takes that wait wake up"
)

LIST_MESSAGES = Operation(
    "GET /queues/{queue}/messages",
    "read",
    MessageQuery,
    MessagePage[QueueMessage],
    "Everything not settled, with its state, in order of position, a page at a time",
)
PUSH_MESSAGES = Operation(
    "POST /queues/{queue}/messages -> receipts",
    "write",
    PushRequest,
    list[ReceiptDocument],
    "Pushes a message, or several",
    also=(ReceiptDocument,),
    status=201,
    errors=(QueueFull,),
    commits=True,
)
READ_MESSAGE = Operation(
    "GET /queues/{queue}/messages/{seq}", "read", None, Event, "One message, without taking it", missing="UnknownEvent"
)
PEEK_MESSAGES = Operation(
    "GET /queues/{queue}/peek", "read", PeekQuery, EventList[Event], "The messages that would be taken next"
)
LIST_FAILED = Operation(
    "GET /queues/{queue}/failed", "read", FailedQuery, FailedList[FailedMessage], "Messages given up, with the reason"
)
LIST_DEAD_LETTERS = Operation(
    "GET /queues/{queue}/dead", "read", DeadLetterQuery, DeadLetterList[FailedMessage], "Dead letters, with the reason"
)

TAKE_MESSAGES = Operation(
    "POST /queues/{queue}/take -> deliveries",
    "write",
    TakeRequest,
    list[DeliveryDocument],
    "Takes messages under a lease; waits for the first",
)
CLAIM_DELIVERIES = Operation(
    "POST /queues/{queue}/claim -> deliveries",
    "write",
    ClaimRequest,
    list[DeliveryDocument],
    "Takes over deliveries that no consumer extended",
)
ACK_DELIVERIES = Operation(
    "POST /queues/{queue}/ack -> acknowledged",
    "write",
    AckRequest,
    int,
    "Settles several deliveries in one commit",
    commits=True,
)
READ_DELIVERY = Operation(
    "GET /queues/{queue}/deliveries/{token}", "read", None, DeliveryDocument, "One delivery", errors=_STALE
)
ACK_DELIVERY = Operation(
    "POST /queues/{queue}/deliveries/{token}/ack",
    "write",
    AckResult,
    Settled,
    "Settles a delivery",
    errors=_STALE,
    commits=True,
)
ACK_AND_TAKE = Operation(
    "POST /queues/{queue}/deliveries/{token}/next -> deliveries",
    "write",
    NextRequest,
    list[DeliveryDocument],
    "Settles a delivery and takes the next messages, in one commit if there are any; else waits for the first",
    errors=_STALE,
)
NACK_DELIVERY = Operation(
    "POST /queues/{queue}/deliveries/{token}/nack",
    "write",
    NackRequest,
    Settled,
    "Gives a message back, or up",
    errors=_STALE,
)
EXTEND_DELIVERY = Operation(
    "POST /queues/{queue}/deliveries/{token}/extend -> deadline",
    "write",
    ExtendRequest,
    datetime,
    "Keeps a message for longer",
    errors=_STALE,
)
RELEASE_DELIVERY = Operation(
    "POST /queues/{queue}/deliveries/{token}/release",
    "write",
    ReleaseRequest,
    Settled,
    "Gives a message back without counting the attempt; a lease that is lost is no error",
)
LIST_STEPS = Operation(
    "GET /queues/{queue}/deliveries/{token}/steps -> steps",
    "read",
    None,
    dict[str, Any],
    "The results of a message's steps in this attempt and earlier attempts, by name",
    errors=_STALE,
)
STORE_STEP = Operation(
    "POST /queues/{queue}/deliveries/{token}/steps -> stored",
    "write",
    StepRequest,
    bool,
    "Keeps what a step returned: a later attempt need not repeat it",
    errors=_STALE,
)
NOTE_PROGRESS = Operation(
    "POST /queues/{queue}/deliveries/{token}/progress -> stored",
    "write",
    ProgressRequest,
    bool,
    "Says how far a message's handler is",
    errors=_STALE,
)
LIST_PENDING = Operation(
    "GET /queues/{queue}/pending -> pending", "read", PendingQuery, list[PendingDelivery], "Deliveries in flight"
)
LEAVE_QUEUE = Operation(
    "POST /queues/{queue}/leave -> listed",
    "write",
    LeaveRequest,
    bool,
    "Says that a consumer has ended; what it holds stays with it until its leases end",
)
LIST_CONSUMERS = Operation(
    "GET /queues/{queue}/consumers -> consumers",
    "read",
    None,
    list[QueueConsumer],
    "Workers, and other consumers that gave their name",
)

READ_TASK = Operation(
    "GET /tasks/{id}",
    "read",
    None,
    TaskState,
    "The state of a task's call, or of another message whose outcome is kept, by the id of its receipt",
    missing="UnknownTask",
)
PUSH_TOGETHER = Operation(
    "POST /tasks -> receipts",
    "write",
    GatherRequest,
    list[ReceiptDocument],
    "Pushes calls together, and what follows when all of them have returned",
    status=201,
    errors=(QueueFull,),
)
LIST_TASK_TIMES = Operation(
    "GET /queues/{queue}/tasks -> tasks",
    "read",
    None,
    list[TaskTimes],
    "How long the calls of each task took, in this hour and the one before",
)

OPERATIONS = declared_operations(globals())
