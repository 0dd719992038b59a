"""Rebuilds of states: every entity is folded anew, beside other rebuilds, projections and a topic that is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from journals import on
from test_entity_projections import Total, deposit, saved

from penstock import Draft, Journal, Projection, Topic
from penstock import on as handles
from penstock.core.entity import states
from penstock.core.entity import states as rebuilding
from penstock.errors import ConfigError, PositionTrimmed, UnknownTopic


@pytest.mark.parametrize("room", [1000, 3])
def test_a_rebuild_folds_every_entity_and_reports_progress(
    journal: Journal, topic: Topic, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "_STATES_IN_MEMORY", room)
    for number in range(200):
        topic.append("deposited", {"amount": number}, key=f"k{number % 10}")
    topic.append("deposited", {"amount": 5})
    told: list[tuple[int, int]] = []
    report = topic.rebuild(Total, progress=lambda done, total: told.append((done, total)))
    assert (report.entities, report.events, report.through) == (10, 201, 201)
    assert told[-1] == (201, 201)
    assert len(saved(journal)) == 10
    for number in range(10):
        assert topic.project(Total, f"k{number}", freshness="cached") == Total.fold(topic.read(key=f"k{number}"))
    assert topic.rebuild(Total, whole=True).entities == 1
    assert topic.project(Total, freshness="cached") == Total(199 * 100 + 5)


def test_a_rebuild_removes_the_states_of_other_versions(journal: Journal, topic: Topic) -> None:
    class Old(Projection, name="sum", version=1):
        value: int = 0

        @handles("deposited")
        def add(self, payload: Any) -> None:
            self.value += 1

    class New(Old, name="sum", version=3):
        pass

    deposit(topic, "a", 200)
    topic.project(Old, "a")
    journal.flush()
    topic.rebuild(New)
    assert len(saved(journal)) == 1
    assert topic.project(New, "a") == New(200)


def test_a_rebuild_of_nothing_is_nothing(topic: Topic) -> None:
    assert topic.rebuild(Total).entities == 0


@pytest.fixture
def crowded(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Two entities with three events each, in a block of its own each; a rebuild has room for one state."""
    monkeypatch.setattr(rebuilding, "_STATES_IN_MEMORY", 1)
    for number in range(3):
        for key in "ab":
            topic.append("placed", {"n": number, "filler": "x" * 2_000_000}, key=key)
    return topic


class Counting(Projection):
    """Counts; a test may have something done when a rebuild comes to a position."""

    total: int = 0

    @handles("placed")
    def add(self, event: Any) -> None:
        act = ACTS.pop(event.seq, None)
        if act is not None:
            act()
        self.total += 1


ACTS: dict[int, Callable[[], object]] = {}


def killed() -> None:
    raise RuntimeError("killed here")


@on("memory", "sqlite")
def test_a_rebuild_does_not_go_on_with_older_states_of_another_one(crowded: Topic) -> None:
    def another() -> None:
        ACTS[3] = killed
        with pytest.raises(RuntimeError, match="killed"):
            crowded.rebuild(Counting)

    ACTS[5] = another
    with pytest.raises(ConfigError, match="another rebuild of Counting runs at the same time"):
        crowded.rebuild(Counting)
    assert [crowded.project(Counting, key) for key in "ab"] == [Counting(3)] * 2
    assert crowded.rebuild(Counting).entities == 2
    assert [crowded.project(Counting, key, freshness="cached") for key in "ab"] == [Counting(3)] * 2


@on("memory", "sqlite")
@pytest.mark.parametrize("end", [6, None])
def test_a_rebuild_beside_another_that_is_ahead_is_right(
    crowded: Topic, end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes up is newer than what it left: the events up to there are not folded a second time."""

    def another() -> None:
        if end is None:
            crowded.rebuild(Counting)
        else:
            ACTS[end] = killed
            with pytest.raises(RuntimeError, match="killed"):
                crowded.rebuild(Counting)
        monkeypatch.setattr(rebuilding, "_STATES_IN_MEMORY", 10)  # from now on states stay until the end

    ACTS[3] = another
    assert crowded.rebuild(Counting).entities == 2
    assert [crowded.project(Counting, key, freshness="cached") for key in "ab"] == [Counting(3)] * 2
    assert [crowded.project(Counting, key) for key in "ab"] == [Counting(3)] * 2


@on("memory", "sqlite")
def test_a_rebuild_beside_a_project_that_saves_is_right(
    journal: Journal, crowded: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SAVE_AFTER", 1)

    def projected() -> None:
        crowded.append("placed", {"n": 3}, key="b")
        crowded.project(Counting, "b")
        journal.flush()

    ACTS[5] = projected
    assert crowded.rebuild(Counting).entities == 2
    assert [crowded.project(Counting, key) for key in "ab"] == [Counting(3), Counting(4)]


@on("memory", "sqlite")
@pytest.mark.parametrize("at", [5, 6])
@pytest.mark.parametrize("count", [0, 1])
def test_a_rebuild_of_a_topic_that_is_dropped_says_so(journal: Journal, crowded: Topic, count: int, at: int) -> None:
    """In the middle, and when everything is folded and the last states are to be saved."""

    def dropped() -> None:
        journal.drop_topic("orders")
        if count:
            crowded.append_many([Draft("made anew", key="a")])
        journal.maintain()  # its states are cleared away

    ACTS[at] = dropped
    with pytest.raises(PositionTrimmed if count else UnknownTopic):
        crowded.rebuild(Counting)
    assert crowded.project(Counting, "b") is None
    assert crowded.project(Counting, "a") == (Counting() if count else None)
    assert crowded.rebuild(Counting).entities == count
