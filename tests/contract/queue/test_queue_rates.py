"""Rates of a queue and of its keys, and how many messages of a key are in flight: exact, under a manual clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock import Journal, ManualClock, Queue
from penstock.errors import ConfigError

Reopen = Callable[[Journal], Journal]
Start = Callable[..., threading.Thread]


def payloads(queue: Queue, limit: int = 1000, **options: str) -> list[object]:
    return [delivery.payload for delivery in queue.take_many(limit, **options)]


# ── the queue's rate ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_no_stretch_of_a_period_sees_more_than_the_rate(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate="10/s")
    queue.push_many(range(100))
    begun: list[int] = []
    for _ in range(40):
        begun += [clock.now_ms()] * len(queue.take_many(7))
        clock.advance(0.1)
    assert 35 <= len(begun) <= 40
    for start in begun:
        assert sum(start <= at < start + 1000 for at in begun) <= 10


def test_a_rate_changes_while_messages_wait(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate="2/s")
    queue.push_many(range(20))
    assert len(payloads(queue)) == 2
    queue.configure(rate="5/s")
    assert len(payloads(queue)) == 3
    queue.configure(rate="1/s")
    clock.advance(0.5)
    assert queue.take() is None
    clock.advance(0.5)
    assert len(payloads(queue)) == 1
    queue.configure(rate=None)
    assert len(payloads(queue)) == 14


# ── a key's rate ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ten_thousand_messages_of_a_key_without_room_are_passed_at_once(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate_per_key="1/h")
    queue.push_many(range(10_000), key="busy")
    queue.push("other", key="idle")
    queue.take().ack()
    assert queue.take().payload == "other"
    assert len(queue) == 10_000
    clock.advance(3600)
    assert queue.take().payload == 1


def test_discarding_and_moving_what_waits_for_its_rate(journal: Journal, clock: ManualClock) -> None:
    queue, other = journal.queue("jobs", rate_per_key="1/s"), journal.queue("other")
    first, second, third = (queue.push(name, key="k").seq for name in "abc")
    queue.take().ack()
    assert queue.take() is None
    assert queue.discard([second]) == 1
    assert queue.move(other) == 1
    assert (len(queue), other.take().payload) == (0, "c")
    queue.push("d", key="k")
    assert queue.take() is None
    clock.advance(1)
    assert queue.take().payload == "d"
    assert first < third


def test_windows_of_keys_are_forgotten_when_nothing_counts_any_more(journal: Journal, clock: ManualClock) -> None:
    from penstock.core.queue.state.keys import flow_rows

    queue = journal.queue("jobs", rate_per_key="1/s")
    for number in range(20):
        queue.push(number, key=f"k{number}")
    for delivery in queue.take_many(20):
        delivery.ack()

    def windows() -> int:
        with journal._engine.read() as snap:
            return sum(1 for _ in snap.scan(*flow_rows(queue._backend.registry.record(queue.name).topic, 0, b"r")))

    assert windows() == 20
    queue._backend.registry.upkeep.maintain("jobs")
    assert windows() == 20
    clock.advance(1)
    queue._backend.registry.upkeep.maintain("jobs")
    assert windows() == 0


# ── in flight by key ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_flight_by_key_changes_while_messages_wait(journal: Journal) -> None:
    queue = journal.queue("jobs")
    for number in range(8):
        queue.push(number, key="k")
    first = queue.take()
    assert queue.take() is None
    queue.configure(max_in_flight_per_key=3)
    queue.push(8, key="k")
    assert payloads(queue) == [1, 2]
    queue.configure(max_in_flight_per_key=1)
    first.ack()
    assert queue.take() is None


def test_limits_that_make_no_sense_are_refused(journal: Journal) -> None:
    for rate in ("100", "0/s", "x/s", "1/", "1/0s", 5, "1/10000d", "-1/s"):
        with pytest.raises(ConfigError, match="rate"):
            journal.queue("jobs", rate=rate)
    for most in (0, -1, 1.5, "3", 5000):
        with pytest.raises(ConfigError, match="max_in_flight_per_key"):
            journal.queue("jobs", max_in_flight_per_key=most)
    with pytest.raises(ConfigError, match="no ordering keys"):
        journal.queue("jobs", priority=True, rate_per_key="1/s")
    assert journal.queues() == []
    assert journal.queue("jobs", rate=" 1_000 / m ").policy.rate == "1000/m"


def test_a_key_s_earliest_message_comes_before_a_later_untried_one(journal: Journal) -> None:
    queue = journal.queue("jobs", max_in_flight_per_key=2, max_attempts=2)
    for number in range(1, 4):
        queue.push(number, key="k")
    first, second = queue.take_many(5)
    first.nack(dead=True)
    queue.take().nack()
    second.release()
    assert [event.payload for event in queue.failed()] == [1]
    queue.redrive()
    first = queue.take()
    assert first is not None and first.payload == 1
    assert payloads(queue) == [3] and queue.take() is None, "it was tried: the one that was not waits for its turn"
    first.ack()
    assert payloads(queue) == [2]
