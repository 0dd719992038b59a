"""Payloads through Spark: equal values in every time zone, and rows that do not fit where they were asked to go."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql import types as T
from random_payloads import RandomPayloads
from without_spark import Stream, read, seqs, source

import penstock
import penstock.spark
from penstock import Draft
from penstock.core.documents.payloads import PayloadParser
from penstock.errors import ConfigError
from penstock.spark.pipeline.running import fault_of
from penstock.spark.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
PLACED = "2026-07-01T12:00:00Z"
NIGHTLY = pytest.mark.nightly("spark-random")


# ── with Spark, in time zones ────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def zone(spark: SparkSession) -> Iterator[Any]:
    """Changes the session's time zone, until the test ends."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    ("name", "count"),
    [("Asia/Kolkata", 1), *(pytest.param(name, 20, marks=NIGHTLY) for name in ZONES)],
)
def test_what_a_frame_of_a_random_schema_writes_it_reads_back_in_any_zone(
    spark: SparkSession, url: str, journal: penstock.Journal, zone: Any, name: str, count: int
) -> None:
    zone(name)
    for seed in range(ZONES.index(name), count * len(ZONES), len(ZONES)):  # each zone has schemas of its own
        made = RandomPayloads(seed)
        rows, topic = made.rows(60), f"rows-{seed}"
        schema = T.StructType([T.StructField("key", T.StringType()), T.StructField("payload", made.schema)])
        frame = spark.createDataFrame([(f"{place:02}", row) for place, row in enumerate(rows)], schema).coalesce(1)
        written = frame.select(F.lit("row").alias("kind"), "key", "payload")
        written.write.format("penstock").mode("append").options(url=url, topic=topic).save()
        asked = {"topic": topic, "payloadSchema": made.schema.toDDL(), "payloadColumns": "struct"}
        found = spark.read.format("penstock").options(url=url, **asked).load().select("key", "payload")
        assert sorted(found.collect()) == frame.collect(), seed
        instants = [event.payload["at"] for event in journal.topic(topic).read() if event.payload]
        written_at = [row["at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ") if row["at"] else None for row in rows if row]
        assert instants == written_at, seed  # what other readers of the journal see is the instant too


@pytest.mark.parametrize("name", ["America/New_York", *(pytest.param(name, marks=NIGHTLY) for name in ZONES[::2])])
def test_instants_in_filters_columns_and_projected_states_do_not_depend_on_the_zone(
    spark: SparkSession, url: str, journal: penstock.Journal, zone: Any, name: str
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
    reader = spark.read.format("penstock").options(url=url, topic="orders")
    states = penstock.spark.project(reader.load(), Last)
    events = reader.option("payloadSchema", "at TIMESTAMP").load()
    assert events.where("occurred_at >= TIMESTAMP '2026-07-01T14:00:00Z'").count() == 3
    assert events.where(f"unix_micros(at) = {int(moment.timestamp()) * 1_000_000}").count() == 5
    states.selectExpr("'last' AS kind", "key", "state AS payload", "state.at AS occurred_at").write.format(
        "penstock"
    ).mode("append").options(url=url, topic="last").save()
    for event in journal.topic("last").read():
        assert event.payload["at"] == event.occurred_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert event.occurred_at == moment + timedelta(hours=int(event.key[1:]))


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
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    journal.topic("orders").append_many([Draft("a", {"n": n}) for n in range(50)])
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        spark.dataSource.register(CrashingSource)
        frame = spark.read.format("penstock-crashing").options(url=url, topic="orders")
        with pytest.raises(Exception, match="Fatal Python error") as failure:
            frame.options(payloadSchema="n INT", startingOffsets="10", endingOffsets="30").load().collect()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    fault = fault_of(failure.value)
    assert not fault.passing
    assert "(Segmentation fault) while it decoded payloads of topic orders, events 11 to 30" in fault.message


# ── payloads that do not fit ─────────────────────────────────────────────────────────────────────────────────────────
def test_null_payloads_are_null_columns_wherever_they_are(url: str, journal: penstock.Journal) -> None:
    payloads = [None, {"n": 1}, None, {"n": 4}, None]
    journal.topic("orders").append_many([Draft("a", payload) for payload in payloads])
    journal.topic("empty").append_many([Draft("a", None)] * 3)
    assert [row["n"] for row in read(url, topic="orders", payloadSchema="n INT")] == [None, 1, None, 4, None]
    assert [row["n"] for row in read(url, topic="empty", payloadSchema="n INT")] == [None] * 3
    assert [row["payload"] for row in read(url, topic="orders", payloadSchema="n INT", payloadColumns="struct")] == [
        *(None, {"n": 1}, None, {"n": 4}, None)
    ]


@pytest.fixture
def mixed(journal: penstock.Journal) -> penstock.Topic:
    """Events of which 3 (by its field), 5 (by its shape) and 7 (bytes) do not fit `n INT`."""
    payloads: list[Any] = [{"n": 1}, {"n": 2}, {"n": "three"}, {}, [5], {"n": 6}, b"\xff\0", {"n": 8}]
    topic = journal.topic("mixed")
    topic.append_many(
        [Draft("bad" if n in (2, 4, 6) else "good", payload, key=f"k{n}") for n, payload in enumerate(payloads)]
    )
    return topic


def test_a_row_that_does_not_fit_ends_the_query_and_is_named(url: str, mixed: penstock.Topic) -> None:
    fits = "payloadSchema does not fit the payload of event"
    with pytest.raises(ConfigError, match=f"{fits} 3 of topic 'mixed': field 'n'.*PERMISSIVE"):
        read(url, topic="mixed", payloadSchema="n INT")
    with pytest.raises(ConfigError, match=f"{fits} 5 of topic 'mixed'"):
        read(url, topic="mixed", payloadSchema="n INT", startingOffsets=3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endingOffsets": 2}, [1, 2]),
        ({"where": "kind = 'good'"}, [1, 2, None, 6, 8]),
        ({"kinds": "good"}, [1, 2, None, 6, 8]),
        ({"keys": '["k0", "k5"]'}, [1, 6]),
    ],
)
def test_rows_outside_of_offsets_and_filters_cannot_hurt(
    url: str, mixed: penstock.Topic, options: dict[str, Any], expected: list[int | None]
) -> None:
    assert [row["n"] for row in read(url, topic="mixed", payloadSchema="n INT", **options)] == expected


