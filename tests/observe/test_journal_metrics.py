"""What a journal counts, and what it says of itself in-process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.core.engine.contract import Snapshot
from penstock.core.local.backend import LocalJournal
from penstock.core.observe.metrics import REGISTRY, Registry, watch
from penstock.core.observe.pipelines import TOPIC as PIPELINES
from penstock.core.observe.pipelines import FlowStatus, report
from penstock.core.observe.workers import TOPIC as WORKERS
from penstock.core.observe.workers import say_gave_up
from penstock.core.sampling.collect import GAUGES
from penstock.core.sampling.collect import watch as watch_in
from penstock.errors import Conflict


def value(name: str) -> Any:
    return REGISTRY.snapshot().get(name, 0)


def growth(name: str, work: Callable[[], object]) -> Any:
    before = value(name)
    work()
    return value(name) - before


def test_appended_events_are_counted_by_topic(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "a.db") as journal:
        topic = journal.topic("counted")
        assert growth("topic.appended{topic=counted}", lambda: topic.append("k")) == 1
        many = [penstock.Draft("k", n) for n in range(50)]
        assert growth("topic.appended{topic=counted}", lambda: topic.append_many(many)) == 50

        def together() -> None:
            with journal.transaction() as tx:
                tx.append("counted", "k")
                tx.append("other", "k")

        assert growth("topic.appended{topic=counted}", together) == 1
        again = lambda: [topic.append("k", dedup="once") for _ in range(2)]
        assert growth("topic.appended{topic=counted}", again) == 1
    assert value("topic.appended{topic=counted}") >= 53, "what a closed journal counted stays counted"


def test_a_refused_append_counts_nothing() -> None:
    with penstock.open("memory:") as journal:
        topic = journal.topic("refused")
        with pytest.raises(Conflict):
            topic.append("k", key="a", expect=7)
    assert value("topic.appended{topic=refused}") == 0


@pytest.mark.parametrize(("durability", "syncs"), [("disk", 3), ("process", 0)])
def test_commits_are_timed_and_syncs_counted(tmp_path: Path, durability: Any, syncs: int) -> None:
    with penstock.open(tmp_path / "a.db", durability=durability) as journal:
        topic = journal.topic("t")
        topic.append("k")
        before, synced = value("writer.commit_seconds"), value("writer.syncs")
        for _ in range(3):
            topic.append("k")
        after = value("writer.commit_seconds")
        assert after["count"] - before["count"] == 3
        assert after["sum"] > before["sum"]
        assert value("writer.syncs") - synced == syncs


def test_the_size_of_a_group_is_what_shared_a_commit() -> None:
    with penstock.open("memory:") as journal:
        topic = journal.topic("t")
        topic.append("k")
        before = value("writer.group_size")
        with journal.transaction() as tx:  # while it is open, whoever appends must wait and will share a commit
            tx.append("t", "first")
            waiting = [threading.Thread(target=topic.append, args=("k",), daemon=True) for _ in range(4)]
            for thread in waiting:
                thread.start()
            while journal.pressure().queued < 4:
                pass
        for thread in waiting:
            thread.join(60)
        after = value("writer.group_size")
        assert after["sum"] - before["sum"] == 5
        assert after["count"] - before["count"] < 5


def test_many_writers_are_counted_exactly() -> None:
    def work() -> None:
        journals = [penstock.open("memory:") for _ in range(3)]
        threads = [
            threading.Thread(target=lambda j=journal: [j.topic("exact").append("k") for _ in range(200)], daemon=True)
            for journal in journals
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for journal in journals:
            journal.close()

    assert growth("topic.appended{topic=exact}", work) == 1800


def test_a_watched_journal_says_how_it_is() -> None:
    registry = Registry()
    with penstock.open("memory:") as journal:
        journal.topic("orders").append_many([penstock.Draft("k", n) for n in range(10)])
        journal.topic("orders").commit("billing", 4)
        queue = journal.queue("emails", max_attempts=1)
        queue.push_many(["a", "b", "c"])
        held = queue.take()
        assert held is not None
        watch_in(journal, registry)
        said = registry.snapshot()
        assert said["consumer.lag{topic=orders,consumer=billing}"] == 6
        assert said["topic.latest{topic=orders}"] == 10 and said["topic.events{topic=orders}"] == 10
        assert said["queue.ready{queue=emails,group=default}"] == 2
        assert said["queue.leased{queue=emails,group=default}"] == 1
        assert said["queue.oldest_age_seconds{queue=emails,group=default}"] >= 0
        assert "penstock_queue_ready" in registry.prometheus_text()
    assert registry.snapshot() == {}, "a closed journal says nothing"


def test_watching_keeps_no_journal_alive_and_may_be_said_again() -> None:
    for _ in range(2):
        journal = penstock.open("memory:")
        watch(journal)
        assert value("writer.utilization") == 0
        journal.close()
    del journal
    gc.collect()
    for name, *_ in GAUGES:
        REGISTRY.forget(name)


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
