"""Queues over the wire: policies and numbers, groups and schedules, and their repair."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, UnsetType

from penstock.errors import PolicyMismatch, UnknownQueue
from penstock.protocol.fields import PolicyFields
from penstock.protocol.operation import Count, Operation
from penstock.queue.inspect import QueueStats
from penstock.queue.operations.groups import Pause
from penstock.queue.operations.repair import LettersLeft
from penstock.queue.run.schedule import Schedule

Group = Annotated[str, Meta(description="the group; default unless given")]


class GroupQuery(msgspec.Struct, omit_defaults=True):
    group: Group = "default"


class QueueNames(msgspec.Struct):
    queues: list[str]


class QueueDocument(msgspec.Struct):
    """A queue: its policy, its groups, its numbers."""

    name: str
    length: int
    policy: PolicyFields
    groups: list[str]
    stats: dict[str, QueueStats]
    """By group; a work queue has one, "default"."""
    pauses: list[Pause] = []
    """Of the whole queue, and of single groups."""


class Removed(msgspec.Struct):
    """How many messages went."""

    removed: int


class WasRemoved(msgspec.Struct):
    """Whether it was there."""

    removed: bool


class NewGroup(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    after: Count | Literal["latest"] = 0


class GroupNames(msgspec.Struct):
    groups: list[str]


class NewSchedule(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A periodic message: every so many seconds, or by a cron line."""

    name: str
    interval: float | None = None
    cron: str | None = None
    payload: Any = None
    binary: bool = False
    timezone: str = "UTC"
    missed: Literal["all", "last", "none"] = "last"
    kind: str = "message"
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0


class ScheduleList(msgspec.Struct):
    schedules: list[Schedule]


class RedriveRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages to send back: those for which `where` holds, or those with these ids, or all."""

    to: str | None = None
    limit: Count | None = None
    where: str | None = None
    ids: list[str] | None = None
    dry_run: bool = False


class RedriveAnswer(msgspec.Struct, omit_defaults=True):
    """How many were sent back, or with `dry_run` would be; and the letters that have nowhere to go."""

    redriven: int | UnsetType = msgspec.UNSET
    would_redrive: int | UnsetType = msgspec.UNSET
    left: tuple[LettersLeft, ...] = ()


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What to pause or resume: one group, or (null) the whole queue."""

    group: str | None = None


class PauseAnswer(msgspec.Struct):
    """Whether that changed anything, and the pauses that hold now."""

    changed: bool
    pauses: list[Pause]


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    to: str
    limit: Count | None = None
    where: str | None = None
    ids: list[str] | None = None


class Moved(msgspec.Struct):
    moved: int


class DiscardRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The positions of messages that are not in flight."""

    seqs: list[Count]


class RunNowRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The positions of delayed messages; for one group, or (null) for all."""

    seqs: list[Count]
    group: str | None = None


class RunNowResult(msgspec.Struct):
    """How many of them became ready."""

    made_ready: int


class Discarded(msgspec.Struct):
    discarded: int


QUEUE = "/queues/{queue}"

