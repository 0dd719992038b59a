"""Reactors: events that are appended in reaction to events, exactly once for each input.

The handler's drafts are appended with the triggering event as their cause, in the transaction that moves the cursor. A
crash loses both or neither. A second reactor under the same name finds the moved cursor and drops its own drafts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.entity.outbox import Plan, Staged, ask_guards, counted_from
from penstock.core.events import Draft, Event
from penstock.core.journal.commit import Commit
from penstock.core.journal.cursors import move_cursor, read_cursor
from penstock.core.journal.reading import TopicView
from penstock.core.journal.worker import TopicWorker
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.plan import BatchPlan
from penstock.core.names import check_name
from penstock.errors import ConfigError, FenceActive

if TYPE_CHECKING:
    from penstock.core.entity.fence import Fences
    from penstock.core.journal.log import TopicLog


FENCE_PAUSE = 0.1
"""The seconds between two attempts to append while an exclusive fence is open."""

Reaction = Callable[[Event], Any]
"""A function that returns a draft, several drafts, or None; or an awaitable of these."""


class Reactor(TopicWorker):
    """A worker that runs a handler over a topic's events and appends the returned drafts."""

    def __init__(self, log: TopicLog, fences: Fences, plan: BatchPlan) -> None:
        super().__init__(log, plan)
        self._fences = fences
        self._react: Reaction = plan.handler

    def _settle(self, events: list[Event]) -> None:
        """Reacts to events; when the handler fails, earlier results are kept."""
        start = self._committed
        reactions: list[list[Staged]] = []
        failure: Exception | None = None
        for event in events:
            try:
                reactions.append(self._drafts(event))
            except Exception as error:
                error.add_note(f"in reactor {self.name!r}, for event {event.seq} of topic {event.topic!r}")
                failure = error
                break
        done = events[: len(reactions)]
        if done and not self._commit(start, done, reactions) and len(done) > 1:
            for event, reaction in zip(done, reactions, strict=True):
                self._commit(start, [event], [reaction], alone=True)
                start = event.seq
        if failure is not None:
            raise failure

    def _drafts(self, event: Event) -> list[Staged]:
        outcome = self._react(event)
        if isinstance(outcome, Awaitable):
            outcome = self._wait_for(outcome)
        drafts: Iterable[Any] = () if outcome is None else (outcome,) if isinstance(outcome, Draft) else outcome
        staged: list[Staged] = []
        for draft in drafts:
            if not isinstance(draft, Draft):
                raise ConfigError(f"a reactor's handler returns Drafts (or nothing), not {type(draft).__name__}")
            name = check_name(draft.topic) if draft.topic is not None else self._topic
            staged.append((name, draft if draft.cause is not None else replace(draft, cause=event)))
        return staged

    def _commit(self, start: int, events: list[Event], reactions: list[list[Staged]], *, alone: bool = False) -> bool:
        """Appends reactions and moves the cursor; returns False when one of several was refused."""
        staged: list[Staged] = []
        for reaction in reactions:
            before = len(staged)
            staged.extend((name, counted_from(draft, before)) for name, draft in reaction)
        core, last = self._log.core, events[-1].seq
        while True:
            try:
                ask_guards(core.guards, staged)
                plan = Plan(core, staged)
                core.writer.run(WriteRequest(partial(self._apply, plan, start, last), plan.size))
                return True
            except FenceActive:  # the error of a guard, or of a fence that was opened after the guards were asked
                if not self._outwait_fence():
                    return True
            except Exception as error:
                if len(events) > 1 and not alone:
                    return False
                error.add_note(f"in reactor {self.name!r}, appending its reaction to event {events[0].seq}")
                raise

    def _apply(self, plan: Plan, start: int, last: int, commit: Commit) -> None:
        view = TopicView.open(commit.tx, self._topic)
        if view is None or last <= view.began():
            return  # the topic was dropped
        if (read_cursor(commit.tx, view.topic_id, self._consumer) or 0) != start:
            return  # another reactor of this name was faster
        plan.apply(commit)
        move_cursor(commit, self._topic, self._consumer, last, back=False)

    def _outwait_fence(self) -> bool:
        """Waits for a while until no exclusive fence is open; returns False when the reactor was stopped meanwhile."""
        # a fence of another process: its end is not signalled, and each check is a commit
        if self._fences.exclusive is None:
            self._stopping.wait(FENCE_PAUSE)
        else:
            self._fences.wait(FENCE_PAUSE)
        return not self._stopping.is_set()
