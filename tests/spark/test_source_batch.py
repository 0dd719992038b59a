"""Reading topics as tables: what comes out is what went in, and what cannot be read says so in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock
from penstock import Draft
from penstock.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = [
    "seq",
    "topic",
    "kind",
    "key",
    "scope",
    "payload",
    "headers",
    "occurred_at",
    "recorded_at",
    "id",
    "correlation_id",
    "causation_id",
]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(START.timestamp() * 1000))


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db", clock=clock) as journal:
        yield journal


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Any:
    """Reads the journal under test with these options."""

    def read(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("penstock").option("url", str(tmp_path / "shop.db"))
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return read


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def refusal(frame: Any) -> str:
    """The one sentence a query fails with."""
    with pytest.raises(PySparkException) as failure:
        frame().collect()
    lines = [line for line in str(failure.value).splitlines() if line.startswith("penstock.errors.")]
    assert len(lines) == 1, str(failure.value)
    return lines[0].removeprefix("penstock.errors.")


def test_every_column_of_an_event_arrives_as_it_was_appended(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"sku": "ü", "n": 1}, key="c1", scope="eu", headers={"a": "1", "b": "2"})
    orders.append("paid", None, occurred_at=START - timedelta(days=1, microseconds=-3000))
    orders.append("shipped", [1, 2], cause=orders.get(1))
    frame = read(topic="orders")
    assert frame.columns == COLUMNS
    rows = frame.orderBy("seq").collect()
    assert len(rows) == 3
    for row, event in zip(rows, orders.read(), strict=True):
        expected = event.as_dict()
        found = row.asDict()
        assert found.pop("payload") == event.raw.decode()
        assert found.pop("occurred_at").astimezone(UTC) == expected.pop("occurred_at")
        assert found.pop("recorded_at").astimezone(UTC) == expected.pop("recorded_at")
        expected.pop("payload")
        assert found == expected


def test_many_blocks_and_large_payloads_arrive_whole_and_once(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    for commit in range(40):
        orders.append_many(
            [Draft("placed", {"n": commit, "pad": "x" * (commit * 37 % 900)}) for _ in range(commit + 1)]
        )
    orders.append_many([Draft("big", "y" * 3_000_000), Draft("big", "z" * 2_000_000)])
    frame = read(topic="orders", minPartitions=7)
    assert frame.rdd.getNumPartitions() >= 7
    assert seqs(frame) == list(range(1, orders.latest + 1))
    assert [len(row.payload) for row in frame.where("kind = 'big'").orderBy("seq").collect()] == [3_000_002, 2_000_002]


def test_offsets_are_positions_left_behind_and_reached(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append_many([Draft("placed", n) for n in range(10)])
    assert seqs(read(topic="orders", startingOffsets="3", endingOffsets="7")) == [4, 5, 6, 7]
    assert seqs(read(topic="orders", startingOffsets="EARLIEST", endingOffsets="latest")) == list(range(1, 11))
    assert seqs(read(topic="orders", startingOffsets="8", endingOffsets="99")) == [9, 10]
    assert seqs(read(topic="orders", startingOffsets="10")) == []
    assert seqs(read(topic="orders", startingOffsets='{"orders": 9}')) == [10]


def test_times_choose_by_when_events_were_recorded(journal: penstock.Journal, clock: ManualClock, read: Any) -> None:
    orders = journal.topic("orders")
    for _ in range(5):
        orders.append("tick", None)
        clock.advance(60)
    minute_2 = START + timedelta(minutes=2)
    assert seqs(read(topic="orders", startingTimestamp=minute_2.isoformat())) == [3, 4, 5]
    assert seqs(read(topic="orders", endingTimestamp=int(minute_2.timestamp() * 1000))) == [1, 2]
    assert seqs(
        read(topic="orders", startingTimestamp="2026-03-01T12:01:00", endingTimestamp=minute_2.isoformat())
    ) == [2]
    assert seqs(read(topic="orders", startingTimestamp="2030-01-01")) == []


def test_several_topics_a_pattern_and_a_queues_topic(journal: penstock.Journal, read: Any) -> None:
    for name in ("orders", "order-notes", "refunds"):
        journal.topic(name).append_many([Draft("made", name)] * 3)
    counts = {row.topic: row["count"] for row in read(topic="orders, refunds").groupBy("topic").count().collect()}
    assert counts == {"orders": 3, "refunds": 3}
    pattern = read(topicPattern="order.*").select("topic").distinct()
    assert sorted(row.topic for row in pattern.collect()) == ["order-notes", "orders"]
    assert read(topicPattern="nothing.*").count() == 0
    assert read(queue="refunds").count() == 3
    some = read(topic="orders,refunds", startingOffsets='{"orders": 2, "refunds": "latest"}')
    assert [(row.topic, row.seq) for row in some.collect()] == [("orders", 3)]


def test_parsed_columns_of_the_payload_take_its_place(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"customer": "ann", "amount": 2.5, "items": [{"sku": "a"}, {"sku": "b"}], "other": 1})
    orders.append("placed", {"customer": "bob", "at": "2026-01-02T03:04:05Z"})
    orders.append("nothing", None)
    schema = "customer STRING, amount DOUBLE, items ARRAY<STRUCT<sku: STRING>>, at TIMESTAMP"
    frame = read(topic="orders", payloadSchema=schema).orderBy("seq")
    assert "payload" not in frame.columns
    first, second, third = frame.collect()
    assert (first.customer, first.amount, [item.sku for item in first["items"]]) == ("ann", 2.5, ["a", "b"])
    assert second["at"].astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (third.customer, third.amount, third["items"]) == (None, None, None)
    nested = read(topic="orders", payloadSchema="customer STRING, key STRING", payloadColumns="struct")
    assert nested.select("payload.customer").first().customer == "ann"


def test_a_payload_schema_that_does_not_fit_is_one_clear_error(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"amount": 1})
    orders.append("placed", {"amount": "much", "key": "k"})
    message = refusal(lambda: read(topic="orders", payloadSchema="amount DOUBLE"))
    assert message.startswith(
        "ConfigError: payloadSchema does not fit the payload of event 2 of topic 'orders': field 'amount'"
    )
    message = refusal(lambda: read(topic="orders", payloadSchema="key STRING"))
    assert "payloadColumns" in message and "'key'" in message


def test_binary_payloads_are_bytes(journal: penstock.Journal, read: Any) -> None:
    raw = journal.topic("raw")
    raw.append("blob", b"\xff\x00\x01")
    raw.append("text", {"a": 1})
    rows = read(topic="raw", payloadFormat="binary").orderBy("seq").collect()
    assert [bytes(row.payload) for row in rows] == [b"\xff\x00\x01", b'{"a":1}']
    assert "payloadFormat=binary" in refusal(lambda: read(topic="raw"))


def test_a_given_schema_chooses_columns(journal: penstock.Journal, read: Any) -> None:
    journal.topic("orders").append("placed", {"amount": 4}, key="k")
    frame = read("kind STRING, seq BIGINT", topic="orders")
    assert frame.collect() == [("placed", 1)]
    frame = read("amount INT, key STRING", topic="orders", payloadSchema="amount INT")
    assert frame.collect() == [(4, "k")]
    assert "no column 'sequence'" in refusal(lambda: read("sequence BIGINT", topic="orders"))
    assert "the schema asks for int32" in refusal(lambda: read("seq INT", topic="orders"))


def test_filters_reach_the_source_and_select_what_spark_would(
    spark: SparkSession, journal: penstock.Journal, clock: ManualClock, read: Any
) -> None:
    orders = journal.topic("orders")
    for commit in range(20):
        kind = "placed" if commit % 2 else "paid"
        orders.append_many([Draft(kind, commit, key=f"k{n % 3}" if n else None) for n in range(10)])
        clock.advance(1)
    conditions = [
        "seq > 42 AND seq <= 77",
        "seq IN (3, 5, 500)",
        "kind = 'paid' AND key = 'k1'",
        "kind IN ('paid', 'lost') AND key IN ('k0', 'k2')",
        "key IS NOT NULL AND kind = 'placed'",
        "recorded_at >= '2026-03-01 12:00:05' AND recorded_at < '2026-03-01 12:00:09'",
        "recorded_at = '2026-03-01 12:00:07'",
        "occurred_at > '2026-03-01 12:00:17' OR seq = 1",
        "kind LIKE 'pa%' AND seq < 30",
        "seq < 0",
    ]
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    try:
        for condition in conditions:
            found = []
            for switch in ("true", "false"):
                spark.conf.set(setting, switch)
                found.append(seqs(read(topic="orders").where(condition)))
            assert found[0] == found[1], condition
        spark.conf.set(setting, "true")
        plan = read(topic="orders").where("seq > 42 AND kind = 'paid'")._jdf.queryExecution().executedPlan().toString()
        assert "Filter" not in plan.split("BatchScan")[0]
    finally:
        spark.conf.set(setting, before)


def test_appends_by_others_while_a_query_runs_do_not_disturb_it(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append_many([Draft("placed", n) for n in range(1000)])
    frame = read(topic="orders", endingOffsets="1000")
    orders.append_many([Draft("placed", n) for n in range(1000)])
    journal.maintain()
    assert seqs(frame) == list(range(1, 1001))
    assert read(topic="orders").count() == 2000


def test_compacted_history_stops_a_query_that_names_it(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append_many([Draft("placed", n) for n in range(10)])
    orders.compact(6)
    assert seqs(read(topic="orders")) == [7, 8, 9, 10]
    message = refusal(lambda: read(topic="orders", startingOffsets="3"))
    assert message.startswith("PositionTrimmed: events 4 to 6 of topic 'orders' were removed")
    assert seqs(read(topic="orders", startingOffsets="3", failOnDataLoss="false")) == [7, 8, 9, 10]


@pytest.mark.parametrize("scheme", ["file", "slatedb"])
def test_other_engines_are_read_beside_their_writer(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:{tmp_path / 'other'}"
    with penstock.open(url) as journal:
        orders = journal.topic("orders")
        orders.append_many([Draft("placed", n) for n in range(100)])
        reader = spark.read.format("penstock").option("url", url).option("topic", "orders")
        assert reader.load().count() == 100
        orders.append("paid", 100, key="ann")
        assert reader.load().count() == 101
        some = reader.options(startingOffsets="40", endingOffsets="60", minPartitions="2").load()
        assert seqs(some) == list(range(41, 61)) and some.rdd.getNumPartitions() == 2
        whole = spark.read.format("penstock").option("url", url).option("topic", "orders")
        assert seqs(whole.load().where("kind = 'paid' AND key = 'ann'")) == [101]
        assert seqs(whole.option("kinds", "paid").load()) == [101]


def test_what_cannot_be_read_is_one_clear_error(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path, read: Any
) -> None:
    journal.topic("orders").append("placed", 1)
    assert "there is no topic 'oders'" in refusal(lambda: read(topic="oders"))
    assert "no option 'startOffset'" in refusal(lambda: read(topic="orders", startOffset="1")).replace(
        "startoffset", "startOffset"
    )
    assert "not nothing" in refusal(lambda: read())
    assert "is for streams" in refusal(lambda: read(topic="orders", consumer="c"))
    assert 'startingOffsets "latest"' in refusal(lambda: read(topic="orders", startingOffsets="latest"))
    assert "ends at 1" in refusal(lambda: read(topic="orders", startingOffsets="5"))

    def other(**options: str) -> Any:
        return lambda: spark.read.format("penstock").options(topic="orders", **options).load()

    assert "no journal is named" in refusal(other())
    assert "rocksdb: allows one" in refusal(other(url="rocksdb:shop"))
    assert "memory: lives in one" in refusal(other(url="memory:"))
    assert str(tmp_path / "no.db") in refusal(other(url=str(tmp_path / "no.db")))


def test_a_journal_made_anew_under_the_same_name_is_read_anew(spark: SparkSession, tmp_path: Path) -> None:
    for count in (3, 5):
        with penstock.open(tmp_path / "again.db") as journal:
            journal.topic("orders").append_many([Draft("placed", n) for n in range(count)])
            frame = spark.read.format("penstock").option("topic", "orders").load(str(tmp_path / "again.db"))
            assert frame.count() == count
        for file in tmp_path.glob("again.db*"):
            file.unlink()
