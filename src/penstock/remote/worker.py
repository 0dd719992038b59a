"""A worker over a topic at the other end of a url."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.clock import Seconds, seconds
from penstock.errors import Closed, ConfigError
from penstock.event import Event
from penstock.journal.worker import Worker, log
from penstock.limits import WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS

if TYPE_CHECKING:
    from penstock.remote.topic import RemoteTopic


class RemoteTopicWorker(Worker):
    """A handler over a topic's events, with a durable cursor; at least once."""

    def __init__(
        self,
        topic: RemoteTopic,
        consumer: str,
        handler: Callable[[list[Event]], Any],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> None:
        super().__init__(f"{topic.name}:{consumer}")
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise ConfigError(f"batch must be a whole number of at least 1, not {batch!r}")
        if not isinstance(restarts, int) or isinstance(restarts, bool) or restarts < 0:
            raise ConfigError(f"restarts must be a whole number of at least 0, not {restarts!r}")
        seconds(idle, "idle")
        self._topic = topic
        self._consumer = consumer
        self._handler = handler
        self._batch = batch
        self._restarts = restarts
        self._runner: Any = None

    def run(self) -> None:
        import asyncio

        left = self._restarts
        with asyncio.Runner() as runner:
            self._runner = runner
            while True:
                try:
                    self._work()
                    return
                except Closed:
                    raise
                except Exception as error:
                    if left == 0 or self._stopping.is_set():
                        raise
                    left -= 1
                    log.warning("worker %r failed (%r); restarting, %d restarts left", self.name, error, left)

    def _work(self) -> None:
        topic = self._topic
        with topic.subscribe(topic.cursor(self._consumer) or 0, buffer=max(self._batch, 128)) as subscription:
            while not self._stopping.is_set():
                first = subscription.next(0.1)
                if first is None:
                    continue
                events = [first]
                while len(events) < self._batch and (more := subscription.next(0)) is not None:
                    events.append(more)
                self._handle(events)
                topic.commit(self._consumer, events[-1].seq)

    def _handle(self, events: list[Event]) -> None:
        outcome = self._handler(events)
        if inspect.isawaitable(outcome):
            self._runner.run(_finish(outcome))


async def _finish(outcome: Any) -> Any:
    return await outcome
