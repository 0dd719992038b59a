"""The base of every worker, which runs a handler again and again, in its own threads, until it is told to stop.

A worker that fails begins again, so many times a minute. A worker that fails more often gives up, and the journal says
so (`observe.workers`). Coroutine handlers run in the event loop that the worker was started from, else in one of the
worker's own; everything else a worker does (taking, settling, renewing leases) happens in its threads.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from penstock.core.clock import Duration, seconds
from penstock.core.model.failure import describe
from penstock.core.names import check_whole
from penstock.core.observe.logs import Log
from penstock.core.observe.workers import say_gave_up, say_started
from penstock.core.ticket import Ticket
from penstock.errors import Closed, ConfigError
from penstock.limits import WORKER_RESTART_PAUSE, WORKER_RESTART_SECONDS, WORKER_RESTARTS

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from penstock.core.observe.tracing import ActiveSpan
    from penstock.core.surface.journal import Journal

log = Log("penstock.worker")

LOOP_GLANCE = 0.5
"""The seconds between two checks of a handler's event loop, because a closed loop wakes no waiter."""

_at_work: ContextVar[Worker | None] = ContextVar("penstock_worker", default=None)
"""The worker whose handler runs here, which cannot wait for its own end.

Further threads of a worker run in copies of its context.
"""


