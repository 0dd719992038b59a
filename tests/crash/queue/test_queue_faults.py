"""A queue goes on when others of its group commit fail. Failing calls of every operation: `test_journal_faults`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Queue
from penstock.core.journal.writer import WriteRequest


class Fault(Exception):
    """The one injected failure has been met."""


def test_a_queue_survives_the_failure_of_others_in_its_group_commit(tmp_path: Path) -> None:
    """One member of a group commit fails half-way: the group is redone one by one, and nobody's state is off."""
    with penstock.open(f"sqlite:{tmp_path / 'store'}", durability="process") as journal:
        queue: Queue = journal.queue("jobs")
        queue.push_many(range(50))

        def half_way(commit: Any) -> None:
            commit.tx.put(b"zz", b"")
            raise Fault

        bad = journal._core.writer.submit(WriteRequest(half_way))
        tickets = [queue.submit(n) for n in range(20)]
        deliveries = queue.take_many(10)
        worse = journal._core.writer.submit(WriteRequest(half_way))
        assert queue.ack_many(deliveries) == 10
        for failed in (bad, worse):
            with pytest.raises(Fault):
                failed.result(60)
        assert sorted(ticket.result(60).seq for ticket in tickets) == list(range(51, 71))
        assert len(queue) == 60 and queue.stats().in_flight == 0
        assert [delivery.seq for delivery in queue.take_many(100)] == list(range(11, 71))
