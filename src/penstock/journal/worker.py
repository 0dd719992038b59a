"""Workers: a handler run over a topic, batch by batch, at least once: the cursor moves after the handler returns."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError
from penstock.events import Event
from penstock.limits import WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.names import check_whole
from penstock.observe.logs import Log

if TYPE_CHECKING:
    import asyncio

    from penstock.journal.topic import BaseTopic

log = Log("penstock.worker")


class Worker:
    """Runs something again and again until told to stop: `start` in a thread of its own, or `run` in this one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._in_foreground: int | None = None
        self._foreground_ended = threading.Event()

    def start(self) -> Worker:
        """Begins in a background thread and returns at once."""
        if self._thread is not None:
            raise ConfigError(f"worker {self.name!r} was started already")
        self._thread = threading.Thread(target=self._guarded, name=f"penstock-{self.name}", daemon=True)
        self._thread.start()
        return self

    def run(self) -> None:
        """Works in the calling thread until stopped; a failure beyond the restart budget is raised here."""
        raise NotImplementedError

    def stop(self, timeout: Seconds | None = None) -> None:
        """Finishes what is in hand, ends, and raises what made the worker fail, if it did."""
        self._stopping.set()
        self._nudge()
        limit = None if timeout is None else seconds(timeout, "timeout")
        thread = self._thread
        if thread is threading.current_thread() or self._in_foreground == threading.get_ident():
            return
        if thread is not None:
            thread.join(limit)
        elif self._in_foreground is not None:
            self._foreground_ended.wait(limit)
        if self.alive:
            raise TimeoutError(
                f"worker {self.name!r} is still busy after {timeout} s; it ends when its handler returns"
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def alive(self) -> bool:
        """Whether it is at work, in a thread of its own or in the one that called `run`."""
        return self._in_foreground is not None or (self._thread is not None and self._thread.is_alive())

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _nudge(self) -> None:
        """Wakes the worker if it waits for something to do."""

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """For `run`: lets `stop` wait for a worker that runs in its caller's thread."""
        if self._thread is threading.current_thread():
            yield
            return
        self._foreground_ended.clear()
        self._in_foreground = threading.get_ident()
        try:
            yield
        finally:
            self._in_foreground = None
            self._foreground_ended.set()

    def _guarded(self) -> None:
        try:
            self.run()
        except Closed as error:
            if not self._stopping.is_set():
                self._failure = error
        except BaseException as error:
            self._failure = error
            log.error("worker %r ended: %r", self.name, error)


class TopicWorker(Worker):
    """A handler over a topic's events, with a durable cursor."""

    def __init__(
        self,
        topic: BaseTopic,
        consumer: str,
        handler: Callable[[list[Event]], Any],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> None:
        super().__init__(f"{topic.name}:{consumer}")
        check_whole(batch, "batch")
        check_whole(restarts, "restarts", 0)
        self._topic = topic
        self._consumer = consumer
        self._handler = handler
        self._batch = batch
        self._idle = seconds(idle, "idle")
        self._restarts = restarts
        self._runner: asyncio.Runner | None = None

    def run(self) -> None:
        left = self._restarts
        with self._at_work(), ExitStack() as opened:
            self._opened = opened
            while True:
                try:
                    self._work()
                    return
                except Closed:
                    if self._stopping.is_set():
                        return
                    raise
                except Exception as error:
                    if left == 0 or self._stopping.is_set():
                        raise
                    left -= 1
                    log.warning("worker %r failed (%r); restarting, %d restarts left", self.name, error, left)

    def _work(self) -> None:
        topic, signal = self._topic, self._topic.journal._hub.signal(self._topic.name)
        while not self._stopping.is_set():
            seen = signal.version
            events = list(topic.read(topic.cursor(self._consumer) or 0, self._batch))
            if events:
                self._handle(events)
                topic.commit(self._consumer, events[-1].seq)
                continue
            with topic.journal._hub:
                # The wait is for other processes' sake bounded; commits of this one signal at once.
                signal.wait(seen, max(self._idle, 0.05))

    def _handle(self, events: list[Event]) -> None:
        outcome = self._handler(events)
        if isinstance(outcome, Awaitable):
            self._wait_for(outcome)

    def _wait_for(self, outcome: Any) -> Any:
        """What an asynchronous handler's awaitable gives."""
        if self._runner is None:
            import asyncio

            self._runner = self._opened.enter_context(asyncio.Runner())
        return self._runner.run(_finish(outcome))

    def _nudge(self) -> None:
        self._topic.journal._hub.signal(self._topic.name).notify()


async def _finish(outcome: Any) -> Any:
    return await outcome
