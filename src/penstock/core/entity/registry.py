"""The support of event sourcing that every open journal has once: its fences, its gates, and the states folded
lately."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.core.entity.fence import Fences
from penstock.core.entity.gate import Gates
from penstock.core.entity.states import SNAPSHOT, StateCache
from penstock.core.journal.keys import topic_range
from penstock.core.journal.upkeep.dropping import KeyRange

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore


def _entity_rows(topic_id: int) -> list[KeyRange]:
    """Returns the places of the saved states and published roots of a topic."""
    from penstock.core.entity.receipts import ROOTS

    return [topic_range(SNAPSHOT, topic_id), topic_range(ROOTS, topic_id)]


class EntityRegistry:
    """Everything about event sourcing that one open journal has one of."""

    def __init__(self, core: JournalCore) -> None:
        # Re-entrant: the garbage collector may cancel a dropped fence in the middle of anything, also of this lock.
        lock = threading.RLock()
        self.fences = Fences(core, lock)
        self.gates = Gates(core, self.fences, lock)
        self.states = StateCache()
        core.housekeeper.drop_rules.rows.append(_entity_rows)
        core.before_close.append(self.fences.cancel_all)
