"""Workers that gave up, from their own reports, which any process reads from the journal.

A worker that fails too often appends to the topic `penstock.workers`: kind `worker.gave_up`, key its name, payload a
`WorkerFailure`. When a worker of the same name starts again, or an operator has seen the report, `worker.started` or
`worker.forgotten` follows. The newest event of a key is the state of the worker; older events are compacted away.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock.core.model.failure import failure_text
from penstock.core.observe.logs import Log
from penstock.errors import Denied, PenstockError, PoisonMessage

if TYPE_CHECKING:
    from penstock import Event, Journal, Topic


T = TypeVar("T")

TOPIC: Final = "penstock.workers"
GAVE_UP: Final = "worker.gave_up"
STARTED: Final = "worker.started"
FORGOTTEN: Final = "worker.forgotten"

_MOST_EVENTS = 5_000

log = Log("penstock.worker")


class WorkerFailure(msgspec.Struct, kw_only=True):
    """Why a worker gave up."""

    worker: str
    """The worker's name: topic:consumer, or queue:group (queue:consumer for a named consumer)."""
    error: str | None
    traceback: str | None = None
    host: str = ""
    pid: int = 0
    at: datetime | None = None
    """The journal's time of the report."""


def say_gave_up(journal: Journal, worker: str, error: BaseException) -> None:
    """Reports that a worker gave up. The worker's own failure matters more than a failure of the report."""
    import socket

    failure = failure_text(error)
    found = WorkerFailure(
        worker=worker, error=failure.error, traceback=failure.traceback, host=socket.gethostname(), pid=os.getpid()
    )
    body: dict[str, object] = msgspec.to_builtins(found)
    del body["at"]
    try:
        topic = journal.topic(TOPIC)
        if not topic.latest:
            keep_newest(topic)
        topic.append(GAVE_UP, body, key=worker)
    except PenstockError as problem:
        log.warning("that worker %r gave up could not be reported: %s", worker, problem)


def say_started(journal: Journal, worker: str) -> None:
    """Reports that a worker runs again, if the last worker of its name gave up."""
    try:
        if any(one.worker == worker for one in gave_up(journal)):
            journal.topic(TOPIC).append(STARTED, key=worker)
    except PenstockError as problem:
        log.warning("that worker %r runs again could not be reported: %s", worker, problem)


def forget(journal: Journal, worker: str) -> bool:
    """Removes the report that a worker gave up; returns False without a report."""
    if not any(one.worker == worker for one in gave_up(journal)):
        return False
    journal.topic(TOPIC).append(FORGOTTEN, key=worker)
    return True


def gave_up(journal: Journal) -> list[WorkerFailure]:
    """Returns the workers that gave up and have not been started again, by name."""
    topic = journal.topic(TOPIC)
    if not topic.latest:
        return []
    failures = []
    for at, found in newest_reports(topic, GAVE_UP, WorkerFailure):
        found.at = at
        failures.append(found)
    return failures


# ── Topics in which programs report how they do: the newest event of a key counts, older ones are compacted away ──


def newest_reports(topic: Topic, kind: str, type: type[T]) -> list[tuple[datetime, T]]:
    """Returns the report in the newest event of each key. Keys whose newest event is of another kind are left out."""
    newest: dict[str, Event] = {}
    for event in topic.read(limit=_MOST_EVENTS, reverse=True):
        if event.key is not None:
            newest.setdefault(event.key, event)
    found = []
    for _, event in sorted(newest.items()):
        if event.kind == kind:
            with suppress(PoisonMessage, msgspec.ValidationError):  # any program may append to a topic
                found.append((event.recorded_at, msgspec.convert(event.payload, type)))
    return found


def keep_newest(topic: Topic) -> None:
    """Configures a topic of reports to keep only the newest event of every key. A server does this for its clients."""
    with suppress(Denied):
        topic.configure(by_key=True, indexed=False)
