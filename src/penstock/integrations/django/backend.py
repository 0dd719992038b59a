"""The backend that TASKS names. It enqueues tasks and finds their results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal

import msgspec
from django.apps import apps
from django.core import checks
from django.db import connections, transaction
from msgspec.structs import replace

import penstock
from penstock import outbox
from penstock.errors import Conflict, Denied, PenstockError
from penstock.integrations.django.records import RecordedError, TaskRecord, stored_time
from penstock.integrations.django.tasks_api import (
    BaseTaskBackend,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    get_random_string,
    normalize_json,
    signals,
)
from penstock.integrations.opening import open_once, state_topic

TASK_ID = "task-id"
"""The header of a message with the id of the task's result."""
ENQUEUE = ("on_commit", "at_once", "outbox")
SERVED = ("http://", "https://")
OUTBOX_APP = "penstock.integrations.outbox.django"


@dataclass(frozen=True)
class Options:
    """The OPTIONS of a backend."""

    url: str | os.PathLike[str]
    token: str | None = None
    enqueue: Literal["on_commit", "at_once", "outbox"] = "on_commit"
    database: str = "default"
    prefix: str = "django"
    lease: float | str | timedelta = 30
    max_attempts: int = 3
    retry: penstock.Retry | None = None
    keep_results: float | str | timedelta | None = timedelta(days=14)

    @classmethod
    def of(cls, alias: str, given: Mapping[str, Any]) -> Options:
        """Returns the options of a backend. Raises InvalidTaskBackend, which names an unusable option."""
        place, known = f"TASKS[{alias!r}]['OPTIONS']", [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                raise InvalidTaskBackend(f"{place} has an unknown option {name!r}: {hint}")
        if not given.get("url"):
            raise InvalidTaskBackend(f"{place} needs 'url': the path of the journal, or the address of a served one")
        options = cls(**given)
        if options.enqueue not in ENQUEUE:
            raise InvalidTaskBackend(f"{place}['enqueue'] is one of {', '.join(ENQUEUE)}, not {options.enqueue!r}")
        if options.database not in connections.settings:
            raise InvalidTaskBackend(f"{place}['database'] names {options.database!r}, which is not in DATABASES")
        return options


class TasksBackend(BaseTaskBackend):
    """A backend with the tasks in queues of a journal."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.given = Options.of(alias, self.options)

    @property
    def journal(self) -> penstock.Journal:
        """The journal that holds the tasks."""
        return open_once(str(self.given.url), self.given.token)

    def queue_name(self, name: str) -> str:
        """Returns the journal's name for a queue name of Django."""
        return f"{self.given.prefix}.{name}"

    def queue(self, name: str) -> penstock.Queue:
        """Returns the journal's queue for a queue name of Django. The queue has the policy from the options."""
        # A message has one delivery more than attempts. The worker with the extra delivery records that all attempts
        # ended badly.
        stored, lease, attempts = self.queue_name(name), self.given.lease, self.given.max_attempts + 1
        try:
            return self.journal.queue(stored, policy="update", priority=True, lease=lease, max_attempts=attempts)
        except Denied:  # a token with the role write keeps the policy as it is
            return self.journal.queue(stored, create=False)

    def queues_in_journal(self) -> list[str]:
        """Returns the queue names that have queues in the journal."""
        prefix = self.queue_name("")
        return [name.removeprefix(prefix) for name in self.journal.queues() if name.startswith(prefix)]

    @property
    def states_name(self) -> str:
        """The name of the topic with the tasks' states."""
        return f"{self.given.prefix}-results"

    @property
    def states(self) -> penstock.Topic:
        """The topic with the tasks' states."""
        return state_topic(self.journal, self.states_name, self.given.keep_results)

    # ── enqueueing ───────────────────────────────────────────────────────────────────────────────────────────────────
    def enqueue(self, task: Task, args: Iterable[object], kwargs: Mapping[str, object]) -> TaskResult:
        """Enqueues a call of a task, either with the open transaction on the database, or as the options say."""
        self.validate_task(task)
        record = TaskRecord(
            task=task.module_path,
            args=normalize_json(list(args)),
            kwargs=normalize_json(kwargs),
            queue=task.queue_name,
            backend=self.alias,
            priority=task.priority,
            enqueued_at=datetime.now(UTC),
            run_after=stored_time(task.run_after),
        )
        id = get_random_string(32)
        if self.given.enqueue == "outbox":
            self._write(id, record, task)
        elif self.given.enqueue == "on_commit" and self._database.in_atomic_block:
            transaction.on_commit(partial(self._push, id, record, task), using=self.given.database)
        else:
            self._push(id, record, task)
        return record.result(id, task)

    @property
    def _database(self) -> Any:
        return connections[self.given.database]

    def _message(self, id: str, record: TaskRecord) -> dict[str, Any]:
        """Returns the push options of a task's message."""
        return {
            "kind": record.task,
            "priority": record.priority,
            "not_before": record.run_after,
            "headers": {TASK_ID: id},
        }

    def _push(self, id: str, record: TaskRecord, task: Task) -> None:
        # Usually both are in one commit. If the writer was about to commit, they are not, and a worker may be faster
        # than the event. The event then fails, because it expects to be the first of its id, and it is not needed any
        # more.
        message = self.queue(record.queue).submit(record, **self._message(id, record))
        event = self.states.submit("enqueued", record, key=id, expect=0)
        try:
            message.result()
        except PenstockError as error:
            event.result()
            refused = replace(record, status=TaskResultStatus.FAILED.value, errors=[RecordedError.of(error)])
            self.states.append("refused", refused, key=id)
            raise
        with suppress(Conflict):
            event.result()
        self._tell(id, record, task)

    def _write(self, id: str, record: TaskRecord, task: Task) -> None:
        if not self.queues:  # a worker makes the queues that it knows; a row for another queue would wait
            self.queue(record.queue)
        # The state is written first. A relay moves rows in order, so no worker has begun the task when the state
        # arrives.
        with transaction.atomic(using=self.given.database):
            outbox.append(self._database, self.states_name, "enqueued", record, key=id)
            outbox.push(self._database, self.queue_name(record.queue), record, **self._message(id, record))
            transaction.on_commit(partial(self._tell, id, record, task), using=self.given.database)

    def _tell(self, id: str, record: TaskRecord, task: Task) -> None:
        signals.task_enqueued.send_robust(type(self), task_result=record.result(id, task))

    def relay(self) -> outbox.Relay | None:
        """Returns a relay of the outbox for a worker; None when there is no outbox, or when the journal is served."""
        if self.given.enqueue != "outbox" or str(self.given.url).startswith(SERVED):
            return None
        return outbox.Relay(self.journal, lambda: self._database, name=f"django-{self.given.database}")

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get_result(self, result_id: str) -> TaskResult:
        """Returns the present state of a task. Raises TaskResultDoesNotExist when no task has that id."""
        _, record = self.find(result_id)
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return record.result(result_id, record.find_task())

    def find(self, id: str) -> tuple[int, TaskRecord | None]:
        """Returns the newest position and state of a task; 0 and None when there is none."""
        if not isinstance(id, str) or not id:
            return 0, None
        event = next(self.states.read(key=id, reverse=True, limit=1), None)
        return (0, None) if event is None else (event.seq, msgspec.convert(event.payload, TaskRecord))

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Reports queue names that a journal cannot have, and an outbox without its table."""
        messages = list(super().check(**kwargs))
        for name in sorted(self.queues):
            try:
                self.journal.topic(self.queue_name(name))
            except PenstockError as error:
                messages.append(checks.Error(str(error), obj=f"TASKS[{self.alias!r}]", id="penstock.E001"))
        if self.given.enqueue == "outbox" and not apps.is_installed(OUTBOX_APP):
            said = "the option 'enqueue' is 'outbox', and the app that has the outbox's table is not installed"
            hint = f"add {OUTBOX_APP!r} to INSTALLED_APPS, and migrate"
            messages.append(checks.Error(said, hint, obj=f"TASKS[{self.alias!r}]", id="penstock.E002"))
        return messages
