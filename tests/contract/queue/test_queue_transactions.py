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


def test_what_a_rolled_back_transaction_has_taken_of_its_own_is_never_delivered(journal: Journal) -> None:
    jobs = journal.queue("jobs")
    with suppress(ZeroDivisionError), journal.transaction() as tx:
        receipt, taken = tx.push(jobs, "never was"), tx.take(jobs)
        assert taken is not None and taken.payload == "never was"
        raise ZeroDivisionError
    assert jobs.push("real").seq == receipt.seq
    again = jobs.take()
    assert again is not None and again.payload == "real"


def test_a_purge_in_a_transaction_takes_its_own_pushes_along(journal: Journal) -> None:
    jobs = journal.queue("jobs")
    jobs.push_many(range(5))
    with journal.transaction() as tx:
        tx.push(jobs, "new")
        assert tx.purge(jobs) == 6 and tx.take(jobs) is None
        tx.push(jobs, "after")
    assert [event.payload for event in jobs] == ["after"]


def test_a_transaction_moves_and_redrives_what_it_has_itself_pushed_and_given_up(journal: Journal) -> None:
    jobs, other = journal.queue("jobs", dead_letter="dead", max_attempts=1), journal.queue("other")
    jobs.push_many([1, 2])
    with journal.transaction() as tx:
        tx.push(jobs, 3, key="k")
        assert tx.move(jobs, other, where=lambda event: event.payload == 3) == 1
        assert tx.move("jobs", "other", where="payload = 1") == 1
        for _ in range(2):
            given_up = tx.take(jobs) or tx.take(other)
            assert given_up is not None
            tx.nack(given_up, dead=True)
        back = tx.redrive(jobs)
        assert (back, back.left) == (1, ()) and tx.redrive("dead") == 0
    assert [event.payload for event in other] == [3, 1] and [event.payload for event in other.failed()] == [3]
    assert [delivery.payload for delivery in jobs.take_many(5)] == [2] and len(journal.queue("dead")) == 0
    with journal.transaction() as tx:
        assert tx.redrive(other, to=jobs) == 1
    assert [delivery.payload for delivery in jobs.take_many(5)] == [3]


def test_a_transaction_refuses_a_move_that_cannot_be_and_goes_on(journal: Journal) -> None:
    jobs, full = journal.queue("jobs"), journal.queue("full", max_size=1)
    jobs.push_many([1, 2])
    with journal.transaction() as tx:
        with pytest.raises(QueueFull):
            tx.move(jobs, full)
        with pytest.raises(UnknownQueue):
            tx.move(jobs, "nowhere")
        with pytest.raises(ConfigError, match="to itself"):
            tx.move(jobs, "jobs")
        with pytest.raises(ZeroDivisionError):
            tx.redrive(jobs, where=lambda event: 1 / 0)
            tx.move(jobs, full, where=lambda event: 1 / 0)
        assert tx.move(jobs, full, limit=1) == 1
    assert (len(jobs), len(full)) == (1, 1)


@only(second_open=True)
def test_two_processes_never_both_move_a_message(place: Place, clock: ManualClock) -> None:
    with place.open(clock=clock) as here, place.open(clock=clock) as there:
        for name in ("jobs", "here", "there"):
            here.queue(name)
        here.queue("jobs").push_many(range(6))
        for journal, name in (here, "here"), (there, "there"), (here, "here"):
            with journal.transaction() as tx:
                assert tx.move("jobs", name, limit=2) == 2
                tx.append("log", "moved", name)
        held = [[event.payload for event in there.queue(name)] for name in ("jobs", "here", "there")]
        assert held == [[], [0, 1, 4, 5], [2, 3]]