LIST_QUEUES = Operation("list_queues", "GET", "/queues", "The names of all queues", role="read", answer=QueueNames)
READ_QUEUE = Operation(
    "read_queue",
    "GET",
    QUEUE,
    "One queue: its policy, its groups, its numbers",
    role="read",
    answer=QueueDocument,
    errors=(UnknownQueue,),
)
OPEN_QUEUE = Operation(
    "open_queue",
    "PUT",
    QUEUE,
    "Makes a queue; another policy than the stored one is refused, and a topic with a history needs the role admin",
    role="write",
    body=PolicyFields,
    answer=QueueDocument,
    errors=(PolicyMismatch,),
)
CONFIGURE_QUEUE = Operation(
    "configure_queue",
    "PATCH",
    QUEUE,
    "Changes a queue's policy",
    role="admin",
    body=PolicyFields,
    answer=PolicyFields,
    errors=(PolicyMismatch, UnknownQueue),
)
DROP_QUEUE = Operation(
    "drop_queue",
    "DELETE",
    QUEUE,
    "Removes a queue with its messages",
    role="admin",
    answer=Removed,
    errors=(UnknownQueue,),
)
READ_QUEUE_STATS = Operation(
    "read_queue_stats",
    "GET",
    QUEUE + "/stats",
    "How many messages are in which state",
    role="read",
    query=GroupQuery,
    answer=QueueStats,
    errors=(UnknownQueue,),
)
ADD_GROUP = Operation(
    "add_group",
    "POST",
    QUEUE + "/groups",
    "Adds a group",
    role="write",
    body=NewGroup,
    answer=GroupNames,
    status=201,
    errors=(UnknownQueue,),
)
REMOVE_GROUP = Operation(
    "remove_group",
    "DELETE",
    QUEUE + "/groups/{group}",
    "Forgets a group",
    role="admin",
    answer=WasRemoved,
    errors=(UnknownQueue,),
)
LIST_SCHEDULES = Operation(
    "list_schedules",
    "GET",
    QUEUE + "/schedules",
    "Periodic messages",
    role="read",
    answer=ScheduleList,
    errors=(UnknownQueue,),
)
ADD_SCHEDULE = Operation(
    "add_schedule",
    "POST",
    QUEUE + "/schedules",
    "Adds a periodic message",
    role="write",
    body=NewSchedule,
    answer=Schedule,
    status=201,
    errors=(UnknownQueue,),
)
REMOVE_SCHEDULE = Operation(
    "remove_schedule",
    "DELETE",
    QUEUE + "/schedules/{schedule}",
    "Removes a periodic message",
    role="write",
    answer=WasRemoved,
    errors=(UnknownQueue,),
)
REDRIVE_QUEUE = Operation(
    "redrive_queue",
    "POST",
    QUEUE + "/redrive",
    "Sends dead letters and failed messages back",
    role="admin",
    body=RedriveRequest,
    answer=RedriveAnswer,
    errors=(UnknownQueue,),
)
MOVE_MESSAGES = Operation(
    "move_messages",
    "POST",
    QUEUE + "/move",
    "Moves messages that are not in flight to another queue",
    role="admin",
    body=MoveRequest,
    answer=Moved,
    errors=(UnknownQueue,),
)
DISCARD_MESSAGES = Operation(
    "discard_messages",
    "POST",
    QUEUE + "/discard",
    "Settles messages that are not in flight, by their positions",
    role="admin",
    body=DiscardRequest,
    answer=Discarded,
    errors=(UnknownQueue,),
)
RUN_NOW = Operation(
    "run_now",
    "POST",
    QUEUE + "/run-now",
    "Makes delayed messages ready at once, by their positions",
    role="admin",
    body=RunNowRequest,
    answer=RunNowResult,
    errors=(UnknownQueue,),
)
PURGE_QUEUE = Operation(
    "purge_queue",
    "POST",
    QUEUE + "/purge",
    "Removes every message",
    role="admin",
    answer=Removed,
    errors=(UnknownQueue,),
)
PAUSE_QUEUE = Operation(
    "pause_queue",
    "POST",
    QUEUE + "/pause",
    "Hands nothing out any more, to one group or to all",
    role="admin",
    body=PauseRequest,
    answer=PauseAnswer,
    errors=(UnknownQueue,),
)
RESUME_QUEUE = Operation(
    "resume_queue",
    "POST",
    QUEUE + "/resume",
    "Ends a pause: takes that wait wake up",
    role="admin",
    body=PauseRequest,
    answer=PauseAnswer,
    errors=(UnknownQueue,),
)

OPERATIONS: tuple[Operation[object], ...] = (
    LIST_QUEUES,
    READ_QUEUE,
    OPEN_QUEUE,
    CONFIGURE_QUEUE,
    DROP_QUEUE,
    READ_QUEUE_STATS,
    ADD_GROUP,
    REMOVE_GROUP,
    LIST_SCHEDULES,
    ADD_SCHEDULE,
    REMOVE_SCHEDULE,
    REDRIVE_QUEUE,
    MOVE_MESSAGES,
    DISCARD_MESSAGES,
    RUN_NOW,
    PURGE_QUEUE,
    PAUSE_QUEUE,
    RESUME_QUEUE,
)
