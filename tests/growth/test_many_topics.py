"""Reading several topics costs what is read, however many topics there are. Counted, not timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import penstock
from growth.counting import Counter
from growth.world import in_memory
from penstock import Journal
from penstock.core.engine.memory import MemoryEngine

EVENTS = 2_000
FEW, MANY = 10, 500


def test_no_scan_stays_open_between_the_topics_of_a_read() -> None:
    with topics(MANY) as journal, patch.object(MemoryEngine, "read", watched(MemoryEngine.read)):
        found = journal.read()
        assert next(found).payload == 0 and Watched.open == 0
        assert len(list(found)) == EVENTS - 1 and Watched.most <= 2


def test_a_topic_is_opened_a_few_times_however_often_its_turn_comes() -> None:
    read, followed = (costs(count) for count in (FEW, MANY))
    for few, many in zip(read, followed, strict=True):
        assert many <= 3 * few + 12 * MANY, f"{few} engine calls and rows with {FEW} topics, {many} with {MANY}"


def costs(count: int) -> tuple[int, int]:
    """The engine calls and rows of reading, and of following, the same events in so many topics."""
    counter = Counter()
    with topics(count) as journal, counter.counting():
        assert [event.payload for event in journal.read()] == list(range(EVENTS))
        read = counter.calls + counter.rows
        with journal.subscribe() as events:
            assert [event and event.payload for event in (events.next(0) for _ in range(EVENTS))] == list(range(EVENTS))
            assert events.next(0) is None
    return read, counter.calls + counter.rows - read


def topics(count: int) -> Journal:
    """A journal with the same events, one commit each, in turn in so many topics."""
    journal = penstock.open(in_memory())
    for number in range(EVENTS):
        journal.topic(f"topic {number % count}".replace(" ", ".")).append("placed", number)
    return journal


class Watched:
    """A snapshot that knows how many of its scans are open."""

    open = most = 0

    def __init__(self, snap: Any) -> None:
        self._snap = snap

    def __enter__(self) -> Watched:
        self._snap.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._snap.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._snap, name)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        Watched.open += 1
        Watched.most = max(Watched.most, Watched.open)
        try:
            yield from self._snap.scan(start, stop, reverse=reverse)
        finally:
            Watched.open -= 1


def watched(read: Any) -> Any:
    return lambda engine: Watched(read(engine))
