"""Payloads through Spark: equal values in every time zone, and rows that do not fit where they were asked to go."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from random_payloads import RandomPayloads

import penstock
import penstock.spark
from penstock import Draft
from penstock.payloads.parsing import PayloadParser
from penstock.spark.pipeline.faults import fault_of
from penstock.spark.source.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
PLACED = "2026-07-01T12:00:00Z"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as journal:
        yield journal


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[Any]:
    """Changes the session's time zone, until the test ends."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Any:
    def read(**options: object) -> DataFrame:
        reader = spark.read.format("penstock").option("url", str(tmp_path / "shop.db"))
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return read


def refusal(action: Any) -> str:
    with pytest.raises(PySparkException) as failure:
        action()
    lines = {line for line in str(failure.value).splitlines() if line.startswith("penstock.errors.")}
    assert len(lines) == 1, str(failure.value)
    return lines.pop().removeprefix("penstock.errors.")


@pytest.mark.parametrize("count", [1, pytest.param(20, marks=pytest.mark.nightly)], ids=["some", "many"])
@pytest.mark.parametrize("name", ZONES)
def test_what_a_frame_of_a_random_schema_writes_it_reads_back_in_any_zone(
    spark: SparkSession, journal: penstock.Journal, zone: Any, read: Any, tmp_path: Path, name: str, count: int
) -> None:
    zone(name)
    for seed in range(ZONES.index(name), count * len(ZONES), len(ZONES)):  # each zone has schemas of its own
        made = RandomPayloads(seed)
        rows, topic = made.rows(60), f"rows-{seed}"
        schema = T.StructType([T.StructField("key", T.StringType()), T.StructField("payload", made.schema)])
        frame = spark.createDataFrame([(f"{place:02}", row) for place, row in enumerate(rows)], schema).coalesce(1)
        written = frame.select(F.lit("row").alias("kind"), "key", "payload")
        written.write.format("penstock").mode("append").options(url=tmp_path / "shop.db", topic=topic).save()
        found = read(topic=topic, payloadSchema=made.schema.toDDL(), payloadColumns="struct").select("key", "payload")
        assert sorted(found.collect()) == frame.collect(), seed
        instants = [event.payload["at"] for event in journal.topic(topic).read() if event.payload]
        asked = [row["at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ") if row["at"] else None for row in rows if row]
        assert instants == asked, seed  # what other readers of the journal see is the instant too


@pytest.mark.parametrize("name", ZONES)
def test_instants_in_filters_columns_and_projected_states_do_not_depend_on_the_zone(
    spark: SparkSession, journal: penstock.Journal, zone: Any, read: Any, tmp_path: Path, name: str
) -> None:
    class Last(penstock.Projection):
        at: datetime | None = None

        @penstock.on("placed")
        def _placed(self, event: penstock.Event) -> None:
            self.at = event.occurred_at

    zone(name)
    moment = datetime(2026, 7, 1, 12, tzinfo=UTC)
    orders = journal.topic("orders")
    for hour in range(5):
        orders.append("placed", {"at": PLACED}, key=f"k{hour}", occurred_at=moment + timedelta(hours=hour))
    events = read(topic="orders", payloadSchema="at TIMESTAMP")
    assert events.where("occurred_at >= TIMESTAMP '2026-07-01T14:00:00Z'").count() == 3
    assert events.where(f"unix_micros(at) = {int(moment.timestamp()) * 1_000_000}").count() == 5
    states = penstock.spark.project(read(topic="orders"), Last)
    states.selectExpr("'last' AS kind", "key", "state AS payload", "state.at AS occurred_at").write.format(
        "penstock"
    ).mode("append").options(url=tmp_path / "shop.db", topic="last").save()
    for event in journal.topic("last").read():
        assert event.payload["at"] == event.occurred_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert event.occurred_at == moment + timedelta(hours=int(event.key[1:]))


def test_null_payloads_are_null_columns_wherever_they_are(journal: penstock.Journal, read: Any) -> None:
    orders = journal.topic("orders")
    orders.append_many(
        [Draft("a", None), Draft("b", {"n": 1}), Draft("c", None), Draft("d", {"n": 4}), Draft("e", None)]
    )
    journal.topic("empty").append_many([Draft("a", None)] * 3)
    assert [row.n for row in read(topic="orders", payloadSchema="n INT").orderBy("seq").collect()] == [
        None,
        1,
        None,
        4,
        None,
    ]
    assert [row.n for row in read(topic="empty", payloadSchema="n INT").collect()] == [None] * 3
    structs = read(topic="orders", payloadSchema="n INT", payloadColumns="struct").orderBy("seq").collect()
    assert [row.payload and row.payload.n for row in structs] == [None, 1, None, 4, None]


class CrashingParser(PayloadParser):
    """Does to the process what a fault in Arrow's JSON reader did."""

    def parse(self, payloads: Any, binary: Any = None) -> Any:
        faulthandler._sigsegv()

    def __reduce__(self) -> tuple[Any, ...]:
        return CrashingParser, (self.schema,)


