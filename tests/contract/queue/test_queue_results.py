"""Replies: what a handler returned, or why a message was given up, reaches the one who pushed it."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, only

import penstock
from penstock import Delivery, Draft, Journal, ManualClock
from penstock.core.journal.blocks import Block
from penstock.core.queue.results import ResultTicket
from penstock.errors import Closed, ConfigError, FenceActive, ReplyFailed


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
        eventually(lambda: len(queue) == 0)
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


@pytest.mark.parametrize("dead_letter", [None, "dead"])
@pytest.mark.parametrize("how", ["take", "housekeeping"])
def test_a_message_that_nobody_took_in_time_says_so(
    journal: Journal, clock: ManualClock, dead_letter: str | None, how: str
) -> None:
    queue = journal.queue("jobs", ttl=5, dead_letter=dead_letter)
    tickets = [queue.push(number, reply=True) for number in range(3)]
    clock.advance(6)
    if how == "take":
        assert queue.take() is None
    else:
        journal.maintain()
    for ticket in tickets:
        with pytest.raises(ReplyFailed, match="expired"):
            ticket.result(DEADLINE)


def test_a_dead_letter_that_is_settled_where_it_lies_answers_nothing_more(journal: Journal) -> None:
    queue, dead = journal.queue("jobs", max_attempts=1, dead_letter="dead"), journal.queue("dead")
    own = dead.push("own", reply=True)
    ticket = queue.push("x", reply=True)
    queue.take().nack(error="no")
    first, letter = dead.take_many(2)
    first.ack(result=1)
    letter.ack(result=2)
    assert own.result(DEADLINE) == 1
    with pytest.raises(ReplyFailed, match="exhausted"):
        ticket.result(DEADLINE)


Taken = Callable[[Journal, list[int]], object]
TAKEN: dict[str, Taken] = {
    "discarded": lambda journal, seqs: journal.queue("sums").discard(seqs),
    "purge": lambda journal, seqs: journal.queue("sums").purge(),
    "drop": lambda journal, seqs: journal.queue("sums").drop(),
    "drop_topic": lambda journal, seqs: journal.drop_topic("sums", force=True),
}


@pytest.mark.parametrize("how", TAKEN)
def test_who_waits_hears_that_the_message_was_taken_away(journal: Journal, clock: ManualClock, how: str) -> None:
    """Once each, and nobody else: not of a message that was handled, had failed or outlived its ttl before."""
    queue = journal.queue("sums", ttl=60, max_attempts=1)
    late = queue.push("late", reply=True)
    clock.advance(61)
    done, failed = queue.push("done", reply=True), queue.push("failed", reply=True)
    queue.take_many(1)[0].ack(result="it was")
    queue.take_many(1)[0].nack()
    held = queue.push("held", reply=True)
    delivery = queue.take_many(1)[0]
    queue.push_many(range(50))
    waiting = queue.push("waiting", reply=True)
    delayed = queue.push("delayed", reply=True, delay=30)
    tickets = [late, done, failed, held, waiting, delayed]
    TAKEN[how](journal, [ticket.receipt.seq for ticket in tickets])

    reason = "discarded" if how == "discarded" else "removed"
    for ticket in (waiting, delayed):
        with pytest.raises(ReplyFailed, match=f"given up .{reason}.: it was taken away before it was handled"):
            ticket.result(0)
    assert done.result(0) == "it was"
    for ticket, why in ((late, "expired"), (failed, "attempts exhausted")):
        with pytest.raises(ReplyFailed, match=why):
            ticket.result(0)
    if how == "discarded":  # nobody discards what is in somebody's hands
        assert not held.done()
        delivery.ack(result=1)
        assert held.result(0) == 1
    else:
        with pytest.raises(ReplyFailed, match="removed"):
            held.result(0)
    answers = [event.key for event in journal.topic("sums.results").read()]
    assert len(answers) == len({*answers}) == len(tickets)


def test_taking_messages_away_reads_only_blocks_that_want_replies(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("sums")
    queue.push_many([Draft("m", number, headers={"trace": "x"}) for number in range(3000)])
    queue.push_many([Draft("m", number, headers={}) for number in range(300)])
    ticket = queue.push("one", reply=True)
    queue.push_many(range(3000))
    asked: list[int] = []
    original = Block.headers
    monkeypatch.setattr(Block, "headers", lambda block, row: (asked.append(row), original(block, row))[1])
    assert queue.purge() == 6301
    with pytest.raises(ReplyFailed, match="removed"):
        ticket.result(0)
    assert 0 < len(asked) < 1000
    assert len(journal.topic("sums.results")) == 1


def test_nothing_is_taken_away_behind_an_exclusive_fence_if_somebody_must_be_told(journal: Journal) -> None:
    queue = journal.queue("sums")
    ticket = queue.push("one", reply=True)
    fence = journal.fence(exclusive=True)
    for take_away in TAKEN.values():
        with pytest.raises(FenceActive):
            take_away(journal, [ticket.receipt.seq])
    assert len(queue) == 1 and not ticket.done()
    fence.cancel()
    assert queue.purge() == 1 and ticket.done()


def test_a_fanout_queue_has_no_single_outcome(journal: Journal) -> None:
    queue = journal.queue("news", mode="fanout")
    with pytest.raises(ConfigError, match="every group"):
        queue.push("x", reply=True)
    assert len(queue) == 0


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_those_who_wait_are_woken_and_read_the_results_once(
    journal: Journal, in_threads: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("sums")
    tickets = [queue.push(number, reply=True) for number in range(8)]
    reads: list[int] = []
    poll = ResultTicket._poll
    monkeypatch.setattr(ResultTicket, "_poll", lambda ticket: (reads.append(ticket.receipt.seq), poll(ticket))[1])
    got: list[Any] = []
    threads = [in_threads(lambda ticket=ticket: got.append(ticket.result(DEADLINE))) for ticket in tickets]
    eventually(lambda: len(reads) == 8, "all wait")
    for delivery in queue.take_many(8):
        delivery.ack(result=delivery.payload * 10)
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(got) == [number * 10 for number in range(8)]
    assert len(reads) == 8, "nobody asks twice: what comes is handed to those who wait"


def test_many_await_outcomes_in_one_loop(journal: Journal) -> None:
    queue = journal.queue("sums")

    async def main() -> list[Any]:
        tickets = [queue.push(number, reply=True) for number in range(20)]
        waiting = asyncio.gather(*(ticket.result_async(DEADLINE) for ticket in tickets))
        for delivery in await asyncio.to_thread(queue.take_many, 20):
            await asyncio.to_thread(delivery.ack, result=-delivery.payload)
        return list(await waiting)

    assert asyncio.run(main()) == [-number for number in range(20)]


def test_waiting_ends_in_time_with_the_journal_and_with_its_task(
    journal: Journal, in_threads: Callable[..., threading.Thread]
) -> None:
    queue = journal.queue("sums")
    ticket = queue.push(1, reply=True)
    with pytest.raises(TimeoutError, match="no outcome yet"):
        ticket.result(0.01)

    async def main() -> None:
        with pytest.raises(TimeoutError, match="no outcome yet"):
            await ticket.result_async(0.01)
        task = asyncio.ensure_future(ticket.result_async())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    told: list[BaseException] = []

    def wait() -> None:
        try:
            ticket.result(DEADLINE)
        except Closed as error:
            told.append(error)

    thread = in_threads(wait)
    eventually(lambda: ticket._follower._waiting, "it waits")
    journal.close()
    thread.join(DEADLINE)
    assert len(told) == 1


def test_an_outcome_comes_though_the_results_were_dropped_meanwhile(
    journal: Journal, in_threads: Callable[..., threading.Thread]
) -> None:
    queue = journal.queue("sums")
    first, second = queue.push(1, reply=True), queue.push(2, reply=True)
    queue.take().ack(result="one")
    assert first.result(DEADLINE) == "one"
    got: list[Any] = []
    thread = in_threads(lambda: got.append(second.result(DEADLINE)))
    eventually(lambda: second._follower._waiting, "it waits")
    journal.drop_topic("sums.results", force=True)
    queue.take().ack(result="two")
    thread.join(DEADLINE)
    assert got == ["two"]


def _answer(url: str) -> None:
    with penstock.open(url) as journal:
        journal.queue("sums").take(wait=DEADLINE).ack(result="from afar")


@only(shared=True)
def test_an_outcome_from_another_process_wakes_who_waits(place: Place) -> None:
    queue = place.open().queue("sums")
    ticket = queue.push(1, reply=True)
    other = multiprocessing.get_context("spawn").Process(target=_answer, args=(place.url,))
    other.start()
    assert ticket.result(DEADLINE) == "from afar"
    other.join(DEADLINE)
