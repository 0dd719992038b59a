"""A task: a function that can be called here, or pushed to a queue to be called by a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from penstock.core.clock import Duration, seconds
from penstock.core.events import Receipt
from penstock.core.model.arguments import PushArguments, show_arguments
from penstock.core.model.calls import UNIQUE, TaskArguments
from penstock.core.names import check_consumer, check_items, check_mapping, check_text
from penstock.core.queue.results import ResultTicket, with_reply
from penstock.core.queue.schedule import Cron
from penstock.core.queue.tasks.arguments import Signature, digest
from penstock.core.queue.tasks.chain import ChainStart, TaskCall
from penstock.core.queue.tasks.plan import TaskPlan
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from penstock.core.queue.schedule import Missed
    from penstock.core.queue.tasks.tasks import Tasks
    from penstock.core.surface.journal import Journal
    from penstock.core.surface.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")


class PeriodicCall(msgspec.Struct, frozen=True):
    """A call of a task that is pushed by the clock."""

    name: str
    queue: str
    task: str
    when: Duration
    payload: TaskArguments
    timezone: str
    missed: Missed
    options: dict[str, Any]

    def store(self, journal: Journal) -> None:
        """Stores the schedule with the queue; the same schedule again changes nothing."""
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
        self,
        tasks: Tasks,
        function: Callable[P, R],
        name: str,
        queue: str,
        plan: TaskPlan,
        **options: object,
    ) -> None:
        self.name = name
        self.queue = queue
        self.plan = plan
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = name
        self.tasks = tasks
        self.chosen: dict[str, Any] = {one: value for one, value in options.items() if value is not None}
        """The options of each push, without those that depend on the arguments."""
        self.signature = Signature(name, function)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function here and now."""
        return self.function(*args, **kwargs)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Pushes a call, which a worker makes. `tasks.result(receipt.id)` returns its state in any process.

        Raises TypeError, like a call, when the arguments do not fit the function or its annotations.
        """
        payload, options = self.prepared(args, kwargs)
        receipt: Receipt = self._handle().push(payload, **options)
        return receipt

    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Does what `push` does, for an event loop."""
        payload, options = self.prepared(args, kwargs)
        return await self._handle().submit(payload, **options)

    def ask(self, *args: P.args, **kwargs: P.kwargs) -> ResultTicket:
        """Pushes a call and returns a ticket for what the function returns."""
        queue = self._handle()
        payload, options = self.prepared(args, kwargs)
        options["headers"] = with_reply(self.queue, options.get("headers"), self.plan.keep)
        return ResultTicket(queue, queue.push(payload, **options))

    async def ask_async(self, *args: P.args, **kwargs: P.kwargs) -> ResultTicket:
        """Does what `ask` does, for an event loop, which may await the ticket."""
        import asyncio

        return await asyncio.to_thread(self.ask, *args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Returns a call that is not pushed yet, for a chain or for `Tasks.gather`."""
        return TaskCall(self.tasks, self, args, kwargs)

    def then(self, *following: TaskCall | Task[..., Any]) -> ChainStart[P]:
        """Returns a chain: each following task is called with the earlier result, then its own arguments.

        >>> fetch.then(parse, store.call("archive")).push("https://example.com")
        """
        return ChainStart(self, following)

    def _handle(self) -> Queue[Any]:
        return self.tasks.journal.queue(self.queue)

    def own_options(self) -> dict[str, Any]:
        """Returns the options of a push that all of the task's calls share, except options that depend on the
        arguments.
        """
        key = {"key": self.plan.key} if isinstance(self.plan.key, str) else {}
        return {**key, **self.chosen}

    def prepared(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[TaskArguments, dict[str, Any]]:
        """Returns the payload of a call, and the options of its push."""
        payload, key = self.signature.payload(args, kwargs), self.plan.key
        options = {"kind": self.name, **self.chosen}
        if key is not None and "key" not in options:
            options["key"] = key if isinstance(key, str) else key(*args, **kwargs)
        if self.plan.unique:
            options["headers"] = {**(options.get("headers") or {}), UNIQUE: self._unique_text(payload, args, kwargs)}
        if self.plan.keep is not None:
            options["headers"] = with_reply(self.queue, options.get("headers"), self.plan.keep)
        return payload, options

    def _unique_text(self, payload: TaskArguments, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Returns the text under which no other call of the task may wait: all arguments, or the result of the
        task's own function.
        """
        unique = self.plan.unique
        if callable(unique):
            return f"{self.name}/{check_text(unique(*args, **kwargs), 'unique')}"
        return f"{self.name}/{digest(payload)}"

    @show_arguments(PushArguments)
    def using(self, **options: Unpack[PushArguments]) -> Task[P, R]:
        """Returns the same task, pushed with options of `Queue.push`: `send.using(delay=60).push(to="ada")`."""
        if "kind" in options:
            raise ConfigError("a task's messages have its name as their kind: kind= cannot be given")
        changed: dict[str, object] = {**self.chosen, **options}
        return Task(self.tasks, self.function, self.name, self.queue, self.plan, **changed)

    # ── by the clock ─────────────────────────────────────────────────────────────────────────────────────────────────
    def every(
        self,
        interval: Duration,
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        name: str | None = None,
        missed: Missed = "last",
    ) -> None:
        """Schedules a call of the task every `interval`: "15m", "1h", seconds or a timedelta.

        `args` and `kwargs` are the call's arguments. The schedule is stored with the queue under `name` (default: the
        task's name); a later interval replaces it, and `Queue.unschedule` removes it. `missed` decides which ticks are
        made up when no process was running: the "last" tick, "all" or "none".
        """
        self._add(seconds(interval, "interval", minimum=0.001), args, kwargs, name, "UTC", missed)

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
        """Schedules calls of the task at the times of a cron line of five fields ("0 6 * * mon"); see `every`."""
        self._add(Cron(cron, timezone).line, args, kwargs, name, timezone, missed)

    def _add(
        self,
        when: Duration,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        name: str | None,
        timezone: str,
        missed: Missed,
    ) -> None:
        payload, options = self.prepared(tuple(check_items(args, "args")), check_mapping(kwargs, "kwargs"))
        options = {one: value for one, value in options.items() if one not in ("kind", "max_attempts")}
        if unfit := sorted(set(options) - {"key", "priority", "headers"}):
            raise ConfigError(f"a periodic call has no {unfit[0]}=: leave it out of using()")
        called = self.name if name is None else check_consumer(name, "schedule")
        self.tasks.add_periodic(PeriodicCall(called, self.queue, self.name, when, payload, timezone, missed, options))