class CrashingSource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return "penstock-crashing"

    def reader(self, schema: T.StructType) -> Any:
        made: Any = super().reader(schema)
        parser = made.layout.parser
        made.layout = msgspec.structs.replace(made.layout, parser=CrashingParser(parser.schema))
        return made


def test_a_worker_that_crashes_names_what_it_decoded_and_is_not_tried_again(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    journal.topic("orders").append_many([Draft("a", {"n": n}) for n in range(50)])
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        spark.dataSource.register(CrashingSource)
        frame = spark.read.format("penstock-crashing").options(url=tmp_path / "shop.db", topic="orders")
        with pytest.raises(Exception, match="Fatal Python error") as failure:
            frame.options(payloadSchema="n INT", startingOffsets="10", endingOffsets="30").load().collect()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    fault = fault_of(failure.value)
    assert not fault.passing
    assert "(Segmentation fault) while it decoded payloads of topic orders, events 11 to 30" in fault.message


@pytest.fixture
def mixed(journal: penstock.Journal) -> penstock.Topic:
    """Events of which 3 (by its field), 5 (by its shape) and 7 (bytes) do not fit `n INT`."""
    payloads: list[Any] = [{"n": 1}, {"n": 2}, {"n": "three"}, {}, [5], {"n": 6}, b"\xff\0", {"n": 8}]
    topic = journal.topic("mixed")
    topic.append_many(
        [Draft("bad" if n in (2, 4, 6) else "good", payload, key=f"k{n}") for n, payload in enumerate(payloads)]
    )
    return topic


def test_a_row_that_does_not_fit_ends_the_query_and_is_named(mixed: penstock.Topic, read: Any) -> None:
    message = refusal(lambda: read(topic="mixed", payloadSchema="n INT").collect())
    assert message.startswith(
        "ConfigError: payloadSchema does not fit the payload of event 3 of topic 'mixed': field 'n'"
    )
    assert "PERMISSIVE" in message
    again = refusal(lambda: read(topic="mixed", payloadSchema="n INT", startingOffsets=3).collect())
    assert "event 5 of topic 'mixed'" in again


def test_rows_outside_of_offsets_and_filters_cannot_hurt(mixed: penstock.Topic, read: Any) -> None:
    assert [row.n for row in read(topic="mixed", payloadSchema="n INT", endingOffsets=2).collect()] == [1, 2]
    frame = read(topic="mixed", payloadSchema="n INT").where("kind = 'good'").orderBy("seq")
    assert [row.n for row in frame.collect()] == [1, 2, None, 6, 8]
    assert [row.n for row in read(topic="mixed", payloadSchema="n INT", kinds="good").orderBy("seq").collect()] == [
        1,
        2,
        None,
        6,
        8,
    ]
    assert [row.n for row in read(topic="mixed", payloadSchema="n INT", keys='["k0", "k5"]').collect()] == [1, 6]
    assert read(topic="mixed", kinds="good, other").count() == 5  # nor do bytes where payload is text


def test_permissive_rows_have_nulls_and_the_payload(mixed: penstock.Topic, read: Any) -> None:
    frame = read(topic="mixed", payloadSchema="n INT", mode="permissive").orderBy("seq")
    assert frame.columns[-1] == "_corrupt_record"
    found = [(row.seq, row.n, row["_corrupt_record"]) for row in frame.collect()]
    assert found == [
        (1, 1, None),
        (2, 2, None),
        (3, None, '{"n":"three"}'),
        (4, None, None),
        (5, None, "[5]"),
        (6, 6, None),
        (7, None, "\ufffd\0"),
        (8, 8, None),
    ]
    dropped = read(topic="mixed", payloadSchema="n INT", mode="DROPMALFORMED").orderBy("seq")
    assert [row.seq for row in dropped.collect()] == [1, 2, 4, 6, 8]


@pytest.mark.parametrize("target", ["queue", "topic"])
def test_bad_records_are_put_where_a_person_looks_once(
    journal: penstock.Journal, mixed: penstock.Topic, read: Any, target: str
) -> None:
    if target == "queue":
        journal.queue("misfits")
    for _ in range(2):
        frame = read(topic="mixed", payloadSchema="n INT", badRecords="misfits", minPartitions=3)
        assert sorted(row.seq for row in frame.collect()) == [1, 2, 4, 6, 8]
    found = list(journal.topic("misfits").read())
    assert sorted(event.headers["penstock-seq"] for event in found) == ["3", "5", "7"]
    by_seq = {int(event.headers["penstock-seq"]): event for event in found}
    assert [by_seq[seq].payload for seq in (3, 5, 7)] == [{"n": "three"}, [5], b"\xff\0"]
    assert (by_seq[3].kind, by_seq[3].key, by_seq[3].headers["penstock-topic"]) == ("bad", "k2", "mixed")
    assert by_seq[3].headers["penstock-reason"].startswith("field 'n': Expected `int | null`, got `str`")
    assert by_seq[3].causation_id == mixed.get(3).id
    if target == "queue":
        assert len(journal.queue("misfits")) == 3


def test_a_stream_puts_bad_records_once_and_goes_on(
    spark: SparkSession, journal: penstock.Journal, mixed: penstock.Topic, tmp_path: Path
) -> None:
    journal.queue("misfits")

    def run() -> None:
        stream = spark.readStream.format("penstock").options(
            url=tmp_path / "shop.db", topic="mixed", payloadSchema="n INT", badRecords="misfits", mode="PERMISSIVE"
        )
        rows = stream.load().selectExpr("'copy' AS kind", "struct(n, _corrupt_record) AS payload")
        query = rows.writeStream.format("penstock").options(url=tmp_path / "shop.db", topic="copies")
        query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    run()
    mixed.append("bad", "no object")
    run()
    assert len(journal.topic("copies")) == 9
    assert len(journal.queue("misfits")) == 4


def test_options_of_misfits_that_cannot_be_meant(mixed: penstock.Topic, read: Any) -> None:
    assert "there is none" in refusal(lambda: read(topic="mixed", mode="PERMISSIVE").collect())
    assert "not 'LAX'" in refusal(lambda: read(topic="mixed", payloadSchema="n INT", mode="LAX").collect())
    assert "FAILFAST ends the query" in refusal(
        lambda: read(topic="mixed", payloadSchema="n INT", mode="FAILFAST", badRecords="q").collect()
    )


def test_types_without_a_json_form_are_refused_by_name_on_both_sides(
    spark: SparkSession, mixed: penstock.Topic, read: Any, tmp_path: Path
) -> None:
    for ddl, name in (("a INT, gap INTERVAL DAY TO SECOND", "gap"), ("v VARIANT", "v"), ("i ARRAY<VARIANT>", "i[]")):
        assert f"'{name}'" in refusal(lambda ddl=ddl: read(topic="mixed", payloadSchema=ddl).collect())
    for value, name in (("parse_json('1')", "payload.x"), ("INTERVAL '1' MONTH", "payload.x")):
        frame = spark.sql(f"SELECT 'k' AS kind, named_struct('x', {value}) AS payload")
        writer = frame.write.format("penstock").mode("append").options(url=tmp_path / "shop.db", topic="never")
        assert f"'{name}'" in refusal(writer.save)


def test_filters_named_by_options_reach_streams(
    spark: SparkSession, journal: penstock.Journal, mixed: penstock.Topic, tmp_path: Path
) -> None:
    stream = spark.readStream.format("penstock").options(
        url=tmp_path / "shop.db", topic="mixed", payloadSchema="n INT", kinds="good", consumer="goods"
    )
    rows = stream.load().selectExpr("kind", "struct(n) AS payload")
    query = rows.writeStream.format("penstock").options(url=tmp_path / "shop.db", topic="copies")
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert [event.payload["n"] for event in journal.topic("copies").read()] == [1, 2, None, 6, 8]
    assert mixed.lag("goods") == 0


def test_kafkas_spellings_are_understood(spark: SparkSession, mixed: penstock.Topic, read: Any, tmp_path: Path) -> None:
    def seqs(**options: object) -> list[int]:
        return sorted(row.seq for row in read(subscribe="mixed", payloadFormat="binary", **options).collect())

    assert seqs(startingOffsets='{"mixed":{"0":5}}') == [6, 7, 8]
    assert seqs(startingOffsets='{"mixed":{"0":-2}}', endingOffsets='{"mixed":{"0":-1}}') == list(range(1, 9))
    assert "one partition" in refusal(lambda: seqs(startingOffsets='{"mixed":{"1":5}}'))

    def stream(**options: str) -> Any:
        reader = spark.readStream.format("penstock").options(url=tmp_path / "shop.db", topic="mixed", kinds="good")
        rows = reader.options(**options).load().select("kind", "payload")
        query = rows.writeStream.format("penstock").options(url=tmp_path / "shop.db", topic="copies")
        return query.option("checkpointLocation", str(tmp_path / "c"))

    query = stream(minOffsetsPerTrigger="9", maxTriggerDelay="1h").start()
    try:
        query.processAllAvailable()
        assert query.lastProgress is None or query.lastProgress["numInputRows"] == 0
        mixed.append("good", {"n": 9})
        query.processAllAvailable()
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == 6
        with penstock.open(tmp_path / "shop.db", read_only=True) as journal:
            assert len(journal.topic("copies")) == 6
    finally:
        query.stop()


def test_sql_views_read_a_topic_and_tables_say_what_works_instead(
    spark: SparkSession, mixed: penstock.Topic, tmp_path: Path
) -> None:
    url = tmp_path / "shop.db"
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW goods USING penstock OPTIONS (url '{url}', topic 'mixed', kinds 'good')"
    )
    assert spark.sql("SELECT count(*) AS n FROM goods").first().n == 5
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW … USING penstock"):
        spark.sql(f"CREATE TABLE never USING penstock OPTIONS (url '{url}', topic 'mixed')")
