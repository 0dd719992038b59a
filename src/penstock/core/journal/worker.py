"""Workers over a topic: batch by batch, at least once, because the cursor moves after the handler returns."""

from __future__ import annotations

import time
from sys import modules
from typing import TYPE_CHECKING

from penstock.core.clock import seconds
from penstock.core.consuming.worker import Worker
from penstock.core.events import Event
from penstock.core.journal.commit import Commit
from penstock.core.journal.cursors import move_cursor, read_cursor
from penstock.core.journal.following import search
from penstock.core.journal.log import TopicLog
from penstock.core.journal.reading import TopicView
from penstock.core.model.plan import BatchPlan
from penstock.core.names import check_whole
from penstock.core.observe.tracing import handling

if TYPE_CHECKING:
    from penstock.core.surface.journal import Journal

PASS_SECONDS = 1.0
"""The pause between two moves of a cursor that only passes unchosen events."""


class BatchWorker(Worker):
    """A handler over a topic's events, a batch at a time, with a durable cursor; the topic may be here or at a
    server.
    """

    def __init__(self, journal: Journal, topic: str, plan: BatchPlan) -> None:
        super().__init__(f"{topic}:{plan.consumer}", journal, plan.handler, plan.restarts)
        self._topic = topic
        self._consumer = plan.consumer
        self._batch = check_whole(plan.batch, "batch")
        self._idle = seconds(plan.idle, "idle")
        self._wanted = plan.wanted

    def _handle(self, events: list[Event]) -> None:
        # A batch has many senders and one span, which continues the trace of the first event.
        self._call_handler(events, handling(self._topic, events[0]) if "opentelemetry.trace" in modules else None)


class TopicWorker(BatchWorker):
    """A worker over a topic of a journal in this process."""

    def __init__(self, log: TopicLog, plan: BatchPlan) -> None:
        super().__init__(log.core.journal, log.name, plan)
        self._log = log
        self._committed = self._passed = -1
        self._moved = 0.0

    def _work(self) -> None:
        hub = self._log.core.hub
        signal = hub.signal(self._topic)
        self._committed = self._passed = -1
        while not self._stopping.is_set():
            seen = signal.version
            events = self._next_events()
            if events:
                self._settle(events)
                continue
            with hub:
                # The wait is bounded because of other processes; commits of this process signal at once.
                signal.wait(seen, max(self._idle, 0.05))
            self._commit_passed()
        self._commit_passed(now=True)

    def _settle(self, events: list[Event]) -> None:
        """Handles a batch, and moves the cursor after it."""
        self._handle(events)
        self._move_cursor(self._passed)

    def _next_events(self) -> list[Event]:
        """Returns the next batch after the cursor, which others may have moved; unchosen events are skipped."""
        events: list[Event] = []
        while not events and not self._stopping.is_set():
            events, through, _ = search(self._log, self._wanted, 0, self._batch, self._begin)
            if through == self._passed:
                break
            self._passed = through
        return events

    def _begin(self, view: TopicView | None) -> int:
        """Returns the position after which a search continues: after the cursor, or after the events that were
        skipped since the cursor moved.
        """
        cursor = 0 if view is None else read_cursor(view.snap, view.topic_id, self._consumer) or 0
        if cursor != self._committed:
            self._committed = self._passed = cursor
        if view is not None and 0 < self._passed <= view.began():  # the cursor is of a dropped topic
            self._passed = view.trimmed()
        return self._passed

    def _move_cursor(self, seq: int) -> None:
        name = self._topic

        def apply(commit: Commit) -> None:
            if commit.head(name) is not None:  # otherwise the topic was dropped while the handler ran
                move_cursor(commit, name, self._consumer, seq, back=False)

        self._log.core.run(apply)
        self._committed, self._moved = seq, time.monotonic()

    def _commit_passed(self, *, now: bool = False) -> None:
        """Moves the cursor past unchosen events; not at each event, because each move is a commit."""
        if self._passed > self._committed >= 0 and (now or time.monotonic() - self._moved >= PASS_SECONDS):
            self._move_cursor(self._passed)

    def _nudge(self) -> None:
        self._log.core.hub.signal(self._topic).notify()

    def _check_may_wait(self) -> None:
        self._log.core.writer.check_idle_here()
