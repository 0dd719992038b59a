"""Messages that go unhandled, because an operator takes them away: those who wait for a reply hear of it.

Only queues in which a message has ever wanted a reply are looked through, and of their blocks only those that have such
messages: what is appended follows what was asked for, not how much is taken away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from penstock.journal.catalog import TopicRecord
from penstock.journal.commit import Commit
from penstock.journal.reading import TopicView
from penstock.queue.results.reply import REPLY, answer_failure
from penstock.queue.state.cache import QueueState
from penstock.queue.state.records import FAILED
from penstock.surface.failure import FailureText

Taken = Literal["removed", "discarded"]
REMOVED: Final[Taken] = "removed"
DISCARDED: Final[Taken] = "discarded"
_WHY: Final = FailureText("it was taken away before it was handled")
_EXPIRED: Final = "expired"


def answer_removed(commit: Commit, queue: QueueState, through: int) -> None:
    """Before a queue's messages up to a position go, in flight or not."""
    if queue.traits.replies:
        tx = commit.tx
        flying = queue.in_flight(tx)
        waiting = [seq for seq in _wanting(commit, queue, through) if seq in flying or queue.find(tx, seq)]
        answer_taken(commit, queue, waiting, REMOVED, held=flying)


def answer_taken(
    commit: Commit, queue: QueueState, seqs: Iterable[int], why: Taken, held: frozenset[int] | set[int] = frozenset()
) -> None:
    """Before unsettled messages go. One that has failed has had its answer; one past its ttl hears that, unless it is
    in flight."""
    if not queue.traits.replies:
        return
    queue.blocks.refresh(commit)
    overdue = queue.overdue_through(commit.tx, commit.now_ms)
    for seq in seqs:
        if all(message.state != FAILED for _, message in queue.find(commit.tx, seq)):
            late = seq <= overdue and seq not in held
            answer_failure(commit, queue, seq, _EXPIRED if late else why, FailureText() if late else _WHY)


def _wanting(commit: Commit, queue: QueueState, through: int) -> Iterator[int]:
    """Messages up to a position that want replies, settled or not."""
    commit.flush()
    view = TopicView(commit.tx, queue.name, TopicRecord(queue.topic))
    for block in view.blocks(0, through):
        if block.may_have_header(REPLY):
            for row, seq in enumerate(block.seqs):
                if seq <= through and REPLY in block.headers(row):
                    yield seq
