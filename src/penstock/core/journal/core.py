"""The core of an open journal: its store, its writer, and what works on them beside the callers.

Every part of the package that needs the store gets the core. Topics, queues and entities are parts over the core, which
`penstock.core.local` assembles into the journal that a user holds. The core knows none of these parts. They register
callbacks here: guards before an append, holds and trims at a compaction, rules for dropping a topic, and steps before
the journal closes.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.core.clock import Clock, check_clock
from penstock.core.engine.contract import Engine, Snapshot, WriteTx
from penstock.core.events import Draft, Event
from penstock.core.journal import keys
from penstock.core.journal.catalog import topic_names
from penstock.core.journal.commit import Commit, read_mark
from penstock.core.journal.description import Description, Pressure
from penstock.core.journal.index.index import EntityIndex
from penstock.core.journal.index.indexer import Indexer
from penstock.core.journal.locating import find_event, list_topics
from penstock.core.journal.moving import check_finished
from penstock.core.journal.upkeep.dropping import DropReport, drop_topic
from penstock.core.journal.upkeep.housekeeper import Housekeeper
from penstock.core.journal.upkeep.retention import Hold, Trim, cursor_holds
from penstock.core.journal.waking import Hub
from penstock.core.journal.writer import Shield, Writer, WriteRequest, always_busy
from penstock.core.names import check_name
from penstock.core.observe.logs import Log
from penstock.errors import Closed, ConfigError, Corrupt
from penstock.limits import INDEX_RUN_EVENTS, MERGE_FAN_IN, UNFOLDED_TOPICS

if TYPE_CHECKING:
    from penstock.core.consuming.worker import Worker
    from penstock.core.model.query import EventQuery
    from penstock.core.surface.journal import Journal

log = Log("penstock.journal")

FORMAT = 1
"""The key layout and block format of this version; written into every store."""

Guard = Callable[[str, Sequence[Draft]], None]
"""A function that sees the drafts of an append, in the caller's thread, and may refuse them by raising."""

T = TypeVar("T")


class StoreRecord(msgspec.Struct, array_like=True, frozen=True):
    """The record of a store about itself."""

    format: int
    id: str
    created_ms: int


