"""The index of a journal's entities, causes and correlations, as those who read and commit see it.

`lookup` begins a look-up (see `lookup`); a commit asks for an entity's generation. What is kept
in memory (tails and filters) is kept here. Reading is all that happens here; `indexer` builds the runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.contract import Engine, Snapshot
from penstock.events import Event
from penstock.journal.commit.catalog import Head, TopicRecord
from penstock.journal.index.directory import FILTER, Run, run_key
from penstock.journal.index.lookup import Lookup
from penstock.journal.index.memtable import Memtable
from penstock.journal.index.rows import BloomFilter
from penstock.journal.reading import TopicView

if TYPE_CHECKING:
    from penstock.journal.commit.commit import Commit

_FILTERS = 64
"""Run filters kept in memory."""
_KNOWN_ENTITIES = 100_000
"""The most entities of a topic whose newest position the writer remembers."""


class EntityIndex:
    """The index of a journal's topics, with what is kept of it in memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.memtables: dict[str, Memtable] = {}
        self._lock = threading.Lock()
        self._filters: OrderedDict[tuple[int, int], BloomFilter] = OrderedDict()
        self.crowded: Callable[[str], None] = lambda topic: None
        """Told of a topic in which a look-up had to ask many runs."""
        self.lookups = 0
        """How many look-ups there were, more or less: background work makes way for them."""

    def lookup(self, name: str) -> Lookup:
        """Begins a look-up; call it before the snapshot is taken, so that the tail is never newer than the snapshot."""
        self.lookups += 1
        return Lookup(self, name, self._engine.changes(), self.memtables.get(name))

    def lookup_within(self, name: str, needed: int = 0) -> Lookup:
        """The same for a transaction, whose own events must not be remembered; `needed`: as in `Lookup.open`."""
        tail = self.memtables.get(name)
        if tail is None or tail.covered < needed:
            lookup = self.lookup(name)
            with self._engine.read() as snap:
                view = TopicView.open(snap, name)
                if view is not None:
                    lookup.open(view)
        return Lookup(self, name, None, self.memtables.get(name))

    def forget(self, name: str) -> None:
        self.memtables.pop(name, None)

    # ── what a commit asks ───────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, commit: Commit, head: Head, key: str) -> int:
        """The position of an entity's newest event, this commit's own included."""
        additions = commit.additions.get(head.name)
        position = additions.newest_of(key) if additions else 0
        if position:
            return position
        known = head.newest
        if known is None or len(known) > _KNOWN_ENTITIES:
            known, head.since = {}, head.latest
            head.newest = known
        if key not in known:
            found = self._newest_within(commit, head, key, head.since)
            known[key] = found._rows.seq(found._row) if found else 0  # a call less than `found.seq`
        return known[key]

    def _newest_within(self, commit: Commit, head: Head, key: str, through: int) -> Event | None:
        view = TopicView(commit.tx, head.name, TopicRecord(head.number, head.settings))
        return self.lookup_within(head.name, through).open(view, needed=through).newest(key, through)

    # ── what look-ups share ──────────────────────────────────────────────────────────────────────────────────────────
    def adopt(self, name: str, known: Memtable | None, tail: Memtable) -> None:
        """Keeps a tail for the next look-up, unless another thread was faster."""
        with self._lock:
            if self.memtables.get(name) is known:
                self.memtables[name] = tail

    def cut(self, name: str, number: int, through: int) -> None:
        """Forgets, in memory, what runs cover, or was removed, through a position of the topic with this number."""
        memtable = self.memtables.get(name)
        if memtable is not None and memtable.epoch[0] == number and through > memtable.base:
            memtable.without(through, partial(self.adopt, name, memtable))

    def may_hold(self, snap: Snapshot, topic: int, run: Run, term: bytes) -> bool:
        """Whether a run may hold an entity."""
        if not run.entities:
            return True
        known = self._filters.get((topic, run.id))
        if known is None:
            value = snap.get(run_key(topic, run.id, FILTER))
            if not value:
                return True
            known = BloomFilter(value)
            with self._lock:
                self._filters[topic, run.id] = known
                while len(self._filters) > _FILTERS:
                    self._filters.popitem(last=False)
        return term in known
