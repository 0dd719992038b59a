"""What queues do in passing: remove what everybody has settled, and keep what somebody has not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.journal.catalog import load_state
from penstock.journal.commit import Commit
from penstock.journal.compaction import compact
from penstock.journal.writer import Operation
from penstock.queue import keys
from penstock.queue.state import Book, QueueState

if TYPE_CHECKING:
    from penstock.journal.journal import BaseJournal

SETTLED_MESSAGES = 1024
"""How many settled messages make a look at the topic worth it."""
REMOVE_AT_ONCE = 50_000
"""The most positions one commit removes: nobody should have to wait long behind it."""


def settled_through(commit: Commit, queue: QueueState) -> int:
    """Every position up to here is settled, for everybody."""
    tx = commit.tx
    floor = min(group.floor(tx) for group in queue.delivering(tx))
    for other in queue.left_behind(tx):
        floor = min([floor, *(lease.seq(index) - 1 for _, lease in other.leases(tx) for index in lease.held())])
    return floor


class Caretaker:
    """Compacts the topics of queues, and keeps others from compacting away what is not settled."""

    def __init__(self, journal: BaseJournal, book: Book) -> None:
        self._journal = journal
        self._book = book
        self._settled: dict[str, int] = {}

    def holds(self, commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
        """For compaction on request: unsettled messages stay."""
        queue = self._book.find(commit, topic)
        return () if queue is None else [(f"queue {topic}", settled_through(commit, queue))]

    def note(self, queue: str, count: int) -> None:
        """Messages of a queue were settled."""
        settled = self._settled.get(queue, 0) + count
        if settled < SETTLED_MESSAGES:
            self._settled[queue] = settled
            return
        self._settled[queue] = 0
        self._journal._keeper.request(queue)

    def keep(self, topic: str) -> None:
        """Removes what is settled, in the housekeeper's thread; a part at a time."""
        writer = self._journal._writer
        while writer.run(Operation(lambda commit: self._remove(commit, topic), relaxed=True)):
            pass

    def _remove(self, commit: Commit, topic: str) -> bool:
        """Removes some of what is settled; True when there is more."""
        queue = self._book.find(commit, topic)
        if queue is None:
            return False
        trimmed = load_state(commit.tx, queue.topic, topic).trimmed
        settled = settled_through(commit, queue)
        if settled <= trimmed:
            return False
        through = min(settled, trimmed + REMOVE_AT_ONCE)
        remove_through(commit, queue, through, self._journal)
        return through < settled and load_state(commit.tx, queue.topic, topic).trimmed >= through


def remove_through(commit: Commit, queue: QueueState, through: int, journal: BaseJournal) -> int:
    """Removes messages up to a position that nobody holds, and what was known about their delivery."""
    removed = compact(commit, queue.name, through, journal._holds).removed
    trimmed = load_state(commit.tx, queue.topic, queue.name).trimmed
    commit.tx.delete_range(keys.special_key(queue.topic, 0), keys.special_key(queue.topic, trimmed + 1))
    commit.tx.delete_range(keys.override_key(queue.topic, 0), keys.override_key(queue.topic, trimmed + 1))
    return removed
