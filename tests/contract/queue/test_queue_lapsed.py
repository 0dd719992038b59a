"""Looking at messages whose leases have ended, before any take has noticed it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Journal, ManualClock, Queue, Retry


def states(queue: Queue) -> list[tuple[int, str]]:
    return [(one.seq, one.state) for one in queue.messages()]


def counts(queue: Queue, group: str = "default") -> tuple[int, int, int, int]:
    stats = queue.stats(group)
    return stats.ready, stats.in_flight, stats.delayed, stats.failed


def take_all(journal: Journal, clock: ManualClock, count: int = 3, **options: Any) -> Queue:
    """A queue whose first messages were taken, with leases that have ended; one more message is ready."""
    queue = journal.queue("jobs", lease=10, **options)
    queue.push_many(range(count + 1))
    assert len(queue.take_many(count, consumer="killed")) == count
    assert counts(queue) == (1, count, 0, 0)
    clock.advance(11)
    return queue


def test_every_look_shows_what_a_take_would_find(journal: Journal, clock: ManualClock) -> None:
    queue = take_all(journal, clock)
    assert counts(queue) == (4, 0, 0, 0) and len(queue) == 4
    assert states(queue) == [(1, "ready"), (2, "ready"), (3, "ready"), (4, "ready")]
    (one,) = queue.messages(after=1, limit=1)
    assert (one.attempts, one.error, one.consumer, one.deadline) == (1, "the lease ended", None, None)
    assert list(queue.messages(state="in_flight")) == [] == list(queue.pending())
    assert [one.in_hand for one in queue.consumers()] == [0]
    assert [event.seq for event in queue.peek(10)] == [1, 2, 3, 4] == [event.seq for event in queue]
    (group,) = journal.stats().queues["jobs"]
    assert (group.ready, group.in_flight) == (4, 0)
    assert queue.stats().oldest_age == pytest.approx(11)
    assert counts(queue) == (4, 0, 0, 0), "looking changes nothing"
    assert [delivery.attempt for delivery in queue.take_many(10)] == [2, 2, 2, 1]


def test_a_lease_that_was_extended_in_part_ends_in_part(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", lease=10)
    queue.push_many(range(3))
    first, *_ = queue.take_many(3)
    first.extend(60)
    clock.advance(11)
    assert states(queue) == [(1, "in_flight"), (2, "ready"), (3, "ready")] and counts(queue) == (2, 1, 0, 0)
    assert [one.seq for one in queue.pending()] == [1]
    first.ack()
    assert counts(queue) == (2, 0, 0, 0)


def test_the_delay_of_a_retry_runs_from_the_end_of_the_lease(journal: Journal, clock: ManualClock) -> None:
    queue = take_all(journal, clock, retry=Retry.fixed(60))
    assert counts(queue) == (1, 0, 3, 0) and states(queue)[0] == (1, "delayed")
    due = next(iter(queue.messages(state="delayed"))).due
    queue.take()
    assert [one.due for one in queue.messages(state="delayed")] == [due] * 3
    clock.advance(60)
    assert counts(queue)[0] == 3


def test_discard_move_and_replace_meet_the_message_that_looks_show(journal: Journal, clock: ManualClock) -> None:
    queue = take_all(journal, clock)
    held = list(queue.pending())
    assert held == [] and queue.discard([1]) == 1
    other = journal.queue("other")
    assert queue.move(other, limit=1) == 1 and [event.payload for event in other] == [1]
    assert states(queue) == [(3, "ready"), (4, "ready")]
    assert queue.discard([1, 2, 3]) == 1 and counts(queue) == (1, 0, 0, 0)


def test_in_a_fanout_queue_each_group_has_its_own_lease(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("news", mode="fanout", lease=10)
    queue.add_group("a")
    queue.add_group("b")
    queue.push("x")
    assert queue.take(group="a") and queue.take(group="b", lease=60)
    clock.advance(11)
    assert counts(queue, "a") == (1, 0, 0, 0) and counts(queue, "b") == (0, 1, 0, 0)
    assert [(one.group, one.state) for one in queue.messages()] == [("a", "ready"), ("b", "in_flight")]
    assert queue.discard([1]) == 0, "b still works on it"
    clock.advance(60)
    assert list(queue) and queue.discard([1]) == 1 and len(queue) == 0


def test_what_outlives_its_ttl_under_a_lease_that_ended_is_gone(journal: Journal, clock: ManualClock) -> None:
    queue = take_all(journal, clock, ttl=10)
    assert states(queue) == [] and counts(queue) == (0, 0, 0, 0) and len(queue) == 0
    assert queue.take() is None and counts(queue) == (0, 0, 0, 0)


def test_a_message_is_not_blocked_by_an_earlier_one_of_its_key_that_was_given_up(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("jobs", lease=10, max_attempts=1)
    for number in range(2):
        queue.push(number, key="k")
    assert queue.take() is not None and queue.take() is None
    assert [one.blocked for one in queue.messages()] == [False, True]
    clock.advance(11)
    assert [(one.state, one.blocked) for one in queue.messages()] == [("failed", False), ("ready", False)]
    assert [event.payload for event in queue.peek()] == [1]
