"""Writing frames and streams: rows become events in one transaction, once, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import penstock
import penstock.spark.source.stores as stores
from penstock import Draft
from penstock.spark.sink.sink import encoded
from penstock.spark.source.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as journal:
        yield journal


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    """Writes a frame to the journal under test."""

    def write(frame: DataFrame, mode: str = "append", **options: object) -> None:
        writer = frame.write.format("penstock").mode(mode).option("url", str(tmp_path / "shop.db"))
        writer.options(**{name: str(value) for name, value in options.items()}).save()

    return write


def refusal(action: Callable[[], None]) -> str:
    with pytest.raises(PySparkException) as failure:
        action()
    lines = [line for line in str(failure.value).splitlines() if line.startswith("penstock.errors.")]
    assert lines, str(failure.value)
    assert len(set(lines)) == 1, str(failure.value)
    return lines[0].removeprefix("penstock.errors.")


def rows(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(
        F.when(F.col("id") % 2 == 0, "even").otherwise("odd").alias("kind"),
        F.to_json(F.struct("id")).alias("payload"),
        F.concat(F.lit("k"), F.col("id") % 7).alias("key"),
    )


def test_rows_become_events_in_order_and_nothing_is_left_behind(
    spark: SparkSession, journal: penstock.Journal, write: Any, tmp_path: Path
) -> None:
    write(rows(spark, 60_000), topic="orders")
    orders = journal.topic("orders")
    events = list(orders.read())
    assert [event.seq for event in events] == list(range(1, 60_001))
    assert [event.payload["id"] for event in events] == list(range(60_000))
    assert [event.kind for event in events[:3]] == ["even", "odd", "even"]
    assert [event.key for event in events[:9]] == [f"k{n % 7}" for n in range(9)]
    assert len({event.id for event in events}) == 60_000
    assert len({event.recorded_at for event in events}) == 1
    assert orders.find(events[41_234].id) == events[41_234]
    assert {path.name for path in tmp_path.iterdir()} <= {"shop.db", "shop.db-wal", "shop.db-shm"}
    orders.append("after", None)
    assert orders.latest == 60_001


def test_every_column_is_written(spark: SparkSession, journal: penstock.Journal, write: Any) -> None:
    frame = spark.sql("""
        SELECT 'a' AS kind, '{"x":1}' AS payload, 'k' AS key, 'eu' AS scope, map('h', '1') AS headers,
               TIMESTAMP '2026-01-02 03:04:05.678Z' AS occurred_at, 'corr' AS correlation_id, 'caus' AS causation_id
        UNION ALL SELECT 'b', 'null', NULL, NULL, NULL, NULL, NULL, NULL
        UNION ALL SELECT 'c', '7', 'ü', NULL, map(), NULL, 'corr', NULL
    """)
    write(frame.coalesce(1), topic="orders")
    first, second, third = journal.topic("orders").read()
    assert (first.kind, first.payload, first.key, first.scope, dict(first.headers)) == (
        "a",
        {"x": 1},
        "k",
        "eu",
        {"h": "1"},
    )
    assert first.occurred_at == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert (first.correlation_id, first.causation_id) == ("corr", "caus")
    assert (second.payload, second.key, second.scope, second.causation_id) == (None, None, None, None)
    assert dict(second.headers) == {}
    assert abs((second.occurred_at - second.recorded_at).total_seconds()) < 60
    assert (third.payload, third.key, third.correlation_id) == (7, "ü", "corr")


def test_a_payload_of_any_type_is_written_as_json_and_bytes_stay_bytes(
    spark: SparkSession, journal: penstock.Journal, write: Any
) -> None:
    frame = spark.sql("""
        SELECT 'order' AS kind, named_struct(
            'n', 1L, 'price', 2.50BD, 'ratio', 1D, 'text', 'say "hi"\\n\\\\', 'ok', true, 'none', CAST(NULL AS INT),
            'day', DATE '2026-01-02', 'at', TIMESTAMP '2026-01-02 03:04:05Z', 'list', array(1, NULL),
            'map', map('k', struct(1 AS a)), 'nested', named_struct('deep', 'x')) AS payload
    """)
    write(frame, topic="orders")
    assert journal.topic("orders").get(1).payload == {
        "n": 1,
        "price": 2.5,
        "ratio": 1.0,
        "text": 'say "hi"\n\\',
        "ok": True,
        "none": None,
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.000000Z",
        "list": [1, None],
        "map": {"k": {"a": 1}},
        "nested": {"deep": "x"},
    }
    write(
        spark.sql("SELECT 'blob' AS kind, X'FF00' AS payload UNION ALL SELECT 'none', NULL").coalesce(1), topic="blobs"
    )
    assert [event.payload for event in journal.topic("blobs").read()] == [b"\xff\x00", None]


def test_a_column_says_the_topic_when_no_option_does(
    spark: SparkSession, journal: penstock.Journal, write: Any
) -> None:
    frame = rows(spark, 100, 2).withColumn("topic", F.when(F.col("kind") == "even", "evens").otherwise("odds"))
    write(frame)
    assert {name: len(journal.topic(name)) for name in journal.topics()} == {"evens": 50, "odds": 50}
    assert {event.kind for event in journal.topic("odds").read()} == {"odd"}


def test_what_was_read_can_be_written_back_with_its_causes(
    spark: SparkSession, journal: penstock.Journal, write: Any, tmp_path: Path
) -> None:
    orders = journal.topic("orders")
    root = orders.append("placed", 1)
    orders.append("paid", 2, cause=root)
    orders.append("noted", 3, correlation="mine")
    read = spark.read.format("penstock").option("url", str(tmp_path / "shop.db")).option("topic", "orders").load()
    write(read.orderBy("seq").withColumn("cause", F.col("id")), topic="a")
    write(read.orderBy("seq").select("kind", "payload", F.col("id").alias("cause")), topic="b")
    write(read.orderBy("seq").select("kind", "payload", F.struct("id", "correlation_id").alias("cause")), topic="c")
    causes = [event.id for event in orders.read()]
    for name in ("a", "b", "c"):
        events = list(journal.topic(name).read())
        assert [event.causation_id for event in events] == causes, name
        assert [event.correlation_id for event in events] == [root.id, root.id, "mine"], name
    unknown = spark.sql("SELECT 'x' AS kind, '1' AS payload, 'no-such-event' AS cause")
    write(unknown, topic="d")
    assert journal.topic("d").get(1).correlation_id == "no-such-event"


def test_an_application_writes_each_version_once(spark: SparkSession, journal: penstock.Journal, write: Any) -> None:
    for version, expected in ((3, 10), (3, 10), (2, 10), (4, 20)):
        write(rows(spark, 10), topic="orders", txnAppId="nightly", txnVersion=version)
        assert len(journal.topic("orders")) == expected
    write(rows(spark, 10), topic="refunds", txnAppId="nightly", txnVersion=3)
    assert len(journal.topic("refunds")) == 10, "versions are counted per topic, as Delta counts them per table"
    write(rows(spark, 10), topic="orders", txnAppId="other", txnVersion=1)
    assert len(journal.topic("orders")) == 30


def test_rows_that_cannot_be_events_are_one_clear_error_and_no_half_batch(
    spark: SparkSession, journal: penstock.Journal, write: Any, tmp_path: Path
) -> None:
    good = rows(spark, 1000, 2)
    for frame, options, message in (
        (good.drop("kind"), {}, 'no column "kind"'),
        (good.drop("payload"), {}, 'no column "payload"'),
        (good.withColumn("amount", F.lit(1)), {}, "no column 'amount'"),
        (good.withColumn("key", F.lit(1)), {}, "'key' must be text, not int32"),
        (good, {"topic": "a b"}, "InvalidName"),
        (good, {"topic": "a", "queue": "b"}, "topic or queue"),
        (good, {"txnAppId": "a"}, "go together"),
        (good, {"batchSize": "3"}, "no option 'batchsize'"),
        (good.withColumn("payload", F.expr("if(payload LIKE '%777%', '{oops', payload)")), {}, "not JSON: '{oops'"),
        (good.withColumn("kind", F.expr("nullif(kind, 'odd')")), {}, "kind is null"),
        (good.withColumn("key", F.lit("")), {}, "empty text"),
        (good.withColumn("payload", F.struct(F.lit(float("nan")).alias("x"))), {}, "NaN"),
    ):
        given = options if "topic" in options else {"topic": "orders", **options}
        assert message in refusal(lambda frame=frame, given=given: write(frame, **given)), message
    assert "only grows" in refusal(lambda: write(good, mode="overwrite", topic="orders"))
    assert journal.topics() == []
    assert not list(tmp_path.glob("*.staging"))


def test_a_queue_takes_rows_as_messages_within_its_policy(
    spark: SparkSession, journal: penstock.Journal, write: Any
) -> None:
    alerts = journal.queue("alerts", max_size=12)
    write(rows(spark, 10, 1).select("payload", "key"), queue="alerts")
    assert len(alerts) == 10
    delivery = alerts.take()
    assert delivery is not None
    assert (delivery.payload, delivery.event.kind, delivery.event.key) == ({"id": 0}, "message", "k0")
    delivery.ack()
    assert refusal(lambda: write(rows(spark, 10, 1), queue="alerts")).startswith("QueueFull: queue 'alerts' holds 9")
    assert len(alerts) == 9
    write(rows(spark, 3, 1).drop("key"), queue="made-here")
    assert journal.queues() == ["alerts", "made-here"]
    assert [delivery.event.kind for delivery in journal.queue("made-here").take_many(5)] == ["even", "odd", "even"]


def test_a_topic_with_hash_chains_gets_links(spark: SparkSession, journal: penstock.Journal, write: Any) -> None:
    orders = journal.topic("orders")
    orders.configure(chained=True)
    orders.append("here", 1, key="k0")
    write(rows(spark, 50), topic="orders")
    orders.append("here", 2, key="k0")
    assert [event.payload["id"] for event in orders.read(after=1, limit=50)] == list(range(50))
    assert orders.verify().ok


def test_a_locked_journal_is_one_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'held'}"
    with penstock.open(url) as journal:
        journal.topic("orders").append("placed", 1)
        writer = rows(spark, 10).write.format("penstock").mode("append").options(url=url, topic="orders")
        assert refusal(writer.save).startswith("Locked: ")
        assert len(journal.topic("orders")) == 1
    writer.save()
    with penstock.open(url, read_only=True) as journal:
        assert len(journal.topic("orders")) == 11


def test_a_topic_with_settings_keeps_them(spark: SparkSession, journal: penstock.Journal, write: Any) -> None:
    journal.topic("orders").configure(max_events=500)
    write(rows(spark, 1000), topic="orders")
    journal.maintain()
    assert journal.topic("orders").oldest > 1
    assert journal.topic("orders").latest == 1000


def test_writes_of_spark_and_of_this_process_take_turns(
    spark: SparkSession, journal: penstock.Journal, write: Any
) -> None:
    orders = journal.topic("orders")
    for round_ in range(3):
        orders.append_many([Draft("here", round_)] * 5)
        write(rows(spark, 7, 1), topic="orders")
        receipt = orders.append("here", round_)
        assert receipt.seq == 13 * (round_ + 1)
    assert [event.seq for event in orders.read()] == list(range(1, 40))
    times = [event.recorded_at for event in orders.read()]
    assert times == sorted(times)
    ids = [event.id for event in orders.read()]
    assert ids == sorted(ids) and len(set(ids)) == 39


def test_a_stream_goes_from_topic_to_topic_once_across_restarts(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    url, checkpoint = str(tmp_path / "shop.db"), tmp_path / "checkpoint"
    orders, copies = journal.topic("orders"), journal.topic("copies")

    def run() -> None:
        stream = spark.readStream.format("penstock").options(url=url, topic="orders", maxOffsetsPerTrigger="400").load()
        copied = stream.select("kind", "payload", "key", F.col("id").alias("cause"))
        writer = copied.writeStream.format("penstock").options(url=url, topic="copies")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(600)
        assert query.exception() is None

    orders.append_many([Draft("placed", n) for n in range(1000)])
    run()
    assert [event.payload for event in copies.read()] == list(range(1000))
    orders.append_many([Draft("placed", n) for n in range(1000, 1100)])
    run()
    newest = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for path in (checkpoint / "commits").glob(f"*{newest}*"):
        path.unlink()
    run()
    run()
    assert [event.payload for event in copies.read()] == list(range(1100))
    causes = [event.causation_id for event in copies.read()]
    assert causes == [event.id for event in orders.read()]


def test_windowed_totals_land_in_a_topic(spark: SparkSession, journal: penstock.Journal, tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    minutes = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 0, 1, 1, 1, 9)]
    for minute in minutes:
        journal.topic("orders").append("placed", {"amount": 2}, occurred_at=minute)
    stream = spark.readStream.format("penstock").options(url=url, topic="orders", payloadSchema="amount INT").load()
    windows = stream.withWatermark("occurred_at", "1 minute").groupBy(F.window("occurred_at", "1 minute"))
    totals = windows.agg(F.sum("amount").alias("revenue")).select(
        F.lit("revenue").alias("kind"),
        F.col("window.start").alias("occurred_at"),
        F.struct("revenue").alias("payload"),
    )
    writer = totals.writeStream.format("penstock").options(url=url, topic="revenue").outputMode("append")
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination(600)
    found = {event.occurred_at.minute: event.payload["revenue"] for event in journal.topic("revenue").read()}
    assert found == {0: 4, 1: 6}


def test_a_stream_that_is_told_to_rewrite_everything_is_refused(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    journal.topic("orders").append("placed", 1)
    url = str(tmp_path / "shop.db")
    counts = spark.readStream.format("penstock").options(url=url, topic="orders").load().groupBy("kind").count()
    written = counts.select("kind", F.struct("count").alias("payload")).writeStream.outputMode("complete")
    written = written.format("penstock").options(url=url, topic="counts", checkpointLocation=str(tmp_path / "c"))

    def run() -> None:
        written.trigger(availableNow=True).start().awaitTermination(600)

    assert "only grows" in refusal(run)
    assert json.loads(json.dumps(journal.topics())) == ["orders"]


def test_a_micro_batch_opens_no_journal_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit opens the journal for its change; what only looks at it uses the one this process keeps open."""
    url = str(tmp_path / "shop.db")
    penstock.open(url).close()
    opened: list[bool] = []
    really_open = stores.open_local

    def counting(url: str, **how: Any) -> Any:
        opened.append(bool(how.get("read_only")))
        return really_open(url, **how)

    monkeypatch.setattr(stores, "open_local", counting)
    schema = StructType().add("kind", "string").add("payload", "string")
    for batch in range(3):
        opened.clear()
        writer: Any = PenstockSource({"url": url, "topic": "orders"}).streamWriter(schema, False)
        rows = iter([pa.record_batch({"kind": ["made"], "payload": [str(batch)]})])
        share = writer.staging.of("query").stage(encoded(rows, writer.layout), "query", str(batch))
        writer.commit([share], batch)
        assert opened.count(False) == 1 and opened.count(True) == (1 if batch == 0 else 0)
    assert [event.payload for event in stores.reading(url).topic("orders").read()] == [0, 1, 2]
    stores.reading(url).close()
