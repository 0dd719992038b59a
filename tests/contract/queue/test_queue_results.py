"""Replies: what a handler returned, or why a message was given up, reaches the one who pushed it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from journals import DEADLINE

from penstock import Delivery, Journal, ManualClock
from penstock.errors import ConfigError, ReplyFailed


def test_a_ticket_gives_what_the_handler_returned(journal: Journal) -> None:
    queue = journal.queue("sums")
    tickets = [queue.push([number, 1], reply=True) for number in range(3)]
    with queue.worker(lambda delivery: sum(delivery.payload)):
        assert [ticket.result(DEADLINE) for ticket in tickets] == [1, 2, 3]
    assert all(ticket.done() for ticket in tickets)
    assert len(queue) == 0
    answer = next(iter(journal.topic("sums.results").read()))
    assert (answer.kind, answer.payload, answer.causation_id) == ("result", 1, tickets[0].receipt.id)
    assert answer.correlation_id == tickets[0].receipt.id


def test_coroutines_answer_and_tickets_are_awaited(journal: Journal) -> None:
    queue = journal.queue("sums")

    async def double(delivery: Delivery) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"value": 2 * delivery.payload}

    async def ask() -> tuple[Any, Any]:
        first, second = queue.push(1, reply=True), queue.push(2, reply=True)
        return await first, await second.result_async(DEADLINE)

    with queue.worker(double):
        assert asyncio.run(ask()) == ({"value": 2}, {"value": 4})


def test_a_message_that_is_given_up_says_why(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=2, dead_letter="dead")
    ticket = queue.push("x", reply=True)
    queue.take().nack(error=ValueError("no such file"))
    assert not ticket.done()
    queue.take().nack(error=ValueError("no such file"))
    with pytest.raises(ReplyFailed, match=r"attempts exhausted.*no such file") as caught:
        ticket.result(DEADLINE)
    assert caught.value.reason == "attempts exhausted"
    assert "ValueError" in str(caught.value.error)
    assert queue.redrive() == 1
    queue.take().ack(result="at last")
    assert queue.push("y", reply=True) is not None
    assert [event.payload for event in journal.topic("jobs.results").read(kind="result")] == ["at last"]


def test_a_message_without_a_wish_leaves_no_result(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push("x")
    with queue.worker(lambda delivery: "ignored"):
        deadline = time.monotonic() + DEADLINE
        while len(queue) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(queue) == 0
    assert "jobs.results" not in journal.topics()


def test_acks_by_hand_in_batches_and_in_transactions_answer(journal: Journal) -> None:
    queue = journal.queue("jobs")
    tickets = [queue.push(number, reply=True) for number in range(4)]
    queue.push("plain")
    first, second, third, fourth, plain = queue.take_many(5)
    first.ack(result={"by": "hand"})
    assert queue.ack_many([second, third.token, plain]) == 3
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.ack(fourth)
        raise ZeroDivisionError
    assert not tickets[3].done()
    with journal.transaction() as tx:
        tx.ack(fourth)
    assert [ticket.result(DEADLINE) for ticket in tickets] == [{"by": "hand"}, None, None, None]


def test_what_cannot_be_stored_gives_the_message_up_and_loses_nothing(journal: Journal) -> None:
    queue = journal.queue("jobs", dead_letter="dead")
    ticket = queue.push("x", reply=True)
    with queue.worker(lambda delivery: object()), pytest.raises(ReplyFailed, match="return value"):
        ticket.result(DEADLINE)
    (letter,) = journal.queue("dead").peek(10)
    assert letter.payload == "x"
    held = queue.push("y", reply=True)
    delivery = queue.take()
    with pytest.raises(ConfigError, match="JSON"):
        delivery.ack(result=object())
    delivery.ack(result="fine")  # it is still held
    assert held.result(DEADLINE) == "fine"


def test_results_go_after_an_hour(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    ticket = queue.push("x", reply=True)
    queue.take().ack(result=1)
    clock.advance(3601)
    assert not ticket.done()
    with pytest.raises(TimeoutError, match="no outcome"):
        ticket.result(0)


def test_a_repeated_push_waits_for_the_first_ones_outcome(journal: Journal) -> None:
    queue = journal.queue("jobs")
    first = queue.push("x", dedup="d", reply=True)
    again = queue.push("x", dedup="d", reply=True)
    assert again.receipt.duplicate
    queue.take().ack(result=5)
    assert first.result(DEADLINE) == again.result(DEADLINE) == 5
    queue.push("plain", dedup="p")
    with pytest.raises(ConfigError, match="wants no reply"):
        queue.push("plain", dedup="p", reply=True)


def test_a_moved_message_answers_where_it_was_pushed(journal: Journal) -> None:
    queue, other = journal.queue("jobs"), journal.queue("other")
    ticket = queue.push("x", reply=True)
    assert queue.move(other) == 1
    other.take().ack(result="moved")
    assert ticket.result(DEADLINE) == "moved"


def test_a_replaced_push_and_one_past_its_ttl_say_so(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", debounce=5, ttl=60)
    old = queue.push("old", key="k", reply=True)
    new = queue.push("new", key="k", reply=True)
    with pytest.raises(ReplyFailed, match="replaced"):
        old.result(DEADLINE)
    clock.advance(61)
    assert queue.take() is None
    with pytest.raises(ReplyFailed, match="expired"):
        new.result(DEADLINE)


def test_a_fanout_queue_has_no_single_outcome(journal: Journal) -> None:
    queue = journal.queue("news", mode="fanout")
    with pytest.raises(ConfigError, match="every group"):
        queue.push("x", reply=True)
    assert len(queue) == 0
