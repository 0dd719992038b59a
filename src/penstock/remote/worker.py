"""A worker over a topic at the other end of a url."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.events import Event
from penstock.core.journal.worker import BatchWorker
from penstock.errors import ConfigError, PositionTrimmed
from penstock.remote.subscription import RemoteSubscription

if TYPE_CHECKING:
    from penstock.core.model.plan import BatchPlan
    from penstock.core.surface.topic import Topic
    from penstock.remote.topic import RemoteTopic

GLANCE = 0.1
"""The number of seconds between two checks whether the worker should stop."""


class RemoteTopicWorker(BatchWorker):
    """A handler over a topic's events, with a durable cursor; each event is handled at least once.

    The worker follows the topic and does not poll.
    """

    def __init__(self, remote: RemoteTopic, topic: Topic, plan: BatchPlan) -> None:
        super().__init__(topic.journal, topic.name, plan)
        self._remote = remote
        self._followed = topic

    def _work(self) -> None:
        while not self._stopping.is_set():
            start = self._followed.cursor(self._consumer) or 0
            size = max(self._batch, 128)
            with RemoteSubscription(self._remote, start, buffer=size, wanted=self._wanted) as subscription:
                self._follow(subscription, start)

    def _follow(self, subscription: RemoteSubscription, committed: int) -> None:
        """Works until it should stop.

        It also returns if it was behind when the topic was dropped, because a topic made anew has a new cursor.
        """
        while not self._stopping.is_set():
            try:
                events = self._gathered(subscription)
            except PositionTrimmed:
                if (self._followed.cursor(self._consumer) or 0) == committed:
                    raise  # by compaction
                return
            if events:
                self._handle(events)
            through = events[-1].seq if events else subscription.position  # past events that were not chosen
            if through > committed:
                committed = through
                self._commit(committed)

    def _commit(self, seq: int) -> None:
        try:
            self._followed.commit(self._consumer, seq)
        except ConfigError:
            # The events that the worker has read no longer exist, because the topic was dropped. Any other error is
            # raised here.
            if self._followed.latest >= seq:
                self._followed.commit(self._consumer, seq)

    def _gathered(self, subscription: RemoteSubscription) -> list[Event]:
        """Returns the next events, at most a batch; none when no event came for a moment."""
        first = subscription.next(GLANCE)
        events = [] if first is None else [first]
        while events and len(events) < self._batch and (more := subscription.ready()) is not None:
            events.append(more)
        return events

    def _nudge(self) -> None:
        """Does nothing: the worker checks often enough by itself."""
