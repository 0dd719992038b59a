"""Queues in transactions: consume, transform, produce, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from journals import Place, only

import penstock
from penstock import Journal, ManualClock
from penstock.errors import Closed, ConfigError, QueueFull, StaleDelivery, UnknownQueue

Reopen = Callable[[Journal], Journal]


def test_an_ack_a_push_an_append_and_a_cursor_commit_together(journal: Journal, reopen: Reopen) -> None:
    source, target = journal.queue("in"), journal.queue("out", priority=True)
    source.push({"n": 1})
    delivery = source.take()
    assert delivery is not None
    with journal.transaction() as tx:
        tx.append("log", "seen", delivery.payload)
        receipt = tx.push(target, {"n": 2}, priority=4, cause=delivery.event, headers={"a": "b"})
        tx.push_many("out", [3, 4], delay=10)
        tx.commit("log", "me", 1)
        tx.ack(delivery)
    assert receipt.seq == 1 and len(source) == 0
    journal = reopen(journal)
    out = journal.queue("out").take()
    assert out is not None and out.payload == {"n": 2} and out.event.causation_id == delivery.event.id
    assert journal.queue("out").stats().delayed == 2 and journal.topic("log").cursor("me") == 1
    assert len(journal.queue("in")) == 0


def test_a_rolled_back_transaction_changes_nothing(journal: Journal) -> None:
    source, target = journal.queue("in"), journal.queue("out")
    source.push_many([1, 2])
    one, two = source.take_many(2)
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.ack(one)
        tx.nack(two, dead=True)
        tx.push(target, "x", key="k")
        raise ZeroDivisionError
    assert len(source) == 2 and source.stats().in_flight == 2 and len(target) == 0
    assert target.push("first").seq == 1
    one.ack()
    two.nack()
    assert [(delivery.seq, delivery.attempt) for delivery in source.take_many(5)] == [(2, 2)]


def test_a_delivery_settled_in_a_transaction_inside_its_own_block(journal: Journal) -> None:
    queue = journal.queue("in")
    queue.push_many([1, 2])
    with queue.take() as delivery, journal.transaction() as tx:  # type: ignore[union-attr]
        tx.ack(delivery)
    assert len(queue) == 1
    with pytest.raises(ZeroDivisionError), queue.take() as delivery, journal.transaction() as tx:  # type: ignore[union-attr]
        tx.ack(delivery)
        raise ZeroDivisionError
    again = queue.take()
    assert again is not None and (again.seq, again.attempt) == (2, 2), "rolled back, and given back by the outer block"


def test_a_stale_delivery_in_a_transaction_is_refused_and_the_rest_may_go_on(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("in")
    queue.push(1)
    lost = queue.take()
    clock.advance(31)
    queue.take()
    assert lost is not None
    with journal.transaction() as tx:
        for settle in (tx.ack, tx.nack):
            with pytest.raises(StaleDelivery):
                settle(lost)
        tx.push(queue, "still")
    assert [event.payload for event in queue] == [1, "still"]


def test_reads_in_a_transaction_see_its_pushes(journal: Journal) -> None:
    queue = journal.queue("jobs")
    with journal.transaction() as tx:
        tx.push(queue, "a")
        assert [event.payload for event in tx.read("jobs")] == ["a"]
        assert len(queue) == 0, "nobody outside does"
        tx.push(queue, "b")
        assert [event.payload for event in tx.read("jobs")] == ["a", "b"]
    assert [event.payload for event in queue] == ["a", "b"]


def test_a_transaction_minds_limits_and_names(journal: Journal) -> None:
    queue = journal.queue("small", max_size=2)
    with journal.transaction() as tx:
        tx.push(queue, 1)
        tx.push(queue, 2)
        with pytest.raises(QueueFull):
            tx.push(queue, 3)
        with pytest.raises(UnknownQueue):
            tx.push("absent", 1)
        with pytest.raises(ConfigError):
            tx.push(queue, 1, nonsense=True)
        with pytest.raises(ConfigError):
            tx.ack("token")  # type: ignore[arg-type]
        with penstock.open("memory:") as other, pytest.raises(ConfigError, match="another journal"):
            tx.push(other.queue("small"), 1)
    assert len(queue) == 2
    with pytest.raises(Closed):
        tx.push(queue, 3)


def test_inside_a_transaction_the_queue_s_own_methods_are_refused(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push(1)
    with journal.transaction():
        for use in (queue.take, lambda: queue.push(2), queue.purge):
            with pytest.raises(ConfigError, match="transaction"):
                use()
    assert len(queue) == 1


@only(second_open=True)
def test_two_journals_on_one_store_agree(place: Place, clock: ManualClock) -> None:
    one, two = (place.open(clock=clock, durability="process") for _ in range(2))
    left, right = one.queue("jobs"), two.queue("jobs")
    for round in range(30):
        left.push(round)
        right.push(-round)
        first, second = left.take(), right.take()
        assert first is not None and second is not None and first.seq != second.seq
        (first.ack if round % 3 else first.nack)()
        assert right.ack_many([second.token]) == 1
        for queue in (left, right):
            assert len(queue) == queue.stats().ready == (round // 3 + 1)
    with one.transaction() as tx:
        tx.push(left, "x")
    assert right.take() is not None


def test_a_take_and_what_is_made_of_it_commit_together(journal: Journal, reopen: Reopen) -> None:
    jobs, results = journal.queue("jobs"), journal.topic("results")
    jobs.push_many(range(3))
    with journal.transaction() as tx:
        tx.push(jobs, 3)
        first, *others = tx.take_many(jobs, 4)
        tx.append(results, "done", first.payload)
        tx.ack(first)
        for delivery in others:
            tx.release(delivery)
    assert [delivery.payload for delivery in others] == [1, 2, 3] and len(jobs) == 3
    journal = reopen(journal)
    assert [event.payload for event in journal.topic("results").read()] == [0]
    assert [delivery.attempt for delivery in journal.queue("jobs").take_many(5)] == [1, 1, 1]


def test_a_take_that_is_rolled_back_leaves_the_message_as_it_was(journal: Journal) -> None:
    jobs = journal.queue("jobs")
    jobs.push("kept")
    held = jobs.take(lease=60)
    assert held is not None
    jobs.push("free")
    deadline = held.deadline
    with suppress(ZeroDivisionError), journal.transaction() as tx:
        taken = tx.take("jobs", lease=600)
        assert taken is not None and taken.payload == "free" and tx.take("jobs") is None
        tx.extend(held, 600)
        assert tx.purge(jobs) == 2
        raise ZeroDivisionError
    assert held.deadline == deadline and len(jobs) == 2
    with pytest.raises(StaleDelivery):
        taken.ack()
    again = jobs.take()
    assert again is not None and (again.payload, again.attempt) == ("free", 1)
    with journal.transaction() as tx:
        tx.extend(held, 600)
        tx.nack(again, dead=True)
    assert held.deadline > deadline and [event.payload for event in jobs.failed()] == ["free"]


def test_a_purge_in_a_transaction_takes_its_own_pushes_along(journal: Journal) -> None:
    jobs = journal.queue("jobs")
    jobs.push_many(range(5))
    with journal.transaction() as tx:
        tx.push(jobs, "new")
        assert tx.purge(jobs) == 6 and tx.take(jobs) is None
        tx.push(jobs, "after")
    assert [event.payload for event in jobs] == ["after"]
