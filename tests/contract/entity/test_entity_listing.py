"""`entities()` lists the keys that have events, whatever removed the others, indexed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from small_index import small_index

from penstock import Draft, Journal, ManualClock
from penstock.core.queue import upkeep

Reopen = Callable[[Journal], Journal]
Remove = Callable[[Journal, ManualClock], None]


@pytest.fixture(autouse=True)
def runs_after_a_few_events() -> Iterator[None]:
    with small_index():
        yield


def by_position(journal: Journal, clock: ManualClock) -> None:
    journal.topic("orders").compact(40)


def by_force(journal: Journal, clock: ManualClock) -> None:
    journal.topic("orders").commit("reader", 0)
    journal.topic("orders").compact(40, force=True)


def by_key(journal: Journal, clock: ManualClock) -> None:
    """Only the newest event of each key is left, and then the old ones' go."""
    assert journal.topic("orders").compact_keys() > 0
    assert {*journal.topic("orders").entities()} == {"gone", "old", "both", "young"}
    journal.topic("orders").compact(40)


def by_count(journal: Journal, clock: ManualClock) -> None:
    journal.topic("orders").configure(max_events=20)
    journal.maintain()


def by_age(journal: Journal, clock: ManualClock) -> None:
    """Gone for readers when their time is over, before anything is removed."""
    journal.topic("orders").configure(max_age=50)


def by_age_and_upkeep(journal: Journal, clock: ManualClock) -> None:
    journal.topic("orders").configure(max_age=50)
    journal.maintain()


WAYS: list[Remove] = [by_position, by_force, by_key, by_count, by_age, by_age_and_upkeep]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("remove", WAYS, ids=lambda way: way.__name__)
def test_keys_without_events_are_not_listed(
    journal: Journal, clock: ManualClock, reopen: Reopen, remove: Remove, indexed: bool
) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("e", number, key=["gone", "old", "both", None][number % 4]) for number in range(40)])
    clock.advance(100)
    topic.append_many([Draft("e", number, key=["both", "young"][number % 2]) for number in range(20)])
    assert sorted(topic.entities()) == ["both", "gone", "old", "young"]
    if indexed:
        journal.maintain()
    remove(journal, clock)
    for _ in range(2):
        listed = sorted(topic.entities())
        assert listed == ["both", "young"] == sorted({event.key for event in topic.read() if event.key is not None})
        assert topic.position_of("gone") == 0
        journal.maintain()
        assert sorted(topic.entities()) == ["both", "young"]
        journal = reopen(journal)
        topic = journal.topic("orders")
    topic.append("e", 1, key="gone", expect=0)
    assert sorted(topic.entities()) == ["both", "gone", "young"]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_topic_made_again_lists_nothing_of_the_dropped_one(journal: Journal, reopen: Reopen, indexed: bool) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("e", number, key="gone") for number in range(40)])
    if indexed:
        journal.maintain()
    journal.drop_topic("orders")
    assert list(journal.topic("orders").entities()) == []
    journal.topic("orders").append("e", 1, key="new")
    assert list(journal.topic("orders").entities()) == ["new"]
    assert list(reopen(journal).topic("orders").entities()) == ["new"]


@pytest.mark.parametrize("indexed", [False, True])
def test_settled_messages_behind_one_that_stays_are_no_entities(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, reopen: Reopen, indexed: bool
) -> None:
    monkeypatch.setattr(upkeep, "THIN_POSITIONS", 30)
    queue = journal.queue("orders", max_attempts=1)
    queue.push("failed", key="stays")
    for number in range(60):
        queue.push(number, key=f"k{number}")
    if indexed:
        journal.maintain()
    found = queue.take()
    assert found is not None
    found.nack()
    while taken := queue.take_many(100):
        queue.ack_many(taken)
    journal.maintain()
    for _ in range(2):
        topic = journal.topic("orders")
        listed = sorted(topic.entities())
        assert listed == sorted({str(event.key) for event in topic.read()}) and "stays" in listed and len(listed) < 40
        journal = reopen(journal)