class JournalCore:
    """The state that all parts of an open journal share. Thread-safe."""

    def __init__(
        self, journal: Journal, engine: Engine, *, clock: Clock | None = None, capacity: int, pressure: float
    ) -> None:
        self.journal = journal
        """The journal that users hold; handles name it as theirs, and workers report to it."""
        self.engine = engine
        self.clock: Clock = check_clock(clock)
        # This process may open a memory store a second time under its name.
        watched = engine.shared or engine.read_only or engine.scheme == "memory"
        self.hub = Hub(engine.changes if watched else None, engine.location)
        self.index = EntityIndex(engine)
        self.writer = Writer(
            engine, self.clock, self.index, capacity=capacity, pressure=pressure, announce=self._announce
        )
        self.housekeeper = Housekeeper(self.writer)
        self.indexer = Indexer(self.writer, self.index)
        self.housekeeper.chores.append(self.indexer.consider)
        self.erase_messages: list[Callable[[str, Sequence[int], bool], int]] = []
        """Removes what queues keep of a topic's messages at some positions; True: also the messages."""
        self.erase_states: list[Callable[[WriteTx, int, Collection[str]], int]] = []
        """Removes the states of some keys of a topic."""
        self.find_copies: list[Callable[[str, Sequence[int]], list[tuple[str, list[int]]]]] = []
        """Finds the copies that were made of a topic's events: topics and positions."""
        self.find_former: list[Callable[[str, EventQuery], list[int]]] = []
        """Finds the positions of wanted events that are gone and have left copies of themselves."""
        self.erasing = threading.RLock()
        """Held by the thread that erases events."""
        self.housekeeper.resume = self.resume_erasures
        self.guards: list[Guard] = []
        """The list is replaced and never changed, so that a thread that iterates over it skips no guard."""
        self.holds: list[Hold] = [cursor_holds]
        self.trims: list[Trim] = []
        self.owner_of_topic: Callable[[Snapshot, str], str | None] = lambda snap, name: None
        """Returns the queue that a topic belongs to; readers of all topics skip such topics.

        The queues set this function.
        """
        self.before_close: list[Callable[[], None]] = []
        """The functions that parts run on the open journal before it closes."""
        self.workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self.closed = False
        self._closing = threading.Lock()
        self._close_begun = False
        self._pid = os.getpid()
        self.id = self._claim_store().id
        """The store's own name, which is the same under every address of the store."""

    def __repr__(self) -> str:
        return f"<journal {self.engine.scheme}:{self.engine.location or ''}{' (closed)' if self.closed else ''}>"

    def _claim_store(self) -> StoreRecord:
        """Reads (or, in a new store, writes) the store's own record."""
        with self.engine.read() as snap:
            check_finished(snap, self.engine.location)
            value = snap.get(keys.STORE)
        if value is None and not self.engine.read_only:
            with Shield(always_busy), self.engine.write() as tx:
                check_finished(tx, self.engine.location)  # again: a copy may have begun here meanwhile
                value = tx.get(keys.STORE)
                if value is None:
                    value = msgspec.msgpack.encode(StoreRecord(FORMAT, str(uuid.uuid4()), self.clock.now_ms()))
                    tx.put(keys.STORE, value)
            if self.engine.location is not None:
                log.info("a new journal was made: %r", self)
        if value is None:
            return StoreRecord(FORMAT, "", 0)
        try:
            record = msgspec.msgpack.decode(value, type=StoreRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.engine.location} holds no penstock journal: {error}") from error
        if record.format != FORMAT:
            raise ConfigError(
                f"{self.engine.location} was written in format {record.format}; this version of penstock reads format "
                f"{FORMAT}: open it with the version that wrote it"
            )
        return record

    def begin(self) -> None:
        """Continues work that an earlier process has left unfinished."""
        self.housekeeper.begin()
        self.indexer.begin()

    # ── what is stored ───────────────────────────────────────────────────────────────────────────────────────────────
    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        with self.engine.read() as snap:
            return list(topic_names(snap))

    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and, by the parts' rules, everything that belongs to it."""
        check_name(name)
        rules = self.housekeeper.drop_rules
        report = self.run(lambda commit: drop_topic(commit, name, force, rules))
        self.index.forget(name)
        self.housekeeper.request_clearing()
        return report

    def mark(self, name: str) -> int | None:
        """Returns the newest committed value of a mark."""
        with self.engine.read() as snap:
            return read_mark(snap, name)

    def find_cause(self, id: str) -> Event | None:
        """Returns the event with an id, in whichever topic it is."""
        with self.engine.read() as snap:
            return find_event(snap, id)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def run(self, apply: Callable[[Commit], T], *, relaxed: bool = False) -> T:
        """Runs a function inside a group commit; see `WriteRequest`."""
        return self.writer.run(WriteRequest(apply, relaxed=relaxed))

    def pressure(self) -> Pressure:
        """Returns the number of submissions that wait for the writer."""
        return Pressure(self.writer.pending(), self.writer.capacity)

    def describe(self, queues: list[str], paused: list[str], gates: dict[str, list[str]]) -> Description:
        """Returns the description of this journal: engine, location, size, durability, topics, and the facts of its
        parts.
        """
        engine = self.engine
        return Description(
            engine.scheme,
            _shown_location(engine),
            engine.size(),
            engine.durability,
            engine.read_only,
            self.topics(),
            queues,
            self.writer.capacity,
            gates=gates,
            requests=engine.requests(),
            objects=engine.objects(),
            unstored_seconds=engine.unstored_seconds(),
            writer=engine.writer(),
            paused=paused,
        )

    def flush(self) -> None:
        """Waits until everything submitted so far is on disk, whatever the durability."""
        if not self.engine.read_only:
            self.writer.drain()
        with Shield(always_busy):
            self.engine.flush()

    def maintain(self) -> None:
        """Does all housekeeping now: merges small blocks, applies retention, brings the index up to date, and gives
        freed space back where it is much. After an erasure, no byte of what was erased stays in the store's files."""
        self.writer.check_idle_here()  # the housekeeper may be waiting for this thread's transaction to end
        self.housekeeper.clear_dropped()
        self.resume_erasures()
        list_topics(self.writer)
        unreadable: Corrupt | None = None
        for name in self.topics():
            try:
                self.housekeeper.maintain(name, thorough=True, index=partial(self.indexer.index, thorough=True))
            except Corrupt as error:
                unreadable = unreadable or error
        self.indexer.notes.fold()
        self.writer.reclaim_much()
        with self.engine.read() as snap:
            erased = snap.get(keys.ERASING)
        if erased is not None:
            from penstock.core.journal.upkeep.erasing import purge_erased

            purge_erased(self, erased)
        if unreadable is not None:  # after all other waiting callers
            raise unreadable

    def resume_erasures(self) -> None:
        """Completes interrupted erasures."""
        with self.engine.read() as snap:
            rows = list(snap.scan(keys.erasing_key(0), keys.prefix_end(keys.ERASING)))
        if rows:
            from penstock.core.journal.upkeep.erasing import end_erasures

            end_erasures(self, [value for _, value in rows])

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the journal is closed")

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def close(self) -> None:
        """Stops workers, commits pending submissions, and releases the store. A second call does nothing."""
        # a forked child: the store, the threads and the pending submissions belong to the parent
        if os.getpid() != self._pid:
            self.closed = True
            self.engine.close()
            return
        self.writer.check_idle_here()
        with self._closing:
            if self._close_begun:
                return
            self._close_begun = True
        failures: list[BaseException] = []
        for step in self._steps_to_close():
            try:
                step()
            except BaseException as error:  # also an interrupt, or the exception that ended a worker
                failures.append(error)
        if failures:
            raise failures[0]

    def _steps_to_close(self) -> Iterator[Callable[[], None]]:
        """Yields the steps of closing in order.

        Each step runs even after a failed step, so that the store does not stay open.
        """
        yield from self.before_close
        for worker in list(self.workers):
            yield worker.stop
        yield self.housekeeper.close
        yield self.indexer.close
        self.closed = True
        if not self.engine.read_only:
            yield self.writer.close
        yield self.hub.close
        yield self.engine.close

    def _announce(self, touched: dict[str, int]) -> None:
        """Wakes the followers of the topics of a commit, and counts the commit for the background threads."""
        try:
            self.indexer.commits += 1
            signals, measures = self.hub.signals, self.writer.measures
            if self.hub.followers:
                self.hub.tell_followers(touched)
            for name, count in touched.items():
                if (held := signals.get(name)) is not None and (signal := held()) is not None:
                    signal.notify()
                commits = measures.commits_of[name]
                if commits % MERGE_FAN_IN == 0:
                    self.housekeeper.consider(name, commits, measures.appended[name])
                if count >= INDEX_RUN_EVENTS // 8:
                    self.indexer.request(name)
            if self.writer.catalog.unfolded >= UNFOLDED_TOPICS:
                self.writer.catalog.unfolded = 0
                self.indexer.request_fold()
        except Exception:
            log.exception("a commit was kept, but not every waiter could be told of it")


def _shown_location(engine: Engine) -> str | None:
    """Returns a path, or the whole url of a store in a bucket."""
    location = engine.location
    return f"{engine.scheme}:{location}" if location is not None and location.startswith("//") else location
