"""A queue is dropped, alone or with its topic, and one of its name is made: nothing that was meant for the one is done
to the other."""

from __future__ import annotations

import pytest
from journals import Place, only, payloads

from penstock import Event, Journal, ManualClock, Queue
from penstock.errors import ConfigError, TopicDropped, UnknownQueue
from penstock.local.topic import LocalTopic
from penstock.queue.control.run_now import run_now
from penstock.queue.inspect.failures import failures, placed_letters
from penstock.queue.inspect.messages import messages
from penstock.queue.inspect.positions import number_of
from penstock.queue.operations.repair import discard_many
from penstock.queue.queue import LocalQueue


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
    assert isinstance(queue, LocalQueue)
    return queue


# ── chosen by position ───────────────────────────────────────────────────────────────────────────────────────────────
def test_only_messages_that_were_chosen_are_moved(journal: Journal) -> None:
    queue, aside = journal.queue("emails"), journal.queue("quarantine")
    queue.push_many(["poison", "good"])

    def wanted(event: Event) -> bool:
        if event.seq == 2:
            anew(journal, "precious", "also precious")
        return bool(event.payload == "poison")

    assert queue.move(aside, where=wanted) == 0
    assert payloads(aside) == [] and payloads(queue) == ["precious", "also precious"]
    assert queue.move(aside, where=lambda event: event.seq == 2) == 1, "of one queue, it works as ever"
    assert payloads(aside) == ["also precious"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_only_failed_messages_that_were_chosen_are_redriven(journal: Journal, elsewhere: bool) -> None:
    queue, other = journal.queue("emails", max_attempts=1), journal.queue("other")
    queue.push("mended")
    give_up(queue)

    def wanted(event: Event) -> bool:
        give_up(anew(journal, "poison", max_attempts=1))
        return bool(event.payload == "mended")

    assert queue.redrive(where=wanted, to=other if elsewhere else None) == 0
    assert payloads(queue.failed()) == ["poison"] and payloads(other) == []
    assert queue.redrive() == 1 and queue.stats().ready == 1


def test_only_dead_letters_that_were_chosen_are_redriven(journal: Journal) -> None:
    jobs = journal.queue("jobs", max_attempts=1, dead_letter="emails")
    jobs.push("mended")
    give_up(jobs)

    def wanted(event: Event) -> bool:
        found = event.payload == "mended"
        if found:
            anew(journal)
            jobs.push("poison")
            give_up(jobs)
        return found

    assert jobs.redrive(where=wanted) == 0
    assert payloads(journal.queue("emails")) == ["poison"] and len(jobs) == 0
    assert jobs.redrive() == 1 and payloads(jobs) == ["poison"]


def test_positions_of_another_topic_are_not_discarded_nor_run_now(journal: Journal) -> None:
    queue = local(journal.queue("emails"))
    queue.push("old", delay=60)
    number = number_of(queue)
    anew(journal).push("new", delay=60)
    assert discard_many(queue, [1], number) == 0 and payloads(queue) == ["new"]
    assert queue._change(run_now, [1], None, number) == 0 and queue.stats().delayed == 1
    assert number_of(queue) != number
    with pytest.raises(TopicDropped, match="'emails' was dropped"):
        number_of(queue, number)
    assert queue._change(run_now, [1], None, number_of(queue)) == 1 and queue.stats().ready == 1
    assert discard_many(queue, [1], number_of(queue)) == 1 and payloads(queue) == []


def test_a_list_goes_on_in_the_queue_it_began_in(journal: Journal) -> None:
    queue = local(journal.queue("emails", max_attempts=1))
    queue.push_many(range(4))
    give_up(queue, 2)
    jobs = journal.queue("jobs", max_attempts=1, dead_letter="emails")
    jobs.push_many(["a", "b"])
    give_up(jobs, 2)
    number = number_of(queue)
    (_, first), (_, second) = placed_letters(local(jobs))
    assert (first.queue, first.seq, first.number) == ("emails", 5, number)
    assert [place for _, place in placed_letters(local(jobs), first)] == [second]
    assert [one.seq for one in messages(queue, None, None, 3, number=number)] == [4, 5, 6]
    assert [one.event.seq for one in failures(queue, after=1, number=number)] == [2]
    give_up(anew(journal, *range(9), max_attempts=1), 9)
    for listed in (
        messages(queue, None, None, 3, number=number),
        failures(queue, after=1, number=number),
        placed_letters(local(jobs), first),
    ):
        with pytest.raises(TopicDropped):
            next(listed)
    journal.drop_topic("emails", force=True)
    with pytest.raises(UnknownQueue):
        next(messages(queue, None, None, 3, number=number))


def test_a_push_that_repeats_one_gets_no_other_messages_result(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("emails", dedup_window=60)
    queue.push("mine", dedup="a", reply=True)
    get = LocalTopic.get

    def made_anew(topic: LocalTopic, seq: int) -> Event | None:
        anew(journal).push("not mine", reply=True)
        return get(topic, seq)

    monkeypatch.setattr(LocalTopic, "get", made_anew)
    with pytest.raises(ConfigError, match="repeats message 1 of queue 'emails', which wants no reply or is gone"):
        queue.push("mine", dedup="a", reply=True)
    monkeypatch.undo()
    assert queue.push("again", dedup="b", reply=True).receipt == queue.push("again", dedup="b", reply=True).receipt


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
