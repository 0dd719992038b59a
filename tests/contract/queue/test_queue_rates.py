"""Rates of a queue and of its keys, and how many messages of a key are in flight: exact, under a manual clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from journals import DEADLINE, Place, eventually, on

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


def test_a_rate_holds_over_several_takes_and_after_a_restart(
    journal: Journal, clock: ManualClock, reopen: Reopen
) -> None:
    queue = journal.queue("jobs", rate="3/m", lease=3600)
    queue.push_many(range(10))
    assert payloads(queue, 2) == [0, 1]
    queue = reopen(journal).queue("jobs")
    assert payloads(queue) == [2]
    clock.advance(59)
    assert queue.take() is None
    clock.advance(1)
    assert payloads(queue) == [3, 4, 5]


def test_each_group_has_the_rate_of_its_own(journal: Journal) -> None:
    queue = journal.queue("news", mode="fanout", rate="2/s")
    queue.add_group("a")
    queue.add_group("b")
    queue.push_many(range(5))
    assert payloads(queue, group="a") == payloads(queue, group="b") == [0, 1]


def test_a_retry_an_ended_lease_and_a_delay_count_as_deliveries(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate="2/10s", lease=3)
    queue.push("later", delay=1)
    queue.push("now")
    queue.take().nack()
    assert queue.take().attempt == 2
    clock.advance(4)  # the lease has ended, the delay is over
    assert queue.take() is None
    clock.advance(6)
    assert sorted(map(str, payloads(queue))) == ["later", "now"]


def test_priorities_decide_who_gets_what_the_rate_allows(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate="1/s", priority=True)
    queue.push_many(["low", "also low"])
    queue.push("high", priority=5)
    assert payloads(queue) == ["high"]
    clock.advance(1)
    assert payloads(queue) == ["low"]


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


def test_a_purge_does_not_reset_a_rate_and_dropping_the_queue_does(journal: Journal) -> None:
    queue = journal.queue("jobs", rate="1/m")
    queue.push("a")
    assert payloads(queue) == ["a"]
    queue.purge()
    queue.push("b")
    assert queue.take() is None
    queue.drop()
    again = journal.queue("jobs", rate="1/m")
    again.push("c")
    assert payloads(again) == ["c"]


def test_a_waiting_take_wakes_when_the_rate_allows(journal: Journal, clock: ManualClock, in_threads: Start) -> None:
    queue = journal.queue("jobs", rate="1/10s")
    queue.push_many(["first", "second"])
    assert queue.take().payload == "first"
    got: list[object] = []
    waiter = in_threads(lambda: got.append(queue.take(wait=DEADLINE)))
    eventually(lambda: len(queue._backend._signal._waiters) >= 1, "it waits")
    clock.advance(10)
    waiter.join(DEADLINE)
    assert [delivery.payload for delivery in got] == ["second"]


@on("sqlite")
def test_two_processes_share_one_rate(place: Place, clock: ManualClock) -> None:
    first = place.open(clock=clock, durability="process")
    second = place.open(clock=clock, durability="process")
    mine, other = first.queue("jobs", rate="4/s"), second.queue("jobs")
    mine.push_many(range(20))
    assert len(mine.take_many(3)) == 3
    assert len(other.take_many(3)) == 1
    assert mine.take() is None


# ── a key's rate ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_key_that_has_had_its_rate_lets_others_pass(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate_per_key="2/s")
    for number in range(5):
        queue.push(number, key="busy")
    queue.push("other", key="idle")
    queue.push("no key")
    seen: list[object] = []
    while (delivery := queue.take()) is not None:
        seen.append(delivery.payload)
        delivery.ack()
    assert seen == [0, 1, "other", "no key"]
    stats = queue.stats()
    assert (stats.delayed, stats.ready) == (1, 2)
    clock.advance(1)
    for expected in (2, 3):
        delivery = queue.take()
        assert delivery is not None and delivery.payload == expected
        delivery.ack()
    assert queue.take() is None
    assert len(queue) == 1


def test_a_retry_of_a_key_counts_and_keeps_the_order(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", rate_per_key="2/s")
    queue.push("a", key="k")
    queue.push("b", key="k")
    queue.take().nack()
    queue.take().nack()
    assert queue.take() is None
    clock.advance(1)
    delivery = queue.take()
    assert (delivery.payload, delivery.attempt) == ("a", 3)
    delivery.ack()
    assert queue.take().payload == "b"


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
    from penstock.queue.state.keys import flow_rows

    queue = journal.queue("jobs", rate_per_key="1/s")
    for number in range(20):
        queue.push(number, key=f"k{number}")
    for delivery in queue.take_many(20):
        delivery.ack()

    def windows() -> int:
        with journal._engine.read() as snap:
            return sum(1 for _ in snap.scan(*flow_rows(queue._backend._registry.record(queue.name).topic, 0, b"r")))

    assert windows() == 20
    queue._backend._registry.upkeep.maintain("jobs")
    assert windows() == 20
    clock.advance(1)
    queue._backend._registry.upkeep.maintain("jobs")
    assert windows() == 0


# ── in flight by key ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_so_many_of_a_key_are_in_flight_and_begin_in_order(journal: Journal) -> None:
    queue = journal.queue("jobs", max_in_flight_per_key=3)
    for number in range(6):
        queue.push(number, key="k")
    queue.push("other", key="o")
    held = queue.take_many(10)
    assert [delivery.payload for delivery in held] == [0, 1, 2, "other"]
    assert queue.take() is None
    held[1].ack()
    assert payloads(queue) == [3]
    held[0].nack()
    assert payloads(queue) == [0]
    held[2].nack(dead=True)
    assert payloads(queue) == [4]


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


def test_each_group_has_its_own_in_flight_by_key(journal: Journal) -> None:
    queue = journal.queue("news", mode="fanout", max_in_flight_per_key=2)
    queue.add_group("a")
    queue.add_group("b")
    for number in range(3):
        queue.push(number, key="k")
    assert payloads(queue, group="a") == payloads(queue, group="b") == [0, 1]


def test_in_flight_by_key_after_ended_leases(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", max_in_flight_per_key=2, lease=5)
    for number in range(4):
        queue.push(number, key="k")
    assert payloads(queue) == [0, 1]
    clock.advance(6)
    assert payloads(queue) == [0, 1]
    assert len(queue) == 4


def test_peek_shows_as_many_of_a_key_as_may_be_taken(journal: Journal) -> None:
    queue = journal.queue("jobs", max_in_flight_per_key=2)
    for number in range(4):
        queue.push(number, key="k")
    assert [event.payload for event in queue.peek(10)] == [0, 1]


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
