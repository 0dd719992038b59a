"""Throttle and debounce: of several pushes of one key, the first or the newest becomes a message."""

from __future__ import annotations

import pytest

from penstock import Draft, Journal, ManualClock, Queue
from penstock.errors import ConfigError, QueueFull


def payloads(queue: Queue, **options: str) -> list[object]:
    return [delivery.payload for delivery in queue.take_many(100, **options)]


# ── throttle ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_first_push_of_a_key_wins_within_the_window(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", throttle=10)
    first = queue.push("first", key="k")
    clock.advance(9.999)
    second = queue.push("second", key="k")
    assert (second.seq, second.id, second.duplicate) == (first.seq, first.id, True)
    assert not queue.push("other", key="o").duplicate
    assert not queue.push("no key").duplicate
    clock.advance(0.001)
    assert not queue.push("third", key="k").duplicate
    assert [event.payload for event in queue] == ["first", "other", "no key", "third"]


def test_a_throttled_push_fits_a_full_queue(journal: Journal) -> None:
    queue = journal.queue("jobs", throttle=10, max_size=1)
    queue.push("a", key="k")
    assert queue.push("b", key="k").duplicate
    with pytest.raises(QueueFull):
        queue.push("c", key="other")
    assert payloads(queue) == ["a"]


def test_what_a_rolled_back_transaction_pushed_throttles_nothing(journal: Journal) -> None:
    queue = journal.queue("jobs", throttle=10)
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.push("jobs", "lost", key="k")
        raise ZeroDivisionError
    with journal.transaction() as tx:
        assert not tx.push("jobs", "kept", key="k").duplicate
        assert tx.push("jobs", "again", key="k").duplicate
    assert payloads(queue) == ["kept"]


def test_a_dedup_key_that_is_known_does_not_begin_a_window(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", throttle=1)
    first = queue.push("a", key="k", dedup="d")
    clock.advance(1)
    assert queue.push("a", key="k", dedup="d").seq == first.seq
    assert not queue.push("b", key="k").duplicate


def test_a_dedup_key_that_is_known_comes_before_the_window(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", throttle=5, dedup_window=100)
    first = queue.push("first", key="k", dedup="x")
    clock.advance(6)
    second = queue.push("second", key="k")
    assert queue.push("first", key="k", dedup="x").seq == first.seq
    again = queue.push_many([Draft("message", 1, key="k", dedup="x"), Draft("message", 2, key="k")])
    assert [(receipt.seq, receipt.duplicate) for receipt in again] == [(first.seq, True), (second.seq, True)]


def test_a_throttled_push_tried_again_has_the_same_receipt(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", throttle=5, dedup_window=100)
    first = queue.push("first", key="k")
    throttled = queue.push("second", key="k", dedup="y")
    assert throttled.seq == first.seq
    clock.advance(6)
    again = queue.push("second", key="k", dedup="y")
    assert (again.seq, again.id, again.duplicate) == (first.seq, first.id, True)
    clock.advance(100)
    assert not queue.push("second", key="k", dedup="y").duplicate


def test_letters_sent_back_and_moved_messages_are_not_throttled(journal: Journal) -> None:
    queue = journal.queue("jobs", throttle=60, max_attempts=1, dead_letter="dead")
    other = journal.queue("other")
    queue.push("a", key="k")
    queue.take().nack()
    assert queue.redrive() == 1
    other.push("b", key="k")
    assert other.move(queue) == 1
    assert payloads(queue) == ["a"]
    assert len(queue) == 2


# ── debounce ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_debounced_batch_keeps_the_newest_of_each_key_and_fits_a_full_queue(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("jobs", debounce=5, max_size=2)
    queue.push("a", key="x")
    queue.push_many([Draft("m", "b", key="x"), Draft("m", "c", key="x"), Draft("m", "d", key="y")])
    with pytest.raises(QueueFull):
        queue.push("e", key="z")
    queue.push("f", key="y")
    clock.advance(5)
    assert payloads(queue) == ["c", "f"]


def test_a_rolled_back_push_replaces_nothing(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", debounce=5)
    queue.push("kept", key="k")
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.push("jobs", "lost", key="k")
        raise ZeroDivisionError
    clock.advance(5)
    assert payloads(queue) == ["kept"]


def test_a_dedup_key_that_is_known_replaces_nothing(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", debounce=5)
    queue.push("a", key="k", dedup="d")
    queue.push("b", key="k")
    assert queue.push("a", key="k", dedup="d").duplicate
    clock.advance(5)
    assert payloads(queue) == ["b"]


def test_a_push_that_replaces_nothing_makes_no_room(journal: Journal) -> None:
    queue = journal.queue("jobs", debounce=5, max_size=1)
    queue.push("a", key="a", dedup="x")
    with pytest.raises(QueueFull):
        queue.push_many([Draft("message", "a", key="a", dedup="x"), Draft("message", "b", key="b")])
    assert len(queue) == 1


def test_what_is_remembered_of_pushes_is_forgotten(journal: Journal, clock: ManualClock) -> None:
    from penstock.core.queue.state.keys import flow_of_queue

    throttled, debounced = journal.queue("t", throttle=5), journal.queue("d", debounce=5)
    for number in range(3):
        throttled.push(number, key=f"k{number}")
        debounced.push(number, key=f"k{number}")

    def rows(queue: Queue) -> int:
        with journal._engine.read() as snap:
            return sum(1 for _ in snap.scan(*flow_of_queue(queue._backend.registry.record(queue.name).topic)))

    assert (rows(throttled), rows(debounced)) == (3, 3)
    clock.advance(5)
    for queue in (throttled, debounced):
        queue._backend.registry.upkeep.maintain(queue.name)
        assert rows(queue) == 0


def test_windows_that_make_no_sense_are_refused(journal: Journal) -> None:
    for policy in (
        {"throttle": 0},
        {"debounce": -1},
        {"throttle": 1, "debounce": 1},
        {"debounce_limit": 5},
        {"debounce": 5, "debounce_limit": 1},
        {"throttle": 1, "priority": True},
        {"debounce": "soon"},
    ):
        with pytest.raises(ConfigError):
            journal.queue("jobs", **policy)
    assert journal.queues() == []


# ── where debounces meet others ──────────────────────────────────────────────────────────────────────────────────────


def test_a_push_replaces_nothing_that_ran_or_went_elsewhere(journal: Journal) -> None:
    queue, other = journal.queue("jobs", debounce=5), journal.queue("other")
    ran = queue.push("ran", key="a", reply=True)
    queue.run_now([ran.receipt.seq])
    queue.take().ack(result="done")
    queue.push("newer", key="a", reply=True)
    assert ran.result(60) == "done"
    moved = queue.push("moved", key="b", reply=True)
    assert queue.move(other, where=lambda event: event.key == "b") == 1
    queue.push("newer", key="b", reply=True)
    assert not moved.done()
    other.take().ack(result="there")
    assert moved.result(60) == "there"


@pytest.mark.parametrize("mode", ["work", "fanout"])
def test_a_debounced_message_that_runs_now_keeps_its_key_in_order(
    journal: Journal, clock: ManualClock, mode: str
) -> None:
    queue = journal.queue("jobs", debounce=5, mode=mode)
    if mode == "fanout":
        queue.add_group("default")
    first = queue.push("first", key="k")
    assert queue.run_now([first.seq]) == 1
    second = queue.push("second", key="k")
    assert queue.run_now([second.seq]) == 1
    (delivery,) = queue.take_many(10)
    assert delivery.payload == "first"
    delivery.ack()
    assert payloads(queue) == ["second"]
