"""Reading topics as tables: what comes out is what went in, and what cannot be read says so in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from since import needs_filters
from without_spark import filters, read, rows_of, schema_of, seqs, source

import penstock
from penstock import Draft
from penstock.clock import ManualClock
from penstock.errors import ConfigError, PenstockError, PositionTrimmed
from penstock.journal import log as journal_log
from penstock.spark import source as sources
from penstock.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["seq", "topic", "kind", "key", "scope", "payload", "headers", "occurred_at", "recorded_at", "id"]
COLUMNS += ["correlation_id", "causation_id"]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(START.timestamp() * 1000))


@pytest.fixture
def journal(url: str, clock: ManualClock) -> Iterator[penstock.Journal]:
    with penstock.open(url, clock=clock, durability="process") as journal:
        yield journal


def fill(journal: penstock.Journal, count: int, topic: str = "orders") -> penstock.Topic:
    journal.topic(topic).append_many([Draft("placed", n) for n in range(count)])
    return journal.topic(topic)


# ── where ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_many_blocks_and_large_payloads_arrive_whole_and_once(url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    for commit in range(40):
        orders.append_many(
            [Draft("placed", {"n": commit, "pad": "x" * (commit * 37 % 900)}) for _ in range(commit + 1)]
        )
    orders.append_many([Draft("big", "y" * 3_000_000), Draft("big", "z" * 2_000_000)])
    found = source(url, topic="orders", minPartitions=7)
    reader = found.reader(schema_of(found))
    assert len(reader.partitions()) >= 7
    rows = rows_of(reader)
    assert seqs(rows) == list(range(1, orders.latest + 1))
    assert [len(row["payload"]) for row in rows[-2:]] == [3_000_002, 2_000_002]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "3", "endingOffsets": "7"}, [4, 5, 6, 7]),
        ({"startingOffsets": "EARLIEST", "endingOffsets": "latest"}, [*range(1, 11)]),
        ({"startingOffsets": "8", "endingOffsets": "99"}, [9, 10]),
        ({"startingOffsets": "10"}, []),
        ({"startingOffsets": '{"orders": 9}'}, [10]),
        ({"startingOffsets": '{"orders":{"0":5}}'}, [6, 7, 8, 9, 10]),  # as Kafka's source spells it
        ({"startingOffsets": '{"orders":{"0":-2}}', "endingOffsets": '{"orders":{"0":-1}}'}, [*range(1, 11)]),
    ],
)
def test_offsets_are_positions_left_behind_and_reached(
    url: str, journal: penstock.Journal, options: dict[str, str], expected: list[int]
) -> None:
    fill(journal, 10)
    assert seqs(read(url, subscribe="orders", **options)) == expected


def test_times_choose_by_when_events_were_recorded(url: str, journal: penstock.Journal, clock: ManualClock) -> None:
    for _ in range(5):
        journal.topic("orders").append("tick", None)
        clock.advance(60)
    minute_2 = START + timedelta(minutes=2)
    for options, expected in (
        ({"startingTimestamp": minute_2.isoformat()}, [3, 4, 5]),
        ({"endingTimestamp": int(minute_2.timestamp() * 1000)}, [1, 2]),
        ({"startingTimestamp": "2026-03-01T12:01:00", "endingTimestamp": minute_2.isoformat()}, [2]),
        ({"startingTimestamp": "2030-01-01"}, []),
    ):
        assert seqs(read(url, topic="orders", **options)) == expected


def test_several_topics_a_pattern_and_a_queues_topic(url: str, journal: penstock.Journal) -> None:
    for name in ("orders", "order-notes", "refunds"):
        fill(journal, 3, name)

    def topics(**options: str) -> list[str]:
        return sorted(row["topic"] for row in read(url, **options))

    assert topics(topic="orders, refunds") == ["orders"] * 3 + ["refunds"] * 3
    assert topics(topicPattern="order.*") == ["order-notes"] * 3 + ["orders"] * 3
    assert topics(topicPattern="nothing.*") == []
    assert topics(queue="refunds") == ["refunds"] * 3
    some = read(url, topic="orders,refunds", startingOffsets='{"orders": 2, "refunds": "latest"}')
    assert [(row["topic"], row["seq"]) for row in some] == [("orders", 3)]


def test_appends_by_others_while_a_query_runs_do_not_disturb_it(url: str, journal: penstock.Journal) -> None:
    fill(journal, 1000)
    found = source(url, topic="orders")
    reader = found.reader(schema_of(found))
    shares = reader.partitions()
    fill(journal, 1000)
    journal.maintain()
    assert seqs(rows_of(reader, shares)) == list(range(1, 1001))
    assert len(read(url, topic="orders")) == 2000


def test_compacted_history_stops_a_query_that_names_it(url: str, journal: penstock.Journal) -> None:
    fill(journal, 10).compact(6)
    assert seqs(read(url, topic="orders")) == [7, 8, 9, 10]
    with pytest.raises(PositionTrimmed, match="events 4 to 6 of topic 'orders' were removed"):
        read(url, topic="orders", startingOffsets="3")
    assert seqs(read(url, topic="orders", startingOffsets="3", failOnDataLoss="false")) == [7, 8, 9, 10]


@needs_filters
@pytest.mark.parametrize("scheme", ["file", "slatedb"])
def test_other_engines_are_read_beside_their_writer(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:{tmp_path / 'other'}"
    with penstock.open(url) as journal:
        orders = fill(journal, 100)
        assert len(read(url, topic="orders")) == 100
        orders.append("paid", 100, key="ann")
        assert len(read(url, topic="orders")) == 101
        given = source(url, topic="orders", startingOffsets=40, endingOffsets=60, minPartitions=2)
        reader = given.reader(schema_of(given))
        assert len(reader.partitions()) == 2 and seqs(rows_of(reader)) == list(range(41, 61))
        assert seqs(read(url, topic="orders", where=[("EqualTo", "kind", "paid"), ("EqualTo", "key", "ann")])) == [101]
        assert seqs(read(url, topic="orders", kinds="paid")) == [101]


def test_a_journal_made_anew_under_the_same_name_is_read_anew(tmp_path: Path) -> None:
    for count in (3, 5):
        with penstock.open(tmp_path / "again.db") as journal:
            fill(journal, count)
            assert len(read(tmp_path / "again.db", topic="orders")) == count
        for file in tmp_path.glob("again.db*"):
            file.unlink()


# ── which rows ───────────────────────────────────────────────────────────────────────────────────────────────────────
def second(number: int) -> datetime:
    return START + timedelta(seconds=number)


FILTERS: list[tuple[list[Any], Callable[[Any], bool]]] = [
    ([("GreaterThan", "seq", 42), ("LessThanOrEqual", "seq", 77)], lambda e: 42 < e.seq <= 77),
    ([("In", "seq", (3, 5, 500))], lambda e: e.seq in (3, 5)),
    ([("EqualTo", "kind", "paid"), ("EqualTo", "key", "k1")], lambda e: (e.kind, e.key) == ("paid", "k1")),
    (
        [("In", "kind", ("paid", "lost")), ("In", "key", ("k0", "k2"))],
        lambda e: e.kind == "paid" and e.key in ("k0", "k2"),
    ),
    ([("IsNotNull", "key"), ("EqualTo", "kind", "placed")], lambda e: e.key is not None and e.kind == "placed"),
    (
        [("GreaterThanOrEqual", "recorded_at", second(5)), ("LessThan", "recorded_at", second(9))],
        lambda e: second(5) <= e.recorded_at < second(9),
    ),
    ([("EqualTo", "recorded_at", second(7))], lambda e: e.recorded_at == second(7)),
    ([("GreaterThan", "occurred_at", second(17))], lambda e: e.occurred_at > second(17)),
    ([("LessThan", "seq", 0)], lambda e: False),
    ([("EqualTo", "scope", "eu"), ("StringStartsWith", "key", "k")], lambda e: e.scope == "eu" and e.key is not None),
    ([("StringStartsWith", "key", "k1")], lambda e: e.key == "k1"),
    (
        [("EqualNullSafe", "key", "k2"), ("In", "seq", (3, 33, 63, 93))],
        lambda e: e.key == "k2" and e.seq < 94 and e.seq % 30 == 3,
    ),
    ([("EqualTo", "correlation_id", "c7")], lambda e: e.correlation_id == "c7"),
    ([("EqualTo", "kind", "rare")], lambda e: e.kind == "rare"),
    (
        [("In", "key", ("k1", "nobody")), ("LessThanOrEqual", "occurred_at", second(3))],
        lambda e: e.seq <= 40 and e.key == "k1",
    ),
]


@needs_filters
@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize(("where", "wanted"), FILTERS, ids=range(len(FILTERS)))
def test_filters_select_what_spark_would(
    url: str,
    journal: penstock.Journal,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    where: list[Any],
    wanted: Callable[[Any], bool],
    looked_up: bool,
) -> None:
    if looked_up:
        monkeypatch.setattr(sources, "_LOOK_UP", 1)
    orders = journal.topic("orders")
    for commit in range(20):
        kind = "placed" if commit % 2 else "paid"
        drafts = [Draft(kind, commit, key=f"k{n % 3}" if n else None) for n in range(9)]
        drafts.append(Draft("rare" if commit == 9 else kind, commit, key="k1", scope="eu", correlation=f"c{commit}"))
        orders.append_many(drafts)
        clock.advance(1)
    assert seqs(read(url, topic="orders", where=where)) == [event.seq for event in orders.read() if wanted(event)]


@needs_filters
@pytest.mark.parametrize(
    ("where", "events"),
    [
        ([("EqualTo", "key", "k77")], 30),
        ([("In", "key", ("k77", "k5"))], 60),
        ([("StringStartsWith", "key", "k77")], 330),
        ([("In", "seq", (5, 29_000))], 2),
        ([("EqualTo", "kind", "rare")], 1000),
        ([("GreaterThan", "occurred_at", second(28)), ("EqualTo", "kind", "placed")], 1000),
    ],
)
def test_only_where_wanted_events_may_be_is_read(
    place: dict[str, str],
    journal: penstock.Journal,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    where: list[Any],
    events: int,
) -> None:
    from penstock.spark.pushdown import PushdownReader

    monkeypatch.setattr(sources, "_LOOK_UP", 1)
    monkeypatch.setattr(journal_log, "_NEAR", 1)
    orders = journal.topic("orders")
    for commit in range(30):
        drafts = [Draft("rare" if commit == 7 else "placed", n, key=f"k{n}") for n in range(1000)]
        orders.append_many(drafts)
        clock.advance(1)
    given = source(place, topic="orders")
    reader = PushdownReader(read_options(given.given), schema_of(given))
    assert list(reader.pushFilters(filters(where))) == []
    spans = [span for share in reader.partitions() for span in share.spans]
    assert sum(high - low for low, high in spans) <= (events if events < 1000 else 2000)
    assert len(rows_of(reader)) == events


@needs_filters
def test_filters_that_the_source_does_not_know_are_left_to_spark() -> None:
    from penstock.spark import pushdown

    unknown = [("StringContains", "kind", "pa"), ("EqualTo", "payload", "1")]
    assert pushdown.take_filters(filters([*unknown, ("EqualTo", "kind", "paid")]))[1] == filters(unknown)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_payload_schema_that_does_not_fit_is_one_clear_error(url: str, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", {"amount": 1})
    journal.topic("orders").append("placed", {"amount": "much", "key": "k"})
    with pytest.raises(ConfigError, match="does not fit the payload of event 2 of topic 'orders': field 'amount'"):
        read(url, topic="orders", payloadSchema="amount DOUBLE")
    with pytest.raises(ConfigError, match=r"'key' would be there twice.*payloadColumns"):
        read(url, topic="orders", payloadSchema="key STRING")


def test_binary_payloads_are_bytes(url: str, journal: penstock.Journal) -> None:
    journal.topic("raw").append("blob", b"\xff\x00\x01")
    journal.topic("raw").append("text", {"a": 1})
    rows = read(url, topic="raw", payloadFormat="binary")
    assert [row["payload"] for row in rows] == [b"\xff\x00\x01", b'{"a":1}']
    with pytest.raises(PenstockError, match="payloadFormat=binary"):
        read(url, topic="raw")


def test_a_given_schema_chooses_columns(url: str, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", {"amount": 4}, key="k")
    assert read(url, "kind STRING, seq BIGINT", topic="orders") == [{"kind": "placed", "seq": 1}]
    parsed = read(url, "amount INT, key STRING", topic="orders", payloadSchema="amount INT")
    assert parsed == [{"amount": 4, "key": "k"}]
    with pytest.raises(ConfigError, match="no column 'sequence'"):
        read(url, "sequence BIGINT", topic="orders")
    with pytest.raises(ConfigError, match="the schema asks for int32"):
        read(url, "seq INT", topic="orders")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "oders"}, "there is no topic 'oders'"),
        ({"topic": "orders", "startOffset": "1"}, "no option 'startoffset'"),
        ({}, "not nothing"),
        ({"topic": "orders", "consumer": "c"}, "is for streams"),
        ({"topic": "orders", "startingOffsets": "latest"}, 'startingOffsets "latest"'),
        ({"topic": "orders", "startingOffsets": "5"}, "ends at 1"),
        ({"topic": "orders", "startingOffsets": '{"orders":{"1":5}}'}, "one partition"),
        ({"topic": "orders", "url": ""}, "no journal is named"),
        ({"topic": "orders", "url": "rocksdb:shop"}, "rocksdb: allows one"),
        ({"topic": "orders", "url": "memory:"}, "memory: lives in one"),
        ({"topic": "orders", "url": "no-such.db"}, r"no-such\.db"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(
    url: str, journal: penstock.Journal, options: dict[str, str], says: str
) -> None:
    fill(journal, 1)
    with pytest.raises(PenstockError, match=says):
        read({"url": url, **options})


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_every_column_of_an_event_arrives_as_it_was_appended(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"sku": "ü", "n": 1}, key="c1", scope="eu", headers={"a": "1", "b": "2"})
    orders.append("paid", None, occurred_at=START - timedelta(days=1, microseconds=-3000))
    orders.append("shipped", [1, 2], cause=orders.get(1))
    frame = spark.read.format("penstock").options(url=url, topic="orders").load()
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


def test_the_first_line_of_an_error_says_what_is_wrong(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    journal.topic("orders").append("placed", {"n": "one"})
    reader = spark.read.format("penstock").option("url", url)
    with pytest.raises(PySparkException) as planning:
        reader.option("topic", "oders").load().count()
    assert "ConfigError: there is no topic 'oders' in " in str(planning.value).splitlines()[0]
    with pytest.raises(PySparkException) as reading:
        reader.options(topic="orders", payloadSchema="n BIGINT").load().collect()
    assert "ConfigError: payloadSchema does not fit" in "".join(str(reading.value).strip().splitlines()[:2])


def test_parsed_columns_of_the_payload_take_its_place(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"customer": "ann", "amount": 2.5, "items": [{"sku": "a"}, {"sku": "b"}], "other": 1})
    orders.append("placed", {"customer": "bob", "at": "2026-01-02T03:04:05Z"})
    orders.append("nothing", None)
    schema = "customer STRING, amount DOUBLE, items ARRAY<STRUCT<sku: STRING>>, at TIMESTAMP"
    reader = spark.read.format("penstock").options(url=url, topic="orders", payloadSchema=schema)
    first, second, third = reader.load().orderBy("seq").collect()
    assert "payload" not in first
    assert (first.customer, first.amount, [item.sku for item in first["items"]]) == ("ann", 2.5, ["a", "b"])
    assert second["at"].astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (third.customer, third.amount, third["items"]) == (None, None, None)
    nested = reader.option("payloadColumns", "struct").load()
    assert nested.select("payload.customer").first().customer == "ann"


@needs_filters
def test_filters_of_a_query_reach_the_source_and_leave_its_plan(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    orders = journal.topic("orders")
    for commit in range(20):
        orders.append_many([Draft("placed" if commit % 2 else "paid", n, key=f"k{n % 3}") for n in range(10)])
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    condition = "(seq > 42 AND kind = 'paid' AND key IN ('k1', 'k2')) AND recorded_at >= '2026-03-01 00:00:00'"
    found, plans = [], []
    try:
        for switch in ("true", "false"):
            spark.conf.set(setting, switch)
            frame = spark.read.format("penstock").options(url=url, topic="orders").load().where(condition)
            found.append(sorted(row.seq for row in frame.collect()))
            plans.append(frame._jdf.queryExecution().executedPlan().toString().split("BatchScan")[0])
    finally:
        spark.conf.set(setting, before)
    assert found[0] == found[1] == [e.seq for e in orders.read(42) if e.kind == "paid" and e.key in ("k1", "k2")]
    assert "Filter" not in plans[0] and "Filter" in plans[1]


def test_a_view_of_sql_reads_a_topic_and_a_table_says_what_works_instead(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    fill(journal, 5).append("other", 1)
    options = f"(url '{url}', topic 'orders', kinds 'placed')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW placed USING penstock OPTIONS {options}")
    assert spark.sql("SELECT count(*) AS n FROM placed").first().n == 5
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW … USING penstock"):
        spark.sql(f"CREATE TABLE never USING penstock OPTIONS {options}")
