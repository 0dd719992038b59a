"""A journal's queues: their handles, their cached states, and the threads that belong to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from penstock.core.journal.catalog import load_record
from penstock.core.journal.commit import Commit
from penstock.core.journal.keys import prefix_end, stored_name
from penstock.core.journal.owners import new_owner, retire_owner
from penstock.core.model.reply import SUFFIX
from penstock.core.names import check_name
from penstock.core.queue.policy import FEED, QueuePolicy, check_policy, refuse_mismatch
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueCache, unknown_queue
from penstock.core.queue.state.keys import flow_of_queue
from penstock.core.queue.state.records import QueueRecord, read_queue
from penstock.core.queue.upkeep import QueueUpkeep

if TYPE_CHECKING:
    from penstock.core.engine.contract import Snapshot
    from penstock.core.journal.core import JournalCore
    from penstock.core.model.query import EventQuery
    from penstock.core.queue.queue import LocalQueue
    from penstock.core.queue.schedule import Scheduler
    from penstock.core.surface.queue import Queue

# Modules that only a queue in use needs are imported where they are used, so that a program that uses topics alone
# starts faster.


def with_topics_window(snap: Snapshot, name: str, record: QueueRecord) -> QueueRecord:
    """Returns a queue's record with the current dedup window of its topic."""
    topic = load_record(snap, name)
    if topic is not None and topic.settings.dedup_window != record.policy.dedup_window:
        record.policy = msgspec.structs.replace(record.policy, dedup_window=topic.settings.dedup_window)
    return record


class QueueRegistry:
    """The state of queues that exists once for each open journal."""

    def __init__(self, core: JournalCore, make_handle: Callable[[LocalQueue], Queue]) -> None:
        self.core = core
        self.make_handle = make_handle
        self.cache = QueueCache()
        self.owner = new_owner()
        self.upkeep = QueueUpkeep(core, self.cache)
        self._handles: dict[str, LocalQueue] = {}
        self._lock = threading.Lock()
        self._closed = False

    def erase(self, topic: str, positions: Sequence[int], whole: bool) -> int:
        """Removes what a queue keeps of some messages; `whole`: also the messages. Returns how many messages went."""
        from penstock.core.queue.operations.erase import erase_messages

        return erase_messages(self, topic, positions, whole)

    def find_copies(self, topic: str, positions: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Finds the dead letters and results of some messages: topics and positions."""
        from penstock.core.queue.operations.erase import find_copies

        return find_copies(self, topic, positions)

    def find_former(self, topic: str, wanted: EventQuery) -> list[int]:
        """Finds the positions of wanted messages that are gone, by their dead letters."""
        from penstock.core.queue.operations.erase import find_former

        return find_former(self, topic, wanted)

    def names(self) -> list[str]:
        """Returns the names of all queues, sorted."""
        return [name for name, _ in self._stored()]

    def paused(self) -> list[str]:
        """Returns the names of paused queues, and QUEUE/GROUP where only a group is paused; sorted."""
        paused = [(name, group) for name, value in self._stored() for group in read_queue(value, name).paused]
        return sorted(f"{name}/{group}" if group else name for name, group in paused)

    def _stored(self) -> list[tuple[str, bytes]]:
        with self.core.engine.read() as snap:
            found = snap.scan(keys.QUEUE, prefix_end(keys.QUEUE))
            return [(stored_name(key[len(keys.QUEUE) :]), value) for key, value in found]

    def queue(self, name: str, policy: Mapping[str, object], *, create: bool = True) -> LocalQueue:
        """Returns a queue, and makes a missing queue."""
        check_name(name, "queue")
        wanted = check_policy(policy, name)
        record = self.record(name)
        if record is None:
            if not create or self.core.engine.read_only:
                raise unknown_queue(name, self.names())
            record = self.core.run(lambda commit: self._make(commit, name, wanted))
        refuse_mismatch(name, record.policy, wanted)
        return self.handle(name)

    def existing(self, name: str) -> LocalQueue:
        """Returns an existing queue."""
        record = self.record(check_name(name, "queue"))
        if record is None:
            raise unknown_queue(name, self.names())
        return self.handle(name)

    def known(self, name: str) -> LocalQueue | None:
        """Returns a queue that was used before; only a commit can tell whether it still exists."""
        return self._handles.get(name)

    def record(self, name: str) -> QueueRecord | None:
        """Returns the stored record of a queue, or None when there is none."""
        with self.core.engine.read() as snap:
            value = snap.get(keys.queue_key(name))
            return None if value is None else with_topics_window(snap, name, read_queue(value, name))

    def policy(self, name: str) -> QueuePolicy:
        """Returns the stored policy of a queue."""
        record = self.record(name)
        if record is None:
            raise unknown_queue(name)
        return record.policy

    @cached_property
    def scheduler(self) -> Scheduler:
        """The thread that pushes the queues' periodic messages."""
        from penstock.core.queue.schedule import Scheduler

        return Scheduler(self)

    def handle(self, name: str) -> LocalQueue:
        """Returns the base of the only handle of a queue."""
        from penstock.core.queue.queue import LocalQueue

        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = LocalQueue(self, name)
                if not self._closed:
                    self.scheduler.watch(name)
        return handle

    def owner_of_topic(self, snap: Snapshot, name: str) -> str | None:
        """Returns the queue whose results, or whose feed, a topic has."""
        owners = (name.removesuffix(suffix) for suffix in (SUFFIX, FEED) if name.endswith(suffix))
        return next((queue for queue in owners if queue and snap.get(keys.queue_key(queue)) is not None), None)

    # ── a topic that is dropped ──────────────────────────────────────────────────────────────────────────────────────
    def rows_of(self, topic: int) -> list[tuple[bytes, bytes]]:
        """Returns every range that may hold rows of a queue."""
        return [keys.groups_range(topic), keys.shared_range(topic), flow_of_queue(topic)]

    def users(self, commit: Commit, topic: str) -> list[str]:
        """Returns the users that keep a topic from being dropped."""
        state = self.cache.find(commit, topic)
        if state is None:
            return []
        return [f"the queue {topic!r} with {state.unsettled(commit)} messages that are not settled"]

    def drop(self, commit: Commit, topic: str, topic_id: int) -> None:
        """Removes the queue of a topic; its groups, leases and schedules are rows of the topic."""
        state = self.cache.find(commit, topic)
        if state is not None:
            from penstock.core.queue.results import answer_removed

            answer_removed(commit, state, state.latest(commit))
            state.tell_purged(commit, state.latest(commit), "dropped")
        commit.tx.delete(keys.queue_key(topic))
        self.cache.forget_topic(topic_id)

    def _make(self, commit: Commit, name: str, fields: dict[str, object]) -> QueueRecord:
        state = self.cache.find(commit, name)  # another process may have been faster
        return (state or self.cache.create(commit, name, fields)).record

    def close(self) -> None:
        """Ends the background work of queues, while the journal is still open."""
        with self._lock:
            self._closed = True
            used = bool(self._handles)
        if used:
            self.scheduler.close()
        failures: list[BaseException] = []
        for worker in list(self.core.workers):  # endless leases are released only when no handler uses them any more
            try:
                worker.stop()
            except BaseException as error:
                failures.append(error)
        retire_owner(self.owner)
        if failures:
            raise failures[0]
