"""The workers: their work, their failures, and the run times of messages and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec
from starlette.requests import Request

from penstock.core.observe.sample import Sample
from penstock.core.queue import inspect
from penstock.core.queue.tasks.state import TaskTimes
from penstock.core.sampling.history import quantile_ms, settle_counts
from penstock.errors import UnknownQueue
from penstock.server.pages import parts
from penstock.server.pages.overview import titled
from penstock.server.pages.parts import Content, ListColumn, Row, Table, count_tile
from penstock.server.service import Service


class WorkerAtQueue(msgspec.Struct):
    """A worker, or another consumer that gave its name, and the queue that it takes from."""

    queue: str
    one: inspect.QueueConsumer


WORKS_ON: Final = ListColumn[WorkerAtQueue]("Works on", lambda found: found.one.works_on(datetime.now(UTC)))
FAILED_LAST: Final = ListColumn[WorkerAtQueue]("Last failure", lambda found: found.one.last_failure(datetime.now(UTC)))
QUEUE_OF_WORKER: Final = ListColumn[WorkerAtQueue]("Queue", lambda found: found.queue, minor=True)
CONSUMER_COLUMNS: Final[parts.Columns[WorkerAtQueue]] = (
    ListColumn("Worker", lambda found: found.one.name),
    QUEUE_OF_WORKER,
    ListColumn("Group", lambda found: found.one.group, minor=True),
    ListColumn("State", lambda found: found.one.state, minor=True),
    WORKS_ON,
    FAILED_LAST,
    ListColumn("Host", lambda found: found.one.host, minor=True),
    ListColumn("Since", lambda found: found.one.since, parts.moment, True),
    ListColumn("Last seen", lambda found: found.one.last_seen, parts.moment, True),
)
NO_WORKER: Final = "no worker is there: penstock work, or queue.worker(handler)"


def worker_table(request: Request, found: Iterable[WorkerAtQueue], left_out: Sequence[str]) -> Table:
    """Returns the workers, with the message that each worker processes, since when, and its last failure.

    Columns with the same value for all workers are left out.
    """
    base, columns = parts.base_of(request), [one for one in CONSUMER_COLUMNS if one.title not in left_out]

    def row(worker: WorkerAtQueue, cells: list[str]) -> Row:
        one, links = worker.one, {}
        messages = f"{base}/topics/{parts.segment(worker.queue)}/events"
        if QUEUE_OF_WORKER in columns:
            links[columns.index(QUEUE_OF_WORKER)] = f"{base}/queues/{parts.segment(worker.queue)}?tab=workers"
        if one.holds:
            links[columns.index(WORKS_ON)] = f"{messages}/{one.holds[0]}"
        if one.last_failed is not None:
            links[columns.index(FAILED_LAST)] = f"{messages}/{one.last_failed}"
        level: parts.Level = "alert" if one.state == "gone" and one.in_hand else ""
        return Row(f"{worker.queue}/{one.group}/{one.name}", cells, None, level, links=links)

    return parts.listing(request, "workers", columns, found, row, NO_WORKER, usual="worker")


class RunTimes(msgspec.Struct):
    """The times of a group's messages from delivery to acknowledgement."""

    queue: str
    counts: list[int]
    href: str

    @property
    def settled(self) -> int:
        return sum(self.counts)

    def seconds(self, share: float) -> float | None:
        """Returns the time within which a share of the messages were settled."""
        found = quantile_ms(self.counts, share)
        return None if found is None else found / 1000


RUN_TIME_COLUMNS: Final[parts.Columns[RunTimes]] = (
    ListColumn("Queue", lambda times: times.queue),
    ListColumn("Settled", lambda times: times.settled, parts.number),
    ListColumn("p50", lambda times: times.seconds(0.5), parts.age),
    ListColumn("p95", lambda times: times.seconds(0.95), parts.age),
)


class TaskAtQueue(msgspec.Struct):
    """The run times of a task's calls, with their queue."""

    queue: str
    times: TaskTimes


TASK_COLUMNS: Final[parts.Columns[TaskAtQueue]] = (
    ListColumn("Task", lambda one: one.times.task),
    ListColumn("Queue", lambda one: one.queue, minor=True),
    ListColumn("Done", lambda one: one.times.done, parts.number),
    ListColumn("Failed", lambda one: one.times.failed, parts.number),
    ListColumn("p50", lambda one: one.times.p50, parts.age),
    ListColumn("p95", lambda one: one.times.p95, parts.age),
)


def workers_page(request: Request, service: Service, sample: Sample) -> Content:
    """Returns every worker of every queue, and the run times of messages."""
    base = parts.base_of(request)
    busy = {name: groups for name, groups in sample.queues.items() if any(one.workers or one.gone for one in groups)}
    found: list[WorkerAtQueue] = []
    tasks: list[TaskAtQueue] = []
    for name in busy:
        with suppress(UnknownQueue):  # dropped at this moment
            queue = service.journal.queue(name, create=False)
            found += [WorkerAtQueue(name, one) for one in queue.consumers()]
            tasks += [TaskAtQueue(name, one) for one in queue.task_times()]
    grouped = any(one.one.group != "default" for one in found)
    times = [
        RunTimes(titled(group), settle_counts(group.settle_times), f"{base}/queues/{parts.segment(group.name)}")
        for groups in sample.queues.values()
        for group in groups
        if group.settle_times
    ]

    def row(one: RunTimes, cells: list[str]) -> Row:
        return Row(one.queue, cells, one.href)

    def task(one: TaskAtQueue, cells: list[str]) -> Row:
        return Row(f"{one.queue}/{one.times.task}", cells, f"{base}/queues/{parts.segment(one.queue)}")

    none, no_task = "no message was acknowledged yet", "no task has run"
    return Content(
        "workers.html",
        "Workers",
        [
            count_tile("worker-count", "At work", sum(one.one.state != "gone" for one in found)),
            count_tile("gone-count", "Gone", sum(one.one.state == "gone" for one in found)),
            count_tile("held-count", "Messages in hand", sum(one.one.in_hand for one in found)),
            count_tile("gave-up-count", "Gave up", len(sample.workers), alert=True),
        ],
        {
            "workers": worker_table(request, found, () if grouped else ("Group",)),
            "tasks": parts.listing(request, "tasks", TASK_COLUMNS, tasks, task, no_task, usual="done"),
            "times": parts.listing(request, "times", RUN_TIME_COLUMNS, times, row, none, usual="settled"),
        },
    )
