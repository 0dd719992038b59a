"""A topic that is dropped and made anew while Spark reads it: no rows of two topics, none left out, no cursor moved.

The data source's own classes are asked, as Spark's Python workers ask them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import penstock
from penstock import Draft
from penstock.errors import ConfigError, StorageError, TopicDropped
from penstock.server.bulk import blocks as served_blocks
from penstock.spark.served import journal as served_journal_module
from penstock.spark.source import journals
from penstock.spark.source.journals import LocalSource, open_source
from penstock.spark.source.options import resolved
from penstock.spark.source.place import JournalPlace, place_of
from penstock.spark.source.source import PenstockSource
from penstock.spark.source.stores import reading
from server.serving import serving

COLUMNS = StructType().add("seq", "long").add("kind", "string")
ALL = ReadAllAvailable()


@pytest.fixture
def journal(url: str) -> Iterator[penstock.Journal]:
    with penstock.open(url, durability="process") as journal:
        fill(journal, 60)
        yield journal


def fill(journal: penstock.Journal, count: int, kind: str = "placed", topic: str = "orders") -> None:
    for _ in range(count // 10):
        journal.topic(topic).append_many([Draft(kind, "x" * 40) for _ in range(10)])


def make_anew(journal: penstock.Journal, count: int = 100) -> None:
    journal.drop_topic("orders", force=True)
    fill(journal, count, "made anew")


def source(place: Mapping[str, str], **options: str) -> PenstockSource:
    return PenstockSource({**place, "topic": "orders", **options})


def stream(place: Mapping[str, str], **options: str) -> Any:
    return source(place, **options).streamReader(COLUMNS)


def kinds(batches: Iterator[Any]) -> list[str]:
    return [kind for batch in batches for kind in batch.column("kind").to_pylist()]


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("count", "lenient"), [(100, "true"), (20, "false"), (0, "true")])
def test_tasks_of_a_batch_read_one_topic(
    place: dict[str, str], journal: penstock.Journal, count: int, lenient: str
) -> None:
    reader = source(place, minPartitions="2", failOnDataLoss=lenient).reader(COLUMNS)
    first, second = reader.partitions()
    assert kinds(reader.read(first)) == ["placed"] * 30
    make_anew(journal, count)
    with pytest.raises(
        TopicDropped, match=r"'orders' was dropped after this query was planned: .* Run the query again"
    ):
        kinds(reader.read(second))
    if count:
        assert kinds(batch for share in reader.partitions() for batch in reader.read(share)) == ["made anew"] * count


def test_tasks_of_a_streams_batch_read_one_topic(place: dict[str, str], journal: penstock.Journal) -> None:
    reader = stream(place, minPartitions="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    first, second = reader.partitions(start, end)
    assert kinds(reader.read(first)) == ["placed"] * 30
    make_anew(journal)
    with pytest.raises(TopicDropped, match="start a stream with a new checkpoint"):
        kinds(reader.read(second))
    with pytest.raises(ConfigError, match="dropped and made again since this query read it"):
        reader.partitions(start, end)


def test_a_task_that_fetches_in_pieces_reads_one_topic(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_answers(monkeypatch)
    reader = source(place).reader(COLUMNS)
    [share] = reader.partitions()
    batches = reader.read(share)
    assert kinds(iter([next(batches)])) == ["placed"] * 10
    make_anew(journal)
    with pytest.raises(TopicDropped):
        kinds(batches)


def test_blocks_that_are_merged_between_two_pieces_are_read_once(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_answers(monkeypatch)
    reader = source(place).reader(COLUMNS)
    [share] = reader.partitions()
    batches = reader.read(share)
    seqs = next(batches).column("seq").to_pylist()
    journal.maintain()
    seqs += [seq for batch in batches for seq in batch.column("seq").to_pylist()]
    assert seqs == list(range(1, 61))


def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block at a time, and no answer of the server asked for ahead."""
    monkeypatch.setattr(journals, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(served_blocks, "BLOCKS_BYTES", 1)
    monkeypatch.setattr(served_journal_module, "AHEAD", 1)


def test_a_topic_that_is_dropped_while_it_is_planned_is_said_to_be(
    journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is planned from one snapshot; a server is asked several times."""
    with serving(journal) as served:
        planned = served_journal_module._ServedState.topics

        def then_dropped(self: Any, names: Any) -> Any:
            found = planned(self, names)
            make_anew(journal)
            return found

        monkeypatch.setattr(served_journal_module._ServedState, "topics", then_dropped)
        with pytest.raises(TopicDropped, match="after this query was planned"):
            source({"url": served.url}).reader(COLUMNS).partitions()


def test_a_topic_of_a_pattern_that_is_dropped_before_its_batch_is_planned_is_not_left_out(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    fill(journal, 10, topic="orders-old")
    reader = PenstockSource({**place, "topicPattern": "orders.*"}).streamReader(COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    journal.drop_topic("orders-old")
    with pytest.raises(TopicDropped, match="'orders-old'"):
        reader.partitions(start, end)
    lenient = PenstockSource({**place, "topicPattern": "orders.*", "failOnDataLoss": "false"}).streamReader(COLUMNS)
    assert [share.topic for share in lenient.partitions(start, end)] == ["orders"]
    assert [share.topic for share in reader.partitions(start, {**end, "orders-old": 0})] == ["orders"]


# ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("begins", [{"startingOffsets": "latest"}, {"startingTimestamp": "2100-01-01T00:00:00Z"}])
def test_a_stream_that_has_read_nothing_yet_knows_what_it_left_behind(
    place: dict[str, str], journal: penstock.Journal, begins: dict[str, str]
) -> None:
    reader = stream(place, **begins)
    start = reader.initialOffset()
    assert start["orders"] == 60 and reader.initialOffset() == start
    assert reader.latestOffset(start, ALL) == start, "the checkpoint has it now"
    make_anew(journal)
    for again in (reader, stream(place, **begins)):
        with pytest.raises(ConfigError, match=r"'orders' in .* was dropped and made again since this query read"):
            again.latestOffset(start, ALL)
    lenient = stream(place, failOnDataLoss="false", **begins)
    assert lenient.latestOffset(start, ALL)["orders"] == 100


def test_a_stream_from_the_beginning_of_a_topic_left_nothing_behind(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    reader = stream(place)
    start = reader.initialOffset()
    assert start == {"orders": 0}
    make_anew(journal)
    end = reader.latestOffset(start, ALL)
    rows = kinds(batch for share in reader.partitions(start, end) for batch in reader.read(share))
    assert rows == ["made anew"] * 100
    journal.topic("orders").compact(40)
    assert set(stream(place).initialOffset()) == {"orders", "orders#", "#"}, "forty are behind it"


@pytest.mark.parametrize("count", [30, 100])
def test_available_now_reads_nothing_of_a_topic_made_anew_since(
    place: dict[str, str], journal: penstock.Journal, count: int
) -> None:
    reader = stream(place)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    make_anew(journal, count)
    assert reader.latestOffset(start, ALL) == start, "the next run reads it"
    again = stream(place)
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(start, ALL)["orders"] == count


def test_available_now_stops_where_it_has_read_a_part_of_the_topic_that_is_gone(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    reader = stream(place)
    reader.prepareForTriggerAvailableNow()
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert start["orders"] == 10
    make_anew(journal)
    with pytest.raises(ConfigError, match="dropped and made again"):
        reader.latestOffset(start, ReadMaxRows(10))


def test_numbers_of_another_journal_do_not_stay_in_an_offset(place: dict[str, str], journal: penstock.Journal) -> None:
    """Those of topics that nothing was read of since: with the other journal's mark they would be taken for its own."""
    fill(journal, 10, topic="refunds")
    reader: Any = PenstockSource({**place, "topic": "orders,refunds"}).streamReader(COLUMNS)
    elsewhere = {"orders": 60, "orders#": 77, "refunds": 0, "refunds#": 78, "#": 7}
    end = reader.latestOffset(elsewhere, ALL)
    assert {"orders": 60, "refunds": 10}.items() <= end.items() and "orders#" not in end
    assert reader.latestOffset(end, ALL) == end


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_cursor_of_a_query_stays_where_it_is_in_another_topic(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream(place, consumer="billing")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert journal.topic("orders").cursor("billing") == 0
    check = reader._check_numbers

    def then_dropped(known: Any, now: Any) -> None:
        check(known, now)
        make_anew(journal)

    monkeypatch.setattr(reader, "_check_numbers", then_dropped)
    reader.latestOffset(end, ALL)
    assert journal.topic("orders").cursors() == {}


def test_a_cursor_is_moved_in_the_topic_with_the_number(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the topic is exchanged between the look at its end and the move, as at a server."""
    opened = open_source(place_of(resolved(place)))
    with opened.state() as state:
        number = state.topics(["orders"])["orders"].number
    opened.follow("billing", {"orders": (40, number)}, back=False)
    assert journal.topic("orders").cursor("billing") == 40
    if "token" in place:
        ends = served_journal_module.ServedJournal.ends

        def then_dropped(self: Any, names: Any) -> Any:
            found = ends(self, names)
            make_anew(journal)
            return found

        monkeypatch.setattr(served_journal_module.ServedJournal, "ends", then_dropped)
    else:
        make_anew(journal)
    opened.follow("billing", {"orders": (50, number)}, back=True)
    assert journal.topic("orders").cursors() == {}


def test_a_query_that_goes_on_in_a_topic_made_anew_has_a_cursor_there(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    reader = stream(place, consumer="billing", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    assert journal.topic("orders").cursor("billing") == 60
    make_anew(journal)
    assert reader.latestOffset(end, ALL)["orders"] == 100
    assert journal.topic("orders").cursor("billing") == 60, "its place in this one: there it goes on"


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
        place = LocalSource(reading(url), JournalPlace(url))
        late: Any = Behind(place._engine, words)
        held.append(late.old)
        place._engine = late
        return place

    yield behind
    for one in held:
        one.close()


def positions(place: LocalSource, number: int, after: int, through: int) -> list[int]:
    found = (block for some in place.blocks("orders", number, after, through, strict=True) for block in some)
    return [seq for block in found for seq in block.seqs if after < seq <= through]


def number_of(journal: penstock.Journal) -> int:
    found = journal.topic("orders")._log.number  # type: ignore[attr-defined]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("after", [30, 60])
def test_a_task_waits_until_it_sees_what_was_planned(
    journal: penstock.Journal, behind: Callable[[int], LocalSource], after: int
) -> None:
    """It took the end of what it saw for the end of its share, and left the rest out."""
    place = behind(3)
    fill(journal, 40)
    assert positions(place, number_of(journal), after, 100) == list(range(after + 1, 101))


def test_a_task_that_sees_the_topic_before_waits_for_the_one_that_was_planned(
    journal: penstock.Journal, behind: Callable[[int], LocalSource]
) -> None:
    place = behind(3)
    make_anew(journal)
    assert positions(place, number_of(journal), 0, 100) == list(range(1, 101))


def test_a_task_that_is_behind_for_long_says_so(
    journal: penstock.Journal, behind: Callable[[int], LocalSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_BEHIND_SECONDS", 0)
    place = behind(10**9)
    fill(journal, 40)
    with pytest.raises(StorageError, match="'orders' is not there as far as it was planned; try again") as raised:
        positions(place, number_of(journal), 60, 100)
    assert raised.value.retryable
