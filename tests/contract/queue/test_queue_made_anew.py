"""A queue is dropped, alone or with its topic, and one of its name is made: its positions go on, so that whatever was
meant for a message of the one finds none in the other."""

from __future__ import annotations

import pytest
from journals import Place, only, payloads

from penstock import Event, Journal, ManualClock, Queue
from penstock.core.queue.dead_letters import DeadLetterCursor
from penstock.core.queue.inspect import dead_letters, failures
from penstock.core.queue.operations.repair import replace
from penstock.core.queue.queue import LocalQueue
from penstock.errors import StaleDelivery


def anew(journal: Journal, *contents: object, **policy: object) -> Queue:
    """Drops the queue `emails` with its topic, and makes another."""
    journal.drop_topic("emails", force=True)
    queue = journal.queue("emails", **policy)
    queue.push_many(contents)
    return queue


def give_up(queue: Queue, count: int = 1) -> None:
    for delivery in queue.take_many(count):
        delivery.nack(error="no")


def local(queue: Queue) -> LocalQueue:
    assert isinstance(queue._backend, LocalQueue)
    return queue._backend


# ── positions of before ──────────────────────────────────────────────────────────────────────────────────────────────
def test_positions_of_before_name_no_message(journal: Journal) -> None:
    queue = journal.queue("emails", max_attempts=1)
    queue.push_many(["given up", "held"])
    give_up(queue)
    held = queue.take()
    queue.push("old", delay=60)
    old = queue.get(3)
    assert held is not None and old is not None
    fresh = anew(journal, "a", "b", max_attempts=1)
    fresh.push("new", delay=60)
    assert queue.get(3) is None and queue.discard([1, 2, 3]) == queue.run_now([1, 2, 3]) == 0
    assert replace(local(queue), local(queue), old, "edited") is None
    for late in (held.ack, lambda: queue.delivery(held.token)):
        with pytest.raises(StaleDelivery):
            late()
    assert queue.ack_many([held.token]) == 0
    assert payloads(queue) == ["a", "b", "new"] and queue.stats().delayed == 1


def test_a_list_that_began_in_a_queue_of_before_goes_on_in_the_one_there_is(journal: Journal) -> None:
    queue = journal.queue("emails", max_attempts=1)
    jobs = journal.queue("jobs", max_attempts=1, dead_letter="emails")
    queue.push_many(range(4))
    give_up(queue, 4)
    jobs.push_many(["a", "b"])
    give_up(jobs, 2)
    first, second = map(DeadLetterCursor.of, (letter.event for letter in dead_letters(local(jobs))))
    assert [DeadLetterCursor.of(letter.event) for letter in dead_letters(local(jobs), first)] == [second]
    assert DeadLetterCursor.read(str(first)) == first == DeadLetterCursor("emails", 5)
    anew(journal, "new", max_attempts=1)
    give_up(queue)
    jobs.push("c")
    give_up(jobs)
    assert [one.seq for one in queue.messages(after=3)] == [7, 8]
    assert [one.event.payload for one in failures(local(queue), after=1)] == ["new"]
    assert [letter.event.payload for letter in dead_letters(local(jobs), first)] == ["c"]


# ── chosen in a snapshot, moved in a later commit ────────────────────────────────────────────────────────────────────
def test_messages_chosen_in_a_queue_of_before_are_neither_moved_nor_redriven(journal: Journal) -> None:
    queue, other = journal.queue("emails", max_attempts=1), journal.queue("other")
    jobs = journal.queue("jobs", max_attempts=1, dead_letter="emails")

    def made_anew(event: Event | None = None) -> bool:
        """All that were there are chosen, and gone before the commit."""
        give_up(anew(journal, "failed", "ready", max_attempts=1))
        jobs.push("letter")
        give_up(jobs)
        return True

    made_anew()
    assert queue.move(other, where=made_anew) == 0
    assert queue.redrive(where=made_anew) == queue.redrive(to=other, where=made_anew) == 0
    assert jobs.redrive(where=made_anew) == 0
    assert payloads(queue.failed()) == ["failed"] and payloads(queue.peek(9)) == ["ready", "letter"]
    assert payloads(other) == payloads(jobs) == []
    assert (queue.redrive(limit=1), jobs.redrive(), queue.move(other)) == (1, 1, 2), "of one queue, it works as ever"


# ── what a process remembers ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("with_its_topic", [False, True])
def test_who_takes_from_a_queue_made_anew_is_listed(journal: Journal, with_its_topic: bool) -> None:
    queue = journal.queue("emails")
    queue.push(1)
    held = queue.take(consumer="worker-1")
    assert held is not None
    held.ack()
    if with_its_topic:
        journal.drop_topic("emails", force=True)
    else:
        queue.drop()
    queue = journal.queue("emails")
    assert queue.consumers() == []
    queue.push(2)
    assert queue.take(consumer="worker-1") is not None
    assert [(one.name, one.in_hand) for one in queue.consumers()] == [("worker-1", 1)]


@only(second_open=True)
def test_who_takes_from_a_queue_that_another_process_made_anew_is_listed(
    journal: Journal, place: Place, clock: ManualClock
) -> None:
    queue = journal.queue("emails")
    queue.push(1)
    held = queue.take(consumer="worker-1")
    assert held is not None
    held.ack()
    other = place.open(clock=clock, durability="process")
    other.queue("emails").drop()
    clock.advance(1)
    other.queue("emails").push(2)
    assert queue.take(consumer="worker-1") is not None
    assert [one.name for one in queue.consumers()] == ["worker-1"]


@only(second_open=True)
def test_a_delivery_that_is_found_by_its_token_has_that_token(
    journal: Journal, place: Place, clock: ManualClock
) -> None:
    """Also when another process made the queue anew, and this one has not committed anything to it since."""
    queue = journal.queue("emails")
    queue.push("old")
    other = place.open(clock=clock, durability="process")
    taken = anew(other, "new").take()
    assert taken is not None
    found = queue.delivery(taken.token)
    assert (found.payload, found.token) == ("new", taken.token)
    found.ack()
    assert len(other.queue("emails")) == 0
