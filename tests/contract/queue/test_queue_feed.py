"""The feed of a queue: what becomes of its messages, as events of a topic, in the commits in which it happens."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from journals import DEADLINE

from penstock import Delivery, Event, Journal, ManualClock, Queue
from penstock.errors import ConfigError, InvalidName, PolicyMismatch, StaleDelivery


def feed(journal: Journal, queue: str = "jobs", **wanted: Any) -> list[Event]:
    return list(journal.topic(f"{queue}.feed").read(**wanted))


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.kind for event in events]


def one(queue: Queue, **options: Any) -> Delivery:
    found = queue.take(**options)
    assert found is not None
    return found


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_message_s_whole_life_is_told_in_order(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True, max_attempts=2)
    jobs.push("other")
    one(jobs).release()
    seq = jobs.push("x").seq
    one(jobs).ack()
    one(jobs, consumer="anna").nack(error="no route")
    one(jobs).nack()
    assert jobs.redrive() == 1
    one(jobs).ack()
    life = feed(journal, key=str(seq))
    told = [(event.kind, {name: value for name, value in event.payload.items() if name != "seq"}) for event in life]
    assert told == [
        ("pushed", {}),
        ("delivered", {"attempt": 1, "consumer": "anna"}),
        ("failed", {"attempt": 1, "consumer": "anna", "reason": "nack", "error": "no route"}),
        ("retried", {"attempt": 1}),
        ("delivered", {"attempt": 2}),
        ("failed", {"attempt": 2, "reason": "nack"}),
        ("dead", {"attempt": 2, "reason": "attempts exhausted"}),
        ("redriven", {"attempt": 2}),
        ("delivered", {"attempt": 1}),
        ("acked", {"attempt": 1}),
    ]
    assert all(event.payload["seq"] == seq for event in life)
    assert kinds(feed(journal, key="1")) == ["pushed", "delivered", "released", "delivered", "acked"]


def test_a_lease_that_ends_is_a_failure_with_that_reason(journal: Journal, clock: ManualClock) -> None:
    jobs = journal.queue("jobs", feed=True, lease=10)
    jobs.push("x")
    one(jobs)
    clock.advance(11)
    one(jobs)
    assert kinds(feed(journal)) == ["pushed", "delivered", "failed", "retried", "delivered"]
    assert feed(journal, kind="failed")[0].payload["reason"] == "lease"


def test_a_claim_is_told_as_a_release_and_a_delivery(journal: Journal, clock: ManualClock) -> None:
    jobs = journal.queue("jobs", feed=True)
    jobs.push("x")
    one(jobs, consumer="gone")
    clock.advance(5)
    (claimed,) = jobs.claim(min_idle=5, consumer="anna")
    claimed.ack()
    assert kinds(feed(journal)) == ["pushed", "delivered", "released", "delivered", "acked"]
    assert [event.payload.get("consumer") for event in feed(journal)] == [None, "gone", "gone", "anna", "anna"]


def test_dead_letters_say_where_they_went_and_each_queue_has_a_feed_of_its_own(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True, max_attempts=1, dead_letter="dead")
    dead = journal.queue("dead", feed=True)
    jobs.push("x")
    one(jobs).nack(dead=True, error="broken")
    dead.redrive()
    last, again = feed(journal)[-2:]
    assert (last.kind, last.payload["to"], last.payload["reason"]) == ("dead", "dead", "rejected")
    assert (again.kind, again.payload) == ("pushed", {"seq": 2, "reason": "moved"})
    letters = [(event.kind, event.payload) for event in feed(journal, "dead")]
    assert letters == [
        ("pushed", {"seq": 1, "reason": "dead letter"}),
        ("redriven", {"seq": 1, "to": "jobs"}),
    ]


@pytest.mark.parametrize("by", ["take", "housekeeping"])
@pytest.mark.parametrize("letters", [None, "dead"])
def test_messages_past_their_ttl_are_told_one_by_one(
    journal: Journal, clock: ManualClock, by: str, letters: str | None
) -> None:
    jobs = journal.queue("jobs", feed=True, ttl=60, dead_letter=letters)
    jobs.push_many(range(3))
    clock.advance(61)
    if by == "take":
        assert jobs.take() is None
    else:
        journal.maintain()
    expired = feed(journal, kind="expired")
    assert [event.payload["seq"] for event in expired] == [1, 2, 3]
    assert {event.payload.get("to") for event in expired} == {letters}


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_batches_are_told_in_one_commit_each(journal: Journal, clock: ManualClock) -> None:
    jobs = journal.queue("jobs", feed=True)
    jobs.push_many(range(50))
    clock.advance(1)
    taken = jobs.take_many(50)
    clock.advance(1)
    assert jobs.ack_many(taken) == 50
    told = feed(journal)
    assert kinds(told) == ["pushed"] * 50 + ["delivered"] * 50 + ["acked"] * 50
    assert [event.payload["seq"] for event in told] == [*range(1, 51)] * 3
    assert len({event.recorded_at for event in told}) == 3


def test_what_is_moved_discarded_and_purged_is_told(journal: Journal) -> None:
    jobs, other = journal.queue("jobs", feed=True), journal.queue("other")
    jobs.push_many(["discarded", "moved", *range(3)])
    jobs.discard([1])
    jobs.move(other, limit=1)
    jobs.purge()
    told = [(event.kind, event.payload) for event in feed(journal)[5:]]
    assert told == [
        ("discarded", {"seq": 1}),
        ("moved", {"seq": 2, "to": "other"}),
        ("purged", {"seq": 5}),
    ]
    assert not journal.topic("other.feed").latest


def test_messages_removed_with_their_events_are_told_as_purged(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True)
    jobs.push_many(range(4))
    one(jobs)
    journal.topic("jobs").compact(through=2, force=True)
    assert [(event.kind, event.payload) for event in feed(journal)[5:]] == [
        ("purged", {"seq": 2, "reason": "compacted"}),
    ]
    journal.drop_topic("jobs", force=True)
    assert feed(journal)[-1].payload == {"seq": 4, "reason": "dropped"}
    assert len(feed(journal)) == 7


def test_a_duplicate_is_not_pushed_and_a_debounced_message_is_discarded(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True, debounce=10)
    jobs.push("a", key="k")
    jobs.push("b", key="k")
    jobs.push("c", dedup="once")
    jobs.push("c", dedup="once")
    assert kinds(feed(journal)) == ["pushed", "pushed", "discarded", "pushed"]
    assert feed(journal, kind="discarded")[0].payload == {"seq": 1, "reason": "replaced"}


def test_groups_are_named_in_fanout_mode(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout", feed=True)
    news.add_group("mail")
    news.add_group("search")
    news.push("x")
    one(news, group="mail").ack()
    one(news, group="search").release()
    told = [(event.kind, event.payload.get("group")) for event in feed(journal, "news")]
    assert told == [
        ("pushed", None), ("delivered", "mail"), ("acked", "mail"), ("delivered", "search"), ("released", "search"),
    ]  # fmt: skip
    news.remove_group("search")
    assert feed(journal, "news")[-1].payload == {"seq": 1, "group": "search", "reason": "its group was removed"}


# ── on and off ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_queue_tells_nothing_unless_asked(journal: Journal) -> None:
    jobs = journal.queue("jobs")
    jobs.push("x")
    one(jobs).ack()
    assert "jobs.feed" not in journal.topics()
    jobs.configure(feed=True)
    jobs.push("y")
    one(jobs).ack()
    jobs = journal.queue("jobs", policy="update", feed=False)
    jobs.push("z")
    assert kinds(feed(journal)) == ["pushed", "delivered", "acked"]
    with pytest.raises(PolicyMismatch):
        journal.queue("jobs", feed=True)


def test_a_feed_that_cannot_be_is_refused(journal: Journal) -> None:
    with pytest.raises(ConfigError, match="feed must be True or False"):
        journal.queue("jobs", feed="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="topic name"):
        journal.queue("q" * 252, feed=True)
    assert journal.queues() == []


def test_a_feed_belongs_to_its_queue(journal: Journal) -> None:
    journal.queue("jobs", feed=True).push("x")
    journal.topic("notes.feed").append("written", 1)
    assert [event.topic for event in journal.read("*")] == ["jobs", "notes.feed"]
    assert [event.topic for event in journal.read("jobs.*")] == ["jobs.feed"]


def test_a_transaction_that_is_rolled_back_tells_nothing(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True)
    jobs.push("x")
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.push(jobs, "y")
        tx.ack(tx.take_many(jobs, 1)[0])
        raise ZeroDivisionError
    assert kinds(feed(journal)) == ["pushed"]
    with journal.transaction() as tx:
        tx.push(jobs, "y")
        tx.ack(tx.take_many(jobs, 1)[0])
        tx.append("log", "done", 1)
    assert kinds(feed(journal)) == ["pushed", "pushed", "delivered", "acked"]


def test_an_exclusive_fence_keeps_no_ack_waiting(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True)
    jobs.push_many(["x", "y"])
    delivery = one(jobs)
    fence = journal.fence()
    delivery.ack()
    one(jobs)
    assert kinds(feed(journal))[2:] == ["delivered", "acked", "delivered"]
    fence.cancel()


def test_a_feed_is_a_topic_with_retention_and_may_be_a_queue_itself(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True)
    audit = journal.queue("jobs.feed", feed=True)
    jobs.push("x")
    assert one(audit).kind == "pushed"
    assert kinds(feed(journal, "jobs.feed")) == ["delivered"]
    jobs.drop()
    assert kinds(feed(journal)) == ["pushed", "purged"]
    journal.topic("jobs.feed.feed").configure(max_events=1)


def test_who_follows_a_feed_is_told_at_once(journal: Journal) -> None:
    jobs = journal.queue("jobs", feed=True)
    jobs.push("x")
    with journal.topic("jobs.feed").subscribe(after=1) as events:
        one(jobs)
        told = events.next(DEADLINE)
    assert told is not None and told.kind == "delivered"


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────
def fold(events: Iterable[Event]) -> dict[str, int]:
    """The counters of a queue in work mode, from nothing but its feed."""
    place: dict[int, str] = {}
    for event in events:
        seq = event.payload["seq"]
        match event.kind:
            case "pushed" | "released" | "retried":
                place[seq] = "waiting"
            case "redriven" if "to" not in event.payload:
                place[seq] = "waiting"
            case "delivered":
                assert place[seq] == "waiting"
                place[seq] = "in_flight"
            case "failed":
                assert place[seq] == "in_flight"
            case "dead" if "to" not in event.payload:
                place[seq] = "failed"
            case "purged":
                place = {}
            case _:
                del place[seq]
    return {name: [*place.values()].count(name) for name in ("waiting", "in_flight", "failed")}


@pytest.mark.parametrize("seed", range(6))
def test_folding_the_feed_gives_the_queue_s_counters(journal: Journal, clock: ManualClock, seed: int) -> None:
    rng = random.Random(seed)
    jobs = journal.queue("jobs", feed=True, lease=20, max_attempts=2, ttl=rng.choice([None, 60]))
    other = journal.queue("other")
    held: list[Delivery] = []
    for _ in range(150):
        match rng.choice("pppPttTaaAnrdmxvgc"):
            case "p":
                key = rng.choice([None, "a", "b"])
                jobs.push("x", key=key, delay=0 if key else rng.choice([0, 5]))
            case "P":
                jobs.push_many(range(rng.randrange(1, 6)))
            case "t":
                held += jobs.take_many(1)
            case "T":
                held += jobs.take_many(4)
            case "A":
                jobs.ack_many(held)
                held = []
            case "a" | "n" | "r" as how if held:
                delivery = held.pop(rng.randrange(len(held)))
                with suppress(StaleDelivery):
                    {"a": delivery.ack, "n": delivery.nack, "r": delivery.release}[how]()
            case "d":
                jobs.discard([rng.randrange(1, 40)])
            case "m":
                jobs.move(other, limit=1)
            case "x":
                jobs.redrive()
            case "g" if rng.random() < 0.1:
                jobs.purge()
            case "c":
                clock.advance(rng.choice([1, 10, 25]))
            case _:
                journal.maintain()
        held += jobs.take_many(1)  # what has run out meanwhile is sorted first
        stats = jobs.stats()
        found = fold(feed(journal))
        assert (found["in_flight"], found["failed"]) == (stats.in_flight, stats.failed)
    journal.maintain()
    assert fold(feed(journal))["waiting"] == jobs.stats().ready + jobs.stats().delayed
