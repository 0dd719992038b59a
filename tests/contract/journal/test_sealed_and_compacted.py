"""Sealed history and compaction by key: events are found by id and time across the positions that it has emptied."""

from __future__ import annotations

from pathlib import Path

import pytest
from journals import Place, on, seqs

import penstock
from penstock import Draft, Journal, ManualClock, Topic
from penstock.errors import ConfigError
from penstock.journal.sealed.sealing import seal_topic
from penstock.local.backend import LocalJournal


@pytest.fixture
def lake(place: Place) -> Path:
    return place.folder / "lake"


def seal(journal: Journal, lake: Path, through: int, file_events: int) -> None:
    assert isinstance(journal, LocalJournal)
    seal_topic(journal._core, "orders", lake=str(lake), through=through, file_events=file_events)


def fill(topic: Topic, clock: ManualClock, count: int, keys: dict[int, str], key: str = "a") -> list[str]:
    """One event a second; returns their ids, from position 1 on."""
    ids = []
    for number in range(1, count + 1):
        clock.advance(1)
        ids.append(topic.append("placed", number, key=keys.get(number, key)).id)
    return ids


def check_everything_is_found(topic: Topic, ids: list[str]) -> None:
    """What reading finds, an id and a time find, too; and what it does not, they do not."""
    events = list(topic.read())
    assert topic.oldest == events[0].seq and len(topic) == len(events)
    stored = {event.id: event.seq for event in events}
    for id in ids:
        found = topic.find(id)
        assert (None if found is None else found.seq) == stored.get(id)
    for before, event in zip([0, *seqs(events)], events, strict=False):
        assert topic.position_at(event.recorded_at) == before
        assert seqs(topic.read(since=event.recorded_at))[0] == event.seq


@pytest.mark.parametrize("file_events", [5, 1000])
@on("memory", "sqlite")
def test_positions_emptied_after_the_sealed_ones(
    journal: Journal, topic: Topic, clock: ManualClock, lake: Path, file_events: int
) -> None:
    ids = fill(topic, clock, 60, {50: "b"})
    seal(journal, lake, 20, file_events)
    assert topic.compact_keys() == 38 and seqs(topic.read()) == [*range(1, 21), 50, 60]
    check_everything_is_found(topic, ids)
    assert topic.get(20) is not None and topic.get(35) is None


@pytest.mark.parametrize("file_events", [1, 5, 1000])
@on("memory", "sqlite")
def test_positions_emptied_before_they_were_sealed(
    journal: Journal, topic: Topic, clock: ManualClock, lake: Path, file_events: int
) -> None:
    ids = fill(topic, clock, 60, {5: "e", 6: "f", 31: "g", 48: "h"})
    assert topic.compact_keys() == 55 and seqs(topic.read()) == [5, 6, 31, 48, 60]
    check_everything_is_found(topic, ids)
    seal(journal, lake, 50, file_events)
    check_everything_is_found(topic, ids)
    for through, left in ((5, [6, 31, 48, 60]), (40, [48, 60]), (49, [60])):
        topic.compact(through)
        assert seqs(topic.read()) == left
        check_everything_is_found(topic, ids)


@pytest.mark.parametrize("file_events", [5, 1000])
@on("memory", "sqlite")
def test_reading_goes_on_behind_the_sealed_events_from_every_position(
    journal: Journal, topic: Topic, clock: ManualClock, lake: Path, file_events: int
) -> None:
    fill(topic, clock, 30, {})
    seal(journal, lake, 20, file_events)
    for after in range(31):
        assert seqs(topic.read(after=after)) == list(range(after + 1, 31))
        assert seqs(topic.read(after=after, reverse=True)) == list(range(30, after, -1))


@on("memory", "sqlite")
def test_sealed_events_are_too_old_in_time_where_the_first_positions_are_empty(
    journal: Journal, topic: Topic, clock: ManualClock, lake: Path
) -> None:
    fill(topic, clock, 60, {5: "e", 31: "g"})
    topic.compact_keys()
    seal(journal, lake, 50, 1000)
    topic.configure(max_age=40)
    assert seqs(topic.read()) == [31, 60]
    journal.maintain()
    assert seqs(topic.read()) == [31, 60] and topic.oldest == 31 and len(topic) == 2


@on("memory", "sqlite")
def test_an_effect_finds_its_sealed_cause(journal: Journal, topic: Topic, clock: ManualClock, lake: Path) -> None:
    ids = fill(topic, clock, 60, {5: "e"})
    topic.compact_keys()
    seal(journal, lake, 50, 1000)
    topic.append_many([Draft("paid", cause=ids[4])])
    assert seqs(topic.ancestors(topic.append("sent", cause=ids[4]).id)) == [62, 5]


@on("sqlite")
def test_of_a_journal_and_its_copy_one_seals_into_a_lake(
    journal: Journal, topic: Topic, clock: ManualClock, lake: Path, place: Place
) -> None:
    fill(topic, clock, 30, {})
    seal(journal, lake, 10, 1000)
    journal.backup(place.folder / "copy.db")
    with penstock.open(f"sqlite:{place.folder / 'copy.db'}") as copy:
        seal(copy, lake, 20, 1000)
        with pytest.raises(ConfigError, match=r"copy of this journal .* use another lake"):
            seal(journal, lake, 20, 1000)
        assert seqs(copy.topic("orders").read()) == list(range(1, 31))
    assert seqs(topic.read()) == list(range(1, 31))
