"""Scans of a topic of a store in this process: blocks, events and sealed files of one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.core.events import Event
from penstock.core.journal.blocks import Block
from penstock.core.journal.index.index import EntityIndex, Lookup, indexed_events
from penstock.core.journal.reading import Bounds, TopicView
from penstock.core.journal.sealed.columns import columns_schema
from penstock.core.journal.sealed.files import SealedBytes, sealed_files_with
from penstock.core.journal.sealed.segments import load_seals
from penstock.core.model.query import EventQuery

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore
    from penstock.core.surface.backend import TopicScan


@contextmanager
def open_scans(core: JournalCore, names: Iterable[str]) -> Iterator[dict[str, TopicScan]]:
    """Opens scans of the existing topics, in one snapshot."""
    with core.engine.read() as snap:
        views = [TopicView.open(snap, name, core.clock.now_ms()) for name in names]
        yield {view.name: LocalScan(view, core.index) for view in views if view is not None}


class LocalScan:
    """A topic in a snapshot."""

    def __init__(self, view: TopicView, index: EntityIndex) -> None:
        self._view = view
        self._index = index
        self._opened: Lookup | None = None
        state = view.state()
        self._sealed = state.sealed
        self.after = max(view.hidden, state.trimmed)
        self.through = view.latest()
        tables = load_seals(view.snap, view.topic_id).tables if state.sealed else {}
        self.columns = next((table.columns for table in reversed(tables.values()) if table.columns), "")

    def files(self) -> tuple[list[SealedBytes], int]:
        view, typed = self._view, frozenset(columns_schema(self.columns).names)
        bulk = next(view.bulk_segments(self.after, self._sealed), None)  # its file has no positions
        through = self._sealed if bulk is None else bulk.first - 1
        found = sealed_files_with(view.snap, view.topic_id, view.name, self.after, through, typed)
        return found, max(self.after, through) if found else self.after

    def position_before(self, ms: int) -> int:
        return self._view.position_before(ms)

    def spans(self, after: int, through: int, kinds: frozenset[str]) -> Iterator[Bounds]:
        return self._view.spans(after, through, EventQuery(kinds=kinds))

    def blocks(self, after: int, through: int) -> Iterator[Block]:
        return self._view.blocks(after, through)

    def events(self, query: EventQuery) -> Iterator[Event]:
        if self._opened is None:
            self._opened = self._index.open(self._view)
        return indexed_events(self._opened, query, query.after, None, query.through, reverse=False)
