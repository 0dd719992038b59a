"""Pausing a queue or a group: nothing is handed out meanwhile, by any process, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

import pytest
from journals import DEADLINE, Place, eventually, only

import penstock
from penstock import Journal, ManualClock
from penstock.errors import ConfigError

Start = Callable[..., threading.Thread]


def test_a_paused_queue_gives_nothing_until_it_is_resumed(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many([1, 2])
    assert queue.pause() and not queue.pause()
    assert queue.take() is None and queue.take(newest=True) is None and queue.take_many(5) == []
    assert queue.stats().paused and queue.stats().ready == 2 and len(queue) == 2
    assert [event.payload for event in queue.peek(5)] == [1, 2]
    assert [one.group for one in queue.pauses()] == [None]
    assert queue.resume() and not queue.resume()
    assert not queue.stats().paused and queue.pauses() == []
    assert [delivery.payload for delivery in queue.take_many(5)] == [1, 2]


def test_what_is_in_flight_goes_on_and_pushes_are_taken_in(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", lease=30, max_attempts=5)
    queue.push_many([1, 2, 3])
    first, second, third = queue.take_many(3)
    queue.pause()
    first.ack()
    second.nack()
    third.extend(60)
    queue.push(4)
    assert queue.stats().ready == 2 and queue.stats().in_flight == 1
    clock.advance(1_000)
    assert queue.claim(min_idle=0, limit=5) == [] and queue.take() is None
    queue.resume()
    assert sorted((one.payload, one.attempt) for one in queue.take_many(5)) == [(2, 2), (3, 2), (4, 1)]


def test_a_paused_group_stops_alone(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout")
    news.add_group("mail")
    news.add_group("search")
    news.push("hello")
    assert news.pause(group="mail")
    assert news.take(group="mail") is None
    found = news.take(group="search")
    assert found is not None and found.payload == "hello"
    assert news.stats("mail").paused and not news.stats("search").paused
    news.pause()
    assert [one.group for one in news.pauses()] == [None, "mail"]
    news.resume()
    assert news.take(group="mail") is None
    news.resume(group="mail")
    assert news.take(group="mail") is not None


def test_only_a_group_that_is_there_can_be_paused(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout")
    with pytest.raises(ConfigError, match="no group 'mail'"):
        news.pause(group="mail")
    jobs = journal.queue("jobs")
    with pytest.raises(ConfigError, match="default"):
        jobs.pause(group="typo")
    assert jobs.pause(group="default") and jobs.take() is None
    assert not jobs.resume(group="typo")


def test_a_group_that_is_removed_takes_its_pause_with_it(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout")
    news.add_group("mail")
    news.push(1)
    news.pause(group="mail")
    news.remove_group("mail")
    assert news.pauses() == [] and news.take(group="mail") is not None


def test_a_pause_outlives_a_purge_a_change_of_policy_and_a_restart(place: Place) -> None:
    journal = place.open()
    queue = journal.queue("jobs")
    queue.push(1)
    queue.pause()
    queue.purge()
    queue.configure(max_attempts=7)
    assert journal.describe().paused == ["jobs"]
    queue = place.reopen(journal).queue("jobs")
    queue.push(2)
    assert queue.stats().paused and queue.take() is None
    queue.drop()
    again = queue.journal.queue("jobs")
    again.push(3)
    assert not again.stats().paused and again.take() is not None


def test_repairs_work_on_a_paused_queue(journal: Journal) -> None:
    queue, other = journal.queue("jobs", max_attempts=1), journal.queue("other")
    queue.push_many([1, 2, 3])
    failing = queue.take()
    assert failing is not None
    failing.nack()
    queue.pause()
    other.pause()
    assert queue.redrive() == 1 and queue.discard([2]) == 1
    assert queue.move(other) == 2
    assert other.take() is None and len(other) == 2
    other.resume()
    assert sorted(one.payload for one in other.take_many(5)) == [1, 3]


def test_a_worker_stops_taking_and_goes_on(journal: Journal) -> None:
    queue = journal.queue("jobs")
    handled: list[int] = []
    with queue.worker(lambda delivery: handled.append(delivery.payload)):
        queue.push(1)
        eventually(lambda: handled == [1], "the first is handled")
        queue.pause()
        queue.push(2)
        assert queue.stats().ready == 1
        queue.resume()
        eventually(lambda: handled == [1, 2], "the second is handled")


def test_a_resume_wakes_a_waiting_take(journal: Journal, in_threads: Start) -> None:
    queue = journal.queue("jobs")
    queue.push("x")
    queue.pause()
    got = []
    waiting = in_threads(lambda: got.append(queue.take(wait=DEADLINE)))
    eventually(lambda: queue._backend._signal._waiters, "it waits")
    queue.resume()
    waiting.join(DEADLINE)
    assert [one.payload for one in got if one is not None] == ["x"]


def _resume_elsewhere(url: str) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
        assert queue.take() is None and queue.stats().paused
        queue.resume()


@only(shared=True)
def test_a_pause_holds_in_other_processes_and_their_resume_wakes(place: Place, in_threads: Start) -> None:
    queue = place.open().queue("jobs")
    queue.push("x")
    queue.pause()
    got = []
    waiting = in_threads(lambda: got.append(queue.take(wait=DEADLINE)))
    eventually(lambda: queue._backend._signal._waiters, "it waits")
    other = multiprocessing.get_context("spawn").Process(target=_resume_elsewhere, args=(place.url,))
    other.start()
    other.join(DEADLINE)
    assert other.exitcode == 0
    waiting.join(DEADLINE)
    assert [one.payload for one in got if one is not None] == ["x"]
