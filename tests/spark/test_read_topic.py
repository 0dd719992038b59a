"""`read_topic` gives the rows of the source, whatever of a topic is sealed, and lets Spark read what is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock
from penstock import Draft
from penstock.core.clock import ManualClock
from penstock.errors import ConfigError, PositionTrimmed
from penstock.spark import read_topic, seal
from server.serving import WRITE, Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "n BIGINT, text STRING"


def drafts(start: int, stop: int) -> list[Draft]:
    return [
        Draft("paid" if n % 3 else "placed", {"n": n, "text": "ü" * (n % 4)}, key=f"k{n % 7}" if n % 5 else None)
        for n in range(start, stop)
    ]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def source(spark: SparkSession, url: str, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in {"url": url, **options}.items()}
    return spark.read.format("penstock").options(**given).load()


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def by_spark(frame: DataFrame) -> bool:
    return "parquet" in plan(frame)


def by_source(frame: DataFrame) -> bool:
    return "BatchScan penstock" in plan(frame)


@pytest.fixture
def half(journal: penstock.Journal, tmp_path: Path) -> Iterator[penstock.Journal]:
    """A journal with 300 orders of which 200 are sealed, with typed columns."""
    journal.topic("orders").append_many(drafts(0, 300))
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=200, columns=SCHEMA)
    yield journal


OPTIONS: list[dict[str, Any]] = [
    {},
    {"payloadSchema": SCHEMA},
    {"payloadSchema": "text STRING", "mode": "PERMISSIVE"},
    {"payloadSchema": SCHEMA, "payloadColumns": "struct"},
    {"payloadSchema": "n DOUBLE"},
    {"payloadSchema": SCHEMA, "payloadPrefix": "p_"},
    {"payloadSchema": "n BIGINT, key STRING", "payloadPrefix": "payload_"},
    {"payloadFormat": "binary"},
    {"startingOffsets": 50, "endingOffsets": 150},
    {"startingOffsets": 150, "endingOffsets": 250},
    {"startingOffsets": 300},
    {"kinds": "placed", "payloadSchema": SCHEMA},
    {"keys": "k1,k2"},
    {"where": "payload.n > 195"},
    {"startingTimestamp": "2020-01-01T00:00:00Z", "endingTimestamp": "2020-01-02T00:00:00Z"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "all")
def test_options_mean_what_they_mean_to_the_source(
    spark: SparkSession, half: penstock.Journal, url: str, options: dict[str, Any]
) -> None:
    frame, other = read_topic(spark, url, "orders", **options), source(spark, url, topic="orders", **options)
    assert frame.schema == other.schema
    assert rows(frame) == rows(other)


def test_spark_reads_of_typed_files_what_a_query_needs(spark: SparkSession, half: penstock.Journal, url: str) -> None:
    frame = read_topic(spark, url, "orders", payloadSchema=SCHEMA).where("n >= 100").groupBy("key").sum("n")
    assert "ReadSchema: struct<key:string,n:bigint>" in plan(frame)
    assert "GreaterThanOrEqual(n,100)" in plan(frame)
    assert sum(row["sum(n)"] for row in frame.collect()) == sum(range(100, 300))


def test_files_without_the_columns_asked_for_are_read_by_the_source(
    spark: SparkSession, half: penstock.Journal, url: str, tmp_path: Path
) -> None:
    half.topic("orders").append("placed", {"n": "many"})
    half.topic("orders").append_many(drafts(300, 400))
    seal(half, "orders", lake=str(tmp_path / "lake"), through=350)
    options: dict[str, Any] = {"payloadSchema": "n BIGINT", "mode": "DROPMALFORMED"}
    frame = read_topic(spark, url, "orders", endingOffsets=350, **options)
    assert by_spark(frame) and by_source(frame), "one file has a payload that does not fit"
    assert rows(frame) == rows(source(spark, url, topic="orders", endingOffsets=350, **options))
    with pytest.raises(PySparkException, match="payloadSchema does not fit the payload of event 301"):
        read_topic(spark, url, "orders", payloadSchema="n BIGINT").collect()
    assert not by_source(read_topic(spark, url, "orders", payloadSchema="n BIGINT", endingOffsets=200))
    assert not by_spark(read_topic(spark, url, "orders", payloadSchema="n INT", endingOffsets=200))


def test_null_payloads_and_bytes_are_what_they_are_in_the_source(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    journal.topic("orders").append_many([Draft("a", None), Draft("a", {"n": None}), *drafts(0, 10)])
    journal.topic("raw").append_many([Draft("a", b"some text"), Draft("a", {"n": 1})])
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=12, columns=SCHEMA)
    seal(journal, "raw", lake=str(tmp_path / "raw"), through=2, columns=SCHEMA)
    for topic, options in (
        ("orders", {"payloadSchema": SCHEMA}),
        ("orders", {"payloadSchema": SCHEMA, "payloadColumns": "struct"}),
        ("raw", {}),
        ("raw", {"payloadSchema": SCHEMA, "mode": "PERMISSIVE"}),
    ):
        found = rows(read_topic(spark, url, topic, **options))
        assert found == rows(source(spark, url, topic=topic, **options))


def test_several_topics_are_one_frame(spark: SparkSession, half: penstock.Journal, url: str, tmp_path: Path) -> None:
    half.topic("refunds").append_many(drafts(0, 40))
    half.topic("empty").append("gone", {})
    half.topic("empty").compact(1)
    seal(half, "refunds", lake=str(tmp_path / "other"), through=40)
    for options in (
        {"topics": "*"},
        {"topicPattern": "orders|refunds", "startingOffsets": '{"orders": 190, "refunds": 10}'},
        {"topic": "refunds,orders", "payloadSchema": SCHEMA},
    ):
        frame = read_topic(spark, url, **options)
        assert by_spark(frame) and rows(frame) == rows(source(spark, url, **options))
    assert read_topic(spark, url, "empty").collect() == []
    assert read_topic(spark, url, topics="nothing.*").collect() == []


def test_what_was_removed_is_missed_unless_that_is_allowed(
    spark: SparkSession, half: penstock.Journal, url: str
) -> None:
    half.topic("orders").compact(120)
    assert [row[0] for row in rows(read_topic(spark, url, "orders").select("seq"))] == sorted(range(121, 301), key=repr)
    with pytest.raises(PositionTrimmed, match="events 51 to 120"):
        read_topic(spark, url, "orders", startingOffsets=50)
    assert read_topic(spark, url, "orders", startingOffsets=50, failOnDataLoss=False).count() == 180


def test_expired_events_are_in_no_frame(spark: SparkSession, url: str, tmp_path: Path) -> None:
    clock = ManualClock()
    with penstock.open(url, clock=clock) as journal:
        topic = journal.topic("orders")
        topic.append_many(drafts(0, 100))
        clock.advance(40)
        topic.append_many(drafts(100, 150))
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=120)
        clock.advance(40)
        topic.configure(max_age=60)
        found = rows(read_topic(spark, journal, "orders", endingOffsets=120).select("seq"))
        assert found == sorted(((event.seq,) for event in topic.read(through=120)), key=repr)
        assert len(found) == 20


def test_spark_reads_the_files_of_a_served_journal_where_they_lie(
    spark: SparkSession, half: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    options = {"token": WRITE, "payloadSchema": SCHEMA}
    frame = read_topic(spark, served.url, "orders", **options)
    assert by_spark(frame)
    before = rows(source(spark, served.url, topic="orders", **options))
    assert rows(frame) == before
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    assert not by_spark(read_topic(spark, served.url, "orders", token=WRITE)), "the server's folder is not here"


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_source_over_any_history(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path, seed: int
) -> None:
    """Sealed in several lakes, with several sets of columns, compacted, with misfits and bytes, and a hot tail."""
    chance = random.Random(seed)
    topic, added = journal.topic("orders"), 0
    columns = {"one": "n BIGINT", "two": "", "three": SCHEMA}
    for _ in range(12):
        match chance.choice(["append", "append", "odd", "seal", "seal", "compact"]):
            case "append":
                some = chance.randrange(1, 80)
                topic.append_many(drafts(added, added + some))
                added += some
            case "odd":
                topic.append_many(
                    chance.choices([Draft("odd", None), Draft("odd", {"n": "x"}), Draft("odd", b"b")], k=3)
                )
            case "seal" if len(topic) > 10:
                lake = chance.choice(list(columns))
                through = chance.randint(topic.latest - len(topic) // 2, topic.latest)
                seal(
                    journal,
                    "orders",
                    lake=str(tmp_path / lake),
                    through=through,
                    columns=columns[lake] or None,
                    file_events=chance.choice([30, 1000]),
                    compact=chance.random() < 0.3,
                )
            case "compact" if topic.latest:
                topic.compact(chance.randint(0, topic.latest - len(topic) // 2))
    topic.append_many(drafts(added, added + 5))
    for options in (
        {},
        {"payloadSchema": SCHEMA, "mode": "PERMISSIVE"},
        {"payloadSchema": "n BIGINT", "mode": "DROPMALFORMED"},
    ):
        frame = read_topic(spark, url, "orders", **options)
        assert rows(frame) == rows(source(spark, url, topic="orders", **options))


def test_mistakes_are_named(spark: SparkSession, half: penstock.Journal, url: str) -> None:
    for options, message in (
        ({"url": "other.db"}, "named twice"),
        ({"consumer": "me"}, "consumer is for streams"),
        ({"payloadSchem": "n INT"}, "no option 'payloadschem'"),
        ({"topics": "refunds"}, "topic and topics"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_topic(spark, url, "orders", **options)
