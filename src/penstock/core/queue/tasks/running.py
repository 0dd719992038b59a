"""A running call: the attempt and delivery that its function can ask for, and its time limit."""

from __future__ import annotations

import inspect
import math
import sys
import threading
import time
import typing
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

import msgspec

from penstock.core.consuming.delivery import backend_of
from penstock.core.consuming.processes import one_of_several
from penstock.core.journal.prepare import encode_payload
from penstock.core.model.failure import is_between
from penstock.core.names import check_text
from penstock.core.observe.logs import Log
from penstock.core.queue.operations.notes import check_progress
from penstock.core.ticket import Ticket
from penstock.core.units import show_duration
from penstock.errors import ConfigError, TaskTimeout
from penstock.limits import TASK_KILL_SECONDS

if TYPE_CHECKING:
    from penstock.core.consuming.delivery import Delivery

P = ParamSpec("P")
R = TypeVar("R")

PROGRESS_PAUSE: Final = 0.2
"""The seconds between two stored reports of progress."""

log = Log("penstock.tasks")

_running: ContextVar[RunningTask | None] = ContextVar("penstock_task", default=None)


class RunningTask:
    """The running call: `penstock.current_task()` returns it to the task's function and to every function below it."""

    def __init__(self, name: str, delivery: Delivery) -> None:
        self.name = name
        """The task's name."""
        self.delivery = delivery
        """The message of the call, under its lease."""
        self._backend = backend_of(delivery)
        self._guard = threading.Lock()
        self._begun: set[str] = set()
        """The steps of this attempt, by name."""
        self._results: dict[str, bytes] | None = None
        """The results of the steps of earlier attempts."""
        self._share: float = 0.0
        self._text: str | None = None
        self._step: str | None = None
        """The step that began last and has not returned."""
        self._told = -math.inf

    def __repr__(self) -> str:
        return f"<running {self.name!r}, attempt {self.attempt}>"

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.delivery.attempt

    @property
    def id(self) -> str:
        """The id of the message; `tasks.result` finds a call by the id of its first message."""
        return self.delivery.event.id

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────
    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function and stores its result with the message; when the task runs again, returns the stored result.

        For a coroutine function, returns an awaitable. Every result goes through JSON and has the type of the
        function's annotation, also the first time. A step whose process ends before its result is stored runs again. A
        step begins only while the worker holds the message; otherwise it raises StaleDelivery.
        """
        check_text(name, "name")
        with self._guard:
            if name in self._begun:
                raise ConfigError(f"task {self.name!r} has two steps {name!r}: give each a name of its own")
            self._begun.add(name)
        if inspect.iscoroutinefunction(function):
            return self._step_async(name, function, *args, **kwargs)
        stored = self._known().get(name)
        if stored is None:
            self._begin(name)
            stored = self._store(name, function(*args, **kwargs))
        return _read(stored, function)

    async def _step_async(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import asyncio

        stored = (await asyncio.to_thread(self._known)).get(name)
        if stored is None:
            await asyncio.to_thread(self._begin, name)
            result = await function(*args, **kwargs)
            stored = await asyncio.to_thread(self._store, name, result)
        return _read(stored, function)

    def _known(self) -> dict[str, bytes]:
        with self._guard:
            if self._results is None:
                self._results = self._backend.steps(self.delivery)
            return self._results

    def _begin(self, name: str) -> None:
        self._step = name
        self._note()

    def _store(self, name: str, result: object) -> bytes:
        stored = encode_payload([result], typed=True)[1:-1]  # in a list: bytes are text there
        self._backend.store_step(self.delivery, name, stored)
        if self._step == name:
            self._step = None
        return stored

    def progress(self, share: float, text: str | None = None) -> None:
        """Reports the progress of the call, from 0 to 1, for `tasks.result` and the console.

        At most five reports a second are stored.
        """
        check_progress(share, text)
        self._share, self._text = share, text
        now = time.monotonic()
        if share == 1 or now - self._told >= PROGRESS_PAUSE:
            self._told = now
            self._note()

    def _note(self) -> None:
        self._backend.note_progress(self.delivery, self._share, self._text, self._step)

    def __enter__(self) -> RunningTask:
        self._before = _running.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _running.reset(self._before)


def current_task() -> RunningTask:
    """Returns the running call of a task; raises ConfigError outside of a task.

    >>> current_task().attempt
    1
    """
    found = _running.get()
    if found is None:
        raise ConfigError("no task runs here: current_task() is for functions that a worker of tasks calls")
    return found


def step(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function within a task and stores its result; see `RunningTask.step`.

    >>> paid = step("charge", charge, order)
    """
    return current_task().step(name, function, *args, **kwargs)


def progress(share: float, text: str | None = None) -> None:
    """Reports the progress of the running task, from 0 to 1; see `RunningTask.progress`."""
    current_task().progress(share, text)


def _read(stored: bytes, function: Callable[..., object]) -> Any:
    """Returns the result of a step in the type of the function's annotation."""
    try:
        hint = typing.get_type_hints(function).get("return", Any)
    except Exception:  # no function, or names that exist for type checkers alone
        hint = Any
    try:
        return msgspec.convert(msgspec.json.decode(stored), hint, str_keys=True)
    except TypeError:  # a type that has no form of its own in JSON
        return msgspec.json.decode(stored)


# ── time limits ──────────────────────────────────────────────────────────────────────────────────────────────────────
def limited(name: str, call: Callable[[], R], limit: float) -> R:
    """Returns the result of a function with a time limit.

    Raises TaskTimeout when it takes longer: its thread is abandoned, and a process that is one of several ends.
    """
    outcome: Ticket[R] = Ticket()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            outcome.fail(error)
        else:
            outcome.resolve(result)

    thread = threading.Thread(target=copy_context().run, args=(work,), name=f"penstock-task-{name}", daemon=True)
    here = one_of_several()
    with nullcontext() if here is None else here.limited(limit):
        thread.start()
        try:
            return outcome.result(limit)
        except TimeoutError:
            if outcome.done():  # just now, or the function itself raised the error
                return outcome.result()
    error = _too_long(name, limit, _place_of(thread))
    if here is None:
        log.warning("task %r goes on in a thread that is left behind: a thread cannot be ended", name)
    else:
        here.replace()
    raise error


async def limited_async(name: str, outcome: Awaitable[R], limit: float) -> R:
    """Returns the result of a coroutine with a time limit.

    A coroutine that takes longer is cancelled, and abandoned if it continues nevertheless.
    """
    import asyncio

    here, task = one_of_several(), asyncio.ensure_future(outcome)
    with nullcontext() if here is None else here.limited(limit):
        try:
            await asyncio.wait([task], timeout=limit)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait([task], timeout=TASK_KILL_SECONDS / 2)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task], timeout=TASK_KILL_SECONDS / 2)
            raise
    place = None
    try:
        task.result()
    except asyncio.InvalidStateError:
        log.warning("task %r was cancelled at its time limit and goes on: it is left behind", name)
        if here is not None:
            here.replace()
    except BaseException as error:
        place = error.__traceback__
    raise _too_long(name, limit, place)


def _too_long(name: str, limit: float, place: TracebackType | None) -> TaskTimeout:
    """Returns the error of a call, with a traceback of its place at the time limit."""
    error = TaskTimeout(f"task {name!r} took longer than {show_duration(limit)}", limit=limit)
    return error.with_traceback(place)


def _place_of(thread: threading.Thread) -> TracebackType | None:
    """Returns the place where a thread is, as a traceback."""
    trace = None
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if trace is not None or not is_between(frame.f_code.co_filename):
            trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace
