"""A clock that is set back by a day: nothing that lasts for a while lasts longer than that while."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from contract.journals import eventually
from penstock import Journal, ManualClock, Queue, Topic

DAY = 86_400
WHILE = 3600
"""How long each of these things lasts."""


def rated(journal: Journal) -> Queue:
    queue = journal.queue("q", rate="1/1h")
    queue.push_many(range(3))
    assert queue.take() is not None
    return queue


def rated_by_key(journal: Journal) -> Queue:
    queue = journal.queue("q", rate_per_key="1/1h")
    queue.push_many(range(3), key="k")
    queue.take().ack()  # type: ignore[union-attr]
    return queue


def delayed(journal: Journal) -> Queue:
    queue = journal.queue("q")
    queue.push(1, delay=WHILE)
    return queue


def delayed_in_fanout(journal: Journal) -> Queue:
    queue = journal.queue("q", mode="fanout")
    queue.push(1, delay=WHILE)
    return queue


def debounced(journal: Journal) -> Queue:
    queue = journal.queue("q", debounce=WHILE)
    queue.push(1, key="k")
    return queue


def tried_again(journal: Journal) -> Queue:
    queue = journal.queue("q")
    queue.push(1)
    queue.take().nack(delay=WHILE)  # type: ignore[union-attr]
    return queue


def leased(journal: Journal) -> Queue:
    queue = journal.queue("q", lease=WHILE)
    queue.push(1)
    assert queue.take() is not None
    return queue


def extended(journal: Journal) -> Queue:
    queue = journal.queue("q", lease=5)
    queue.push_many(range(2))
    first, second = queue.take_many(2)
    second.extend(DAY * 7)
    first.extend(WHILE)
    return queue


def broken(journal: Journal) -> Queue:
    queue = journal.queue("q", breaker="1/10s", breaker_pause=WHILE, max_attempts=100)
    queue.push_many(range(3))
    queue.take().nack(error="down")  # type: ignore[union-attr]
    return queue


LASTING = (
    rated, rated_by_key, delayed, delayed_in_fanout, debounced, tried_again, leased, extended, broken,
)  # fmt: skip


@pytest.mark.parametrize("lasting", LASTING, ids=lambda one: one.__name__)
def test_a_clock_set_back_keeps_no_message_for_longer(
    journal: Journal, clock: ManualClock, lasting: Callable[[Journal], Queue]
) -> None:
    queue = lasting(journal)
    assert queue.take() is None
    clock.advance(-DAY)
    assert queue.take() is None
    clock.advance(WHILE - 1)
    assert queue.take() is None
    clock.advance(1)
    assert queue.take() is not None


def test_a_clock_set_back_twice_counts_from_the_second_time(journal: Journal, clock: ManualClock) -> None:
    queue = rated(journal)
    for _ in range(2):
        clock.advance(-DAY)
        assert queue.take() is None
    clock.advance(WHILE)
    assert queue.take() is not None


def test_a_moment_that_was_named_stays_that_moment(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("q")
    queue.push(1, not_before=datetime.fromtimestamp(clock.now_ms() / 1000 + WHILE, UTC))
    clock.advance(-DAY)
    for _ in range(2):
        assert queue.take() is None
        clock.advance(DAY / 2 + WHILE / 2)
    assert queue.take() is not None


def test_a_lease_can_be_claimed_after_its_idle_time_though_the_clock_went_back(
    journal: Journal, clock: ManualClock
) -> None:
    queue = leased(journal)
    clock.advance(-DAY)
    assert queue.claim(min_idle=60) == []
    clock.advance(60)
    assert len(queue.claim(min_idle=60)) == 1


def test_a_message_that_was_moved_waits_no_longer_because_the_clock_went_back(
    journal: Journal, clock: ManualClock
) -> None:
    queue, other = delayed(journal), journal.queue("other")
    clock.advance(-DAY)
    assert queue.move(other) == 1
    clock.advance(WHILE)
    assert other.take() is not None


def test_a_group_added_after_the_clock_went_back_waits_no_longer(journal: Journal, clock: ManualClock) -> None:
    queue = delayed_in_fanout(journal)
    assert queue.take(group="early") is None
    clock.advance(-DAY)
    queue.add_group("late")
    clock.advance(WHILE)
    assert queue.take(group="late") is not None


def test_a_throttle_lets_the_next_one_through_after_its_window(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("q", throttle=WHILE)
    queue.push(1, key="k")
    clock.advance(-DAY)
    assert queue.push(2, key="k").duplicate
    clock.advance(WHILE - 1)
    assert queue.push(3, key="k").duplicate
    clock.advance(1)
    assert not queue.push(4, key="k").duplicate


def test_a_dedup_key_is_known_for_a_window_and_no_longer(topic: Topic, clock: ManualClock) -> None:
    topic.configure(dedup_window=WHILE)
    topic.append("k", dedup="before")
    clock.advance(-DAY)
    assert topic.append("k", dedup="before").duplicate
    assert not topic.append("k", dedup="behind").duplicate
    clock.advance(WHILE - 1)
    assert topic.append("k", dedup="before").duplicate and topic.append("k", dedup="behind").duplicate
    clock.advance(1)
    assert not topic.append("k", dedup="before").duplicate
    assert not topic.append("k", dedup="behind").duplicate
    clock.advance(-DAY)
    assert topic.append("k", dedup="behind").duplicate


def test_a_periodic_message_comes_after_its_period(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("q")
    queue.every(WHILE, {}, name="tick")
    clock.advance(-DAY)
    due = datetime.fromtimestamp(clock.now_ms() / 1000 + WHILE, UTC)
    eventually(lambda: queue.schedules()[0].next_tick == due)
    clock.advance(WHILE)
    eventually(lambda: queue.stats().ready == 1)


def test_a_shorter_pause_holds_for_a_breaker_that_is_open(journal: Journal, clock: ManualClock) -> None:
    queue = broken(journal)
    queue.configure(breaker_pause=5)
    assert queue.take() is None
    clock.advance(5)
    assert queue.stats().breaker == "half-open"
    assert queue.take() is not None
