"""A journal whose store this process opens."""

from __future__ import annotations

from penstock.clock import Clock
from penstock.engine.contract import Engine
from penstock.journal.core import JournalCore
from penstock.local.backend import LocalBackend
from penstock.surface.journal import Journal


class LocalJournal(Journal):
    """A journal in this process, for the parts of penstock that need its store."""

    _backend: LocalBackend

    def __init__(self, engine: Engine, *, clock: Clock | None = None, capacity: int, pressure: float) -> None:
        self._core = JournalCore(self, engine, clock=clock, capacity=capacity, pressure=pressure)
        super().__init__(LocalBackend(self, self._core))
        self._engine = engine
        self._entities = self._backend.entities
        self._registry = self._backend.queues
