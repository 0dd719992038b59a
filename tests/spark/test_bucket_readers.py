"""Spark's processes keep their readers of a bucket: one that is behind sees what others planned or committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import penstock
from buffer.emulator import Emulator
from penstock.core.entity.states import StreamedStates
from penstock.core.journal.sealed.writing import SealTarget
from penstock.core.local.backend import LocalJournal
from penstock.engines.slatedb.engine import SlatedbEngine
from penstock.spark import journals as stores
from penstock.spark.journals import correlations, open_source, reading
from penstock.spark.options import JournalLocation
from penstock.spark.projection.projecting import keeper_of
from penstock.spark.rows import TaskRanges
from penstock.spark.sealing import _SegmentTask
from penstock.spark.source import PenstockSource, StreamReader

COLUMNS = StructType().add("seq", "long").add("payload", "string")


@pytest.fixture
def url(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    yield f"{emulator.bucket()}/shop"
    for slot in list(stores._kept):
        stores._kept.pop(slot).journal.close()


@pytest.fixture
def journal(url: str) -> Iterator[LocalJournal]:
    """The writer's, with three events that this process's reader has seen; it does not look again by itself."""
    opened = penstock.open(url)
    assert isinstance(opened, LocalJournal)
    with opened:
        fill(opened, 3)
        assert reading(url).topic("orders").latest == 3
        fall_behind(url)
        yield opened


def fill(journal: LocalJournal, count: int) -> None:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(count)])


def fall_behind(url: str) -> None:
    engine = reading(url)._engine
    assert isinstance(engine, SlatedbEngine) and engine._follower is not None
    engine._follower._pause = 1000.0


def ranges(found: Any) -> list[tuple[int, int]]:
    assert all(isinstance(one, TaskRanges) for one in found)
    return [span for one in found for each in one.ranges for span in each.spans]


def stream(url: str, **options: str) -> StreamReader:
    reader = PenstockSource({"url": url, "topic": "orders", **options}).streamReader(COLUMNS)
    assert isinstance(reader, StreamReader)
    return reader


@pytest.mark.parametrize(
    ("options", "planned"),
    [({}, (0, 5)), ({"endingOffsets": "5"}, (0, 5)), ({"startingOffsets": "4"}, (4, 5))],
    ids=["all", "to an end", "from a start"],
)
def test_a_batch_reads_what_was_appended_before_it_was_planned(
    url: str, journal: LocalJournal, options: dict[str, str], planned: tuple[int, int]
) -> None:
    """Its end was where the planner's reader saw the topic end, also where a later one was asked for."""
    fill(journal, 2)
    found = PenstockSource({"url": url, "topic": "orders", **options}).reader(COLUMNS).partitions()
    assert ranges(found) == [planned]


def test_a_topic_that_was_just_made_is_there(url: str, journal: LocalJournal) -> None:
    journal.topic("new").append("placed", 1)
    assert ranges(PenstockSource({"url": url, "topic": "new"}).reader(COLUMNS).partitions()) == [(0, 1)]


def test_a_batch_that_is_run_again_has_all_its_rows(url: str, journal: LocalJournal) -> None:
    """Spark gives the offsets of its checkpoint to another process: rows that its reader did not see were left out."""
    fill(journal, 2)
    assert ranges(stream(url).partitions({"orders": 1}, {"orders": 5})) == [(1, 5)]


def test_a_stream_that_goes_on_elsewhere_does_not_take_the_journal_for_an_older_one(
    url: str, journal: LocalJournal
) -> None:
    """It said that the journal is another one, or was restored from a backup."""
    fill(journal, 2)
    reader = stream(url)
    assert reader.end_after({"orders": 5}, limited=False)["orders"] == 5


def test_a_run_over_what_is_available_reads_what_was_appended_before(url: str, journal: LocalJournal) -> None:
    reader = stream(url)
    start = reader.initialOffset()
    fill(journal, 2)
    reader.prepareForTriggerAvailableNow()
    assert reader.end_after(start, limited=False)["orders"] == 5


def test_a_stream_that_waits_asks_the_store_no_more_often(url: str, journal: LocalJournal) -> None:
    reader = stream(url)
    offset = reader.initialOffset()
    engine: Any = reading(url)._engine
    engine._follower._pause = 1000.0
    checks = engine._follower.log_checks
    for _ in range(50):
        offset = reader.end_after(offset, limited=False)
    assert engine._follower.log_checks == checks


def test_an_effect_has_the_correlation_of_a_cause_that_was_just_appended(url: str, journal: LocalJournal) -> None:
    """The task that writes it finds the cause with a reader of its own; it gave the cause's id instead."""
    cause = journal.topic("orders").append("placed", 4, correlation="trip-7")
    found = correlations(JournalLocation(url), pa.array([cause.id]), journal.id)
    assert found.to_pylist() == ["trip-7"]


def test_a_task_seals_what_the_writer_has_just_appended(url: str, journal: LocalJournal, tmp_path: Path) -> None:
    """It said that events are missing, and that the journal is damaged."""
    fill(journal, 2)
    task = _SegmentTask(url, journal.id, SealTarget("orders", str(tmp_path / "lake"), "token"))
    assert task((0, 5)).count == 5


def test_a_projected_stream_knows_the_topic_that_was_just_made(url: str, journal: LocalJournal) -> None:
    keeper, wanted = keeper_of(JournalLocation(url)), StreamedStates("states-new", "Total", 1, "query-1")
    journal.topic("states-new").configure()
    fall_behind(url)
    assert keeper.load(wanted, ["a"]).states == {}


def test_a_kept_reader_of_a_journal_that_was_replaced_is_opened_anew(url: str, journal: LocalJournal) -> None:
    """As one of a file is: queries were planned with the old journal, or told that this machine has another one."""
    engine: Any = journal._engine
    journal.close()
    engine._location.objects.delete([path for path, _ in engine._location.objects.sizes()])
    with penstock.open(url) as second:
        second.topic("orders").append("placed", 1)
        assert reading(url, second.id).id == second.id
        assert open_source(JournalLocation(url), newest=True).id == second.id
        assert ranges(PenstockSource({"url": url, "topic": "orders"}).reader(COLUMNS).partitions()) == [(0, 1)]
