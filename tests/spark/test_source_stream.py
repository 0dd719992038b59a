"""Reading topics as streams: every event in exactly one batch, in the sizes asked for, wherever the query starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import penstock
from penstock import Draft
from penstock.errors import ConfigError
from penstock.spark.source.source import PenstockSource
from penstock.spark.source.stream import split_offset
from server.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

COLUMNS = StructType().add("seq", "long").add("payload", "string")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as journal:
        yield journal


class Seen:
    """What the batches of a query held, gathered in this process."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("topic", "seq").collect()
        self.batches[batch] = sorted((row.topic, row.seq) for row in rows)

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [row for _, batch in sorted(self.batches.items()) for row in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for _, batch in sorted(self.batches.items()) if batch]


@pytest.fixture
def follow(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., tuple[StreamingQuery, Seen]]]:
    """Starts a query over the journal under test."""
    started: list[StreamingQuery] = []

    def follow(*, checkpoint: str = "checkpoint", once: bool = False, **options: object) -> tuple[StreamingQuery, Seen]:
        seen = Seen()
        stream = spark.readStream.format("penstock").option("url", str(tmp_path / "shop.db"))
        stream = stream.options(**{name: str(value) for name, value in options.items()})
        writer = stream.load().writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / checkpoint))
        if once:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        started.append(query)
        if once:
            query.awaitTermination(600)
        return query, seen

    yield follow
    for query in started:
        query.stop()


def orders(journal: penstock.Journal, count: int, topic: str = "orders") -> None:
    journal.topic(topic).append_many([Draft("placed", n) for n in range(count)])


def positions(low: int, high: int, topic: str = "orders") -> list[tuple[str, int]]:
    return [(topic, seq) for seq in range(low, high + 1)]


def test_available_now_reads_what_is_there_in_batches_of_the_size_asked_for(
    journal: penstock.Journal, follow: Any
) -> None:
    orders(journal, 25)
    _, seen = follow(topic="orders", once=True, maxOffsetsPerTrigger=10)
    assert seen.rows == positions(1, 25)
    assert seen.sizes == [10, 10, 5]
    orders(journal, 3)
    _, seen = follow(topic="orders", once=True, maxOffsetsPerTrigger=10)
    assert seen.rows == positions(26, 28)
    _, seen = follow(topic="orders", once=True, maxOffsetsPerTrigger=10)
    assert seen.rows == []


def test_a_running_query_follows_appends_of_this_process(journal: penstock.Journal, follow: Any) -> None:
    orders(journal, 5)
    query, seen = follow(topic="orders")
    query.processAllAvailable()
    assert seen.rows == positions(1, 5)
    for _ in range(3):
        orders(journal, 100)
        query.processAllAvailable()
    assert seen.rows == positions(1, 305)


def test_latest_leaves_history_behind_and_misses_nothing_after_the_start(
    journal: penstock.Journal, follow: Any
) -> None:
    orders(journal, 50)
    query, seen = follow(topic="orders", startingOffsets="latest")
    query.processAllAvailable()
    assert seen.rows == []
    assert seen.batches[0] == [], "the first batch holds the place, so that a crash cannot move it"
    orders(journal, 7)
    query.processAllAvailable()
    assert seen.rows == positions(51, 57)


def test_several_topics_share_a_batch_by_what_waits_and_new_ones_join_a_pattern(
    journal: penstock.Journal, follow: Any
) -> None:
    orders(journal, 90, "a")
    orders(journal, 10, "b")
    query, seen = follow(topicPattern="[abc]", maxOffsetsPerTrigger=50)
    query.processAllAvailable()
    assert sorted(seen.rows) == positions(1, 90, "a") + positions(1, 10, "b")
    assert max(seen.sizes) <= 50
    assert {topic for topic, _ in seen.batches[0]} == {"a", "b"}
    orders(journal, 4, "c")
    query.processAllAvailable()
    assert [row for row in seen.rows if row[0] == "c"] == positions(1, 4, "c")


