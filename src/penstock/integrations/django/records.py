"""A task as it is stored: in the message that asks for a call of the task, and in the events with its state."""

from __future__ import annotations

import traceback
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from penstock.integrations.django.tasks_api import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus


class RecordedError(msgspec.Struct, frozen=True):
    """The exception of an attempt, as it is stored."""

    exception_class_path: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> RecordedError:
        """Returns the record of an exception."""
        raised = type(error)
        return cls(f"{raised.__module__}.{raised.__qualname__}", "".join(traceback.format_exception(error)))


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An enqueued task, and its progress."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    backend: str
    priority: int
    enqueued_at: datetime
    run_after: datetime | None = None
    status: str = TaskResultStatus.READY.value
    started_at: datetime | None = None
    last_attempted_at: datetime | None = None
    finished_at: datetime | None = None
    worker_ids: list[str] = []
    errors: list[RecordedError] = []
    return_value: Any = None
    attempt: int = 0
    """The number of the delivery that this record is about. A redriven message begins again with 1."""

    @property
    def is_finished(self) -> bool:
        """True if the task has an outcome."""
        return self.status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)

    def find_task(self) -> Task:
        """Returns the task of this program that the record names.

        Raises ImportError or InvalidTask when there is none.
        """
        task = import_string(self.task)
        if not isinstance(task, Task):
            raise InvalidTask(f"{self.task} is not a task")
        return task.using(
            priority=self.priority, queue_name=self.queue, run_after=_shown(self.run_after), backend=self.backend
        )

    def result(self, id: str, task: Task) -> TaskResult:
        """Returns the result in Django's form."""
        result = TaskResult(
            task=task,
            id=id,
            status=TaskResultStatus(self.status),
            enqueued_at=_shown(self.enqueued_at),
            started_at=_shown(self.started_at),
            finished_at=_shown(self.finished_at),
            last_attempted_at=_shown(self.last_attempted_at),
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            errors=[TaskError(**msgspec.structs.asdict(error)) for error in self.errors],
            worker_ids=list(self.worker_ids),
        )
        # the class is frozen, and its constructor has no argument for this field
        object.__setattr__(result, "_return_value", self.return_value)
        return result


def stored_time(time: datetime | None) -> datetime | None:
    """Returns a time of Django in stored form, with its zone."""
    return timezone.make_aware(time) if time is not None and timezone.is_naive(time) else time


def _shown(time: datetime | None) -> datetime | None:
    """Returns a stored time in the form that the settings require."""
    return time if time is None or settings.USE_TZ else timezone.make_naive(time)
