"""A queue over a topic that forgets: what is not settled stays, or goes where the policy says; counts are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journals import eventually

from penstock import Draft, Journal, ManualClock, Queue
from penstock.core.journal.reading import TopicView
from penstock.errors import ConfigError, PositionTrimmed, QueueFull, StaleDelivery

Reopen = Callable[[Journal], Journal]


def drain(queue: Queue, **options: str) -> list[object]:
    found = queue.take_many(1000, **options)
    queue.ack_many(found)
    return [delivery.payload for delivery in found]


def stored(journal: Journal, topic: str) -> int:
    """How many events a topic has on disk, those too old to be read included."""
    with journal._engine.read() as snap:
        view = TopicView.open(snap, topic)
        return 0 if view is None else view.count()


# ── messages that are not settled are held ───────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("setting", [{"max_events": 10}, {"max_age": 5}, {"max_bytes": 1}])
def test_retention_waits_for_messages_that_are_not_settled(
    journal: Journal, clock: ManualClock, setting: dict[str, int]
) -> None:
    queue, topic = journal.queue("jobs"), journal.topic("jobs")
    topic.configure(**setting)
    topic.commit("reader", 0)
    for number in range(100):
        queue.push(number)
    clock.advance(60)
    journal.maintain()
    assert len(queue) == 100 and queue.stats().ready == 100
    assert drain(queue)[:3] == [0, 1, 2] and len(queue) == 0
    queue.push("last")
    clock.advance(60)
    journal.maintain()
    assert len(queue) == 1 and drain(queue) == ["last"]
    journal.maintain()
    assert stored(journal, "jobs") <= 10 or "max_bytes" in setting  # of bytes, the newest block always stays


@pytest.mark.parametrize("how", ["compact_keys", "by_key"])
def test_compaction_by_key_keeps_messages_that_are_not_settled(journal: Journal, how: str) -> None:
    queue, topic = journal.queue("jobs"), journal.topic("jobs")
    queue.push_many([Draft("m", number, key="k") for number in range(6)])
    first = queue.take()
    assert first is not None
    first.ack()
    second = queue.take()
    assert second is not None
    if how == "by_key":
        topic.configure(by_key=True)
        journal.maintain()
    else:
        assert topic.compact_keys() == 1
    assert [event.payload for event in topic.read()] == [1, 2, 3, 4, 5] and len(queue) == 5
    second.ack()
    found = []
    while (delivery := queue.take()) is not None:
        found.append(delivery.payload)
        delivery.ack()
    assert found == [2, 3, 4, 5] and len(queue) == 0


def test_a_forced_compaction_takes_messages_away_and_they_no_longer_count(
    journal: Journal, clock: ManualClock, reopen: Reopen
) -> None:
    queue = journal.queue("jobs", retry=50)
    queue.push_many([Draft("m", number, key="k" if number % 3 == 0 else None) for number in range(12)])
    queue.push("later", delay=100)
    held = queue.take_many(4)
    held[1].nack()
    assert journal.topic("jobs").compact(8, force=True).removed == 8
    assert len(queue) == 5 and [event.seq for event in queue] == [9, 10, 11, 12, 13]
    assert queue.stats().in_flight == 0 and queue.stats().ready == 4 and queue.stats().delayed == 1
    with pytest.raises(StaleDelivery):
        held[0].ack()
    queue = reopen(journal).queue("jobs")
    assert drain(queue) == [8, 9, 10, 11]
    clock.advance(100)
    assert drain(queue) == ["later"] and len(queue) == 0


# ── or become dead letters ───────────────────────────────────────────────────────────────────────────────────────────
def test_where_retention_wins_unsettled_messages_become_dead_letters(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", dead_letter="grave", retention="dead_letter", max_attempts=2)
    journal.topic("jobs").configure(max_events=10)
    queue.push_many([Draft("m", 0, key="k"), Draft("m", 1, key="k")])
    queue.push(2, delay=500, max_attempts=7)
    queue.push(3)
    held = queue.take_many(2)
    held[1].nack()
    queue.push_many(range(4, 150))
    journal.maintain()
    assert len(queue) == 11 and queue.stats().in_flight == 1 and len(journal.topic("jobs")) == 150
    held[0].ack()
    journal.maintain()
    assert len(queue) == 10 == queue.stats().ready and len(journal.topic("jobs")) == 10
    letters = {letter.payload: letter.headers for letter in journal.queue("grave")}
    assert sorted(letters) == list(range(1, 140)) and letters[2]["dead-max-attempts"] == "7"
    assert {headers["dead-reason"] for headers in letters.values()} == {"retention"}
    assert drain(queue) == list(range(140, 150))
    assert queue.redrive(limit=3) == 3 and len(drain(queue)) == 3


def test_every_group_has_its_dead_letter(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout", dead_letter="grave", retention="dead_letter")
    for group in ("mail", "search"):
        news.add_group(group)
    news.push_many(range(5))
    assert drain(news, group="search") == [0, 1, 2, 3, 4]
    journal.topic("news").configure(max_events=2)
    journal.maintain()
    assert [(one.payload, one.headers["dead-group"]) for one in journal.queue("grave")] == [
        (0, "mail"),
        (1, "mail"),
        (2, "mail"),
    ]
    assert drain(news, group="mail") == [3, 4]


def test_retention_wins_only_with_somewhere_to_go(journal: Journal) -> None:
    with pytest.raises(ConfigError, match="dead_letter"):
        journal.queue("jobs", retention="dead_letter")
    with pytest.raises(ConfigError, match="retention"):
        journal.queue("jobs", retention="delete")
    assert journal.queues() == []
    queue = journal.queue("jobs", retention="dead_letter", dead_letter="grave")
    with pytest.raises(ConfigError, match="dead_letter"):
        queue.configure(dead_letter=None)
    assert queue.policy.dead_letter == "grave"


# ── messages past their time to live ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("mode", ["work", "fanout"])
def test_messages_past_their_time_to_live_do_not_count(journal: Journal, clock: ManualClock, mode: str) -> None:
    queue = journal.queue("jobs", ttl=60, max_size=5, mode=mode, retry=5)
    queue.add_group("default")
    queue.push_many([Draft("m", "a", key="k"), Draft("m", "b", key="k"), Draft("m", "c")])
    queue.push("delayed", delay=500)
    held, failing = queue.take_many(2)
    failing.nack()
    held.extend(1000)
    clock.advance(30)
    queue.push("young")
    assert len(queue) == 5
    with pytest.raises(QueueFull):
        queue.push("too many")
    clock.advance(30)
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.in_flight) == (1, 0, 1) and stats.oldest_age == 30
    assert len(queue) == 2 and [event.payload for event in queue] == ["a", "young"]
    assert [event.payload for event in queue.peek(9)] == ["young"]
    assert queue.move(journal.queue("elsewhere"), where=lambda event: event.payload != "young") == 0
    assert queue.discard([1, 2, 3, 4]) == 0
    queue.push_many(["x", "y", "z"])
    with pytest.raises(QueueFull):
        queue.push("too many")
    held.ack()
    assert drain(queue) == ["young", "x", "y", "z"] and len(queue) == 0


def test_housekeeping_gives_up_what_has_outlived_its_time(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", ttl=60, dead_letter="grave")
    queue.push_many([Draft("m", number, key="k") for number in range(100)])
    queue.push("later", delay=500)
    held = queue.take(lease=1000)
    clock.advance(60)
    journal.maintain()
    assert held is not None and [event.payload for event in queue] == [0]
    letters = [event.payload for event in journal.queue("grave")]
    assert len(letters) == 100 and {*letters} == {*range(1, 100), "later"}
    held.ack()
    journal.maintain()
    assert len(journal.topic("jobs")) == 0


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_events_past_their_age_are_gone_for_every_reader(journal: Journal, clock: ManualClock, reopen: Reopen) -> None:
    topic = journal.topic("orders")
    topic.configure(max_age=100)
    old = topic.append("made", 1, key="a", correlation="c")
    clock.advance(50)
    topic.append_many([Draft("made", 2, key="a"), Draft("made", 3, key="b")])
    clock.advance(51)
    for _ in range(2):
        assert [event.payload for event in topic.read()] == [2, 3] == [event.payload for event in topic.read(1)]
        assert [event.payload for event in topic.read(reverse=True)] == [3, 2]
        assert [event.payload for event in topic.read(key="a")] == [2]
        assert topic.get(1) is None and topic.find(old.id) is None and topic.oldest == 2 and len(topic) == 2
        assert topic.latest == 3 and topic.subscribe().next(0).seq == 2  # type: ignore[union-attr]
        with journal.transaction() as tx:
            assert [event.payload for event in tx.read("orders")] == [2, 3]
        topic = reopen(topic.journal).topic("orders")
        journal = topic.journal
    clock.advance(50)
    assert list(topic.read()) == [] and len(topic) == 0 and topic.oldest == 0
    assert topic.position_of("a") == 0
    assert topic.append("made", 4, key="a", expect=0).seq == 4
    assert topic.position_of("a") == 4 and [event.payload for event in topic.read()] == [4]


def test_events_past_their_age_are_removed_from_a_quiet_topic(
    journal: Journal, clock: ManualClock, reopen: Reopen
) -> None:
    topic = journal.topic("orders")
    topic.configure(max_age=100)
    topic.append("made", 1)
    journal = reopen(journal)

    assert stored(journal, "orders") == 1
    clock.advance(131)
    eventually(lambda: stored(journal, "orders") == 0, "a topic nobody appends to is looked at all the same")


def test_a_position_too_old_to_be_read_is_said_to_be(journal: Journal, clock: ManualClock) -> None:
    topic = journal.topic("orders")
    topic.configure(max_age=100)
    topic.append_many([Draft("made", number) for number in range(3)])
    clock.advance(60)
    topic.append("made", 3)
    clock.advance(60)
    with pytest.raises(PositionTrimmed) as error:
        list(topic.read(1))
    assert error.value.oldest == 4
    topic.configure(max_age=None)
    assert len(list(topic.read())) in (1, 4)
