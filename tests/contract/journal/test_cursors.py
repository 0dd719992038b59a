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


# ── lag: how many events are left to read ──


def left(topic: Topic, consumer: str) -> set[int]:
    """What each way to ask says of a consumer's lag."""
    (one,) = [one for one in topic.consumers() if one.name == consumer]
    return {topic.lag(consumer), topic.left(one.position), one.lag}


def test_positions_of_a_dropped_topic_are_not_left_to_read(ten: Topic) -> None:
    ten.journal.drop_topic(ten.name, force=True)
    again = ten.journal.topic(ten.name)
    again.append_many([Draft("k", n) for n in range(3)])
    again.commit("c", 0)
    assert left(again, "c") == {3} and again.lag("who never came") == 3
    again.commit("c", 12)
    assert left(again, "c") == {1}


def test_removed_and_too_old_events_are_not_left_to_read(ten: Topic, clock: ManualClock) -> None:
    ten.commit("c", 0)
    ten.compact(4, force=True)
    assert left(ten, "c") == {6} and [ten.left(at) for at in (4, 7, 10, 11)] == [6, 3, 0, 0]
    clock.advance(120)
    ten.append("k")
    ten.configure(max_age=60)
    assert left(ten, "c") == {1}


def test_of_a_topic_compacted_by_key_the_events_that_are_left_are_counted(topic: Topic) -> None:
    topic.append_many([Draft("k", n, key=f"key {n % 7}" if n % 10 else f"own {n}") for n in range(500)])
    topic.compact_keys()
    topic.append_many([Draft("k", n, key="key 1") for n in range(20)])
    for position in (0, 1, 100, 480, 499, 510, 520):
        topic.seek("c", position)
        assert left(topic, "c") == {len(list(topic.read(position)))}


def test_a_topic_that_is_not_there_leaves_nothing_to_read(journal: Journal) -> None:
    assert journal.topic("nothing").left(0) == journal.topic("nothing").lag("c") == 0
    with pytest.raises(ConfigError):
        journal.topic("nothing").left(-1)
