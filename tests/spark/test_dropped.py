"""A topic that is dropped and made anew while Spark reads it: who had read all goes on, others hear what they lost.

The data source's own classes are asked, as Spark's Python workers ask them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from since import needs_limits
from without_spark import Stream, seqs

import penstock
from penstock import Draft
from penstock.errors import PositionTrimmed, StorageError
from penstock.server.api import bulk as served_blocks
from penstock.spark import journals
from penstock.spark import rows as spark_rows
from penstock.spark import served as served_journal_module
from penstock.spark.journals import LocalSource, reading
from penstock.spark.options import JournalLocation
from penstock.spark.source import PenstockSource
from server.serving import serving

COLUMNS = StructType().add("seq", "long").add("kind", "string")


@pytest.fixture
def journal(url: str) -> Iterator[penstock.Journal]:
    with penstock.open(url, durability="process") as journal:
        fill(journal, 60)
        yield journal


def fill(journal: penstock.Journal, count: int, topic: str = "orders") -> None:
    for _ in range(count // 10):
        journal.topic(topic).append_many([Draft("placed", "x" * 40) for _ in range(10)])


def make_anew(journal: penstock.Journal, topic: str = "orders") -> None:
    """Its hundred events begin after the sixty of the one that is dropped."""
    journal.drop_topic(topic, force=True)
    fill(journal, 100, topic)


def batch(place: Mapping[str, str], **options: str) -> Any:
    return PenstockSource({**place, "topic": "orders", **options}).reader(COLUMNS)


def stream(place: Mapping[str, str], *offsets: dict[str, int], **options: Any) -> Stream:
    return Stream(place, list(offsets), **{"topic": "orders", **options})


def positions(batches: Iterator[Any]) -> list[int]:
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("anew", [True, False])
def test_tasks_of_a_batch_say_what_was_dropped_before_they_read_it(
    place: dict[str, str], journal: penstock.Journal, anew: bool
) -> None:
    reader, lenient = batch(place, minPartitions="2"), batch(place, failOnDataLoss="false")
    first, second = reader.partitions()
    assert positions(reader.read(first)) == list(range(1, 31))
    make_anew(journal) if anew else journal.drop_topic("orders")
    with pytest.raises(PositionTrimmed, match=r"31 to 60.* Set failOnDataLoss=false to go on without them") as raised:
        positions(reader.read(second))
    assert raised.value.oldest == 61
    assert positions(lenient.read(second)) == []
    if anew:
        assert positions(rows for share in reader.partitions() for rows in reader.read(share)) == list(range(61, 161))


@pytest.mark.parametrize("anew", [True, False])
def test_a_task_that_fetches_in_pieces_reads_nothing_of_the_next_topic(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    small_answers(monkeypatch)
    reader, lenient = batch(place), batch(place, failOnDataLoss="false")
    [share] = reader.partitions()
    strict, rest = reader.read(share), lenient.read(share)
    for rows in (strict, rest):
        assert next(rows).column("seq").to_pylist() == list(range(1, 11))
    make_anew(journal) if anew else journal.drop_topic("orders")
    with pytest.raises(PositionTrimmed):
        positions(strict)
    assert positions(rest) in ([], list(range(11, 21))), "what was asked for ahead"


def test_blocks_that_are_merged_between_two_pieces_are_read_once(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_answers(monkeypatch)
    reader = batch(place)
    [share] = reader.partitions()
    batches = reader.read(share)
    found = next(batches).column("seq").to_pylist()
    journal.maintain()
    assert found + positions(batches) == list(range(1, 61))


def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block at a time, and one answer of the server asked for ahead."""
    monkeypatch.setattr(journals, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(served_blocks, "BLOCKS_BYTES", 1)
    monkeypatch.setattr(spark_rows, "_SMALL_BATCH_BYTES", 1)


def test_a_topic_that_is_made_anew_while_a_server_is_asked_for_a_plan_is_not_read_in_its_place(
    journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(journal) as served:
        planned = served_journal_module.ServedJournal.ends

        def then_dropped(self: Any, names: Any) -> Any:
            found = planned(self, names)
            make_anew(journal)
            return found

        monkeypatch.setattr(served_journal_module.ServedJournal, "ends", then_dropped)
        reader = batch({"url": served.url}, minPartitions="2")
        with pytest.raises(PositionTrimmed):
            positions(rows for share in reader.partitions() for rows in reader.read(share))


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_stream_that_had_read_all_of_a_topic_goes_on_in_the_one_made_anew(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    running = stream(place, consumer="billing")
    assert len(running.rows()) == 60
    make_anew(journal)
    for again in (stream(place, *running.checkpoint), running):
        assert seqs(again.rows()) == list(range(61, 161))
    assert journal.topic("orders").cursor("billing") == 160


@needs_limits
def test_a_stream_that_was_behind_has_lost_events(place: dict[str, str], journal: penstock.Journal) -> None:
    running = stream(place, maxOffsetsPerTrigger=20)
    assert len(running.batch() or ()) == 20
    [begin] = running.checkpoint
    make_anew(journal)
    for again in (stream(place, begin), stream(place, begin, available_now=True), running):
        with pytest.raises(PositionTrimmed, match="events 21 to"):
            again.batches()
    assert seqs(stream(place, begin, failOnDataLoss="false").rows()) == list(range(61, 161))


def test_the_target_of_available_now_stays_that_of_the_topic_it_was_set_in(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    running = stream(place, {"orders": 60}, available_now=True)
    behind = stream(place, {"orders": 0}, available_now=True)
    make_anew(journal)
    assert running.batches() == [], "the next run reads it"
    with pytest.raises(PositionTrimmed):
        behind.batches()


def test_a_topic_of_a_pattern_that_is_dropped_before_its_batch_is_planned_is_not_left_out(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    fill(journal, 10, "orders-old")
    reader = PenstockSource({**place, "topicPattern": "orders.*"}).streamReader(COLUMNS)
    start = reader.initialOffset()
    end = reader.end_after(start, limited=reader.limited)
    journal.drop_topic("orders-old")
    with pytest.raises(PositionTrimmed, match="'orders-old' was dropped before this query had read its events 1 to 10"):
        reader.partitions(start, end)
    lenient = PenstockSource({**place, "topicPattern": "orders.*", "failOnDataLoss": "false"}).streamReader(COLUMNS)
    for shares in (lenient.partitions(start, end), reader.partitions(start, {**end, "orders-old": 0})):
        assert [each.topic for share in shares for each in share.ranges] == ["orders"]


@needs_limits
def test_a_topic_that_a_pattern_meets_only_now_begins_after_those_that_were_dropped_before(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    fill(journal, 30, "orders-eu")
    journal.drop_topic("orders-eu")
    running = Stream(place, topicPattern="orders.*", maxOffsetsPerTrigger=25)
    assert len(running.rows()) == 60
    fill(journal, 50, "orders-eu")
    assert [len(rows) for rows in running.batches()] == [25, 25]
    assert running.checkpoint[-1] == {"orders": 60, "orders-eu": 80}


# ── readers that are behind ──────────────────────────────────────────────────────────────────────────────────────────
class Behind:
    """An engine as a reader of a bucket: it shows an old state until it was told some times that there is a newer."""

    scheme = "s3"

    def __init__(self, engine: Any, words: int) -> None:
        self.old = engine.read()
        self._engine = engine
        self._words = words

    def read(self) -> AbstractContextManager[Any]:
        return nullcontext(self.old) if self._words else self._engine.read()

    def catch_up(self) -> None:
        self._words -= 1


@pytest.fixture
def behind(
    journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], LocalSource]]:
    monkeypatch.setattr(journals, "_BEHIND_PAUSE", 0)
    url = f"sqlite:{tmp_path / 'shop.db'}"
    held = []

    def behind(words: int) -> LocalSource:
        place = LocalSource(reading(url), JournalLocation(url))
        late: Any = Behind(place._engine, words)
        held.append(late.old)
        place._engine = late
        return place

    yield behind
    for one in held:
        one.close()


def fetched(place: LocalSource, after: int, through: int) -> list[int]:
    found = (block for some in place.blocks("orders", after, through, strict=True) for block in some)
    return [seq for block in found for seq in block.seqs if after < seq <= through]


@pytest.mark.parametrize("after", [30, 60])
def test_a_task_waits_until_it_sees_what_was_planned(
    journal: penstock.Journal, behind: Callable[[int], LocalSource], after: int
) -> None:
    """It took the end of what it saw for the end of its share, and left the rest out."""
    place = behind(3)
    fill(journal, 40)
    assert fetched(place, after, 100) == list(range(after + 1, 101))


def test_a_task_that_sees_the_topic_before_waits_for_the_one_that_was_planned(
    journal: penstock.Journal, behind: Callable[[int], LocalSource]
) -> None:
    place = behind(3)
    make_anew(journal)
    assert fetched(place, 60, 160) == list(range(61, 161))


def test_a_task_that_is_behind_for_long_says_so(
    journal: penstock.Journal, behind: Callable[[int], LocalSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_BEHIND_SECONDS", 0)
    place = behind(10**9)
    fill(journal, 40)
    with pytest.raises(StorageError, match="'orders' is not there as far as it was planned; try again") as raised:
        fetched(place, 60, 100)
    assert raised.value.retryable
