"""The event sourcing of an open journal: its fences, its gates, and its recent states."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.core.journal.keys import FENCE, ROOTS, prefix_end, topic_range
from penstock.core.journal.upkeep.dropping import KeyRange

if TYPE_CHECKING:
    from penstock.core.engine.contract import WriteTx
    from penstock.core.entity.fence import Fences
    from penstock.core.entity.gate import Gates
    from penstock.core.entity.states import StateCache
    from penstock.core.journal.core import JournalCore


def _entity_rows(topic_id: int) -> list[KeyRange]:
    """Returns the places of the saved states and published roots of a topic."""
    from penstock.core.entity.states import SNAPSHOT

    return [topic_range(SNAPSHOT, topic_id), topic_range(ROOTS, topic_id)]


def _drop_states(tx: WriteTx, topic: int, erased: Collection[str]) -> int:
    """Removes the states of some keys of a topic."""
    from penstock.core.entity.states import drop_states_of

    return drop_states_of(tx, topic, erased)


class EntityRegistry:
    """The parts of event sourcing that an open journal has once."""

    def __init__(self, core: JournalCore) -> None:
        self._core = core
        # Re-entrant, because the garbage collector may cancel a dropped fence at any moment, also inside this lock.
        self._lock = threading.RLock()
        self._fences: Fences | None = None
        self._gates: Gates | None = None
        self._states: StateCache | None = None
        if core.engine.shared:
            core.writer.catalog.find_fence = self._find_fence
        core.housekeeper.drop_rules.rows.append(_entity_rows)
        core.erase_states.append(_drop_states)
        core.before_close.append(self._cancel_fences)

    # Each part is made, and its module imported, at its first use.

    @property
    def fences(self) -> Fences:
        """The live fences of the journal."""
        if self._fences is None:
            from penstock.core.entity.fence import Fences

            with self._lock:
                self._fences = self._fences or Fences(self._core, self._lock)
        return self._fences

    @property
    def gates(self) -> Gates:
        """The gates of the journal's topics."""
        if self._gates is None:
            from penstock.core.entity.gate import Gates

            with self._lock:
                self._gates = self._gates or Gates(self._core, self.fences, self._lock)
        return self._gates

    @property
    def states(self) -> StateCache:
        """The recently folded states."""
        if self._states is None:
            from penstock.core.entity.states import StateCache

            with self._lock:
                self._states = self._states or StateCache()
        return self._states

    def _find_fence(self, tx: WriteTx) -> str:
        """Returns the process that has an exclusive fence open, for people; "" for none."""
        if next(tx.scan(FENCE, prefix_end(FENCE)), None) is None:
            return ""
        from penstock.core.entity.fence import find_holder

        return find_holder(self._core.engine, tx)

    def _cancel_fences(self) -> None:
        if self._fences is not None:
            self._fences.cancel_all()
