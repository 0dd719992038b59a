"""Pushing to the front: before everything that waits, in any queue, and it stays there."""

from __future__ import annotations

import pytest

from penstock import Journal, ManualClock, Queue
from penstock.errors import ConfigError


def order(queue: Queue, **options: str) -> list[object]:
    return [one.payload for one in queue.take_many(20, **options)]  # type: ignore[arg-type]


def test_the_front_goes_before_all_that_waits_the_earlier_first(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many([1, 2])
    queue.push("a", priority="front")
    queue.push("b", priority="front")
    queue.push(3)
    assert [event.payload for event in queue.peek(9)] == ["a", "b", 1, 2, 3] and len(queue) == 5
    assert order(queue) == ["a", "b", 1, 2, 3]


def test_the_front_goes_before_every_priority(journal: Journal) -> None:
    queue = journal.queue("jobs", priority=True)
    queue.push("high", priority=1000)
    queue.push("front", priority="front")
    assert order(queue) == ["front", "high"]


def test_the_front_of_a_fanout_queue_is_every_groups(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout")
    news.add_group("mail")
    news.add_group("search")
    news.push(1)
    assert order(news, group="mail") == [1]
    news.push(2)
    news.push_many(["a", "b"], priority="front")
    assert order(news, group="mail") == ["a", "b", 2] and order(news, group="search") == ["a", "b", 1, 2]


def test_a_delayed_message_reaches_the_front_at_its_time(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    queue.push("later", priority="front", delay=60)
    queue.push_many([1, 2])
    first = queue.take()
    assert first is not None and first.payload == 1
    clock.advance(60)
    assert order(queue)[0] == "later"


def test_the_front_stays_through_retries_redrive_and_move(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=2, dead_letter="jobs.dead")
    other = journal.queue("other")
    queue.push_many([1, 2])
    queue.push("a", priority="front")
    for _ in range(2):
        delivery = queue.take()
        assert delivery is not None and delivery.payload == "a"
        delivery.nack()
    assert queue.redrive() == 1
    assert [event.payload for event in queue.peek(9)] == ["a", 1, 2]
    other.push(9)
    assert queue.move(other) == 3
    assert order(other) == ["a", 9, 1, 2]


def test_keys_and_fair_shares_have_no_front(journal: Journal) -> None:
    queue = journal.queue("jobs")
    with pytest.raises(ConfigError, match="front"):
        queue.push(1, priority="front", key="k")
    with pytest.raises(ConfigError, match='"front"'):
        queue.push(1, priority="back")  # type: ignore[arg-type]
    fair = journal.queue("fair", fair_by="tenant")
    with pytest.raises(ConfigError, match="no front"):
        fair.push(1, priority="front", headers={"tenant": "a"})
    assert len(queue) == 0 and len(fair) == 0
