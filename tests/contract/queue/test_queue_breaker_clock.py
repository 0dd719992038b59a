"""A circuit breaker beside a clock that is set back, and beside a pause that is made shorter."""

from __future__ import annotations

from penstock import Journal, ManualClock, Queue


def opened(journal: Journal) -> Queue:
    queue = journal.queue("calls", breaker="1/10s", breaker_pause=3600, max_attempts=100)
    queue.push_many(range(3))
    queue.take().nack(error="down")  # type: ignore[union-attr]
    assert queue.stats().breaker == "open" and queue.take() is None
    return queue


def test_a_clock_that_was_set_back_does_not_keep_it_open_for_longer(journal: Journal, clock: ManualClock) -> None:
    queue = opened(journal)
    clock.advance(-86_400)
    assert queue.take() is None
    clock.advance(3599)
    assert queue.take() is None
    clock.advance(1)
    delivery = queue.take()
    assert delivery is not None
    delivery.ack()
    assert queue.stats().breaker == "closed"


def test_a_shorter_pause_holds_for_one_that_is_open(journal: Journal, clock: ManualClock) -> None:
    queue = opened(journal)
    queue.configure(breaker_pause=5)
    assert queue.take() is None
    clock.advance(5)
    assert queue.stats().breaker == "half-open"
    assert queue.take() is not None
