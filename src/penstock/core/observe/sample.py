"""Values that describe a journal from outside: the state of its topics and queues, the messages given up, and the
reasons."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_args

import msgspec

from penstock.core.events import Event
from penstock.core.model.failure import Attempt
from penstock.core.observe.pipelines import FlowStatus
from penstock.core.observe.workers import WorkerFailure
from penstock.core.units import pluralize, show_duration, show_past

if TYPE_CHECKING:
    from penstock.core.surface.queue import Queue

E = TypeVar("E")


class TopicSample(msgspec.Struct):
    """A topic at one time."""

    name: str
    latest: int
    events: int
    rate: float = 0.0
    lags: dict[str, int] = {}
    """The events that each consumer has left to read."""
    positions: dict[str, int] = {}
    """The position of each consumer."""
    moved: dict[str, float] = {}
    """The time of each consumer's last move, in seconds of the epoch. A consumer that lags and does not move is
    dead."""
    event_bytes: int = 0
    """The stored bytes of an event: the average of the newest block."""
    last_at: float | None = None
    """The time of the newest event, in seconds of the epoch; None without stored events, or with sealed events only."""


class QueueSample(msgspec.Struct):
    """A group of a queue at a point in time."""

    name: str
    group: str
    ready: int
    in_flight: int
    delayed: int
    failed: int
    oldest_age: float | None
    rate: float = 0.0
    dead: int = 0
    """Dead letters that came from this group and were neither sent back nor removed."""
    letters: int | None = None
    """For a dead-letter queue: the number of waiting messages.

    They are dead and not ready, so `ready` and `oldest_age` leave them out.
    """
    settled: int = 0
    """The number of messages that were settled (acknowledged, given up or removed) since the queue began."""
    ttl: float | None = None
    """The queue's time to live for its messages, in seconds."""
    settle_times: dict[int, int] = {}
    """The number of messages by their time from delivery to acknowledgement, over all time. Bucket n counts messages
    that took less than 2**n milliseconds and at least half of that."""
    paused: bool = False
    """True while the queue hands out no messages."""
    workers: int = 0
    """The number of workers, and other named consumers, with a sign of life in the last minute."""
    gone: int = 0
    """The number of workers, and other named consumers, that were seen in the last day but not in the last minute."""
    idle: float | None = None
    """The seconds since a message of the group was last handed out or settled; None for never."""
    settle_rate: float = 0.0
    """The messages settled a second; `rate` counts pushed messages."""
    growth: float | None = None
    """The growth of the number of ready messages in the last minute; None for a sample without a past."""
    last_failed_at: float | None = None
    """The time of the newest failed attempt of the last day, in seconds of the epoch."""
    last_error: str | None = None
    """The error of this attempt."""
    failing: int = 0
    """The number of attempts that failed since the last acknowledgement."""
    breaker_open: bool = False
    """True while the queue's circuit breaker lets no message out."""
    warn_after: float | None = None
    """The age in seconds above which a ready message causes a warning, if the queue's policy sets it."""

    @property
    def title(self) -> str:
        """The queue's name, with the group's name if the queue has groups."""
        return self.name if self.group == "default" else f"{self.name}/{self.group}"

    @property
    def trend(self) -> str:
        """The change of the backlog, in words: messages more or fewer in a minute, and when it will be empty."""
        change = None if self.growth is None else round(self.growth)
        if change is None:
            return "–"
        if not change:
            return "steady"
        left = f", gone in {show_duration(60 * self.ready / -change)}" if change < 0 and self.ready else ""
        return f"{'+' if change > 0 else '−'}{abs(change):,}/min{left}"

    def last_failure(self, now: float) -> str:
        """Returns, in words, when and why an attempt last failed."""
        if self.last_failed_at is None:
            return "–"
        return f"{show_past(now - self.last_failed_at)}: {self.last_error or 'no error was given'}"


FindingKind = Literal[
    "disk",
    "unreadable",
    "writer",
    "pipeline",
    "worker",
    "failing",
    "unattended",
    "dead",
    "failed",
    "paused",
    "oldest",
    "lag",
]
"""The subject of a finding, gravest first."""
FINDING_KINDS: Final[tuple[FindingKind, ...]] = get_args(FindingKind)


SHOWN_FINDINGS: Final = 6
"""The findings that the first line of a page and `penstock top` show; of further findings they show the number."""


class Finding(msgspec.Struct, frozen=True):
    """A problem, in words."""

    kind: FindingKind
    subject: str
    """The queue, topic or flow of the problem; empty for a problem of the whole journal."""
    says: str
    count: int
    """The number of messages, events or seconds."""
    detail: str = ""
    """The group or consumer."""


class Sample(msgspec.Struct):
    """The journal at one time."""

    at: float
    topics: dict[str, TopicSample]
    queues: dict[str, list[QueueSample]]
    pressure: float
    queued: int
    commits: int
    operations: int
    rate: float = 0.0
    """The events a second, over all topics."""
    findings: list[Finding] = []
    """The problems found, gravest first."""
    disk_free: int | None = None
    """The free bytes of the journal's file system; None without a file system."""
    disk_total: int | None = None
    requests: dict[str, dict[str, int]] = {}
    """The requests to an object store since the journal was opened, by cause and kind."""
    unstored_seconds: float = 0.0
    """The seconds for which an unsynced commit has been only in the writer's memory."""
    flows: list[FlowStatus] = []
    """The state of the pipelines' flows."""
    workers: list[WorkerFailure] = []
    """The workers that gave up and have not been started again."""
    unreadable: dict[str, str] = {}
    """The topics that cannot be read, wholly or in part, with the reason."""


def held_messages(queue: Queue) -> str:
    """Returns the number of messages in a queue, including failed messages, in words. In fanout, it is the number of
    the group with the most messages."""
    numbers = [queue.stats(group) for group in queue.groups()]
    most = max((one.ready + one.in_flight + one.delayed + one.failed for one in numbers), default=0)
    return pluralize(max(most, len(queue)), "message")


class GivenUpMessage(msgspec.Struct, Generic[E], frozen=True):
    """A given-up message with its reason, and with its event or the event's document."""

    event: E
    queue: str
    attempts: int
    reason: str
    error: str | None
    """The exception's type and message, or the text with which the message was given up."""
    at: datetime | None
    traceback: str | None = None
    """The traceback, when an exception was the reason."""
    failed_attempts: list[Attempt] = []
    """The newest ten failed attempts, in order."""


class FailedMessage(GivenUpMessage[Event], frozen=True):
    """A given-up message with its reason."""


class TaskProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress that a running call has reported."""

    share: float
    """The progress, from 0 to 1."""
    text: str | None
    at: datetime
    step: str | None = None
    """The step that began last and has not returned."""

    def __str__(self) -> str:
        share = f"{self.share:.0%}" if self.share or self.text or not self.step else ""
        return ", ".join(filter(None, (share, self.text, self.step and f"in step {self.step}")))
