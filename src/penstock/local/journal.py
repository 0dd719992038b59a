"""A journal in this process: one core, and over it the registries of queues and of event sourcing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

from penstock.clock import Clock
from penstock.engine.contract import Engine
from penstock.entity.fence import Fence
from penstock.entity.outbox import LocalOutbox
from penstock.entity.registry import EntityRegistry
from penstock.events import Event
from penstock.journal.core import JournalCore
from penstock.journal.description import Description, Pressure
from penstock.journal.dropping import DropReport
from penstock.local.backend import LocalBackend
from penstock.local.topic import LocalTopic
from penstock.names import check_name
from penstock.queue.registry import QueueRegistry
from penstock.surface.journal import Journal

if TYPE_CHECKING:
    from penstock.entity.exporting import CopyFormat, ExportReport
    from penstock.entity.importing import ImportReport
    from penstock.journal.moving import CopyReport
    from penstock.local.transaction import Transaction
    from penstock.observe.sample import Sample
    from penstock.queue.queue import LocalQueue
    from penstock.surface.arguments import PolicyArguments
    from penstock.surface.queue import Queue
    from penstock.surface.worker import Worker

# What few programs call is imported when it is called: a command line starts a good deal sooner without it.


class LocalJournal(Journal):
    """A journal in this process."""

    _backend: LocalBackend

    def __init__(self, engine: Engine, *, clock: Clock | None = None, capacity: int, pressure: float) -> None:
        self._core = JournalCore(self, engine, clock=clock, capacity=capacity, pressure=pressure)
        self.clock = self._core.clock
        self._engine = engine
        self._writer = self._core.writer
        self._entities = EntityRegistry(self._core)
        self._registry = QueueRegistry(self._core, self._handle_on)
        self._backend = LocalBackend(self._core, self._registry)

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def closed(self) -> bool:
        return self._core.closed

    # ── topics and queues ────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str) -> LocalTopic:
        return LocalTopic(self, check_name(name))

    def topics(self) -> list[str]:
        return self._core.topics()

    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        report = self._core.drop_topic(name, force)
        self._entities.states.clear()
        return report

    def queue(self, name: str, *, create: bool = True, **policy: Unpack[PolicyArguments]) -> Queue:
        from penstock.surface.queue import named

        self._core.check_open()
        return self._registry.queue(name, named(policy), create=create).handle

    def _handle_on(self, queue: LocalQueue) -> Queue:
        from penstock.surface.queue import Queue

        return Queue(self, queue)

    def _add_worker(self, worker: Worker) -> None:
        self._core.workers.add(worker)

    def queues(self) -> list[str]:
        return self._registry.names()

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def outbox(self) -> LocalOutbox:
        return LocalOutbox(self._core)

    def transaction(self) -> Transaction:
        from penstock.local.transaction import Transaction

        return Transaction(self)

    def fence(self, *, exclusive: bool = True) -> Fence:
        return self._entities.fences.open(exclusive=exclusive)

    def mark(self, name: str) -> int | None:
        return self._core.mark(name)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        from penstock.entity.causality import correlated

        return correlated(self._core, correlation_id)

    def graph(self, correlation_id: str) -> str:
        from penstock.entity.causality import mermaid

        return mermaid(self.correlated(correlation_id))

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def pressure(self) -> Pressure:
        return self._core.pressure()

    def describe(self) -> Description:
        """What this journal is: engine, place, size, durability, topics, queues, which of these are paused, gates."""
        registry = self._registry
        return self._core.describe(registry.names(), registry.paused(), self._entities.gates.describe())

    def stats(self) -> Sample:
        """Every topic and queue with its backlogs and lags, at one time."""
        from penstock.observe.collect import take_sample

        return take_sample(self)

    def flush(self) -> None:
        self._core.flush()

    def maintain(self) -> None:
        self._core.maintain()

    # ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a consistent copy while the journal is in use; the same engine opens it.

        A journal in a bucket takes a path, or a url in the same bucket.
        """
        self._core.check_open()
        self._engine.backup(destination)

    def copy_to(
        self,
        url: str | os.PathLike[str],
        *,
        store_options: Mapping[str, object] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CopyReport:
        """Copies the whole journal into a new place on any engine, while it is in use, and compares every row.

        Positions, ids, cursors, queues, snapshots and marks come along; the copy is the state at its end. One that was
        interrupted goes on when called again. `progress` is told how many of how many bytes are done.
        """
        from penstock.engine.slatedb.database import ObjectOptions
        from penstock.engine.url import open_engine
        from penstock.journal.moving import copy_store

        self._core.check_open()
        target = open_engine(url, options=None if store_options is None else ObjectOptions(store=store_options))
        try:
            return copy_store(self._engine, self.id, target, progress)
        finally:
            target.close()

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        format: CopyFormat | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Writes topics (all, unless named) into a folder, as JSON Lines or Parquet; run again, it goes on.

        A path that ends with .jsonl, .parquet, .arrow or .csv is a file, and takes the one topic that is named.
        `progress` is called now and then with how many of how many events are done.
        """
        from penstock.entity.exporting import export

        self._core.check_open()
        return export(self._core, path, topics=topics, format=format, progress=progress)

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        start_over: bool = False,
    ) -> ImportReport:
        """Reads what `export` wrote into topics of the same names: the same positions, ids, times and causes.

        A file's events go to the one topic that is named, which may have another name.
        Events that are there already, from an import that was interrupted, are skipped. `start_over`: a name whose
        topic was dropped gets its positions from the export, though they were given out before.
        """
        from penstock.entity.importing import import_

        self._core.check_open()
        return import_(self._core, path, topics=topics, progress=progress, start_over=start_over)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def close(self) -> None:
        self._core.close()
