"""A task: a function that can be called here, or pushed to a queue to be called by a worker."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from penstock.errors import ConfigError
from penstock.events import Receipt
from penstock.queue.results.ticket import ResultTicket
from penstock.queue.retry import Retry
from penstock.queue.run.cron import Cron
from penstock.units import parse_duration

if TYPE_CHECKING:
    from typing import Unpack

    from penstock.clock import Seconds
    from penstock.queue.run.schedule import Missed
    from penstock.queue.tasks.registry import Tasks
    from penstock.surface.arguments import PushArguments
    from penstock.surface.journal import Journal

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
        self.is_async = inspect.iscoroutinefunction(function)
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
        payload = self._payload(tuple(args), kwargs or {})
        called = name or self.name
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
        except (msgspec.ValidationError, TypeError) as error:
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