def test_bytes_of_a_kind_that_is_not_read_cannot_hurt(url: str, mixed: penstock.Topic) -> None:
    assert len(read(url, topic="mixed", kinds="good, other")) == 5
    stream = Stream(url, topic="mixed", kinds="good", consumer="goods", payloadSchema="n INT")
    assert [row["n"] for row in stream.rows()] == [1, 2, None, 6, 8] and mixed.lag("goods") == 0


def test_permissive_rows_have_nulls_and_the_payload(url: str, mixed: penstock.Topic) -> None:
    found = read(url, topic="mixed", payloadSchema="n INT", mode="permissive")
    assert list(found[0])[-1] == "_corrupt_record"
    assert [(row["n"], row["_corrupt_record"]) for row in found] == [
        *((1, None), (2, None), (None, '{"n":"three"}'), (None, None)),
        *((None, "[5]"), (6, None), (None, "\ufffd\0"), (8, None)),
    ]
    assert seqs(read(url, topic="mixed", payloadSchema="n INT", mode="DROPMALFORMED")) == [1, 2, 4, 6, 8]


@pytest.mark.parametrize("target", ["queue", "topic"])
def test_bad_records_are_put_where_a_person_looks_once(
    url: str, journal: penstock.Journal, mixed: penstock.Topic, target: str
) -> None:
    if target == "queue":
        journal.queue("misfits")
    for _ in range(2):
        rows = read(url, topic="mixed", payloadSchema="n INT", badRecords="misfits", minPartitions=3)
        assert seqs(rows) == [1, 2, 4, 6, 8]
    found = list(journal.topic("misfits").read())
    assert sorted(event.headers["penstock-seq"] for event in found) == ["3", "5", "7"]
    by_seq = {int(event.headers["penstock-seq"]): event for event in found}
    assert [by_seq[seq].payload for seq in (3, 5, 7)] == [{"n": "three"}, [5], b"\xff\0"]
    assert (by_seq[3].kind, by_seq[3].key, by_seq[3].headers["penstock-topic"]) == ("bad", "k2", "mixed")
    assert by_seq[3].headers["penstock-reason"].startswith("field 'n': Expected `int | null`, got `str`")
    assert by_seq[3].causation_id == mixed.get(3).id
    if target == "queue":
        assert len(journal.queue("misfits")) == 3


