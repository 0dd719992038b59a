"""The errors of penstock, in one tree.

    PenstockError
    ├── ConfigError (also ValueError)      a bad url, option, policy or argument
    │   ├── InvalidName                    a topic, queue, consumer or group name that cannot be used
    │   ├── UnknownTask                    a message of a task that this program does not have
    │   ├── NoStore                        a journal to be read only that is not there
    │   └── PolicyMismatch                 a queue opened with another policy than the stored one
    ├── ReadOnly                           a change through a journal opened with read_only=True
    ├── Closed                             the journal, topic, producer … was closed
    ├── Locked                             the store is open elsewhere and its engine allows one process
    ├── Corrupt                            stored bytes fail their checksum or their format
    ├── Denied                             a gate refused a draft
    ├── Conflict                           expect= did not match
    ├── PositionTrimmed                    the history asked for was removed by compaction
    ├── Backpressure                       the writer is behind; try again later
    ├── Lagged                             a live subscriber with on_lag="raise" fell behind
    ├── FenceActive                        an exclusive fence is open
    ├── FenceCancelled                     the fence this event was submitted through was cancelled
    ├── Unprovable                         no published root covers an event, or its neighbours are gone
    ├── UnknownQueue (also KeyError)       no queue has that name
    ├── UnknownTopic (also KeyError)       no topic has that name
    ├── TopicInUse                         a topic to be dropped has cursors, sealed files or a queue
    ├── QueueFull                          a push above max_size
    ├── StaleDelivery                      the lease was lost, or the delivery already settled
    ├── PoisonMessage                      stored bytes that do not decode
    ├── GiveUp                         raised by a handler: its message is given up
    ├── TryAgain                       raised by a handler: its message is tried again after a while
    ├── TaskTimeout (also TimeoutError)  a call of a task took longer than it may
    ├── ReplyFailed                        the message a ticket waits for was given up
    ├── Fenced                             another consumer took over
    ├── OutOfOrder                         an acknowledgement out of sequence
    ├── FlowFailed                         a pipeline's flow failed, and starting it again would not help
    └── StorageError                       the disk or the object store refused
        ├── OutcomeUnknown                 a change failed and may have been kept all the same
        └── Unflushed                      a producer was closed before the store took everything

Errors carry what a program needs as attributes, and what a person needs in their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class PenstockError(Exception):
    """The root of the errors of penstock."""

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle would call the class with the message alone, which errors with required details refuse.
        return restored, (type(self), self.args, self.__dict__)


def restored(kind: type[PenstockError], args: tuple[object, ...], details: dict[str, object]) -> PenstockError:
    """Returns a copied or unpickled error, with all its details."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(details)
    return error


class ConfigError(PenstockError, ValueError):
    """A url, option, policy or argument that cannot be used."""


class InvalidName(ConfigError):
    """A topic, queue, consumer or group name that cannot be used."""


class UnknownTask(ConfigError):
    """A message of a task that this program does not have."""


class PolicyMismatch(ConfigError):
    """A queue was opened with another policy than the stored policy; `configure` changes all of it except the mode."""


class ReadOnly(PenstockError):
    """A change of a journal that was opened with read_only=True."""


class Closed(PenstockError):
    """The journal (or an object made from it) was closed."""


class Locked(PenstockError):
    """The store is open elsewhere and its engine allows one process."""


class Corrupt(PenstockError):
    """Stored bytes fail their checksum or their format; the attributes say where."""

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        seq: int | None = None,
        file: str | None = None,
        offset: int | None = None,
    ) -> None:
        where = ", ".join(
            f"{name} {value}"
            for name, value in (("topic", topic), ("seq", seq), ("file", file), ("offset", offset))
            if value is not None
        )
        super().__init__(f"{message} ({where})" if where else message)
        self.topic = topic
        self.seq = seq
        self.file = file
        self.offset = offset


