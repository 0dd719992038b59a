"""The N-th commit fails, for every N until the run completes: what failed left no trace, and the run ends the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Delivery, Draft, Journal, ManualClock, Queue, Retry
from penstock.core.journal.writer import WriteRequest
from penstock.errors import StorageError


class Fault(Exception):
    """The one injected failure has been met."""


class FailingWrite:
    """A write transaction that is rolled back when it should commit."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def __enter__(self) -> FailingWrite:
        self._tx.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        reason = error or StorageError("the disk said no")
        self._tx.__exit__(type(reason), reason, None)
        if error is None:
            raise reason


class Disk:
    """Lets every commit through but one."""

    def __init__(self, journal: Journal, fail_at: int) -> None:
        self._write = journal._engine.write
        self._left = fail_at
        self.failed = False
        journal._engine.write = self.write  # type: ignore[method-assign]

    def write(self, **options: Any) -> Any:
        tx = self._write(**options)
        self._left -= 1
        if self._left == 0:
            self.failed = True
            return FailingWrite(tx)
        return tx


class Run:
    """A queue's life in steps; a step whose commit failed is done again."""

    def __init__(self, journal: Journal, clock: ManualClock, mode: str) -> None:
        self.journal = journal
        self.clock = clock
        self.queue = journal.queue("jobs", max_attempts=2, retry=Retry.fixed(3), dead_letter="grave", mode=mode)
        self.held: list[Delivery] = []
        self.seen: list[tuple[int, int]] = []

    def steps(self) -> Iterator[Callable[[], Any]]:
        queue = self.queue
        yield lambda: queue.push_many([Draft("m", n, key="ab"[n % 2]) for n in range(6)])
        yield lambda: queue.push("later", delay=5)
        yield lambda: queue.push("own budget", max_attempts=1)
        yield self.take
        yield lambda: self.held[0].ack()
        yield self.take
        yield lambda: self.held[1].nack(error="no")
        yield lambda: self.clock.advance(4)
        yield self.take
        yield lambda: self.held[-1].nack(delay=0)
        yield lambda: self.held[2].extend(60)
        yield self.take
        yield self.give_back
        yield lambda: self.clock.advance(31)
        yield self.take
        yield lambda: queue.ack_many(self.held)
        yield self.together
        yield lambda: queue.configure(max_attempts=5)
        yield self.take
        yield lambda: queue.claim(min_idle=0, limit=1)
        yield lambda: self.clock.advance(40)
        yield self.take
        yield lambda: queue.redrive()
        yield lambda: self.journal._registry.upkeep.maintain("jobs")

    def take(self) -> None:
        found = self.queue.take_many(3)
        self.held += found
        self.seen += [(one.seq, one.attempt) for one in found]

    def give_back(self) -> None:
        """`release` never raises: where its commit failed, the lease still holds the message."""
        one = self.held[-1]
        one.release()
        if any(pending.token == one.token for pending in self.queue.pending()):
            self.queue.delivery(one.token).release()

    def together(self) -> None:
        with self.journal.transaction() as tx:
            tx.append("log", "k", 1)
            tx.push(self.queue, "from a transaction")

    def state(self) -> Any:
        stats = self.queue.stats()
        return (
            self.seen,
            [(event.seq, event.payload) for event in self.queue],
            [event.payload for event in self.journal.queue("grave")],
            (stats.ready, stats.in_flight, stats.delayed, stats.failed),
            [(one.seq, one.attempt) for one in self.queue.pending()],
            self.journal.topic("jobs").latest,
        )


@contextmanager
def opened(url: str, clock: ManualClock) -> Iterator[Journal]:
    with penstock.open(url, clock=clock, durability="process") as journal:
        yield journal


def live(url: str, mode: str, fail_at: int) -> tuple[Any, bool]:
    clock = ManualClock()
    with opened(url, clock) as journal:
        run = Run(journal, clock, mode)
        disk = Disk(journal, fail_at)
        for step in run.steps():
            try:
                step()
            except StorageError:
                step()
        return run.state(), disk.failed


@pytest.mark.parametrize("mode", ["work", "fanout"])
def test_a_commit_that_fails_leaves_no_trace(tmp_path: Path, mode: str) -> None:
    expected, _ = live("memory:", mode, fail_at=0)
    fail_at = 0
    while True:
        fail_at += 1
        found, failed = live("memory:", mode, fail_at)
        assert found == expected, f"after commit {fail_at} had failed"
        if not failed:
            break
    assert fail_at > 20


def test_a_commit_that_fails_on_sqlite_leaves_no_trace(tmp_path: Path) -> None:
    expected, _ = live(f"sqlite:{tmp_path / 'none'}", "work", fail_at=0)
    for fail_at in range(1, 30, 3):
        found, _ = live(f"sqlite:{tmp_path / str(fail_at)}", "work", fail_at)
        assert found == expected, f"after commit {fail_at} had failed"


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
