"""Reading topics as streams: every event in exactly one batch, in the sizes asked for, wherever the query starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from since import needs_limits
from without_spark import Row, Stream

import penstock
from penstock import Draft
from penstock.errors import ConfigError, PenstockError, PositionTrimmed
from penstock.spark import source as streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def fill(journal: penstock.Journal, count: int, topic: str = "orders") -> None:
    journal.topic(topic).append_many([Draft("placed", n) for n in range(count)])


def positions(low: int, high: int, topic: str = "orders") -> list[tuple[str, int]]:
    return [(topic, seq) for seq in range(low, high + 1)]


def where(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row["topic"], row["seq"]) for row in rows]


@needs_limits
def test_available_now_reads_what_is_there_in_batches_of_the_size_asked_for(
    url: str, journal: penstock.Journal
) -> None:
    checkpoint: list[Any] = []

    def run() -> list[list[Row]]:
        return Stream(url, checkpoint, topic="orders", available_now=True, maxOffsetsPerTrigger=10).batches()

    fill(journal, 25)
    assert [where(batch) for batch in run()] == [positions(1, 10), positions(11, 20), positions(21, 25)]
    fill(journal, 3)
    assert [where(batch) for batch in run()] == [positions(26, 28)]
    assert run() == []


def test_latest_leaves_history_behind_and_misses_nothing_after_the_start(url: str, journal: penstock.Journal) -> None:
    fill(journal, 50)
    stream = Stream(url, topic="orders", startingOffsets="latest")
    assert stream.batches() == [[]], "the first batch holds the place, so that a crash cannot move it"
    fill(journal, 7)
    assert where(stream.rows()) == positions(51, 57)


@needs_limits
def test_several_topics_share_a_batch_by_what_waits_and_new_ones_join_a_pattern(
    url: str, journal: penstock.Journal
) -> None:
    fill(journal, 90, "a")
    fill(journal, 10, "b")
    stream = Stream(url, topics="[ab],c", maxOffsetsPerTrigger=50)
    batches = stream.batches()
    assert sorted(where([row for batch in batches for row in batch])) == positions(1, 90, "a") + positions(1, 10, "b")
    assert [len(batch) for batch in batches] == [50, 50]
    assert {row["topic"] for row in batches[0]} == {"a", "b"}
    fill(journal, 4, "c")
    assert where(stream.rows()) == positions(1, 4, "c")


@needs_limits
def test_a_batch_has_about_so_many_bytes_and_at_least_an_event(url: str, journal: penstock.Journal) -> None:
    for topic in ("a", "b"):
        for _ in range(10):
            journal.topic(topic).append_many([Draft("placed", "x" * 1000) for _ in range(20)])
    sizes = [len(batch) for batch in Stream(url, topic="a,b", maxBytesPerTrigger=50_000).batches()]
    assert sum(sizes) == 400 and all(30 <= size <= 60 for size in sizes[:-1]), sizes
    assert [len(batch) for batch in Stream(url, topic="a", maxBytesPerTrigger=1).batches()] == [1] * 200


@needs_limits
def test_a_batch_waits_for_as_many_events_as_it_is_told_to(
    url: str, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or until the longest delay is over; kinds that are not wanted count, as they do for Kafka's source."""
    now = [1000.0]
    monkeypatch.setattr(streams.time, "monotonic", lambda: now[0])
    fill(journal, 8)
    stream = Stream(url, topic="orders", kinds="placed", minOffsetsPerTrigger=9, maxTriggerDelay="1h")
    assert stream.rows() == []
    journal.topic("orders").append("other", 1)
    assert where(stream.rows()) == positions(1, 8)
    fill(journal, 1)
    assert stream.rows() == []
    now[0] += 3600
    assert where(stream.rows()) == positions(10, 10)