def test_a_stream_puts_bad_records_once_and_goes_on(url: str, journal: penstock.Journal, mixed: penstock.Topic) -> None:
    queue, checkpoint = journal.queue("misfits"), []
    options = {"topic": "mixed", "payloadSchema": "n INT", "badRecords": "misfits", "mode": "PERMISSIVE"}
    assert len(Stream(url, checkpoint, **options).rows()) == 8
    mixed.append("bad", "no object")
    assert [row["_corrupt_record"] for row in Stream(url, checkpoint, **options).rows()] == ['"no object"']
    assert len(queue) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "PERMISSIVE"}, "there is none"),
        ({"payloadSchema": "n INT", "mode": "LAX"}, "not 'LAX'"),
        ({"payloadSchema": "n INT", "mode": "FAILFAST", "badRecords": "q"}, "FAILFAST ends the query"),
        ({"payloadFormat": "variant", "payloadSchema": "n INT"}, "does not go with payloadFormat=variant"),
        ({"payloadFormat": "variant"}, "event 7 of topic 'mixed' has bytes, which no VARIANT holds"),
    ],
)
def test_what_cannot_be_meant_or_parsed_is_refused(
    url: str, mixed: penstock.Topic, options: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        read(url, topic="mixed", **options)


@pytest.mark.parametrize("kind", [T.CharType(3), T.YearMonthIntervalType()], ids=str)
def test_a_payload_of_a_type_without_a_json_form_is_refused_by_name(url: str, kind: T.DataType) -> None:
    schema = T.StructType().add("kind", "string").add("payload", T.StructType().add("x", kind))
    with pytest.raises(ConfigError, match=r"'payload\.x'"):
        source(url, topic="never").writer(schema, False)


def test_variants_intervals_and_bounded_text_come_back_as_they_were_written(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    place = {"url": url, "topic": "variants"}
    json = ['parse_json(\'{"a":[1,2.5,"x",null]}\')', "parse_json('7')", "CAST(NULL AS VARIANT)"]
    for variant in json:
        spark.sql(f"SELECT 'v' AS kind, {variant} AS payload").write.format("penstock").mode("append").options(
            **place
        ).save()
    assert [event.payload for event in journal.topic("variants").read()] == [{"a": [1, 2.5, "x", None]}, 7, None]
    read = spark.read.format("penstock").options(**place, payloadFormat="variant").load().orderBy("seq")
    found = [row[0] for row in read.selectExpr("to_json(payload)").collect()]
    assert found == ['{"a":[1,2.5,"x",null]}', "7", None]
    frame = spark.sql(
        f"SELECT 'f' AS kind, struct({json[0]} AS v, INTERVAL '1 02:03:04.5' DAY TO SECOND AS d) AS payload"
    )
    frame.write.format("penstock").mode("append").options(url=url, topic="fields").save()
    written = journal.topic("fields").get(1)
    assert written is not None and written.payload["d"] == "P1DT7384.5S"
    journal.topic("fields").append("f", {"c": "text"})
    schema = "v VARIANT, d INTERVAL DAY TO SECOND, c VARCHAR(9)"
    fields = spark.read.format("penstock").options(url=url, topic="fields", payloadSchema=schema).load().orderBy("seq")
    rows = [tuple(row) for row in fields.selectExpr("to_json(v)", "d", "c").collect()]
    assert rows == [(found[0], timedelta(days=1, seconds=7384.5), None), (None, None, "text")]


def test_a_prefix_tells_fields_of_payloads_from_the_columns_of_events(url: str, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", {"id": 7, "key": "inner"}, key="outer")
    given = {"topic": "orders", "payloadSchema": "id BIGINT, key STRING", "payloadPrefix": "p_"}
    [row] = read(url, **given)
    assert (row["p_id"], row["p_key"], row["key"]) == (7, "inner", "outer")
    assert read(url, "p_id BIGINT, seq BIGINT", **given) == [{"p_id": 7, "seq": 1}]
    with pytest.raises(ConfigError, match="begin with 'p_'"):
        read(url, "other BIGINT", **given)
    with pytest.raises(ConfigError, match=r"'key' would be there twice.*payloadPrefix"):
        read(url, topic="orders", payloadSchema="ey STRING", payloadPrefix="k")
    with pytest.raises(ConfigError, match="payloadPrefix is for columns"):
        read(url, topic="orders", payloadPrefix="p_")