class Worker:
    """A worker, which runs until it is told to stop: `start` it in its own thread, or `run` it in this thread.

    In an event loop use `async with`, or `await worker.run_async()`.
    """

    def __init__(
        self, name: str, journal: Journal, handler: Callable[..., object], restarts: int = WORKER_RESTARTS
    ) -> None:
        if not callable(handler):
            raise ConfigError(f"a handler must be a function, not {handler!r:.80}")
        _check_takes_one(handler)
        self.name = name
        self._journal = journal
        self._restarts = check_whole(restarts, "restarts", 0)
        self._handler = handler
        self._is_async = _is_coroutine_function(handler)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that the worker was started from."""
        self._own_loop: HandlerLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._failed_at: list[float] = []
        self._in_foreground = False
        self._beginning = threading.Lock()
        self._ended: Ticket[None] = Ticket()
        """A ticket that is resolved when the current run has ended."""

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────────
    def start(self) -> Self:
        """Starts the worker in a background thread and returns at once; coroutine handlers run in the caller's event
        loop.
        """
        with self._beginning:
            if self._thread is not None or self._in_foreground:
                raise ConfigError(f"worker {self.name!r} was started already")
            self._loop = running_loop()
            self._ended = Ticket()
            thread = threading.Thread(target=self._guarded, name=f"penstock-{self.name}", daemon=True)
            thread.start()
            # only now: a worker that could not start can be started again, and no caller waits for it
            self._thread = thread
        return self

    def run(self) -> None:
        """Runs in the calling thread until stopped; raises a failure beyond the restart budget."""
        with self._in_this_thread():
            log.info("worker %r begins; its journal is %r", self.name, self._journal)
            say_started(self._journal, self.name)
            while True:
                try:
                    self._work()
                    return
                except Closed:
                    if self._stopping.is_set():
                        return
                    raise
                except Exception as error:
                    self._stopping.wait(self._pause_after(error))

    async def run_async(self) -> None:
        """Runs until stopped, for an event loop, in which coroutine handlers run.

        A cancelled worker finishes its current work.
        """
        import asyncio

        self.start()
        try:
            await self._ended  # no thread of the loop waits here, because handlers may need all of them
        finally:
            # A cancelled task may still wait for its current work.
            await asyncio.shield(asyncio.ensure_future(self.stop_async()))

    def _work(self) -> None:
        raise NotImplementedError

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def stop(self, timeout: Duration | None = None) -> None:
        """Finishes the current work, ends, and raises the worker's failure, if there is one."""
        # Checked before the worker is told to stop: the worker may end at once, and the check must not depend on
        # timing.
        in_its_loop = self.alive and self._is_async and self._loop is not None and running_loop() is self._loop
        limit = None if timeout is None else seconds(timeout, "timeout")
        if not self._tell_to_stop():
            return
        if in_its_loop:
            raise ConfigError(
                f"worker {self.name!r} runs its handler in this event loop, which cannot wait for it: "
                "await worker.stop_async(), or use `async with`"
            )
        if self._thread is not None:
            self._thread.join(limit)
        if self._in_foreground:
            with suppress(TimeoutError):
                self._ended.result(limit)
        self._raise_failure(timeout)

    async def stop_async(self, timeout: Duration | None = None) -> None:
        """Does what `stop` does, for an event loop."""
        import asyncio

        limit = None if timeout is None else seconds(timeout, "timeout")
        if not self._tell_to_stop():
            return
        if self.alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._ended
        if self._thread is not None and self._ended.done():
            self._thread.join()  # the worker is past its last line
        self._raise_failure(timeout)

    def _tell_to_stop(self) -> bool:
        """Lets the worker begin no further work; returns False when its own handler calls this, which cannot wait
        for the end.
        """
        self._stopping.set()
        self._nudge()
        if _at_work.get() is self:
            return False
        self._check_may_wait()
        return True

    def _raise_failure(self, timeout: Duration | None) -> None:
        """Raises, after a wait for the worker's end, the worker's failure, or an error when the worker has not
        ended.
        """
        if self.alive:
            raise TimeoutError(
                f"worker {self.name!r} is still busy after {timeout} s; it ends when its handler returns"
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def alive(self) -> bool:
        """True while the worker runs, in its own thread or in the thread that called `run`."""
        return self._in_foreground or (self._thread is not None and self._thread.is_alive())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop_async()

    def _nudge(self) -> None:
        """Wakes the worker if it waits for work."""

    def _check_may_wait(self) -> None:
        """Raises ConfigError when the worker could not end while this thread waits for it."""

    # ── failing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _pause_after(self, error: Exception) -> float:
        """Returns the seconds after which to begin again; raises the failure after too many failures within a
        minute.
        """
        if self._stopping.is_set():
            raise error
        now = self._journal.clock.monotonic()
        self._failed_at = [at for at in self._failed_at if now - at < WORKER_RESTART_SECONDS] + [now]
        failures = len(self._failed_at)
        if failures > self._restarts:
            log.error(
                "worker %r gave up after %d failures within %d s: %s",
                self.name,
                failures,
                WORKER_RESTART_SECONDS,
                describe(error),
                exc_info=error,
            )
            say_gave_up(self._journal, self.name, error)
            raise error
        pause = WORKER_RESTART_PAUSE * 2.0 ** (failures - 1)
        log.warning(
            "worker %r failed, and begins again in %.1f s (restart %d of %d within %d s): %s",
            self.name,
            pause,
            failures,
            self._restarts,
            WORKER_RESTART_SECONDS,
            describe(error),
            exc_info=error,
        )
        return float(pause)

    def _guarded(self) -> None:
        try:
            self.run()
        except Closed as error:
            if not self._stopping.is_set():
                self._failure = error
        except Exception as error:  # said already
            self._failure = error
        except BaseException as error:
            if self._loop is not None and type(error).__name__ == "CancelledError":
                log.warning("worker %r ended: its event loop has ended, or has cancelled its handler", self.name)
                self._failure = None
                return
            self._failure = error
            log.error("worker %r ended: %s", self.name, describe(error), exc_info=error)
            say_gave_up(self._journal, self.name, error)
        finally:
            self._ended.resolve(None)

    # ── running the handler ──────────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def _in_this_thread(self) -> Iterator[None]:
        """Marks the thread as working, so that `stop` knows when this thread calls it, or when it must wait for
        `run`.
        """
        with self._beginning:
            foreground = threading.current_thread() is not self._thread
            if foreground:
                self._check_may_run()
                self._ended = Ticket()
                self._in_foreground = True
        before = _at_work.set(self)
        try:
            yield
        finally:
            _at_work.reset(before)
            if self._own_loop is not None:
                self._own_loop.close()
                self._own_loop = None
            if foreground:
                self._in_foreground = False
                self._ended.resolve(None)

    def _check_may_run(self) -> None:
        if self.alive:  # two runs at once would give the handler the same items twice
            raise ConfigError(f"worker {self.name!r} is at work already")
        if self._is_async and running_loop() is not None:
            raise ConfigError(
                f"worker {self.name!r} would keep this event loop from running its handler: await worker.run_async()"
            )

    def _call_handler(self, given: object, span: ActiveSpan | None) -> Any:
        """Returns the result of the handler, or of its coroutine; the span ends with it."""
        try:
            result = self._handler(given)
            return self._wait_for(result) if isinstance(result, Awaitable) else result
        finally:
            if span is not None:
                span.end()

    def _wait_for(self, outcome: Awaitable[object]) -> Any:
        """Waits, in a thread of the worker, for the result of an asynchronous handler.

        The handler runs in the event loop that the worker was started from, else in the worker's own loop.
        """
        import asyncio
        from concurrent.futures import CancelledError

        loop = self._loop or self._begin_own_loop()
        self._is_async = self._is_async or self._loop is not None  # also when only the first call revealed it
        marked = self._marked(outcome)
        try:
            under_way = asyncio.run_coroutine_threadsafe(marked, loop)
        except RuntimeError as error:  # the loop is closed
            marked.close()
            if isinstance(outcome, Coroutine):
                outcome.close()
            raise asyncio.CancelledError from error
        try:
            while True:
                try:
                    return under_way.result(LOOP_GLANCE)
                except TimeoutError:
                    if under_way.done():  # the handler's own error
                        return under_way.result()
                    self._check_loop(loop, under_way)
        except CancelledError as error:
            raise asyncio.CancelledError from error  # this is no failure of the handler

    def _begin_own_loop(self) -> asyncio.AbstractEventLoop:
        with self._beginning:
            self._own_loop = self._own_loop or HandlerLoop(self.name)
            return self._own_loop.loop

    def _check_loop(self, loop: asyncio.AbstractEventLoop, under_way: Future[Any]) -> None:
        """Raises CancelledError when a running handler cannot continue: its loop was closed, or stands still at the
        end.
        """
        import asyncio

        if loop.is_closed():
            raise asyncio.CancelledError
        if self._stopping.is_set() and not loop.is_running():
            under_way.cancel()  # the handler does not run if the loop runs once more: the message is given back
            raise asyncio.CancelledError

    async def _marked(self, outcome: Awaitable[object]) -> Any:
        _at_work.set(self)
        return await outcome


class HandlerLoop:
    """An event loop in its own thread, for the coroutine handlers of a worker that was started without a loop."""

    def __init__(self, name: str) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-{name}-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        import asyncio

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._over.wait())

    def close(self) -> None:
        """Ends the loop, with the tasks that handlers have left running."""
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


def running_loop() -> asyncio.AbstractEventLoop | None:
    # A program that never imported asyncio has no loop, so asyncio is not imported here.
    if "asyncio" not in sys.modules:
        return None
    from asyncio import _get_running_loop

    return _get_running_loop()


def _is_coroutine_function(handler: Callable[..., object]) -> bool:
    import inspect

    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _check_takes_one(handler: Callable[..., object]) -> None:
    """Raises ConfigError when a handler cannot be called with one argument, because every attempt would fail."""
    import inspect

    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some functions in C have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(handler, "__qualname__", repr(handler))
        raise ConfigError(
            f"a handler is called with one argument, what it is to handle, and {name}{signature} cannot be: {error}"
        ) from None


def adapt_handler(handler: Callable[..., Any], convert: Callable[[Any], object]) -> Callable[..., Any]:
    """Returns a handler whose argument is converted by `convert`; asynchronous for an asynchronous handler."""

    def call(given: Any) -> Any:
        return handler(convert(given))

    async def call_async(given: Any) -> Any:
        return await handler(convert(given))

    return functools.update_wrapper(call_async if _is_coroutine_function(handler) else call, handler)
