"""What is not settled can be seen, message by message, and a delayed one can be run now."""

from __future__ import annotations

import pytest

from penstock import Journal, ManualClock, Queue, QueueMessage, Retry
from penstock.errors import ConfigError


def states(queue: Queue, **options: object) -> list[tuple[int, str]]:
    return [(one.seq, one.state) for one in queue.messages(**options)]  # type: ignore[arg-type]


def one_of(queue: Queue, seq: int) -> QueueMessage:
    [found] = [one for one in queue.messages() if one.seq == seq]
    return found


def test_every_state_is_listed_with_what_is_known(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", retry=Retry.fixed(60), lease=30)
    queue.push("held", max_attempts=7)
    queue.push("fails", max_attempts=1)
    queue.push("retried")
    queue.push("later", delay=3600)
    queue.push("plain")
    held, fails, retried = queue.take_many(3, consumer="ada")
    fails.nack(error="ValueError: no")
    retried.nack(error="OSError: gone")
    assert states(queue) == [(1, "in_flight"), (2, "failed"), (3, "delayed"), (4, "delayed"), (5, "ready")]
    for state in ("ready", "delayed", "in_flight", "failed"):
        assert states(queue, state=state) == [pair for pair in states(queue) if pair[1] == state]
    first = one_of(queue, 1)
    assert (first.attempts, first.max_attempts, first.consumer, first.group) == (1, 7, "ada", "default")
    assert first.deadline == held.deadline and first.event.payload == "held"
    second, third = one_of(queue, 2), one_of(queue, 3)
    assert (second.attempts, second.error, second.due) == (1, "ValueError: no", None)
    assert (third.error, third.attempts, third.max_attempts) == ("OSError: gone", 1, 3)
    assert third.due is not None and third.due.timestamp() * 1000 == clock.now_ms() + 60_000
    clock.advance(61)
    assert one_of(queue, 3).state == "ready" and one_of(queue, 1).state == "delayed", "its lease ended 31 s ago"
    held.ack()
    assert queue.stats().ready == len(queue.messages("ready")) and queue.stats().delayed == 1


def test_priorities_and_blocked_keys_are_shown(journal: Journal) -> None:
    ranked = journal.queue("ranked", priority=True)
    ranked.push("low")
    ranked.push("high", priority=9)
    assert [(one.seq, one.priority) for one in ranked.messages("ready")] == [(1, 0), (2, 9)]
    keyed = journal.queue("keyed")
    keyed.push_many(range(200), key="a")
    keyed.push("free", key="b")
    first, second = keyed.take(), keyed.take()
    assert first is not None and second is not None and second.key == "b"
    found = keyed.messages(limit=1_000)
    assert [one.seq for one in found] == list(range(1, 202))
    assert [one.blocked for one in found] == [False, *[True] * 199, False]
    assert [one.seq for one in keyed.messages("ready", after=100, limit=2)] == [101, 102]
    paired = journal.queue("paired", max_in_flight_per_key=2)
    paired.push_many(range(3), key="a")
    for blocked in (False, True):  # with one and with two of its key in flight
        assert paired.take() is not None and paired.messages()[-1].blocked is blocked


def test_in_fanout_each_group_has_its_own_entry(journal: Journal, clock: ManualClock) -> None:
    news = journal.queue("news", mode="fanout")
    news.add_group("mail")
    news.add_group("search")
    news.push("a")
    news.push("b", delay=50)
    delivery = news.take(group="mail")
    assert delivery is not None
    assert [(one.seq, one.group, one.state) for one in news.messages()] == [
        (1, "mail", "in_flight"),
        (1, "search", "ready"),
        (2, "mail", "delayed"),
        (2, "search", "delayed"),
    ]
    assert [(one.seq, one.group) for one in news.messages(limit=1)] == [(1, "mail"), (1, "search")]
    assert [(one.group, one.state) for one in news.messages(group="search")] == [
        ("search", "ready"),
        ("search", "delayed"),
    ]
    delivery.ack()
    assert [(one.seq, one.group) for one in news.messages("ready")] == [(1, "search")]
    with pytest.raises(ConfigError, match="no group 'typo'"):
        news.messages(group="typo")
    clock.advance(50)
    assert states(news, state="delayed") == []


def test_a_delayed_message_runs_now(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", retry=Retry.fixed(60))
    queue.push("a", delay=100)
    queue.push("b")
    tried = queue.take()
    assert tried is not None and tried.payload == "b"
    tried.nack(error="no")
    queue.push("c", delay=100)
    assert queue.take() is None
    assert queue.run_now([1, 1, 2, 99]) == 2 and queue.run_now([1, 2]) == 0
    assert [(one.payload, one.attempt) for one in queue.take_many(5)] == [("a", 1), ("b", 2)]
    assert states(queue, state="delayed") == [(3, "delayed")]


def test_a_delayed_message_of_a_fanout_queue_runs_now_for_one_group_or_for_all(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout", priority=True)
    news.add_group("mail")
    news.add_group("search")
    news.push("later", delay=100, priority=4)
    assert news.run_now([1], group="mail") == 1
    assert news.take(group="search") is None
    found = news.take(group="mail")
    assert found is not None
    assert news.run_now([1]) == 1
    assert news.take(group="search") is not None and news.take(group="mail") is None
    news.add_group("late")
    assert [one.priority for one in news.messages(group="late")] == [4]


def test_a_traceback_is_listed_with_the_error(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=2)
    queue.push("x")
    for state in ("ready", "failed"):
        delivery = queue.take()
        assert delivery is not None
        try:
            raise ValueError("no such mailbox")
        except ValueError as error:
            delivery.nack(error=error)
        [found] = queue.messages()
        assert (found.state, found.error) == (state, "ValueError: no such mailbox")
        assert found.traceback is not None and "test_a_traceback_is_listed" in found.traceback