class Denied(PenstockError):
    """A gate refused a draft before it was committed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Conflict(PenstockError):
    """`expect=` did not match the position of the entity's newest event."""

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class PositionTrimmed(PenstockError):
    """The requested history was removed; `oldest` is the first position still stored, 0 in a walk over topics."""

    def __init__(self, message: str, *, oldest: int) -> None:
        super().__init__(message)
        self.oldest = oldest


class Backpressure(PenstockError):
    """The writer is behind; `retry_after` is a sensible pause in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Lagged(PenstockError):
    """A subscriber with on_lag="raise" fell behind; subscribe again after `last_seq` to go on without a gap."""

    def __init__(self, message: str, *, last_seq: int) -> None:
        super().__init__(message)
        self.last_seq = last_seq


class FenceActive(PenstockError):
    """An exclusive fence is open: nothing else may append until it commits or is cancelled."""


class FenceCancelled(PenstockError):
    """The fence this event was submitted through was cancelled; the event was never written."""


class Unprovable(PenstockError):
    """No proof can be given for an event: no published root covers it, or its neighbours were removed since."""


class NoStore(ConfigError):
    """A journal that was opened for reading does not exist: open it for writing once to make it."""


class UnknownQueue(PenstockError, KeyError):
    """No queue has that name."""

    queue: str | None = None
    """The unknown name."""
    __str__ = Exception.__str__  # KeyError would print the repr of the message


class UnknownTopic(PenstockError, KeyError):
    """No topic has that name."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class TopicInUse(PenstockError):
    """A topic has cursors, sealed files or a queue; `drop_topic(…, force=True)` drops it with them."""


class QueueFull(PenstockError):
    """A push would take the queue above its max_size."""


class StaleDelivery(PenstockError):
    """The lease was lost or the delivery was already settled; another consumer may hold the message now."""

    def __init__(self, message: str, *, token: str) -> None:
        super().__init__(message)
        self.token = token


class PoisonMessage(PenstockError):
    """Stored bytes that do not decode; `raw` holds them."""

    def __init__(self, message: str, *, raw: bytes) -> None:
        super().__init__(message)
        self.raw = raw


class GiveUp(PenstockError):
    """Raise it in a handler, or in a task, to give the message up, because no further attempt would help."""


class TryAgain(PenstockError):
    """Raise it in a handler, or in a task, to try the message again `after` a while, if an attempt is left."""

    def __init__(self, message: str = "", *, after: float | str | timedelta | None = None) -> None:
        super().__init__(message or ("tried again" if after is None else f"tried again after {after}"))
        self.after = after


class TaskTimeout(PenstockError, TimeoutError):
    """An attempt of a task took longer than its `timeout`; `limit` says how many seconds that is."""

    def __init__(self, message: str, *, limit: float) -> None:
        super().__init__(message)
        self.limit = limit


class ReplyFailed(PenstockError):
    """The message of a ticket was given up; `reason`, `error` and `traceback` come from its handler."""

    def __init__(self, message: str, *, reason: str, error: str | None = None, traceback: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.error = error
        self.traceback = traceback


class Fenced(PenstockError):
    """Another consumer took over; `epoch` is the epoch that now owns the manifest."""

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class OutOfOrder(PenstockError):
    """An acknowledgement out of order."""


class FlowFailed(PenstockError):
    """A pipeline's flow failed permanently; `flow` names it."""

    def __init__(self, message: str, *, flow: str) -> None:
        super().__init__(message)
        self.flow = flow


class StorageError(PenstockError):
    """The disk or the object store refused; `retryable` says whether the same call may succeed later."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class OutcomeUnknown(StorageError):
    """A change failed with an unknown outcome: either all of it is kept, or nothing.

    It is never `retryable`. A repetition is safe for calls that identify themselves: an append with `dedup` or
    `expect`, an `ack`. Before any other repetition, read first.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Unflushed(StorageError):
    """A producer was closed before the store accepted everything; `batches` has its entries, so that no entry is lost.

    The store may have accepted the last attempt without an answer, so these entries may still appear.
    """

    def __init__(self, message: str, *, batches: Sequence[object] = ()) -> None:
        super().__init__(message, retryable=True)
        self.batches = tuple(batches)
