"""The run of a task: a delivery of a queue becomes a call of a task, and the outcome is recorded once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from django.db import close_old_connections, reset_queries
from msgspec.structs import replace

import penstock
from penstock.errors import ConfigError, Conflict, PoisonMessage
from penstock.integrations.django.backend import TASK_ID, TasksBackend
from penstock.integrations.django.records import RecordedError, TaskRecord
from penstock.integrations.django.tasks_api import Task, TaskContext, TaskResultStatus, normalize_json, signals

log = logging.getLogger("penstock.django")

READY, RUNNING = TaskResultStatus.READY.value, TaskResultStatus.RUNNING.value
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL.value, TaskResultStatus.FAILED.value


class WorkerDied(Exception):
    """The error of a task when every worker that began the task died before its end."""


def workers(
    backend: TasksBackend, queues: Iterable[str], worker_id: str, concurrency: int = 1
) -> list[penstock.Worker]:
    """Returns a worker for each queue. The workers are not started."""

    def run(delivery: penstock.Delivery) -> None:
        # Database connections are checked before and after each task, as Django does for a request.
        reset_queries()
        close_old_connections()
        try:
            TaskAttempt(backend, worker_id, delivery).run()
        finally:
            close_old_connections()

    return [backend.queue(name).worker(run, concurrency=concurrency, consumer=worker_id) for name in sorted(queues)]


class TaskAttempt:
    """A delivery of a task to a worker."""

    def __init__(self, backend: TasksBackend, worker_id: str, delivery: penstock.Delivery) -> None:
        self.backend = backend
        self.worker_id = worker_id
        self.delivery = delivery

    def run(self) -> None:
        """Runs the task, unless it has an outcome already. The outcome is recorded before the message is settled."""
        try:
            self.id = self.delivery.headers[TASK_ID]
            pushed = msgspec.convert(self.delivery.payload, TaskRecord)
        except (KeyError, msgspec.ValidationError, PoisonMessage) as error:
            self.delivery.nack(error=f"this message is no task of Django's: {error!r}", dead=True)
            return
        self._find(pushed)
        if self.record.status == SUCCESSFUL:  # a crash came before the message was settled
            return
        if self.record.status == FAILED and self.delivery.attempt > self.record.attempt:
            # the same: the message was not redriven
            self.delivery.nack(error=self.record.errors[-1].traceback, dead=True)
            return
        if self.delivery.attempt > self.backend.given.max_attempts:
            begun = self.delivery.attempt - 1
            self._fail(WorkerDied(f"the task was begun {begun} times, and each time its worker ended before it"))
            return
        self._begin(pushed)
        try:
            task = self.record.find_task()
        except Exception as error:  # its function is missing, or the settings have changed
            log.exception("task %s cannot be begun: id=%s", self.record.task, self.id)
            self._fail(error)
        else:
            self._call(task)

    # ── its states ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _find(self, pushed: TaskRecord) -> None:
        self.position, found = self.backend.find(self.id)
        self.record = found or pushed

    def _begin(self, pushed: TaskRecord) -> None:
        """Records that the task runs here. Raises StaleDelivery when another worker has the task."""
        while True:
            now = datetime.now(UTC)
            began = replace(
                self.record,
                status=RUNNING,
                started_at=self.record.started_at or now,
                last_attempted_at=now,
                finished_at=None,
                worker_ids=[*self.record.worker_ids, self.worker_id],
                attempt=self.delivery.attempt,
            )
            if self._change("started", began):
                return
            self.delivery.extend()  # the lease decides which worker runs the task
            self._find(pushed)

    def _change(self, kind: str, record: TaskRecord) -> bool:
        """Records the next state.

        Returns False when another worker, or the process that enqueued the task, was faster.
        """
        try:
            receipt = self.backend.states.append(kind, record, key=self.id, expect=self.position)
        except Conflict:
            return False
        self.position, self.record = receipt.seq, record
        return True

    def _finish(self, kind: str, record: TaskRecord, task: Task | None) -> bool:
        """Records an outcome if this worker still has the task, and notifies the listeners."""
        if not self._change(kind, replace(record, finished_at=datetime.now(UTC), attempt=self.delivery.attempt)):
            log.warning("task %s ended too late, another worker has begun it: id=%s", record.task, self.id)
            return False
        if task is not None:
            signals.task_finished.send_robust(type(self.backend), task_result=self.record.result(self.id, task))
        return True

    # ── the call ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _call(self, task: Task) -> None:
        result = self.record.result(self.id, task)
        signals.task_started.send_robust(type(self.backend), task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: it comes from the task, not from the worker
            retry, last = self.backend.given.retry, self.delivery.attempt >= self.backend.given.max_attempts
            if retry is None or last or not isinstance(error, Exception):
                self._fail(error, task)
            elif self._change("retrying", replace(self.record, status=READY, errors=self._errors_with(error))):
                self.delivery.nack(delay=retry.delay(self.delivery.attempt), error=error)
        else:
            try:
                self._finish("successful", replace(self.record, status=SUCCESSFUL, return_value=value), task)
            except ConfigError as error:  # a value that is too large, or not a number
                self._fail(error, task)

    def _errors_with(self, error: BaseException) -> list[RecordedError]:
        return [*self.record.errors, RecordedError.of(error)]

    def _fail(self, error: BaseException, task: Task | None = None) -> None:
        """Records that the task failed. Its message stays in the queue as failed and can be redriven."""
        if self._finish("failed", replace(self.record, status=FAILED, errors=self._errors_with(error)), task):
            self.delivery.nack(error=error, dead=True)
