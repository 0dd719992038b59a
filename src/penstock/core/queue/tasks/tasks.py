"""All tasks of a program, and the handling of their messages by a worker."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, overload

from penstock.core.clock import seconds, to_ms
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.worker import running_loop
from penstock.core.documents.decoding import nearest
from penstock.core.model.arguments import show_arguments
from penstock.core.model.take import DEFAULT_GROUP
from penstock.core.names import check_kind, check_name, check_whole
from penstock.core.observe.logs import Log
from penstock.core.queue.tasks.chain import Gather, TaskCall
from penstock.core.queue.tasks.plan import TaskOptions, TaskPlan, push_options
from penstock.core.queue.tasks.running import RunningTask, limited, limited_async
from penstock.core.queue.tasks.task import PeriodicCall, Task
from penstock.errors import ConfigError, UnknownTask
from penstock.limits import RESULT_TTL, UNKNOWN_TASK_LONGEST, UNKNOWN_TASK_PAUSE

if TYPE_CHECKING:
    from typing import Unpack

    from penstock.core.clock import Duration
    from penstock.core.queue.tasks.state import TaskState
    from penstock.core.queue.worker import Middleware, QueueWorker
    from penstock.core.surface.journal import Journal

P = ParamSpec("P")
R = TypeVar("R")

log = Log("penstock.tasks")

REPORT_SECONDS: Final = 60.0
"""The pause between two log lines about an unknown task, while its messages wait."""

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

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        keep_results: Duration | None = RESULT_TTL,
        unknown: Literal["wait", "dead"] = "wait",
    ) -> None:
        """Makes a set of tasks.

        `keep_results` is the time for which `result` finds the outcome of a call after its end; None for not at all.

        `unknown` decides on messages whose task this program does not have. They "wait" for a worker that has the task,
        which uses up no attempt, or they are given up ("dead").
        """
        if unknown not in ("wait", "dead"):
            raise ConfigError(f'unknown is "wait" or "dead", not {unknown!r:.80}')
        self.bind(journal)
        self._unknown = unknown
        self._keep = None if keep_results is None else seconds(keep_results, "keep_results", minimum=0.001)
        self._reported: dict[str, float] = {}
        """The time when an unknown task was last logged, by its name."""
        self._reporting = threading.Lock()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._periodic: dict[str, PeriodicCall] = {}

    def __repr__(self) -> str:
        return f"<{len(self._tasks)} tasks of {len(self.queues())} queues>"

    @property
    def journal(self) -> Journal:
        """The journal to which tasks are pushed."""
        if self._journal is not None:
            return self._journal
        from penstock import current

        return current()

    @property
    def bound(self) -> Journal | None:
        """The journal that these tasks were made with, or bound to; None for the journal that `penstock.use` names."""
        return self._journal

    def bind(self, journal: Journal | None) -> None:
        """Binds the tasks to a journal from now on; None binds them to the journal that `penstock.use` names."""
        if journal is not None:
            from penstock import Journal

            if not isinstance(journal, Journal):
                raise ConfigError(
                    f"tasks belong to a journal of penstock.open, also in an event loop, not to {journal!r:.80}"
                )
        self._journal = journal

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, *, queue: str = DEFAULT_QUEUE, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @show_arguments(TaskOptions)
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Task[..., Any] | Callable[[Callable[..., Any]], Task[..., Any]]:
        """Makes a function pushable to a queue, under its own name or `name`.

        `@tasks.task` works without arguments too.

        `retry` and `max_attempts` decide when and how often a call is tried again (default: the queue's policy).
        `retry_on` retries only after these exceptions; `give_up_on` never retries after these exceptions. `timeout` is
        the time limit of an attempt. `keep_results` is the time for which results are kept (default: the setting of
        these tasks; None: not at all). `key`: calls with one key run one at a time, in order; give a text for all
        calls, or a function of the arguments. `unique`: a call that already waits is not pushed again; give True to
        compare the arguments, or a function of the arguments that returns a text. `priority` needs a queue with
        priorities.
        """
        check_name(queue, "queue")
        if unknown := sorted(options.keys() - TaskOptions.__annotations__.keys()):
            raise ConfigError(f"a task has no option {unknown[0]!r}{nearest(unknown[0], TaskOptions.__annotations__)}")
        plan, pushed = TaskPlan.of(options, self._keep), push_options(options)

        def made(function: Callable[..., Any]) -> Task[..., Any]:
            if not callable(function) or isinstance(function, type):
                raise ConfigError(f"a task is made of a function, not of {function!r:.80}")
            called = check_kind(name or function.__name__)
            if called in self._tasks:
                raise ConfigError(f"there is a task {called!r} already: give this one another name=")
            task = Task(self, function, called, queue, plan, **pushed)
            self._tasks[called] = task
            return task

        return made if function is None else made(function)

    def __getitem__(self, name: str) -> Task[..., Any]:
        """Returns the task of that name; UnknownTask when there is none."""
        if name not in self._tasks:
            raise UnknownTask(f"there is no task {name!r}{nearest(name, self._tasks)}")
        return self._tasks[name]

    def names(self) -> list[str]:
        """Returns the names of all tasks, sorted."""
        return sorted(self._tasks)

    def queues(self) -> list[str]:
        """Returns the names of the tasks' queues, sorted."""
        return sorted({task.queue for task in self._tasks.values()})

    def add_periodic(self, call: PeriodicCall) -> None:
        """Keeps a periodic call, and stores its schedule now, or when the journal is known."""
        if not isinstance(call, PeriodicCall):
            raise ConfigError(f"a periodic call is made by Task.every or Task.at; {call!r:.80} is none")
        known = self._periodic.setdefault(call.name, call)
        if known != call:
            raise ConfigError(f"there is a periodic call {call.name!r} already: give this one another name=")
        if self._journal is not None:
            call.store(self._journal)

    def gather(self, *calls: TaskCall) -> Gather:
        """Returns calls to be pushed together; `then` names the task that is called with the list of their results.

        >>> tasks.gather(*[resize.call(size) for size in (100, 400)]).then(publish).push()
        """
        for call in calls:
            if not isinstance(call, TaskCall):
                raise ConfigError(f"gather takes what task.call(…) gives, not {call!r:.80}")
        return Gather(self, calls)

    def result(self, id: str) -> TaskState | None:
        """Returns the state of the call whose receipt has this id, from any process: its state, its result or error,
        attempts and times. Returns None for an unknown call, or when its result is no longer kept.

        >>> receipt = send.push("ada")
        >>> tasks.result(receipt.id).state
        'waiting'
        """
        return self.journal.task(id)

    async def result_async(self, id: str) -> TaskState | None:
        """Does what `result` does, for an event loop."""
        import asyncio

        return await asyncio.to_thread(self.result, id)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def workers(
        self,
        *,
        concurrency: int = 1,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Duration | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> list[QueueWorker]:
        """Returns a worker for each of the tasks' queues, not started; the arguments are the arguments of
        `Queue.worker`.
        """
        for call in self._periodic.values():
            call.store(self.journal)
        return [
            self.journal.queue(queue).worker(
                self.handle,
                concurrency=concurrency,
                group=group,
                consumer=consumer,
                ahead=ahead,
                lease=lease,
                middleware=middleware,
            )
            for queue in self.queues()
        ]

    def run(
        self,
        *,
        processes: int | None = None,
        concurrency: int = 1,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Duration | None = None,
    ) -> None:
        """Runs workers of all the tasks' queues until SIGINT or SIGTERM; calls that have begun may finish.

        With `processes`, runs in so many processes, each with its own workers; a new process replaces a killed process.
        Each process imports the module of the tasks, so call `run` below `if __name__ == "__main__":`. A call that
        exceeds its `timeout` ends its process. The other arguments are the arguments of `workers`.
        """
        from penstock.core.queue.tasks.processes import WorkerSettings, run_here, run_in_processes

        if not self._tasks:
            raise ConfigError("there are no tasks to run: make some with @tasks.task")
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("run() waits for signals, which come to the main thread alone: start workers() here")
        if running_loop() is not None:
            raise ConfigError("run() would keep this event loop from running: `async with` each of workers()")
        settings = WorkerSettings(concurrency, group, consumer, ahead, lease)
        if processes is None:
            run_here(self, settings)
        else:
            run_in_processes(self, check_whole(processes, "processes"), settings)

    def handle(self, delivery: Delivery) -> object:
        """Makes the call of a message; a worker of the tasks' queues calls this for each delivery."""
        if not isinstance(delivery, Delivery):
            raise ConfigError(f"a delivery is handled, which a take or a worker gives, not {type(delivery).__name__}")
        task = self._tasks.get(delivery.kind)
        if task is None:
            raise self._put_aside(delivery)
        try:
            bound = task.signature.bound(delivery.payload)
        except ConfigError as error:  # no attempt could decode it
            delivery.nack(dead=True, error=error)
            raise
        call, limit = partial(task.function, *bound.args, **bound.kwargs), task.plan.timeout
        if inspect.iscoroutinefunction(task.function):
            return self._run_async(task, delivery, call())
        try:
            with RunningTask(task.name, delivery):
                result = call() if limit is None else limited(task.name, call, limit)
        except Exception as error:
            self._failed(task, delivery, error)
            raise
        return self._run_async(task, delivery, result) if isinstance(result, Awaitable) else result

    async def _run_async(self, task: Task[..., object], delivery: Delivery, outcome: Awaitable[object]) -> object:
        import asyncio

        limit = task.plan.timeout
        try:
            with RunningTask(task.name, delivery):
                return await (outcome if limit is None else limited_async(task.name, outcome, limit))
        except Exception as error:
            await asyncio.to_thread(self._failed, task, delivery, error)
            raise

    def _failed(self, task: Task[..., object], delivery: Delivery, error: Exception) -> None:
        """Settles a failed call when its task or its error decides how; otherwise the worker settles it."""
        verdict = task.plan.verdict(error, delivery.attempt)
        if verdict is not None and not delivery._settled:
            delivery.nack(delay=verdict.delay, error=error, dead=verdict.dead)

    def _put_aside(self, delivery: Delivery) -> UnknownTask:
        """Lets a message of an unknown task wait, or gives it up; logs and returns the error."""
        name, known = delivery.kind, ", ".join(self.names()) or "none"
        error = UnknownTask(f"there is no task {name!r}: this program has {known}")
        now = self.journal.clock.now_ms()
        if self._unknown == "dead":
            delivery.nack(dead=True, error=error)
            log.error("%r is given up: %s", delivery, error)
            return error
        age = (now - to_ms(delivery.event.recorded_at, "recorded_at")) / 1000
        wait = min(max(age / 10, UNKNOWN_TASK_PAUSE), UNKNOWN_TASK_LONGEST)
        delivery.release(wait)
        if self._may_report(name, now / 1000):
            log.error("%r waits for a worker that has its task, without using up an attempt: %s", delivery, error)
        return error

    def _may_report(self, name: str, now: float) -> bool:
        """Returns whether to log an unknown task: at once, then once a minute."""
        with self._reporting:
            if now - self._reported.get(name, -math.inf) < REPORT_SECONDS:
                return False
            self._reported[name] = now
            return True
