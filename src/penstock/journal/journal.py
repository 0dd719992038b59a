"""The journal: an engine, a writer, and the topics in it, with one commit order."""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.engine.contract import Engine
from penstock.errors import Closed, ConfigError
from penstock.events import Draft, Event
from penstock.journal import interrupts
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.writer import Writer, WriteRequest
from penstock.journal.index.index import EntityIndex
from penstock.journal.index.indexer import Indexer
from penstock.journal.moving import check_finished
from penstock.journal.reading import find_event
from penstock.journal.storage import keys
from penstock.journal.topic import BaseTopic
from penstock.journal.transaction import BaseTransaction
from penstock.journal.upkeep.compaction import Hold, Trim, cursor_holds
from penstock.journal.upkeep.dropping import DropReport, drop_topic
from penstock.journal.upkeep.housekeeper import Housekeeper
from penstock.journal.waking.signal import Hub
from penstock.limits import INDEX_RUN_EVENTS
from penstock.names import check_name
from penstock.observe.logs import Log
from penstock.surface.worker import Worker

log = Log("penstock.journal")

FORMAT = 1
"""The key layout and block format of this version; written into every store."""

Guard = Callable[[str, Sequence[Draft]], None]
"""Sees the drafts of an append, in the caller's thread, and may refuse them by raising."""


class StoreRecord(msgspec.Struct, array_like=True, frozen=True):
    """What a store says of itself."""

    format: int
    id: str
    created_ms: int


class Pressure(msgspec.Struct, frozen=True):
    """How far the writer is behind."""

    queued: int
    capacity: int

    @property
    def headroom(self) -> int:
        """How many more submissions fit before `submit` waits."""
        return max(0, self.capacity - self.queued)

    @property
    def utilization(self) -> float:
        """Queued submissions as a share of the capacity."""
        return self.queued / self.capacity

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return self.queued == 0


class Description(msgspec.Struct, frozen=True):
    """What a journal is made of."""

    engine: str
    location: str | None
    size_bytes: int
    durability: str
    read_only: bool
    topics: list[str]
    queues: list[str]
    writer_capacity: int
    gates: dict[str, list[str]] = {}
    requests: dict[str, dict[str, int]] = {}
    """Requests to an object store since it was opened: cause → kind → number; the kind `bytes` is what they brought."""
    objects: dict[str, int] = {}
    """How many objects an object store holds of the journal, by what they are for."""
    unstored_seconds: float = 0.0
    """For how long a commit that nobody waited for is in this process's memory only."""
    writer: str | None = None
    """Who holds the lease of a journal in an object store."""
    paused: list[str] = []
    """The queues that hand nothing out, and QUEUE/GROUP where only a group is paused."""


