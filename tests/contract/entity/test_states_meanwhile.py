"""States of a topic that is dropped and made anew, or whose states another rebuild throws away: never those of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from journals import Place, on, only

from penstock import Draft, Journal, Projection, Topic
from penstock import on as handles
from penstock.engine.contract import Snapshot
from penstock.entity import states
from penstock.entity import states as rebuilding
from penstock.entity.states import StreamedState, StreamedStates, load_streamed, pack_state, save_streamed, states_topic
from penstock.errors import ConfigError, PositionTrimmed, UnknownTopic
from penstock.journal.catalog import TopicRecord, load_record


class Kinds(Projection):
    """Which kinds of events an entity had."""

    seen: list[str] = []

    @handles("placed", "made anew")
    def add(self, event: Any) -> None:
        self.seen.append(event.kind)


def make_anew(journal: Journal, count: int = 1) -> None:
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many([Draft("made anew", key="a") for _ in range(count)])


# ── watching ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("key", ["a", None])
def test_a_watch_goes_on_with_a_topic_made_anew(journal: Journal, topic: Topic, key: str | None) -> None:
    topic.append("placed", key="a")
    with topic.watch(Kinds, key) as watch:
        assert watch.next(0) == Kinds(["placed"]) and watch.next(0) is None
        make_anew(journal)
        assert watch.next(0) == Kinds(["made anew"]) and watch.generation == 2
        assert watch.next(0) is None


@pytest.mark.parametrize("key", ["a", None])
def test_a_state_of_a_dropped_topic_has_changed_in_one_made_anew(
    journal: Journal, topic: Topic, key: str | None
) -> None:
    topic.append("placed", key="a")
    journal.drop_topic("orders")
    topic.configure()
    assert topic.project_if_changed(Kinds, key, 1) == (0, None) and topic.rebuild(Kinds).through == 0
    topic.append("made anew", key="a")
    assert topic.project_if_changed(Kinds, key, 1) == (2, Kinds(["made anew"]))


# ── cached states ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_state_folded_while_its_topic_was_dropped_is_not_cached(journal: Journal, topic: Topic) -> None:
    topic.append("placed", key="a")

    class Slow(Kinds):
        @handles("placed")
        def dropped_here(self, event: Any) -> None:
            make_anew(journal)

    assert topic.project(Slow, "a") == Slow(["placed"])
    for _ in range(2):
        assert topic.project(Slow, "a", freshness="cached") == Slow(["made anew"])
    journal.drop_topic("orders")
    assert topic.project(Slow, "a", freshness="cached") is None


@only(second_open=True)
def test_a_state_of_a_topic_that_another_journal_object_dropped_is_not_cached(place: Place, topic: Topic) -> None:
    other = place.open()
    topic.append("placed", key="a")
    assert topic.project(Kinds, "a") == topic.project(Kinds, "a", freshness="cached") == Kinds(["placed"])
    make_anew(other)
    assert topic.project(Kinds, "a", freshness="cached") == Kinds(["made anew"])
    other.drop_topic("orders")
    assert topic.project(Kinds, "a", freshness="cached") is None


@only(reads_beside_writer=True, on_disk=True)
def test_a_reader_caches_no_state_of_a_dropped_topic(place: Place, journal: Journal, topic: Topic) -> None:
    topic.append("placed", key="a")
    reader = place.open(read_only=True).topic("orders")
    assert reader.project(Kinds, "a") == Kinds(["placed"])
    make_anew(journal)
    assert reader.project(Kinds, "a", freshness="cached") == Kinds(["made anew"])


def test_a_cached_state_asks_which_topic_it_is_only_after_a_commit(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append_many([Draft("placed", key=key) for key in "ab"])
    for key in "ab":
        topic.project(Kinds, key)
    journal.maintain()  # nothing is left to do in the background
    asked: list[str] = []

    def asking(snap: Snapshot, name: str) -> TopicRecord | None:
        asked.append(name)
        return load_record(snap, name)

    monkeypatch.setattr(states, "load_record", asking)
    for _ in range(2):
        for key in "ab" * 10:
            assert topic.project(Kinds, key, freshness="cached") == Kinds(["placed"])
        assert 1 <= len(asked) <= 3, "one of them, but for commits in the background"
        asked.clear()
        topic.append("placed", key="c")


# ── rebuilds ─────────────────────────────────────────────────────────────────────────────────────────────────────────
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
    assert crowded.project(Kinds, "a") == (Kinds(["made anew"]) if count else None)
    assert crowded.rebuild(Counting).entities == count


def test_a_stream_keeps_no_state_of_a_dropped_topic_with_the_one_made_anew(journal: Journal, topic: Topic) -> None:
    topic.append("placed", key="a")
    wanted = StreamedStates("orders", "Kinds", 1, "query")

    def keep(*states: StreamedState) -> None:
        journal._core.run(lambda commit: save_streamed(commit, wanted, states, whole=True))  # type: ignore[attr-defined]

    old = StreamedState("a", Kinds.__projection__.fingerprint, 1, 1, pack_state(Kinds(["placed"])))
    keep(old)
    make_anew(journal)
    with pytest.raises(PositionTrimmed):
        keep(old)
    new = StreamedState("a", Kinds.__projection__.fingerprint, 2, 2, pack_state(Kinds(["made anew"])))
    keep(new)
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        assert load_streamed(snap, states_topic(snap, "orders"), wanted, "a") == new
    assert topic.project(Kinds, "a", freshness="cached") == Kinds(["made anew"])
