"""What event sourcing adds to a journal."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.entity.causality.walk import correlated
from penstock.entity.projection.snapshot import SNAPSHOT
from penstock.entity.projection.states import StateCache
from penstock.entity.staging.fence import Fence, Fences
from penstock.entity.staging.gate import Gates
from penstock.entity.staging.outbox import LocalOutbox
from penstock.events import Event
from penstock.journal.journal import BaseJournal, Description
from penstock.journal.storage.keys import topic_range
from penstock.journal.upkeep.dropping import DropReport, KeyRange

if TYPE_CHECKING:
    from penstock.entity.causality.graph import GraphFormat
    from penstock.entity.copying.exporting import ExportReport
    from penstock.entity.copying.files import CopyFormat
    from penstock.entity.copying.importing import ImportReport

# What few programs call is imported when it is called: a command line starts a good deal sooner without it.


def _entity_rows(number: int) -> list[KeyRange]:
    """Where saved states and published roots of a topic are."""
    from penstock.entity.receipts.publishing import ROOTS

    return [topic_range(SNAPSHOT, number), topic_range(ROOTS, number)]


class EntityJournal(BaseJournal):
    """A journal whose topics are event stores."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guards_lock = threading.RLock()
        self._fences = Fences(self)
        self._gates = Gates(self)
        self._states = StateCache()
        self._housekeeper.drop_rules.rows.append(_entity_rows)

    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and everything that belongs to it; see `Journal.drop_topic`."""
        report = super().drop_topic(name, force)
        self._states.clear()
        return report

    def outbox(self) -> LocalOutbox:
        """Gathers drafts for any topics locally and appends them as one atomic batch."""
        return LocalOutbox(self)

    def fence(self, *, exclusive: bool = True) -> Fence:
        """Hides what is submitted through it until it commits. `exclusive`: nobody else appends meanwhile."""
        return self._fences.open(exclusive=exclusive)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, of all topics, in the order they were recorded."""
        return correlated(self, correlation_id)

    def graph(self, correlation_id: str, format: GraphFormat = "mermaid") -> str:
        """What caused what within a correlation, drawn as "dot", "mermaid" or "svg"."""
        from penstock.entity.causality.graph import graph_of

        return graph_of(correlated(self, correlation_id)).render(format)

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
        from penstock.entity.copying.exporting import export

        self._check_open()
        return export(self, path, topics=topics, format=format, progress=progress)

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ImportReport:
        """Reads what `export` wrote into topics of the same names: the same positions, ids, times and causes.

        A file's events go to the one topic that is named, which may have another name.
        Events that are there already, from an import that was interrupted, are skipped.
        """
        from penstock.entity.copying.importing import import_

        self._check_open()
        return import_(self, path, topics=topics, progress=progress)

    def describe(self) -> Description:
        """What this journal is: engine, place, size, durability, topics, queues, gates."""
        return msgspec.structs.replace(super().describe(), gates=self._gates.describe())

    def _before_close(self) -> None:
        self._fences.cancel_all()
        super()._before_close()