class BaseJournal:
    """A set of topics in one store. Thread-safe; close it, or use it as a context manager."""

    topic_type: type[BaseTopic] = BaseTopic
    transaction_type: type[BaseTransaction] = BaseTransaction

    def __init__(self, engine: Engine, *, clock: Clock | None = None, capacity: int, pressure: float) -> None:
        self._engine = engine
        self.clock: Clock = clock or SystemClock()
        # A memory store may be open a second time under its name, in this process.
        watched = engine.shared or engine.read_only or engine.scheme == "memory"
        self._hub = Hub(engine.changes if watched else None, engine.location)
        self._index = EntityIndex(engine)
        self._writer = Writer(
            engine, self.clock, self._index, capacity=capacity, pressure=pressure, announce=self._announce
        )
        self._housekeeper = Housekeeper(engine, self._writer)
        self._indexer = Indexer(engine, self._writer, self._index)
        self._housekeeper.chores.append(self._indexer.consider)
        self._topics: dict[str, BaseTopic] = {}
        self._guards: list[Guard] = []
        self._holds: list[Hold] = [cursor_holds]
        self._trims: list[Trim] = []
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self.closed = False
        self._closing = threading.Lock()
        self._close_begun = False
        self._pid = os.getpid()
        self._record = self._claim_store()

    def __repr__(self) -> str:
        return f"<journal {self._engine.scheme}:{self._engine.location or ''}{' (closed)' if self.closed else ''}>"

    def _claim_store(self) -> StoreRecord:
        """Reads (or, in a new store, writes) the store's own record."""
        with self._engine.read() as snap:
            check_finished(snap, self._engine.location)
            value = snap.get(keys.STORE)
        if value is None and not self._engine.read_only:
            with interrupts.Shield(interrupts.always), self._engine.write() as tx:
                value = tx.get(keys.STORE)
                if value is None:
                    value = msgspec.msgpack.encode(StoreRecord(FORMAT, str(uuid.uuid4()), self.clock.now_ms()))
                    tx.put(keys.STORE, value)
        if value is None:
            return StoreRecord(FORMAT, "", 0)
        try:
            record = msgspec.msgpack.decode(value, type=StoreRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._engine.location} holds no penstock journal: {error}") from error
        if record.format != FORMAT:
            raise ConfigError(
                f"{self._engine.location} was written in format {record.format}; this version of penstock reads format "
                f"{FORMAT}: open it with the version that wrote it"
            )
        return record

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str) -> BaseTopic:
        """A handle on a topic; the topic exists from its first append."""
        handle = self._topics.get(name) if isinstance(name, str) else None
        if handle is None:
            handle = self._topics[name] = self.topic_type(self, check_name(name))
        return handle

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self._engine.read() as snap:
            return [keys.stored_name(key[1:]) for key, _ in snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))]

    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and everything that belongs to it; a topic of this name made later is another one.

        TopicInUse when it has cursors, sealed files or a queue; `force` drops it with them. It is gone when this
        returns; its rows are cleared away in passing, or by `maintain`.
        """
        check_name(name)
        rules = self._housekeeper.drop_rules
        report: DropReport = self._writer.run(WriteRequest(lambda commit: drop_topic(commit, name, force, rules)))
        self._index.forget(name)
        self._housekeeper.request_clearing()
        return report

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return []

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def transaction(self) -> BaseTransaction:
        """All or nothing across topics, with its own writes visible inside."""
        return self.transaction_type(self)

    def mark(self, name: str) -> int | None:
        """The newest committed value of a mark (see `Transaction.set_mark`)."""
        with self._engine.read() as snap:
            value = snap.get(keys.mark_key(name))
        return None if value is None else int.from_bytes(value, signed=True)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def pressure(self) -> Pressure:
        """How many submissions wait for the writer."""
        return Pressure(self._writer.pending(), self._writer.capacity)

    def describe(self) -> Description:
        """What this journal is: engine, place, size, durability, topics, queues."""
        engine = self._engine
        return Description(
            engine.scheme,
            engine.location,
            engine.size(),
            engine.durability,
            engine.read_only,
            self.topics(),
            self.queues(),
            self._writer.capacity,
            requests=engine.requests(),
            objects=engine.objects(),
            unstored_seconds=engine.unstored_seconds(),
            writer=engine.writer(),
        )

    def flush(self) -> None:
        """Returns when everything submitted so far is on disk, whatever the durability."""
        if not self._engine.read_only:
            self._writer.drain()
        with interrupts.Shield(interrupts.always):
            self._engine.flush()

    def maintain(self) -> None:
        """Does all housekeeping now: merges small blocks, applies retention. It also happens in passing."""
        self._writer.check_idle_here()  # the housekeeper may be waiting for this thread's transaction to end
        self._housekeeper.clear_dropped()
        for name in self.topics():
            self._housekeeper.keep(name, thorough=True)
            self._indexer.index(name, thorough=True)

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a consistent copy while the journal is in use; the same engine opens it.

        A journal in a bucket takes a path, or a url in the same bucket.
        """
        self._check_open()
        self._engine.backup(destination)

    def close(self) -> None:
        """Stops workers, commits what is pending, lets go of the store. A second call does nothing.

        When a worker had failed, its failure is raised here, after everything is closed.
        """
        if os.getpid() != self._pid:  # a forked child: the store, the threads and what is pending are the parent's
            self.closed = True
            self._engine.close()
            return
        self._writer.check_idle_here()
        with self._closing:
            if self._close_begun:
                return
            self._close_begun = True
        failures: list[BaseException] = []
        for step in self._steps_to_close():
            try:
                step()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _steps_to_close(self) -> Iterator[Callable[[], None]]:
        """In this order, and whatever happened to the one before: a failed step must not leave the store open."""
        yield self._before_close
        for worker in list(self._workers):
            yield worker.stop
        yield self._housekeeper.close
        yield self._indexer.close
        self.closed = True
        if not self._engine.read_only:
            yield self._writer.close
        yield self._hub.close
        yield self._engine.close

    def _before_close(self) -> None:
        """For the layers above: their last chance to act on an open journal."""

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the journal is closed")

    def __enter__(self) -> BaseJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ── for the layers ───────────────────────────────────────────────────────────────────────────────────────────────
    def run(self, apply: Callable[[Commit], Any], *, relaxed: bool = False) -> Any:
        """Does something inside a group commit; see `WriteRequest`."""
        return self._writer.run(WriteRequest(apply, relaxed=relaxed))

    def _announce(self, touched: dict[str, int]) -> None:
        """After every commit: wakes those who follow its topics, and counts for the threads in the background."""
        try:
            self._indexer.commits += 1
            signals = self._hub.signals
            for name, count in touched.items():
                if name in signals:
                    signals[name].notify()
                self._housekeeper.note(name, count)
                if count >= INDEX_RUN_EVENTS // 8:
                    self._indexer.request(name)
        except Exception:
            log.exception("a commit was kept, but not everybody who waits for it could be told")

    def _find_cause(self, id: str) -> Event | None:
        """The event with an id, in whichever topic it is."""
        with self._engine.read() as snap:
            return find_event(snap, id)
