"""A call while it runs: what its function may ask without being given it, and how long it may take."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, TypeVar

from penstock.core.observe.logs import Log
from penstock.core.ticket import Ticket
from penstock.core.units import show_duration
from penstock.errors import ConfigError, TaskTimeout

if TYPE_CHECKING:
    from penstock.core.consuming.delivery import Delivery

R = TypeVar("R")

log = Log("penstock.tasks")

_running: ContextVar[RunningTask | None] = ContextVar("penstock_task", default=None)


class RunningTask:
    """The call that runs here: `penstock.current_task()` gives it to the task's function and to all that this calls."""

    def __init__(self, name: str, delivery: Delivery) -> None:
        self.name = name
        """The task's name."""
        self.delivery = delivery
        """The message of the call, under its lease."""

    def __repr__(self) -> str:
        return f"<running {self.name!r}, attempt {self.attempt}>"

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.delivery.attempt

    @property
    def id(self) -> str:
        """The id of the message; `tasks.result` knows a call by the id of its first message."""
        return self.delivery.event.id

    def __enter__(self) -> RunningTask:
        self._before = _running.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _running.reset(self._before)


def current_task() -> RunningTask:
    """The call of a task that runs here. ConfigError outside of one.

    >>> current_task().attempt
    1
    """
    found = _running.get()
    if found is None:
        raise ConfigError("no task runs here: current_task() is for functions that a worker of tasks calls")
    return found


# ── time limits ──────────────────────────────────────────────────────────────────────────────────────────────────────
def limited(name: str, call: Callable[[], R], limit: float) -> R:
    """What a function returns within so many seconds. TaskTimeout when it takes longer: its thread is left behind."""
    outcome: Ticket[R] = Ticket()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            outcome.fail(error)
        else:
            outcome.resolve(result)

    thread = threading.Thread(target=copy_context().run, args=(work,), name=f"penstock-task-{name}", daemon=True)
    thread.start()
    try:
        return outcome.result(limit)
    except TimeoutError:
        if outcome.done():  # just now, or the error is the function's own
            return outcome.result()
        log.warning("task %r goes on in a thread that is left behind: a thread cannot be ended", name)
        raise too_long(name, limit) from None


async def limited_async(name: str, outcome: Awaitable[R], limit: float) -> R:
    """The same of a coroutine, which is cancelled."""
    import asyncio

    scope = asyncio.timeout(limit)
    try:
        async with scope:
            return await outcome
    except TimeoutError:
        if not scope.expired():  # the function's own
            raise
        raise too_long(name, limit) from None


def too_long(name: str, limit: float) -> TaskTimeout:
    return TaskTimeout(f"task {name!r} took longer than {show_duration(limit)}", limit=limit)
