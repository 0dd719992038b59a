"""Cursors: how far each named consumer has come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import DEADLINE, on

from penstock import Draft, Journal, ManualClock, Topic
from penstock.errors import ConfigError, InvalidName

Reopen = Callable[[Journal], Journal]


@pytest.fixture
def ten(topic: Topic) -> Topic:
    topic.append_many([Draft("k", n) for n in range(10)])
    return topic


def test_a_cursor_cannot_pass_the_end(ten: Topic) -> None:
    for move in (ten.commit, ten.seek):
        with pytest.raises(ConfigError, match="ends at 10"):
            move("c", 11)
        with pytest.raises(ConfigError):
            move("c", 2**63)
    assert ten.cursor("c") is None
    with pytest.raises(ConfigError):
        ten.journal.topic("empty").commit("c", 1)
    ten.journal.topic("empty").commit("c", 0)
    assert ten.journal.topic("empty").cursor("c") == 0


NAMES = ["a", "a/b", "a_b", " inner and outer ", "ünïcödé", "\0", "..", "x__y", "é" * 200, "🎉"]


def test_any_text_that_is_not_blank_names_a_consumer_of_its_own(ten: Topic, reopen: Reopen) -> None:
    for at, name in enumerate(NAMES):
        ten.commit(name, at)
    topic = reopen(ten.journal).topic("orders")
    assert topic.cursors() == {name: at for at, name in enumerate(NAMES)}
    assert [topic.cursor(name) for name in NAMES] == list(range(len(NAMES)))


@pytest.mark.parametrize(
    "name", ["", " ", "\t\n", None, 5, b"c", "\ud800", "x" * 401], ids=lambda name: repr(name)[:20]
)
@on("memory")
def test_a_bad_consumer_name_is_refused(ten: Topic, name: Any) -> None:
    uses: list[Callable[[], Any]] = [
        lambda: ten.commit(name, 1),
        lambda: ten.seek(name, 1),
        lambda: ten.cursor(name),
        lambda: ten.lag(name),
        lambda: ten.forget(name),
        lambda: ten.worker(name, print),
    ]
    for use in uses:
        with pytest.raises(InvalidName):
            use()
    assert ten.cursors() == {}


@pytest.mark.parametrize("seq", [-1, "1", 1.0, None, True])
@on("memory")
def test_a_bad_position_is_refused(ten: Topic, seq: Any) -> None:
    with pytest.raises(ConfigError):
        ten.commit("c", seq)
    with pytest.raises(ConfigError):
        ten.seek("c", seq)


def test_many_threads_moving_one_cursor_leave_it_at_the_highest(
    ten: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    threads = [in_threads(lambda at=at: [ten.commit("c", (at + n) % 10 + 1) for n in range(10)]) for at in range(8)]
    for thread in threads:
        thread.join(DEADLINE)
    assert ten.cursor("c") == 10


def test_a_cursor_knows_when_it_last_moved(journal: Journal, clock: ManualClock) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("k")] * 3)
    topic.commit("c", 1)
    first = topic.consumers()[0].moved_at
    assert first is not None and first.timestamp() * 1000 == clock.now_ms()
    clock.advance(60)
    topic.commit("c", 1)
    assert topic.consumers()[0].moved_at == first, "a commit of the same position moves nothing"
    topic.seek("c", 0)
    [found] = topic.consumers()
    assert (found.name, found.position, found.lag) == ("c", 0, 3) and found.moved_at is not None
    assert (found.moved_at - first).total_seconds() == 60
