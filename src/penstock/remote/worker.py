"""A worker over a topic at the other end of a url."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.clock import Seconds
from penstock.events import Event
from penstock.journal.following.selection import Selection
from penstock.journal.worker import BatchWorker
from penstock.limits import WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.remote.subscription import filters_of

if TYPE_CHECKING:
    from penstock.remote.topic import RemoteTopic

GLANCE = 0.1
"""Seconds between two looks at whether the worker should stop."""


class RemoteTopicWorker(BatchWorker):
    """A handler over a topic's events, with a durable cursor; at least once. It follows instead of asking again."""

    def __init__(
        self,
        topic: RemoteTopic,
        consumer: str,
        handler: Callable[[list[Event]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
        selection: Selection | None = None,
    ) -> None:
        super().__init__(
            topic.journal,
            topic.name,
            consumer,
            handler,
            batch=batch,
            idle=idle,
            restarts=restarts,
            selection=selection,
        )
        self._remote = topic

    def _work(self) -> None:
        topic = self._remote
        start = topic.cursor(self._consumer) or 0
        filters = filters_of(self._selection)
        committed = start
        with topic.subscribe(start, buffer=max(self._batch, 128), **filters) as subscription:
            while not self._stopping.is_set():
                first = subscription.next(GLANCE)
                if first is None:
                    if subscription.position > committed:  # past events that were not chosen
                        committed = subscription.position
                        topic.commit(self._consumer, committed)
                    continue
                events = [first]
                while len(events) < self._batch and (more := subscription.ready()) is not None:
                    events.append(more)
                self._handle(events)
                committed = events[-1].seq
                topic.commit(self._consumer, committed)

    def _nudge(self) -> None:
        """It looks up often enough by itself."""
