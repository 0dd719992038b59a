"""The results of Celery's tasks: the newest event of a task's key has the task's state.

The counts of chords are stored so that a part that runs twice counts once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from celery import states
from celery._state import get_current_task
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeout

import penstock
from penstock.errors import Conflict
from penstock.integrations.celery import place_of
from penstock.integrations.opening import open_once, state_topic

RESULTS = "celery-results"
SET, COUNTED, BEGUN, DELETED = "set", "counted", "begun", "deleted"

_part: ContextVar[str] = ContextVar("penstock_chord_part")
"""The task whose end is being counted for its chord."""


class PenstockBackend(KeyValueStoreBackend):
    """Keeps results in a topic of a journal."""

    supports_native_join = True
    supports_autoexpire = True
    implements_incr = True

    def __init__(self, app: Any = None, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app=app, url=url, **kwargs)
        self._token = app.conf.result_backend_transport_options.get("token")

    @property
    def topic(self) -> penstock.Topic:
        """The topic of the results. A forked process of a worker opens the journal anew."""
        journal = open_once(place_of(self.url or ""), self._token)
        return state_topic(journal, RESULTS, self.expires or None)

    def _newest(self, topic: penstock.Topic, key: str) -> penstock.Event | None:
        return next(topic.read(key=key, reverse=True, limit=1), None)

    # ── keys and values ──────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, key: str | bytes) -> Any:
        """Returns the value of a key; None when there is none."""
        event = self._newest(self.topic, text_of(key))
        return None if event is None or event.kind == DELETED else event.payload

    def mget(self, keys: Iterable[str | bytes]) -> list[Any]:
        """Returns the values of keys."""
        return [self.get(key) for key in keys]

    def set(self, key: str | bytes, value: Any) -> None:
        """Sets a value."""
        self.topic.append(SET, value, key=text_of(key))

    def delete(self, key: str | bytes) -> None:
        """Deletes a value."""
        self.topic.append(DELETED, key=text_of(key))

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:
        """Waits for a task's result. The result wakes this wait."""
        self._ensure_not_eager()
        until = None if timeout is None else time.monotonic() + timeout
        with self.topic.subscribe("latest", key=text_of(self.get_key_for_task(task_id))) as subscription:
            while True:
                meta = self.get_task_meta(task_id)
                ready = meta["status"] in states.READY_STATES
                if on_interval and meta["status"] != states.SUCCESS:
                    on_interval()  # it raises the error of an earlier task that failed
                if ready:
                    return meta
                left = interval if until is None else min(interval, until - time.monotonic())
                if left <= 0:
                    raise CeleryTimeout("The operation timed out.")
                subscription.next(left)

    # ── chords ───────────────────────────────────────────────────────────────────────────────────────────────────────
    # Each task of a header is a part, which counts once. The count is an event of the chord's key, and the number of a
    # part is an event of the part's key. The kind `deleted` of the chord's key says that the body was sent. The kind
    # `begun` says that the chord was applied again.
    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        if get_current_task() is None:  # a program applies it: another run. A task may only be running again.
            self._begin_anew(text_of(self.get_key_for_chord(header_result_args[0])))
        super()._apply_chord_incr(header_result_args, body, **kwargs)

    def _begin_anew(self, counter: str) -> None:
        topic = self.topic
        if self._newest(topic, counter) is not None:
            outbox = topic.journal.outbox()
            for key in {event.key for event in topic.read(key_prefix=f"{counter}/")}:
                outbox.stage(topic, DELETED, key=key)
            outbox.stage(topic, BEGUN, key=counter)
            outbox.flush()

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Records the number of parts before the last part is sent."""
        self.set(self._size_key(group_id), chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Adds a task to the header of a running chord."""
        topic, size_key, group_key = self.topic, self._size_key(chord_id), text_of(self.get_key_for_group(chord_id))
        while True:
            size, group = self._newest(topic, size_key), self._newest(topic, group_key)
            if size is None or group is None:
                raise ValueError(f"there is no chord {chord_id} whose header could get another task")
            header = self.decode(group.payload)
            header["result"][1].append(result.as_tuple())
            outbox = topic.journal.outbox()
            outbox.stage(topic, SET, size.payload + 1, key=size_key, expect=size.seq)
            outbox.stage(topic, SET, self.encode(header), key=group_key, expect=group.seq)
            try:
                outbox.flush()
            except Conflict:  # another task added one meanwhile
                continue
            return

    def _size_key(self, group_id: str) -> str:
        return text_of(self.get_key_for_chord(group_id)) + "-size"

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Counts a task of a chord's header. After the last task, the body is sent."""
        if not request.group or not request.chord:
            return
        key = self.get_key_for_chord(request.group)
        newest = self._newest(self.topic, text_of(key))
        if newest is not None and newest.kind == DELETED:
            return  # the body was sent, and this task ran again
        # While the size is unknown, another part is still to be sent.
        request.chord["chord_size"] = self.get(self._size_key(request.group)) or sys.maxsize
        token = _part.set(request.id)
        try:
            if self.incr(key) >= request.chord["chord_size"]:  # only the last part must read the whole header
                super().on_chord_part_return(request, state, result, **kwargs)
        finally:
            _part.reset(token)

    def incr(self, key: str | bytes) -> int:
        """Counts the current part, once, and returns the part's number."""
        topic, counter = self.topic, text_of(key)
        part = f"{counter}/{_part.get()}"
        while True:
            counted, newest = self._newest(topic, part), self._newest(topic, counter)
            if counted is not None and counted.kind == COUNTED:
                return counted.payload
            number = 1 + (newest.payload if newest is not None and newest.kind == COUNTED else 0)
            outbox = topic.journal.outbox()
            outbox.stage(topic, COUNTED, number, key=part, expect=0 if counted is None else counted.seq)
            outbox.stage(topic, COUNTED, number, key=counter, expect=0 if newest is None else newest.seq)
            try:
                outbox.flush()
            except Conflict:  # another part was counted meanwhile
                continue
            return number


def text_of(key: str | bytes) -> str:
    """Returns a key in the form that a journal takes."""
    return key.decode() if isinstance(key, bytes) else key
