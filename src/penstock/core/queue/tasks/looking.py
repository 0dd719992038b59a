"""Finds a call by the id of its receipt, wherever its message went: in a queue, else among the kept outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from penstock.core.clock import from_ms
from penstock.core.documents.events import decode_binary
from penstock.core.events import Event, parse_id
from penstock.core.journal.locating import find_event
from penstock.core.journal.log import TopicLog
from penstock.core.model.failure import DEAD_QUEUE
from penstock.core.model.query import EventQuery
from penstock.core.model.reply import SUFFIX, read_keep, read_reply
from penstock.core.observe.sample import TaskProgress
from penstock.core.queue import results
from penstock.core.queue.inspect import Entry, View
from penstock.core.queue.operations.follow import find_join, missing_calls
from penstock.core.queue.tasks.state import CallState, TaskState

if TYPE_CHECKING:
    from penstock.core.queue.registry import QueueRegistry

_STATES: dict[str, CallState] = {"ready": "waiting", "delayed": "waiting", "in_flight": "running", "failed": "failed"}


def find_call(queues: QueueRegistry, id: str) -> TaskState | None:
    """Returns the state of a call; None when neither message nor outcome of this id exists."""
    return None if parse_id(id) is None else _Search(queues, id).find()


def with_result(found: TaskState) -> TaskState:
    """Returns the state with a binary result as bytes."""
    return msgspec.structs.replace(found, result=decode_binary(found.result)) if found.binary else found


LOOKS = 5
"""The number of looks for a call that moves from queue to queue meanwhile."""


class _Search:
    """A search for one call. It looks for the message first: once the message is settled, its outcome exists."""

    def __init__(self, queues: QueueRegistry, id: str) -> None:
        self._queues = queues
        self._id = id
        self._now = queues.core.clock.now_ms()

    def find(self) -> TaskState | None:
        for _ in range(LOOKS):
            with self._queues.core.engine.read() as snap:
                event = find_event(snap, self._id, self._now)
                place = results.find_place(snap, self._id)
                joined = find_join(snap, self._id) is not None
            if event is not None and (found := self._unsettled(event.topic, event.seq)) is not None:
                return found
            if place is not None and (found := self._unsettled(place.queue, place.seq)) is not None:
                return found
            outcome = self._outcome(event)
            if outcome is not None:
                return None if self._is_over(outcome) else self._settled(outcome)
            if (found := self._joining()) is not None or (place is None and not joined):
                return found
        return None

    def _joining(self) -> TaskState | None:
        """Returns the state of a call that waits for other calls to return."""
        with self._queues.core.engine.read() as snap:
            row = find_join(snap, self._id)
            missing = [] if row is None else missing_calls(snap, self._id, row)
        if row is None:
            return None
        error = next((why for one in missing if (why := _why_not(one, _Search(self._queues, one).find()))), None)
        share, call = (row.count - row.left) / row.count, row.then[0]
        progress = TaskProgress(share, f"{row.count - row.left} of {row.count} calls returned", from_ms(self._now))
        pushed = from_ms(row.pushed_ms)
        return TaskState(
            self._id, call.queue, 0, call.task, "waiting", error=error, pushed_at=pushed, progress=progress
        )

    def _unsettled(self, queue: str, seq: int) -> TaskState | None:
        """Returns the state of a call from its message in a queue; None for a settled message or a dead letter."""
        with self._queues.core.engine.read() as snap:
            state = self._queues.cache.load(snap, queue)
            if state is None:
                return None
            view = View(snap, state, self._now)
            entry = next((one for group in state.all_groups(snap) if (one := view.entry(group, seq))), None)
            event = None if entry is None else view.event(entry)
            if entry is None or event is None or DEAD_QUEUE in event.headers:
                return None
            return self._shown(view, entry, event)

    def _shown(self, view: View, entry: Entry, event: Event) -> TaskState:
        message, held = entry.message, entry.held
        trail = view.trail(entry.group, message)
        failed = view.failed_message(entry.group, entry.message, event) if entry.state == "failed" else None
        return TaskState(
            self._id,
            view.state.name,
            entry.seq,
            event.kind,
            _STATES[entry.state],
            error=message.error,
            traceback=trail.traceback,
            reason=failed.reason if failed else None,
            attempts=message.attempts,
            max_attempts=view.state.budget(view.snap, entry.seq),
            pushed_at=event.recorded_at,
            started_at=from_ms(message.last_ms) if message.last_ms else None,
            finished_at=trail.attempts[-1].shown().ended_at if failed and trail.attempts else None,
            due=from_ms(message.due) if message.due else None,
            consumer=held.lease.consumer if held else None,
            progress=view.progress(entry),
        )

    # ── outcomes ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _outcome(self, event: Event | None) -> Event | None:
        """Returns the newest that is known of a call whose message is settled."""
        wanted = None if event is None else read_reply(event.headers, event.id)
        token = self._id if wanted is None else wanted.token
        topics = self._topics() if wanted is None else [wanted.topic]
        for topic in topics:
            newest = next(TopicLog(self._queues.core, topic).read(EventQuery(key=token, reverse=True, limit=1)), None)
            if newest is not None:
                return newest
        return None

    def _is_over(self, outcome: Event) -> bool:
        keep = read_keep(outcome.headers)
        return keep is not None and outcome.recorded_at + timedelta(seconds=keep) <= from_ms(self._now)

    def _topics(self) -> Iterator[str]:
        for name in self._queues.names():
            with self._queues.core.engine.read() as snap:
                state = self._queues.cache.load(snap, name)
            if state is not None and state.traits.replies:
                yield name + SUFFIX

    def _settled(self, outcome: Event) -> TaskState:
        said, found = outcome.headers, outcome.payload
        state: CallState = "done" if outcome.kind == results.RESULT else "dead"
        is_bytes = isinstance(found, bytes)
        why = found if state == "dead" and isinstance(found, dict) else {}
        return TaskState(
            self._id,
            said.get(results.QUEUE, outcome.topic.removesuffix(SUFFIX)),
            int(said.get(results.SEQ, 0)),
            said.get(results.TASK, "message"),
            state,
            result=None if state == "dead" else msgspec.to_builtins(found) if is_bytes else found,
            binary=is_bytes,
            error=why.get("error"),
            traceback=why.get("traceback"),
            reason=why.get("reason"),
            attempts=int(said.get(results.ATTEMPTS, 0)),
            pushed_at=_moment(said.get(results.PUSHED)),
            started_at=_moment(said.get(results.BEGAN)),
            finished_at=outcome.recorded_at,
        )


def _why_not(id: str, call: TaskState | None) -> str | None:
    """Why a call that a join waits for does not return, if it was given up."""
    if call is None or call.state not in ("failed", "dead"):
        return None
    return f"the call {id} of {call.task!r} was given up: {call.error or call.reason}"


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
