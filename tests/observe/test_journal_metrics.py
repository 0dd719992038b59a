"""What a journal counts, and what it says of itself in-process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import Conflict
from penstock.observe.metrics import REGISTRY, Registry, watch
from penstock.sampling.collect import GAUGES
from penstock.sampling.collect import watch as watch_in


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
