"""Tasks: the pushable functions of a program, and the workers that run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from penstock.errors import ConfigError
from penstock.names import check_kind, check_name
from penstock.queue.policy import check_attempts
from penstock.queue.retry import Retry
from penstock.queue.tasks.task import PeriodicCall, Task
from penstock.surface.delivery import Delivery

if TYPE_CHECKING:
    from penstock.surface.journal import Journal
    from penstock.surface.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE: Final = "tasks"
"""The queue of a task that names none."""


class Tasks:
    """The tasks of a program. `Tasks(journal)`, or `Tasks()` for the journal that `penstock.use` names.

    >>> tasks = Tasks()
    >>> @tasks.task
    ... def send(to: str) -> None: ...
    >>> send
    <task 'send' of queue 'tasks'>
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self._tasks: dict[str, Task[..., Any]] = {}
        self._periodic: dict[str, PeriodicCall] = {}

    def __repr__(self) -> str:
        return f"<{len(self._tasks)} tasks of {len(self.queues())} queues>"

    @property
    def journal(self) -> Journal:
        """Where tasks are pushed to."""
        if self._journal is not None:
            return self._journal
        from penstock import current

        return current()

    @property
    def bound(self) -> Journal | None:
        """The journal that these tasks were made with, or bound to; None: the one that `penstock.use` names."""
        return self._journal

    def bind(self, journal: Journal | None) -> None:
        """Says where tasks are pushed to from now on; None: to the journal that `penstock.use` names."""
        self._journal = journal

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        max_attempts: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        max_attempts: int | None = None,
    ) -> Task[..., Any] | Callable[[Callable[..., Any]], Task[..., Any]]:
        """Makes a function pushable to a queue, under its own name unless `name` says otherwise. `@tasks.task` will do.

        `retry`, `max_attempts`: when and how often it is tried again; the queue's policy, unless given.
        """
        check_name(queue, "queue")
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"retry must be a Retry, not {retry!r:.80}")
        if max_attempts is not None:
            check_attempts(max_attempts)

        def made(function: Callable[..., Any]) -> Task[..., Any]:
            if not callable(function) or isinstance(function, type):
                raise ConfigError(f"a task is made of a function, not of {function!r:.80}")
            called = check_kind(name or function.__name__)
            if called in self._tasks:
                raise ConfigError(f"there is a task {called!r} already: give this one another name=")
            task = Task(self, function, called, queue, retry, max_attempts=max_attempts)
            self._tasks[called] = task
            return task

        return made if function is None else made(function)

    def names(self) -> list[str]:
        """The names of all tasks, sorted."""
        return sorted(self._tasks)

    def queues(self) -> list[str]:
        """The queues they are pushed to, sorted."""
        return sorted({task.queue for task in self._tasks.values()})

    def add_periodic(self, call: PeriodicCall) -> None:
        """Keeps a call that is pushed by the clock, and stores its schedule now, or when the journal is known."""
        known = self._periodic.setdefault(call.name, call)
        if known != call:
            raise ConfigError(f"there is a periodic call {call.name!r} already: give this one another name=")
        if self._journal is not None:
            call.store(self._journal)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def workers(self, *, concurrency: int = 1, **options: Any) -> list[Worker]:
        """A worker for each of the tasks' queues, not started; the options are those of `Queue.worker`."""
        for call in self._periodic.values():
            call.store(self.journal)
        return [
            self.journal.queue(queue).worker(self.handler(queue), concurrency=concurrency, **options)
            for queue in self.queues()
        ]

    def handler(self, queue: str) -> Callable[[Delivery], object]:
        """What a worker of a queue calls with each delivery: it finds the task and calls it."""
        if any(task.is_async for task in self._tasks.values() if task.queue == queue):
            return self._run_async
        return self._run

    def _run(self, delivery: Delivery) -> object:
        call = self._call(delivery)
        if call is None:
            return None
        task, run = call
        try:
            return run()
        except Exception as error:
            self._failed(task, delivery, error)
            raise

    async def _run_async(self, delivery: Delivery) -> object:
        import asyncio

        call = self._call(delivery)
        if call is None:
            return None
        task, run = call
        try:
            return await run() if task.is_async else await asyncio.to_thread(run)
        except Exception as error:
            await asyncio.to_thread(self._failed, task, delivery, error)
            raise

    def _call(self, delivery: Delivery) -> tuple[Task[..., object], Callable[[], Any]] | None:
        """The call a message stands for; None for a message that no attempt could make sense of: it is given up."""
        task = self._tasks.get(delivery.kind)
        try:
            if task is None:
                raise ConfigError(
                    f"there is no task {delivery.kind!r}: this program knows {', '.join(self.names()) or 'none'}"
                )
            bound = task.bound(delivery.payload)
        except ConfigError as error:
            delivery.nack(dead=True, error=error)
            return None
        return task, lambda: task.function(*bound.args, **bound.kwargs)

    def _failed(self, task: Task[..., object], delivery: Delivery, error: Exception) -> None:
        if task.retry is not None and not delivery._settled:
            delivery.nack(delay=task.retry.delay(delivery.attempt), error=error)
