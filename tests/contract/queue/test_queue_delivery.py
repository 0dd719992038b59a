"""Pushing, taking, settling: what a plain queue promises, on every engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from journals import Place, eventually, on, only

from penstock import Draft, Journal, ManualClock, Queue, Retry
from penstock.core.clock import from_ms
from penstock.errors import Closed, ConfigError, InvalidName, ReadOnly, StaleDelivery, UnknownQueue

Reopen = Callable[[Journal], Journal]


@pytest.fixture
def queue(journal: Journal) -> Queue:
    return journal.queue("jobs")


def taken(queue: Queue, limit: int = 100, **options: object) -> list[int]:
    return [delivery.seq for delivery in queue.take_many(limit, **options)]  # type: ignore[arg-type]


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_messages_come_in_order_with_what_was_pushed(queue: Queue) -> None:
    first = queue.push({"n": 1}, kind="job.new", headers={"trace": "t1"})
    second = queue.push(b"\x00raw", cause=first)
    assert (first.seq, second.seq, first.topic) == (1, 2, "jobs")
    one, two = queue.take(), queue.take()
    assert one is not None and two is not None and queue.take() is None
    assert (one.payload, one.kind, one.headers["trace"], one.seq, one.attempt) == ({"n": 1}, "job.new", "t1", 1, 1)
    assert (two.payload, two.event.causation_id, two.event.kind) == (b"\x00raw", first.id, "message")
    assert one.event.id == first.id and one.group == "default" and one.consumer is None


def test_a_duration_is_seconds_text_or_a_timedelta(journal: Journal, clock: ManualClock) -> None:
    for number, hour in enumerate((3600, "1h", "60m", "3600", timedelta(hours=1))):
        queue = journal.queue(f"q{number}", lease=hour, ttl="7d", dedup_window=hour, retry=hour)
        assert (queue.policy.lease, queue.policy.ttl, queue.policy.dedup_window) == (3600, 604_800, 3600)
        assert queue.policy.retry == Retry.fixed(hour) == Retry.fixed(3600)
        assert queue.every(hour, name="hourly").interval == 3600
        assert journal.topic(f"t{number}").configure(max_age=hour).max_age == 3600
        queue.push("a", delay=hour)
        assert queue.take() is None
        clock.advance(hour)
        delivery = queue.take(lease=hour, wait="1ms")
        assert delivery is not None and delivery.deadline == from_ms(clock.now_ms() + 3_600_000)
        delivery.nack(delay=hour)
        assert queue.stats().delayed == 1
    for bad in ("soon", "", "-5s", "1y"):
        with pytest.raises(ConfigError, match=r"delay: .* is no duration"):
            queue.push("a", delay=bad)
    with pytest.raises(ConfigError, match="interval"):
        queue.every("hourly", name="other")


def test_the_letters_of_a_text_and_the_keys_of_a_mapping_are_not_pushed(queue: Queue) -> None:
    one: str | bytes | dict[str, str]
    for one in ("hello", b"hello", "", {"to": "ada"}):
        with pytest.raises(ConfigError, match="payloads must be a list"):
            queue.push_many(one)
    assert len(queue) == 0


def test_a_release_may_come_back_later_and_counts_no_attempt(queue: Queue, clock: ManualClock) -> None:
    queue.push("a")
    delivery = queue.take()
    assert delivery is not None
    delivery.release(delay=5)
    assert queue.take() is None
    clock.advance(5)
    again = queue.take()
    assert again is not None and again.attempt == 1


def test_push_many_is_atomic_and_consecutive(queue: Queue) -> None:
    queue.push("zero")
    receipts = queue.push_many(["a", Draft("other", "b", key="k"), "c"], headers={"h": "1"})
    assert [receipt.seq for receipt in receipts] == [2, 3, 4]
    assert [(event.kind, event.payload, event.key) for event in queue] == [
        ("message", "zero", None),
        ("message", "a", None),
        ("other", "b", "k"),
        ("message", "c", None),
    ]
    with pytest.raises(ConfigError):
        queue.push_many(["fine", object()])
    assert len(queue) == 4 and queue.push("next").seq == 5
    assert queue.push_many([]) == []


def test_a_refused_push_leaves_nothing_behind(queue: Queue) -> None:
    for bad in ({"delay": -1}, {"priority": 1}, {"priority": "high"}, {"kind": ""}, {"headers": {"a": 1}}, {"key": ""}):
        with pytest.raises(ConfigError):
            queue.push(1, **bad)  # type: ignore[arg-type]
    for bad in ({"max_attempts": 0}, {"not_before": datetime(2030, 1, 1)}, {"delay": 1, "key": "k"}):
        with pytest.raises(ConfigError):
            queue.push(1, **bad)  # type: ignore[arg-type]
    for bad in ({"delay": 1e300}, {"delay": timedelta.max}):
        with pytest.raises(ConfigError, match="hundred years"):
            queue.push(1, **bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        queue.push(float("nan"))
    with pytest.raises(ConfigError, match="no option 'prio'"):
        queue.push_many([1], prio=3)
    with pytest.raises(ConfigError, match="dedup"):
        queue.push_many([1, 2], dedup="same")
    assert len(queue) == 0 and queue.push("first").seq == 1


def test_what_is_appended_to_the_topic_is_a_message(queue: Queue, journal: Journal) -> None:
    journal.topic("jobs").append("job", 1)
    delivery = queue.take()
    assert delivery is not None and delivery.payload == 1 and delivery.kind == "job"
    assert [event.seq for event in journal.topic("jobs").read()] == [1]


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_limit_of_zero_takes_nothing_and_a_negative_one_is_refused(queue: Queue) -> None:
    queue.push(1)
    assert queue.take_many(0) == []
    for bad in (-1, 1.5, None, True):
        with pytest.raises(ConfigError):
            queue.take_many(bad)  # type: ignore[arg-type]
    for bad in (-1, "x", float("inf")):
        with pytest.raises(ConfigError):
            queue.take(wait=bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            queue.take(lease=bad)  # type: ignore[arg-type]
    for bad in ("", " ", 3):
        with pytest.raises(InvalidName):
            queue.take(group=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidName):
            queue.take(consumer=bad)  # type: ignore[arg-type]
    assert taken(queue) == [1]


def test_a_large_take_spans_blocks_and_lease_records(queue: Queue) -> None:
    for start in range(0, 3000, 500):
        queue.push_many(range(start, start + 500))
    deliveries = queue.take_many(2500)
    assert [delivery.payload for delivery in deliveries] == list(range(2500))
    assert queue.ack_many(deliveries[100:]) == 2400
    assert len(queue) == 600 and queue.stats().in_flight == 100
    assert [event.seq for event in queue][:101] == [*range(1, 101), 2501]


def test_tokens_are_opaque_and_new_for_every_delivery(queue: Queue) -> None:
    queue.push_many(range(50))
    tokens = [delivery.token for delivery in queue.take_many(50)]
    assert all(re.fullmatch("[a-z2-7]{24}", token) for token in tokens)
    assert len({token[:8] for token in tokens}) > 45 and len({token[-8:] for token in tokens}) > 45
    for delivery in queue.take_many(50):
        delivery.release()
    assert len({*tokens, *(delivery.token for delivery in queue.take_many(50))}) == len(tokens)
    for _ in range(3):
        for delivery in queue.claim(min_idle=0, limit=1):
            tokens.append(delivery.token)
    assert len(set(tokens)) == len(tokens)


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_ack_and_an_ack_after_a_nack_are_stale(queue: Queue) -> None:
    queue.push(1)
    delivery = queue.take()
    assert delivery is not None
    delivery.ack()
    for settle in (delivery.ack, delivery.nack, delivery.extend):
        with pytest.raises(StaleDelivery, match="settled already") as caught:
            settle()
        assert caught.value.token == delivery.token
    delivery.release()
    queue.push(2)
    other = queue.take()
    assert other is not None
    other.nack()
    with pytest.raises(StaleDelivery):
        other.nack()
    assert len(queue) == 1 and taken(queue) == [2]


def test_ack_many_counts_what_was_held(queue: Queue, journal: Journal) -> None:
    queue.push_many(range(5))
    deliveries = queue.take_many(4)
    tokens = [delivery.token for delivery in deliveries]
    assert queue.ack_many([deliveries[0], tokens[0], tokens[0], "x", "a" * 24, "é" * 24, tokens[1].upper()]) == 1
    assert queue.ack_many([*deliveries, *tokens]) == 3
    assert queue.ack_many(deliveries) == 0 and queue.ack_many([]) == 0
    assert [event.seq for event in queue] == [5]
    other = journal.queue("other")
    other.push(1)
    stray = other.take()
    assert stray is not None
    with pytest.raises(ConfigError, match="queue 'other'"):
        queue.ack_many([stray])
    assert queue.ack_many([stray.token]) == 0
    with pytest.raises(ConfigError):
        queue.ack_many([1])  # type: ignore[list-item]


def test_a_with_block_acknowledges_or_gives_back(queue: Queue) -> None:
    queue.push_many(["good", "bad", "mine"])
    with queue.take() as delivery:  # type: ignore[union-attr]
        assert delivery.payload == "good"
    with pytest.raises(ValueError, match="broken"), queue.take() as delivery:  # type: ignore[union-attr]
        raise ValueError("broken")
    assert [event.payload for event in queue] == ["bad", "mine"]
    with queue.take() as delivery:  # type: ignore[union-attr]
        assert (delivery.payload, delivery.attempt) == ("bad", 2)
        delivery.nack(dead=True, error="hopeless")
    with pytest.raises(KeyboardInterrupt), queue.take() as delivery:  # type: ignore[union-attr]
        raise KeyboardInterrupt
    assert (delivery.payload, delivery.attempt) == ("mine", 1)
    again = queue.take()
    assert again is not None and (again.payload, again.attempt) == ("mine", 1)
    assert [event.payload for event in queue.failed()] == ["bad"]


def test_a_with_block_whose_lease_was_lost_says_so_unless_it_failed_anyway(queue: Queue, clock: ManualClock) -> None:
    queue.push(1)
    with pytest.raises(StaleDelivery), queue.take():  # type: ignore[union-attr]
        clock.advance(31)
        assert queue.take() is not None
    clock.advance(31)
    with pytest.raises(ZeroDivisionError), queue.take():  # type: ignore[union-attr]
        clock.advance(31)
        queue.take()
        raise ZeroDivisionError


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_an_expired_lease_gives_the_message_to_the_next_taker(queue: Queue, clock: ManualClock) -> None:
    queue.push_many(range(2))
    slow = queue.take()
    assert slow is not None and slow.deadline == datetime.fromtimestamp(clock.now_ms() / 1000 + 30, UTC)
    clock.advance(29.999)
    assert taken(queue) == [2]
    clock.advance(0.001)
    again = queue.take()
    assert again is not None and (again.seq, again.attempt) == (1, 2)
    for settle in (slow.ack, slow.nack, slow.extend):
        with pytest.raises(StaleDelivery):
            settle()
    again.ack()


def test_a_lease_of_zero_lasts_until_its_journal_is_closed(place: Place, clock: ManualClock) -> None:
    journal = place.open(clock=clock, durability="process")
    queue = journal.queue("jobs", lease=0)
    queue.push_many(range(4))
    delivery = queue.take()
    assert delivery is not None and delivery.deadline.year == 9999
    clock.advance(10 * 365 * 24 * 3600)
    for seq in (2, 3, 4):
        other = queue.take()
        assert other is not None and other.seq == seq
        if seq > 2:
            other.ack()  # two of four: the others are still known to have no end
    journal = place.reopen(journal, clock=clock, durability="process")
    assert [(one.seq, one.attempt) for one in journal.queue("jobs").take_many(9)] == [(1, 2), (2, 2)]


# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_queues_are_listed_and_are_topics_too(journal: Journal) -> None:
    journal.topic("plain").append("k", 1)
    journal.queue("b")
    journal.queue("a").push(1)
    assert journal.queues() == ["a", "b"] and journal.topics() == ["a", "b", "plain"]
    assert journal.describe().queues == ["a", "b"]
    assert journal.queue("a") is journal.queue("a")


def test_queue_names_follow_the_rules_of_topics(journal: Journal) -> None:
    for bad in ("", ".", "..", "a/b", "ä", "x" * 256, 3):
        with pytest.raises(InvalidName):
            journal.queue(bad)  # type: ignore[arg-type]
    assert journal.queue("A-z_0.9").name == "A-z_0.9"


@only(on_disk=True, reads_beside_writer=True)
def test_a_read_only_journal_looks_but_does_not_touch(place: Place, clock: ManualClock) -> None:
    writer = place.open(clock=clock)
    writer.queue("jobs").push_many(range(3))
    writer.queue("jobs").take()
    writer.close()
    journal = place.open(read_only=True, clock=clock)
    queue = journal.queue("jobs")
    assert len(queue) == 3 and queue.stats().in_flight == 1 and [event.seq for event in queue] == [1, 2, 3]
    assert [event.seq for event in queue.peek(5)] == [2, 3] and len(queue.pending()) == 1
    for change in (queue.take, queue.purge, lambda: queue.push(1), lambda: queue.configure(lease=1)):
        with pytest.raises(ReadOnly):
            change()
    with pytest.raises(UnknownQueue):
        journal.queue("absent")


def test_a_closed_journal_refuses(queue: Queue) -> None:
    queue.push(1)
    delivery = queue.take()
    assert delivery is not None
    queue.journal.close()
    for use in (queue.take, queue.stats, lambda: queue.push(1), delivery.ack, lambda: len(queue), lambda: list(queue)):
        with pytest.raises(Closed):
            use()


def test_a_dropped_queue_is_unknown_until_it_is_made_again(queue: Queue) -> None:
    queue.push_many(range(3))
    queue.take()
    queue.every(60, "tick", name="t")
    assert queue.drop() == 3
    journal = queue.journal
    assert journal.queues() == []
    for use in (queue.take, queue.stats, lambda: queue.push(1), lambda: queue.policy):
        with pytest.raises(UnknownQueue, match=r"make it with journal\.queue"):
            use()
    again = journal.queue("jobs", lease=7)
    assert again.push("new").seq == 4 and again.policy.lease == 7 and taken(again) == [4] and again.schedules() == []


@on("sqlite", "memory")
def test_settled_messages_are_removed_in_passing(place: Place) -> None:
    journal = place.open(durability="process")
    queue = journal.queue("jobs")
    topic = journal.topic("jobs")
    for _ in range(20):
        queue.push_many(range(500))
        queue.ack_many(queue.take_many(500))
    eventually(lambda: topic.oldest > 5000 or topic.oldest == 0, "the keeper removes what is settled")
    assert topic.latest == 10_000


def test_unsettled_messages_hold_compaction_back(queue: Queue, journal: Journal) -> None:
    queue.push_many(range(10))
    first, second, third = queue.take_many(3)
    first.ack()
    third.ack()
    report = journal.topic("jobs").compact(10)
    assert report.stopped_at == "queue jobs" and report.removed == 1
    second.nack()
    assert journal.topic("jobs").compact(10).removed == 0
    assert taken(queue) == [2, 4, 5, 6, 7, 8, 9, 10]


def test_what_a_forced_compaction_removed_is_not_delivered(queue: Queue, journal: Journal) -> None:
    queue.push_many(range(6))
    queue.take_many(2)[1].nack()
    journal.topic("jobs").compact(4, force=True)
    assert taken(queue) == [5, 6]
    assert queue.get(3) is None