def test_a_consumer_shows_how_far_the_query_has_come_and_holds_compaction(
    journal: penstock.Journal, follow: Any
) -> None:
    topic = journal.topic("orders")
    orders(journal, 20)
    follow(topic="orders", once=True, consumer="billing", startingOffsets="4", maxOffsetsPerTrigger="8")
    assert topic.cursors() == {"billing": 20}
    assert topic.lag("billing") == 0
    orders(journal, 5)
    assert topic.lag("billing") == 5
    assert topic.compact(25).stopped_at == "billing"
    _, seen = follow(topic="orders", once=True, consumer="billing")
    assert seen.rows == positions(21, 25)
    assert topic.cursor("billing") == 25


def test_trimmed_history_stops_the_query_unless_it_can_do_without(journal: penstock.Journal, follow: Any) -> None:
    orders(journal, 10)
    follow(topic="orders", once=True)
    orders(journal, 10)
    journal.topic("orders").compact(15)
    with pytest.raises(StreamingQueryException, match="PositionTrimmed: events 11 to 15 of topic 'orders'"):
        follow(topic="orders", once=True)
    _, seen = follow(topic="orders", once=True, failOnDataLoss="false")
    assert seen.rows == positions(16, 20)


def test_a_checkpoint_of_another_journal_is_refused(journal: penstock.Journal, follow: Any, tmp_path: Path) -> None:
    orders(journal, 10)
    follow(topic="orders", once=True)
    journal.close()
    for file in tmp_path.glob("shop.db*"):
        file.unlink()
    with penstock.open(tmp_path / "shop.db") as other:
        orders(other, 4)
        with pytest.raises(StreamingQueryException, match="'orders' through 10, and the topic ends at 4"):
            follow(topic="orders", once=True)


def test_a_topic_that_was_dropped_and_made_again_is_not_the_one_that_was_read(
    journal: penstock.Journal, follow: Any, tmp_path: Path
) -> None:
    orders(journal, 10)
    follow(topic="orders", once=True, consumer="billing")
    journal.drop_topic("orders", force=True)
    orders(journal, 30)
    with pytest.raises(StreamingQueryException, match=r"'orders' in .* was dropped and made again since this query"):
        follow(topic="orders", once=True, consumer="billing")
    assert journal.topic("orders").cursors() == {}, "and nothing is held for it in the other topic"
    _, seen = follow(topic="orders", once=True, failOnDataLoss="false")
    assert seen.rows == positions(11, 30)


def test_offsets_name_the_topic_that_was_read_wherever_the_journal_is(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "shop.db") as journal, serving(journal) as served:
        for topic, url in (("here", str(tmp_path / "shop.db")), ("there", served.url)):
            orders(journal, 10, topic)

            def reader(url: str = url, topic: str = topic) -> Any:
                return PenstockSource({"url": url, "topic": topic}).streamReader(COLUMNS)

            limit = ReadMaxRows(6)
            first = reader().latestOffset({topic: 0}, limit)
            assert split_offset(first)[0] == {topic: 6} and set(first) == {topic, f"{topic}#", "#"}
            last = reader().latestOffset(first, limit)
            assert last == {**first, topic: 10} and reader().latestOffset(last, limit) == last
            assert reader().latestOffset({topic: 10}, limit) == {topic: 10}, "of a query from before"
            elsewhere = {**last, "#": 7}
            assert reader().latestOffset(elsewhere, limit) == elsewhere, "in a copy, numbers say nothing"
            meanwhile = reader()
            meanwhile.latestOffset(last, limit)
            journal.drop_topic(topic, force=True)
            orders(journal, 20, topic)
            for again in (meanwhile, reader()):
                with pytest.raises(ConfigError, match="dropped and made again"):
                    again.latestOffset(last, limit)
                with pytest.raises(ConfigError, match="dropped and made again"):
                    again.partitions(first, last)


def test_what_a_stream_cannot_do_is_one_clear_error(journal: penstock.Journal, follow: Any) -> None:
    orders(journal, 1)
    for options, message in (
        ({"topic": "oders"}, "there is no topic 'oders'"),
        ({"topic": "orders", "endingOffsets": "3"}, "endingOffsets is for batches"),
        ({"topic": "orders", "consumer": " "}, "not blank"),
    ):
        with pytest.raises(Exception, match=message):
            follow(once=True, **options)
