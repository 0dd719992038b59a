"""Sealed history beside compaction and drops: what is left is found by id and time, and nothing comes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from journals import Place, on, only, payloads, seqs

import penstock
from penstock import Draft, Journal, ManualClock, Topic
from penstock.core.journal.sealed import sealing
from penstock.core.journal.sealed.sealing import Range, seal_topic
from penstock.core.journal.sealed.segments import SealReport, Segment
from penstock.core.journal.sealed.writing import SealTarget, write_segment
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError, UnknownTopic


@pytest.fixture
def lake(place: Place) -> Path:
    return place.folder / "lake"


def local(journal: Journal) -> LocalJournal:
    assert isinstance(journal, LocalJournal)
    return journal


def seal(journal: Journal, lake: Path, through: int = 50, file_events: int = 1000) -> SealReport:
    return seal_topic(local(journal)._core, "orders", lake=str(lake), through=through, file_events=file_events)


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
        with pytest.raises(ConfigError, match=r"copy of this journal.*use another lake"):
            seal(journal, lake, 20, 1000)
        assert seqs(copy.topic("orders").read()) == list(range(1, 31))
    assert seqs(topic.read()) == list(range(1, 31))


Act = Callable[[], object]


def append_numbers(journal: Journal, count: int = 60, key: str | None = None) -> None:
    for number in range(1, count + 1):
        journal.topic("orders").append("placed", number, key=key)


def made_anew(journal: Journal, count: int) -> None:
    journal.drop_topic("orders", force=True)
    if count:
        journal.topic("orders").append_many([Draft("made anew", -number) for number in range(count)])


def before_files(patch: pytest.MonkeyPatch, act: Act) -> None:
    """Does something when the first file is about to be written."""

    def then(*given: object) -> Segment:
        patch.setattr(sealing, "write_segment", write_segment)
        act()
        return write_segment(*given)  # type: ignore[arg-type]

    patch.setattr(sealing, "write_segment", then)


def after_files(patch: pytest.MonkeyPatch, act: Act) -> None:
    """Does something when the first file is written, and about to become history."""
    record = sealing._Sealing._record

    def then(self: sealing._Sealing, segment: Segment) -> None:
        patch.setattr(sealing._Sealing, "_record", record)
        act()
        record(self, segment)

    patch.setattr(sealing._Sealing, "_record", then)


def files(lake: Path) -> list[Path]:
    return list(lake.rglob("*.parquet"))


@pytest.mark.parametrize("moment", [before_files, after_files])
@pytest.mark.parametrize("count", [0, 10])
def test_a_topic_that_is_dropped_while_it_is_sealed_is_said_to_be(
    journal: Journal, lake: Path, monkeypatch: pytest.MonkeyPatch, count: int, moment: Callable[..., None]
) -> None:
    append_numbers(journal)
    moment(monkeypatch, lambda: made_anew(journal, count))
    with pytest.raises(ConfigError if count else UnknownTopic, match="dropped"):
        seal(journal, lake)
    assert files(lake) == [], "no later seal would remove them"
    assert payloads(journal.topic("orders").read()) == [-number for number in range(count)]


@on("memory")
def test_files_of_a_dropped_topic_go_whatever_the_error_was(journal: Journal, lake: Path) -> None:
    """Spark's tasks raise none of our errors."""
    append_numbers(journal)
    core = local(journal)._core

    def write(place: SealTarget, ranges: list[Range]) -> Iterator[Segment]:
        write_segment(core.engine, place, *ranges[0])
        assert files(lake)
        journal.drop_topic("orders")
        raise RuntimeError("a task failed")
        yield

    with pytest.raises(RuntimeError, match="a task failed"):
        seal_topic(core, "orders", lake=str(lake), through=50, write=write)
    assert files(lake) == []


@pytest.mark.parametrize("moment", [before_files, after_files])
def test_a_topic_that_is_compacted_while_it_is_sealed_is_not_corrupt(
    journal: Journal, lake: Path, monkeypatch: pytest.MonkeyPatch, moment: Callable[..., None]
) -> None:
    append_numbers(journal)
    moment(monkeypatch, lambda: journal.topic("orders").compact(20))
    with pytest.raises(ConfigError, match=r"was compacted meanwhile.*: seal it again"):
        seal(journal, lake)
    assert files(lake) == []
    assert seal(journal, lake).events == 30
    assert payloads(journal.topic("orders").read()) == list(range(21, 61))


@pytest.mark.parametrize("moment", [before_files, after_files])
def test_events_that_were_compacted_away_do_not_come_back(
    journal: Journal, lake: Path, monkeypatch: pytest.MonkeyPatch, moment: Callable[..., None]
) -> None:
    topic = journal.topic("orders")
    append_numbers(journal, key="a")
    moment(monkeypatch, topic.compact_keys)
    with pytest.raises(ConfigError, match=r"was compacted meanwhile.*: seal it again"):
        seal(journal, lake)
    assert files(lake) == []
    assert payloads(topic.read()) == [60] and len(topic) == 1
    assert seal(journal, lake).events == 0
    assert seal(journal, lake, through=60).events == 1
    assert payloads(topic.read()) == [60] and len(topic) == 1


@on("memory", "sqlite")
@pytest.mark.parametrize("step", [1, 7, 10, 1000])
def test_positions_that_compaction_by_key_has_emptied_are_sealed_with_the_next_event(
    journal: Journal, lake: Path, step: int
) -> None:
    topic = journal.topic("orders")
    kept = {5: "e", 6: "f", 31: "g", 48: "h"}
    topic.append_many([Draft("placed", number, key=kept.get(number, "a")) for number in range(1, 61)])
    assert topic.compact_keys() == 55 and payloads(topic.read()) == [5, 6, 31, 48, 60]
    report = seal(journal, lake, file_events=step)
    assert report.events == 4 and 48 <= report.through <= 50
    assert payloads(topic.read()) == [5, 6, 31, 48, 60] and len(topic) == 5
    assert [event.seq for event in topic.read(key="g")] == [31]
    append_numbers(journal, 5, key="b")
    assert seal(journal, lake, through=64, file_events=step).events == 5
    assert payloads(topic.read()) == [5, 6, 31, 48, 60, 1, 2, 3, 4, 5] and len(topic) == 10
    seal_topic(local(journal)._core, "orders", lake=str(lake), through=64, compact=True)
    assert topic.get(31) is not None and topic.get(32) is None
    assert payloads(topic.read(reverse=True)) == [5, 4, 3, 2, 1, 60, 48, 31, 6, 5] and topic.verify().unhashed == 10


@only(on_disk=True, shrinks=True)
def test_maintain_gives_the_space_of_sealed_events_back_when_the_seal_did_not(
    place: Place, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.open(durability="process") as journal, monkeypatch.context() as killed:
        for number in range(40):
            drafts = [Draft("placed", random.Random(number * 50 + one).randbytes(2_000)) for one in range(50)]
            journal.topic("orders").append_many(drafts)
        full = journal.describe().size_bytes
        assert full > 3_500_000
        # The process ends before the seal has given anything back.
        killed.setattr(local(journal)._core.engine, "reclaim", lambda: None)
        assert seal(journal, lake, through=1900).events == 1900
        journal.flush()
    with place.open() as journal:
        journal.maintain()
        assert journal.describe().size_bytes < full / 4
        assert seqs(journal.topic("orders").read()) == list(range(1, 2001))
