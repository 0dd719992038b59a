"""Pausing a queue or a group: nothing is handed out meanwhile, by any process, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

import pytest
from journals import DEADLINE, Place, eventually, only

import penstock
from penstock import Journal
from penstock.errors import ConfigError

Start = Callable[..., threading.Thread]


def test_only_a_group_that_is_there_can_be_paused(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout")
    with pytest.raises(ConfigError, match="no group 'mail'"):
        news.pause(group="mail")
    jobs = journal.queue("jobs")
    with pytest.raises(ConfigError, match="default"):
        jobs.pause(group="typo")
    assert jobs.pause(group="default") and jobs.take() is None
    assert not jobs.resume(group="typo")


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
