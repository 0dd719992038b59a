"""Tasks: functions that can be called here, or pushed to a queue to be called by a worker."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec

from penstock.core.consuming.delivery import Delivery
from penstock.core.events import Receipt
from penstock.core.model.arguments import PushArguments, shows
from penstock.core.model.take import DEFAULT_GROUP
from penstock.core.names import check_consumer, check_items, check_kind, check_mapping, check_name
from penstock.core.queue.policy import Retry, check_attempts
from penstock.core.queue.results import ResultTicket
from penstock.core.queue.schedule import Cron
from penstock.core.units import parse_duration
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from penstock.core.clock import Seconds
    from penstock.core.consuming.worker import Worker
    from penstock.core.queue.schedule import Missed
    from penstock.core.queue.worker import Middleware
    from penstock.core.surface.journal import Journal


# ── a task ───────────────────────────────────────────────────────────────────────────────────────────────────────────
P = ParamSpec("P")
R = TypeVar("R")


class TaskArguments(msgspec.Struct, forbid_unknown_fields=True):
    """What a message says a task is called with."""

    args: list[object] = []
    kwargs: dict[str, object] = {}


class PeriodicCall(msgspec.Struct, frozen=True):
    """A call of a task that is pushed by the clock."""

    name: str
    queue: str
    task: str
    when: Seconds | str
    payload: TaskArguments
    timezone: str
    missed: Missed
    options: dict[str, Any]

    def store(self, journal: Journal) -> None:
        """Stores the schedule with the queue; the same one again changes nothing."""
        journal.queue(self.queue).every(
            self.when,
            self.payload,
            name=self.name,
            timezone=self.timezone,
            missed=self.missed,
            kind=self.task,
            **self.options,
        )


class Task(Generic[P, R]):
    """A function that `Tasks.task` has made pushable. Call it as before, or `push` its arguments."""

    def __init__(
        self, tasks: Tasks, function: Callable[P, R], name: str, queue: str, retry: Retry | None, **options: object
    ) -> None:
        self.name = name
        self.queue = queue
        self.retry = retry
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = name
        self._tasks = tasks
        self._options: dict[str, Any] = {one: value for one, value in options.items() if value is not None}
        self._signature = inspect.signature(function)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function here and now."""
        return self.function(*args, **kwargs)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Pushes a call: a worker makes it. TypeError, as a call would, when the arguments do not fit."""
        queue = self._tasks.journal.queue(self.queue)
        receipt: Receipt = queue.push(self._payload(args, kwargs), kind=self.name, **self._options)
        return receipt

    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """`push` for an event loop."""
        queue = self._tasks.journal.queue(self.queue)
        return await queue.submit(self._payload(args, kwargs), kind=self.name, **self._options)

    def ask(self, *args: P.args, **kwargs: P.kwargs) -> ResultTicket:
        """Pushes a call and returns a ticket for what the function returns."""
        queue = self._tasks.journal.queue(self.queue)
        return queue.push(self._payload(args, kwargs), kind=self.name, reply=True, **self._options)

    @shows(PushArguments)
    def using(self, **options: Unpack[PushArguments]) -> Task[P, R]:
        """The same task, pushed with options of `Queue.push`: `send.using(delay=60).push(to="ada")`."""
        if "kind" in options:
            raise ConfigError("a task's messages have its name as their kind: kind= cannot be given")
        changed: dict[str, object] = {**self._options, **options}
        return Task(self._tasks, self.function, self.name, self.queue, self.retry, **changed)

    # ── by the clock ─────────────────────────────────────────────────────────────────────────────────────────────────
    def every(
        self,
        interval: Seconds | str,
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        name: str | None = None,
        missed: Missed = "last",
    ) -> None:
        """Has the task called every `interval`: seconds, a timedelta, or text like "1h" or "15m".

        `args` and `kwargs` are the call's arguments. The schedule is stored with the queue under `name` (the task's
        own, unless given); another interval later replaces it, and `Queue.unschedule` removes it. `missed` is which
        ticks are made up for that no process was there for: the "last" one, "all" or "none".
        """
        period = parse_duration(interval) if isinstance(interval, str) else interval
        self._add(period, args, kwargs, name, "UTC", missed)

    def at(
        self,
        *,
        cron: str,
        timezone: str = "UTC",
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        name: str | None = None,
        missed: Missed = "last",
    ) -> None:
        """Has the task called at the times of a cron line of five fields ("0 6 * * mon"); see `every`."""
        self._add(Cron(cron, timezone).line, args, kwargs, name, timezone, missed)

    def _add(
        self,
        when: Seconds | str,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        name: str | None,
        timezone: str,
        missed: Missed,
    ) -> None:
        options = {one: value for one, value in self._options.items() if one != "max_attempts"}
        if unfit := sorted(set(options) - {"key", "priority", "headers"}):
            raise ConfigError(f"a periodic call has no {unfit[0]}=: leave it out of using()")
        payload = self._payload(tuple(check_items(args, "args")), check_mapping(kwargs, "kwargs"))
        called = self.name if name is None else check_consumer(name, "schedule")
        self._tasks.add_periodic(PeriodicCall(called, self.queue, self.name, when, payload, timezone, missed, options))

    def _payload(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> TaskArguments:
        self._signature.bind(*args, **kwargs)
        return TaskArguments(list(args), dict(kwargs))

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def bound(self, payload: object) -> inspect.BoundArguments:
        """The arguments a message brings, as the function's annotations want them; ConfigError when they do not fit."""
        try:
            given = msgspec.convert(payload, TaskArguments)
            bound = self._signature.bind(*given.args, **given.kwargs)
        except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
            raise ConfigError(f"task {self.name!r} cannot be called with this message: {error}") from error
        try:
            hints = typing.get_type_hints(self.function)
        except Exception:  # a name that exists for type checkers alone
            hints = {}
        for name, value in bound.arguments.items():
            parameter = self._signature.parameters[name]
            if name in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                bound.arguments[name] = self._converted(name, value, hints[name])
        return bound

    def _converted(self, name: str, value: object, hint: object) -> object:
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise ConfigError(f"task {self.name!r} cannot be called with this message: {name}: {error}") from error
        except TypeError:  # a type that has no form of its own in JSON: what JSON has for it
            return value


