"""The circuit breaker of a group: opens, tries one message, closes; for every process, and visibly."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import penstock
from penstock import Journal, ManualClock, Queue
from penstock.errors import ConfigError

Start = Callable[..., threading.Thread]


def fail(queue: Queue, count: int, **options: str) -> None:
    for delivery in queue.take_many(count, **options):
        delivery.nack(error="down", delay=0)


@pytest.fixture
def queue(journal: Journal) -> Queue:
    made = journal.queue("calls", breaker="3/10s", breaker_pause=30, max_attempts=100, lease=1000)
    made.push_many(range(10))
    return made


def test_it_opens_after_so_many_failures_and_one_message_is_tried_after_the_pause(
    queue: Queue, clock: ManualClock
) -> None:
    assert queue.stats().breaker == "closed"
    fail(queue, 2)
    assert queue.stats().breaker == "closed"
    fail(queue, 1)
    assert queue.stats().breaker == "open"
    assert queue.take_many(10) == []
    clock.advance(29.999)
    assert queue.take() is None
    clock.advance(0.001)
    assert queue.stats().breaker == "half-open"
    (probe,) = queue.take_many(10)
    assert queue.take() is None
    probe.ack()
    assert queue.stats().breaker == "closed"
    assert len(queue.take_many(10)) == 9


def test_removing_the_breaker_lets_everything_through(queue: Queue) -> None:
    fail(queue, 3)
    queue.configure(breaker=None)
    assert queue.stats().breaker is None
    assert len(queue.take_many(20)) == 10


def test_it_is_in_the_log_and_in_the_metrics(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    fail(queue, 3)
    assert "opens after 3 failures" in caplog.text
    queue.stats()
    text = penstock.metrics.REGISTRY.prometheus_text()
    assert 'penstock_queue_breaker_open{queue="calls",group="default"} 1' in text


def test_a_breaker_that_makes_no_sense_is_refused(journal: Journal) -> None:
    for policy in ({"breaker": "often"}, {"breaker": 5}, {"breaker": "1/s", "breaker_pause": 0}):
        with pytest.raises(ConfigError, match="breaker"):
            journal.queue("calls", **policy)


def test_a_breaker_that_was_taken_away_begins_closed(queue: Queue) -> None:
    fail(queue, 3)
    assert queue.stats().breaker == "open"
    queue.configure(breaker=None)
    assert queue.stats().breaker is None
    assert queue.take().payload == 0
    queue.configure(breaker="3/10s")
    assert queue.stats().breaker == "closed"
    assert queue.take().payload == 1


def test_it_opens_again_when_the_message_that_is_tried_fails(queue: Queue, clock: ManualClock) -> None:
    fail(queue, 3)
    clock.advance(30)
    fail(queue, 10)
    assert queue.stats().breaker == "open"
    clock.advance(30)
    probe = queue.take()
    clock.advance(1000)  # its lease ends: that is a failure too
    assert queue.take() is None
    assert queue.stats().breaker == "open"
    assert probe is not None


def test_another_message_is_tried_when_the_first_was_given_back_or_purged(queue: Queue, clock: ManualClock) -> None:
    fail(queue, 3)
    clock.advance(30)
    queue.take().release()
    probe = queue.take()
    assert probe is not None and queue.take() is None
    queue.purge()
    queue.push("new")
    again = queue.take()
    assert again is not None
    queue.ack_many([again])
    assert queue.stats().breaker == "closed"
