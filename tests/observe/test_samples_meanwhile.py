"""Samples of a journal whose queues and topics are dropped, and made anew, while it is looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import pytest

import penstock
from penstock.engine.contract import Snapshot
from penstock.local.backend import LocalJournal
from penstock.observe.pipelines import TOPIC as PIPELINES
from penstock.observe.pipelines import FlowStatus, report
from penstock.observe.workers import TOPIC as WORKERS
from penstock.observe.workers import say_gave_up

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def journal() -> Iterator[LocalJournal]:
    with penstock.open("memory:") as opened:
        assert isinstance(opened, LocalJournal)
        yield opened


def give_up(journal: LocalJournal, name: str, count: int, **policy: object) -> None:
    queue = journal.queue(name, max_attempts=1, **policy)  # type: ignore[arg-type]
    queue.push_many(range(count))
    for delivery in queue.take_many(count):
        delivery.nack(error="no")


def before_look(journal: LocalJournal, patch: pytest.MonkeyPatch, look: int, act: Callable[[], object]) -> list[int]:
    """Does something just before the n-th snapshot that this thread takes; the list is of the snapshots so far."""
    read, me, looks = journal._core.engine.read, threading.get_ident(), [0]

    def counted() -> AbstractContextManager[Snapshot]:
        if threading.get_ident() == me:
            looks[0] += 1
            if looks[0] == look:
                act()
        return read()

    patch.setattr(journal._core.engine, "read", counted)
    return looks


def test_a_queue_that_is_dropped_while_it_is_looked_at_is_left_out_and_not_made(
    journal: LocalJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for look in range(1, 100):
        for name in ("emails", "images", "reports"):
            give_up(journal, name, 2, dead_letter="graves" if name != "reports" else None)
        with monkeypatch.context() as patch:
            looks = before_look(journal, patch, look, lambda: journal.drop_topic("graves", force=True))
            sample = journal.stats()
        if looks[0] < look:
            break
        assert journal.queues() == ["emails", "images", "reports"]
        assert set(journal.queues()) <= set(sample.queues) <= {*journal.queues(), "graves"}
        assert sample.queues["reports"][0].failed == 2
        for name in journal.topics():
            journal.drop_topic(name, force=True)
    assert look > 10 and len(sample.queues) == 4


def test_what_is_known_of_a_topic_is_not_known_of_one_made_anew(journal: LocalJournal) -> None:
    """Also when it has no event yet, and ends where it was dropped."""
    report(journal, [FlowStatus(pipeline="shop", flow="revenue", state="failed", started_at=NOW)])
    say_gave_up(journal, "orders:billing", ValueError("no"))
    give_up(journal, "emails", 3, dead_letter="graves")
    give_up(journal, "images", 1, dead_letter="graves")
    before = journal.stats()
    assert [flow.flow for flow in before.flows] == ["revenue"]
    assert [one.worker for one in before.workers] == ["orders:billing"]
    assert (before.queues["emails"][0].dead, before.queues["images"][0].dead) == (3, 1)
    for name in (PIPELINES, WORKERS, "graves"):
        journal.drop_topic(name, force=True)
        journal.topic(name).configure(max_events=None)
    empty = journal.stats()
    assert not empty.flows and not empty.workers and empty.topics["graves"].latest == 4
    report(journal, [FlowStatus(pipeline="shop", flow="returns", state="failed", started_at=NOW)])
    say_gave_up(journal, "orders:audit", ValueError("no"))
    give_up(journal, "emails", 1, dead_letter="graves")
    give_up(journal, "images", 3, dead_letter="graves")
    after = journal.stats()
    assert [flow.flow for flow in after.flows] == ["returns"]
    assert [one.worker for one in after.workers] == ["orders:audit"]
    assert (after.queues["emails"][0].dead, after.queues["images"][0].dead) == (1, 3)