# ── all tasks of a program ───────────────────────────────────────────────────────────────────────────────────────────

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
        self.bind(journal)
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
        if journal is not None:
            from penstock import Journal

            if not isinstance(journal, Journal):
                raise ConfigError(f"tasks belong to a journal, not to {journal!r:.80}")
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
        if not isinstance(call, PeriodicCall):
            raise ConfigError(f"a periodic call is made by Task.every or Task.at; {call!r:.80} is none")
        known = self._periodic.setdefault(call.name, call)
        if known != call:
            raise ConfigError(f"there is a periodic call {call.name!r} already: give this one another name=")
        if self._journal is not None:
            call.store(self._journal)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def workers(
        self,
        *,
        concurrency: int = 1,
        group: str = DEFAULT_GROUP,
        consumer: str | None = None,
        ahead: int | None = None,
        lease: Seconds | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> list[Worker]:
        """A worker for each of the tasks' queues, not started; the arguments are those of `Queue.worker`."""
        for call in self._periodic.values():
            call.store(self.journal)
        return [
            self.journal.queue(queue).worker(
                self.run,
                concurrency=concurrency,
                group=group,
                consumer=consumer,
                ahead=ahead,
                lease=lease,
                middleware=middleware,
            )
            for queue in self.queues()
        ]

    def run(self, delivery: Delivery) -> object:
        """Makes the call a message stands for: what a worker of the tasks' queues does with each delivery."""
        call = self._call(delivery)
        if call is None:
            return None
        task, run = call
        try:
            result = run()
        except Exception as error:
            self._failed(task, delivery, error)
            raise
        return self._awaited(task, delivery, result) if isinstance(result, Awaitable) else result

    async def _awaited(self, task: Task[..., object], delivery: Delivery, result: Awaitable[object]) -> object:
        import asyncio

        try:
            return await result
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
