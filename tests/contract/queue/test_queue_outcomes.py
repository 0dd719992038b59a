"""Messages that end without a delivery: those who wait for them, and what they were, are not forgotten."""

from __future__ import annotations

import pytest
from journals import DEADLINE

from penstock import Delivery, Draft, Journal, ManualClock, Queue
from penstock.errors import FenceActive, QueueFull, ReplyFailed, StaleDelivery


def one(queue: Queue, **options: str) -> Delivery:
    found = queue.take(**options)
    assert found is not None
    return found


# ── past their time to live ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kept", ["delayed", "held"])
def test_failed_messages_hide_no_expired_ones_from_housekeeping(
    journal: Journal, clock: ManualClock, kept: str
) -> None:
    queue = journal.queue("jobs", ttl=60, max_attempts=1)
    queue.push_many(range(1100))
    for delivery in queue.take_many(1100):
        delivery.nack()
    if kept == "held":
        queue.push("busy", key="k")
        one(queue).extend(1000)
    ticket = queue.push("x", reply=True, **({"delay": 500} if kept == "delayed" else {"key": "k"}))
    assert kept == "delayed" or queue.take() is None
    clock.advance(61)
    journal.maintain()
    assert ticket.done()
    with pytest.raises(ReplyFailed, match="expired"):
        ticket.result(DEADLINE)
    assert queue.stats().failed == 1100


def test_housekeeping_answers_nobody_during_an_exclusive_fence(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", ttl=60)
    ticket = queue.push("x", reply=True)
    clock.advance(61)
    fence = journal.fence()
    journal.maintain()
    assert journal.topic("jobs.results").latest == 0 and not ticket.done()
    fence.cancel()
    journal.maintain()
    with pytest.raises(ReplyFailed, match="expired"):
        ticket.result(DEADLINE)


# ── groups that come late ────────────────────────────────────────────────────────────────────────────────────────────
def test_a_late_group_does_not_wait_for_another_one_s_rate(journal: Journal, clock: ManualClock) -> None:
    news = journal.queue("news", mode="fanout", rate_per_key="1/60s")
    news.add_group("early")
    news.push_many([Draft("m", number, key="k") for number in range(2)])
    one(news, group="early").ack()
    assert news.take(group="early") is None
    news.add_group("late")
    assert [event.payload for event in news.peek(9, group="late")] == [1]
    one(news, group="late").ack()
    clock.advance(60)
    assert one(news, group="early").payload == 1


def test_a_late_group_waits_as_long_as_a_message_was_delayed_or_debounced(journal: Journal, clock: ManualClock) -> None:
    news = journal.queue("news", mode="fanout", debounce=30, rate_per_key="1/60s")
    news.add_group("early")
    news.push("debounced", key="k")
    news.push("delayed", delay=30)
    assert news.take(group="early") is None
    news.add_group("late")
    assert news.take(group="late") is None
    clock.advance(30)
    for group in ("late", "early"):
        assert sorted(one(news, group=group).payload for _ in range(2)) == ["debounced", "delayed"]


def test_a_late_group_waits_for_a_debounced_message_behind_one_of_its_key(journal: Journal, clock: ManualClock) -> None:
    news = journal.queue("news", mode="fanout", debounce=30)
    news.add_group("early")
    news.push("first", key="k")
    clock.advance(30)
    news.push("second", key="k")
    assert one(news, group="early").payload == "first"
    one(news, group="late").ack()
    assert news.take(group="late") is None and news.stats("late").delayed == 1
    clock.advance(30)
    assert one(news, group="late").payload == "second"


# ── dead letters of dead letters ─────────────────────────────────────────────────────────────────────────────────────
def test_a_letter_that_dies_again_keeps_where_it_first_came_from(journal: Journal) -> None:
    jobs = journal.queue("jobs", max_attempts=1, dead_letter="grave")
    grave, deep = journal.queue("grave", max_attempts=1, dead_letter="deep"), journal.queue("deep")
    ticket = jobs.push("x", headers={"own": "1"}, max_attempts=1, reply=True)
    one(jobs).nack(error="first")
    first = dict(next(iter(grave)).headers)
    one(grave).nack(error="second")
    letter = next(iter(deep))
    assert (letter.headers["dead-queue"], letter.headers["dead-error"]) == ("grave", "second")
    assert deep.redrive() == 1
    again = next(iter(grave))
    assert dict(again.headers) == first and grave.stats().ready == 1
    assert jobs.redrive() == 1
    back = one(jobs)
    assert not any(name.startswith("dead-") for name in back.headers) and back.headers["own"] == "1"
    with pytest.raises(ReplyFailed, match="first"):
        ticket.result(DEADLINE)


def test_a_letter_that_goes_in_a_circle_does_not_grow(journal: Journal) -> None:
    here = journal.queue("here", max_attempts=1, dead_letter="there")
    there = journal.queue("there", max_attempts=1, dead_letter="here")
    here.push("x")
    sizes = []
    for _ in range(4):
        one(here).nack(error="no")
        one(there).nack(error="no")
        sizes.append(len(str(dict(next(iter(here)).headers))))
    assert max(sizes[1:]) <= sizes[1] + 8
    assert here.redrive(to=journal.queue("else")) == 1
    assert dict(one(journal.queue("else")).headers) == {}


# ── messages that are taken away ─────────────────────────────────────────────────────────────────────────────────────
def test_who_waits_for_a_message_that_is_compacted_away_hears_of_it(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=1, priority=True)
    failed = queue.push("failed", reply=True)
    one(queue).nack(error="own reason")
    tickets = [queue.push("untouched", reply=True), queue.push("placed", reply=True, priority=-1)]
    queue.push("asks nothing")
    later = queue.push("stays", reply=True)
    journal.topic("jobs").compact(4, force=True)
    for ticket in tickets:
        assert ticket.done()
        with pytest.raises(ReplyFailed, match="removed") as caught:
            ticket.result(DEADLINE)
        assert caught.value.reason == "removed"
    with pytest.raises(ReplyFailed, match="own reason"):
        failed.result(DEADLINE)
    assert not later.done() and one(queue).payload == "stays"


def test_acknowledging_what_a_forced_compaction_removed(journal: Journal) -> None:
    queue = journal.queue("jobs")
    ticket = queue.push("x", reply=True)
    acked = queue.push("y", reply=True)
    held, done = queue.take_many(2)
    done.ack(result=2)
    with journal.fence(), pytest.raises(FenceActive):
        journal.topic("jobs").compact(2, force=True)
    journal.topic("jobs").compact(2, force=True)
    with pytest.raises(StaleDelivery):
        held.ack(result=1)
    with pytest.raises(ReplyFailed, match="removed"):
        ticket.result(DEADLINE)
    assert acked.result(DEADLINE) == 2 and journal.topic("jobs.results").latest == 2


# ── what is sent back into a full queue ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dead_letter", [None, "grave"])
def test_what_is_sent_back_must_fit(journal: Journal, dead_letter: str | None) -> None:
    queue = journal.queue("jobs", max_size=3, max_attempts=1, dead_letter=dead_letter)
    queue.push_many(range(3))
    for delivery in queue.take_many(3):
        delivery.nack(error="no")
    queue.push_many(["a", "b"])
    with pytest.raises(QueueFull):
        queue.redrive()
    assert len(queue) == 2
    assert queue.redrive(limit=1) == 1 and len(queue) == 3
    queue.ack_many(queue.take_many(3))
    assert queue.redrive() == 2 and [event.payload for event in queue] == [1, 2]
