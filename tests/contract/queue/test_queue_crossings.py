"""Where a queue meets the topic it lies over, and where its features meet each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Delivery, Draft, Journal, ManualClock, Queue
from penstock.errors import Closed, StaleDelivery

Reopen = Callable[[Journal], Journal]


def taken(queue: Queue, limit: int = 100, **options: str) -> list[object]:
    """The payloads of what a take finds; acknowledged at once."""
    found = queue.take_many(limit, **options)
    queue.ack_many(found)
    return [delivery.payload for delivery in found]


def one(queue: Queue, **options: str) -> Delivery:
    found = queue.take(**options)
    assert found is not None
    return found


# ── dedup keys ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_over_a_topic_keeps_its_dedup_keys_and_its_window(journal: Journal, clock: ManualClock) -> None:
    topic = journal.topic("jobs")
    first = topic.append("made", 1, dedup="k")
    queue = journal.queue("jobs")
    window = topic.settings.dedup_window
    assert window is not None and queue.policy.dedup_window == window
    clock.advance(window - 1)
    assert queue.push(1, dedup="k").id == first.id
    eternal = journal.topic("eternal")
    eternal.configure(dedup_window=None)
    eternal.append("made", 1, dedup="k")
    assert journal.queue("eternal").policy.dedup_window is None
    clock.advance(10_000_000)
    assert journal.queue("eternal").push(1, dedup="k").duplicate


def test_a_window_given_to_the_topic_is_the_queues_too(journal: Journal) -> None:
    queue = journal.queue("jobs", dedup_window=60)
    queue.push("a", dedup="k")
    journal.topic("jobs").configure(dedup_window=120)
    assert queue.policy.dedup_window == 120 and journal.queue("jobs", dedup_window=120).push("a", dedup="k").duplicate
    assert queue.configure(dedup_window=60).dedup_window == 60 == journal.topic("jobs").settings.dedup_window
    assert queue.push("a", dedup="k").duplicate


# ── moving and sending back ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_letter_was_pushed_with_goes_back_with_it(journal: Journal) -> None:
    queue = journal.queue("jobs", priority=True, max_attempts=3, dead_letter="grave")
    queue.push("plain")
    queue.push("urgent", priority=9, max_attempts=1)
    one(queue).nack()
    assert [letter.payload for letter in journal.queue("grave")] == ["urgent"]
    assert queue.redrive() == 1
    first = one(queue)
    assert first.payload == "urgent" and not any(name.startswith("dead-") for name in first.headers)
    first.nack()
    assert [letter.payload for letter in journal.queue("grave")] == ["urgent"]


@pytest.mark.parametrize("mode", ["work", "fanout"])
def test_delay_priority_and_budget_move_with_a_message(journal: Journal, clock: ManualClock, mode: str) -> None:
    here = journal.queue("here", priority=True, mode=mode)
    here.add_group("default")
    there = journal.queue("there", priority=True, dead_letter="grave")
    here.push("plain")
    here.push("urgent", priority=9, max_attempts=1)
    here.push("later", delay=60)
    here.push("never", priority=-3)
    assert here.move(there) == 4 and len(here) == 0
    assert there.stats().ready == 3 and there.stats().delayed == 1
    first = one(there)
    assert first.payload == "urgent"
    first.nack()
    assert [letter.payload for letter in journal.queue("grave")] == ["urgent"]
    assert taken(there) == ["plain", "never"]
    clock.advance(59)
    assert taken(there) == []
    clock.advance(1)
    assert taken(there) == ["later"]


def test_a_queue_without_priorities_takes_messages_with_them(journal: Journal) -> None:
    here, there = journal.queue("here", priority=True), journal.queue("there")
    here.push("a")
    here.push("b", priority=5)
    assert here.move(there) == 2 and taken(there) == ["a", "b"]


def test_a_message_waiting_for_its_retry_waits_where_it_was_moved_to(journal: Journal, clock: ManualClock) -> None:
    here, there = journal.queue("here", retry=60), journal.queue("there")
    here.push("a")
    one(here).nack()
    assert here.move(there) == 1 and taken(there) == []
    clock.advance(60)
    assert taken(there) == ["a"]


def test_letters_of_a_dropped_queue_stay_and_the_others_go_back(journal: Journal) -> None:
    for name in ("gone", "there"):
        queue = journal.queue(name, max_attempts=1, dead_letter="grave")
        queue.push_many([f"{name}-{number}" for number in range(2)])
        for delivery in queue.take_many(2):
            delivery.nack()
    news = journal.queue("news", mode="fanout", max_attempts=1, dead_letter="grave")
    news.push("news")
    one(news, group="mail").nack()
    news.remove_group("mail")
    journal.queue("gone").drop()
    grave = journal.queue("grave")
    assert grave.redrive(dry_run=True) == 2
    report = grave.redrive()
    assert report == 2 and taken(journal.queue("there")) == ["there-0", "there-1"]
    assert {(one.queue, one.group, one.count) for one in report.left} == {("gone", None, 2), ("news", "mail", 1)}
    assert all(one.reason for one in report.left) and "gone" in str(report.left[0].reason)
    assert sorted(event.payload for event in grave) == ["gone-0", "gone-1", "news"]
    assert grave.redrive(to=journal.queue("other")) == 3 and len(grave) == 0
    assert grave.redrive().left == ()


def test_a_limit_counts_what_can_go_back(journal: Journal) -> None:
    for name in ("gone", "there"):
        queue = journal.queue(name, max_attempts=1, dead_letter="grave")
        queue.push_many(range(3))
        for delivery in queue.take_many(3):
            delivery.nack()
    journal.queue("gone").drop()
    grave = journal.queue("grave")
    assert grave.redrive(limit=2) == 2 and grave.redrive(limit=2) == 1 and grave.redrive(limit=2) == 0


# ── dropping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_release_never_fails(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs")
    queue.push_many(["a", "b"])
    first, second = queue.take_many(2)
    first.release()
    first.release()
    journal.queue("jobs").take()
    queue = reopen(journal).queue("jobs")
    second.release()
    with pytest.raises(Closed):
        second.ack()
    queue.drop()
    queue = queue.journal.queue("jobs")
    queue.push("c")
    third = one(queue)
    queue.drop()
    third.release()
    with pytest.raises((StaleDelivery, KeyError)):
        third.ack()


def test_drafts_keep_what_they_bring_where_a_queue_is_moved(journal: Journal) -> None:
    here, there = journal.queue("here"), journal.queue("there")
    here.push_many([Draft("mail", 1, key="a", headers={"x": "1"}), Draft("mail", 2, key="a")])
    assert here.move(there) == 2
    first = one(there)
    assert (first.kind, first.key, dict(first.headers)) == ("mail", "a", {"x": "1"}) and there.take() is None