@needs_limits
def test_a_consumer_shows_how_far_the_query_has_come_and_holds_compaction(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    topic, checkpoint = journal.topic("orders"), []
    fill(journal, 20)
    options = {"topic": "orders", "consumer": "billing", "available_now": True}
    Stream(place, checkpoint, startingOffsets="4", maxOffsetsPerTrigger="8", **options).batches()
    assert topic.cursors() == {"billing": 20} and topic.lag("billing") == 0
    fill(journal, 5)
    assert topic.lag("billing") == 5
    assert topic.compact(25).stopped_at == "billing"
    assert where(Stream(place, checkpoint, **options).rows()) == positions(21, 25)
    assert topic.cursor("billing") == 25


def test_trimmed_history_stops_the_query_unless_it_can_do_without(url: str, journal: penstock.Journal) -> None:
    fill(journal, 10)
    checkpoint: list[Any] = []
    Stream(url, checkpoint, topic="orders").batches()
    fill(journal, 10)
    journal.topic("orders").compact(15)
    with pytest.raises(PositionTrimmed, match="events 11 to 15 of topic 'orders'"):
        Stream(url, checkpoint[:], topic="orders").batches()
    lenient = Stream(url, checkpoint, topic="orders", failOnDataLoss="false")
    assert where(lenient.rows()) == positions(16, 20)


def test_a_checkpoint_of_another_journal_is_refused(url: str, journal: penstock.Journal, tmp_path: Path) -> None:
    fill(journal, 10)
    checkpoint: list[Any] = []
    Stream(url, checkpoint, topic="orders").batches()
    journal.close()
    for file in tmp_path.glob("shop.db*"):
        file.unlink()
    with penstock.open(url) as other:
        fill(other, 4)
        with pytest.raises(ConfigError, match="'orders' through 10, and the topic ends at 4"):
            Stream(url, checkpoint, topic="orders").batches()


@needs_limits
def test_offsets_are_positions_wherever_the_journal_is(place: dict[str, str], journal: penstock.Journal) -> None:
    fill(journal, 10)
    begun = Stream(place, topic="orders", maxOffsetsPerTrigger=6)
    begun.batches()
    assert begun.checkpoint == [{"orders": 6}, {"orders": 10}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "oders"}, "there is no topic 'oders'"),
        ({"topic": "orders", "endingOffsets": "3"}, "endingOffsets is for batches"),
        ({"topic": "orders", "consumer": " "}, "not blank"),
    ],
)
def test_what_a_stream_cannot_do_is_one_clear_error(
    url: str, journal: penstock.Journal, options: dict[str, str], says: str
) -> None:
    fill(journal, 1)
    with pytest.raises(PenstockError, match=says):
        Stream(url, **options).batches()


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
Follow = Callable[..., tuple["StreamingQuery", list[list[int]]]]


@pytest.fixture
def follow(spark: SparkSession, url: str, tmp_path: Path) -> Iterator[Follow]:
    """Starts a query over the journal under test; gives it and the positions of its batches."""
    started: list[StreamingQuery] = []

    def follow(*, once: bool = False, **options: object) -> tuple[StreamingQuery, list[list[int]]]:
        seen: list[list[int]] = []

        def gather(frame: DataFrame, batch: int) -> None:
            seen.append(sorted(row.seq for row in frame.select("seq").collect()))

        stream = spark.readStream.format("penstock").options(url=url, topic="orders", **options).load()
        writer = stream.writeStream.foreachBatch(gather).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = (writer.trigger(availableNow=True) if once else writer).start()
        started.append(query)
        if once:
            query.awaitTermination(600)
        return query, seen

    yield follow
    for query in started:
        query.stop()


@needs_limits
def test_a_query_reads_batches_of_the_size_asked_for_and_goes_on_from_its_checkpoint(
    journal: penstock.Journal, follow: Follow
) -> None:
    fill(journal, 25)
    query, seen = follow(once=True, maxOffsetsPerTrigger=10, consumer="billing")
    assert seen == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)]]
    assert journal.topic("orders").cursors() == {"billing": 25}
    progress = [json.loads(one.sources[0].latestOffset)["orders"] for one in query.recentProgress]
    assert [(one["latest"], one["events"], one["lag"]) for one in progress] == [(25, 10, 15), (25, 10, 5), (25, 5, 0)]
    assert all(one["bytes"] > 0 for one in progress)
    fill(journal, 3)
    _, seen = follow(once=True)
    assert seen == [[26, 27, 28]]


def test_a_running_query_that_starts_at_the_latest_follows_appends_of_this_process(
    journal: penstock.Journal, follow: Follow
) -> None:
    fill(journal, 5)
    query, seen = follow(startingOffsets="latest")
    query.processAllAvailable()
    assert seen == [[]]
    for _ in range(2):
        fill(journal, 100)
        query.processAllAvailable()
    assert [seq for batch in seen for seq in batch] == list(range(6, 206))
