"""A pytest plugin for your own tests: a journal in memory, a clock that the test moves, and helpers.

    def test_an_order_is_confirmed(journal, clock):
        place_order(journal, 1)
        clock.advance(60)
        assert [mail["to"] for mail in drain(journal.queue("mails"))] == ["ada"]

pytest finds the fixtures `journal` and `clock` by itself once penstock is installed; a fixture of the same name in your
own conftest.py takes precedence. Nothing is mocked: `memory:` is the whole journal, in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.core.clock import ManualClock

_MOST = 10_000
"""The messages that `drain` takes before it reports that a handler feeds its own queue without end."""


@pytest.fixture
def clock() -> ManualClock:
    """Returns the journal's clock, which stands still until `clock.advance(seconds)`."""
    return ManualClock()


@pytest.fixture
def journal(clock: ManualClock) -> Iterator[penstock.Journal]:
    """Opens a journal in memory, and closes it at the end of the test."""
    with penstock.open("memory:", clock=clock) as opened:
        yield opened


def drain(
    queue: penstock.Queue, handler: Callable[[penstock.Delivery], object] | None = None, *, group: str = "default"
) -> list[Any]:
    """Takes and acknowledges every ready message, and returns the payloads in the order of delivery.

    With a handler, each delivery first goes to the handler; its errors reach the test, and its message is given back.
    Delayed messages stay: advance the clock first.
    """
    payloads: list[Any] = []
    while (delivery := queue.take(group=group)) is not None:
        with delivery:
            payloads.append(delivery.payload)
            if handler is not None:
                handler(delivery)
        if len(payloads) > _MOST:
            raise AssertionError(f"queue {queue.name!r} is still not empty after {_MOST:,} messages")
    return payloads


def assert_appended(
    topic: penstock.Topic, kind: str, payload: object = ..., *, key: str | None = None
) -> penstock.Event:
    """Fails unless the topic holds an event of this kind (and payload, and key); returns the newest such event."""
    found = [event for event in topic.read(kind=kind) if key is None or event.key == key]
    matching = [event for event in found if payload is ... or event.payload == payload]
    if not matching:
        there = [(event.kind, event.key, event.payload) for event in topic.read()]
        raise AssertionError(f"topic {topic.name!r} holds no {kind!r} like that; it holds {there!r}")
    return matching[-1]


def assert_settled(queue: penstock.Queue) -> None:
    """Fails unless every message was acknowledged: none ready, in flight, waiting or given up."""
    stats = queue.stats()
    if stats.ready or stats.in_flight or stats.delayed or stats.failed:
        raise AssertionError(f"queue {queue.name!r} is not settled: {stats}")
