"""What every journal is, wherever its store is."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self, Unpack

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.entity.exporting import CopyFormat, ExportReport
    from penstock.entity.fence import Fence
    from penstock.entity.importing import ImportReport
    from penstock.events import Event
    from penstock.journal.description import Description, Pressure
    from penstock.journal.dropping import DropReport
    from penstock.local.transaction import Transaction
    from penstock.observe.sample import Sample
    from penstock.surface.arguments import PolicyArguments
    from penstock.surface.backend import Backend
    from penstock.surface.outbox import Outbox
    from penstock.surface.queue import Queue
    from penstock.surface.topic import Topic
    from penstock.surface.worker import Worker


class Journal(ABC):
    """A set of topics and queues in one store, with one commit order; `penstock.open` gives one.

    Thread-safe; close it, or use it as a context manager. A journal served elsewhere has the same surface; what needs
    the store itself (transactions, fences, backups, …) raises ConfigError there.
    """

    clock: Clock
    _backend: Backend
    """What the journal's handles stand on."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The store's own name: the same wherever, and under whatever address, the store is opened."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it was closed."""

    # ── topics and queues ────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def topic(self, name: str) -> Topic:
        """A handle on a topic; the topic exists from its first append."""

    @abstractmethod
    def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    @abstractmethod
    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and everything that belongs to it; a topic of this name made later is another one.

        TopicInUse when it has cursors, sealed files or a queue; `force` drops it with them. UnknownTopic when there is
        none. It is gone when this returns; its rows are cleared away in passing, or by `maintain`.
        """

    @abstractmethod
    def queue(self, name: str, *, create: bool = True, **policy: Unpack[PolicyArguments]) -> Queue:
        """A queue over the topic of that name; it is made on first use. See `QueuePolicy` for what may be given.

        `create=False` makes none: a queue that is not there raises UnknownQueue, which names the nearest one.

        A policy that differs from the stored one raises PolicyMismatch; `queue.configure` changes it.
        """

    @abstractmethod
    def _add_worker(self, worker: Worker) -> None:
        """Has a worker stopped when the journal is closed."""

    @abstractmethod
    def queues(self) -> list[str]:
        """The names of all queues, sorted."""

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def outbox(self) -> Outbox:
        """Gathers drafts for any topics locally and appends them as one atomic batch."""

    @abstractmethod
    def transaction(self) -> Transaction:
        """All or nothing across topics and queues, with its own writes visible inside. In this process only."""

    @abstractmethod
    def fence(self, *, exclusive: bool = True) -> Fence:
        """Hides what is submitted through it until it commits. `exclusive`: no other caller appends meanwhile.

        In this process only.
        """

    @abstractmethod
    def mark(self, name: str) -> int | None:
        """The newest committed value of a mark (see `Transaction.set_mark`). In this process only."""

    @abstractmethod
    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, of all topics, in the order they were recorded."""

    @abstractmethod
    def graph(self, correlation_id: str) -> str:
        """What caused what within a correlation, as a Mermaid flowchart."""

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def pressure(self) -> Pressure:
        """How many submissions wait for the writer."""

    @abstractmethod
    def describe(self) -> Description:
        """What this journal is: engine, place, size, durability, topics, queues, gates."""

    @abstractmethod
    def stats(self) -> Sample:
        """Every topic and queue with its backlogs and lags, at one time; of a served journal with rates as well."""

    @abstractmethod
    def flush(self) -> None:
        """Returns when everything submitted so far is on disk, whatever the durability."""

    @abstractmethod
    def maintain(self) -> None:
        """Does all housekeeping now: merges small blocks, applies retention. It also happens in passing."""

    # ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a consistent copy while the journal is in use; the same engine opens it. In this process only."""

    @abstractmethod
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        format: CopyFormat | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Writes topics (all, unless named) into a folder, as JSON Lines or Parquet; run again, it goes on.

        `progress` is called now and then with how many of how many events are done. In this process only.
        """

    @abstractmethod
    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        start_over: bool = False,
    ) -> ImportReport:
        """Reads what `export` wrote into topics of the same names: the same positions, ids, times and causes.

        Events that are there already, from an import that was interrupted, are skipped. `start_over`: a name whose
        topic was dropped gets its positions from the export, though they were given out before. In this process only.
        """

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def close(self) -> None:
        """Stops workers, commits what is pending, lets go of the store. A second call does nothing.

        When a worker had failed, its failure is raised here, after everything is closed.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        import asyncio

        # Closing waits for workers, whose handlers may run in this event loop.
        await asyncio.to_thread(self.close)
