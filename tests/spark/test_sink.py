"""Writing frames and streams: rows become events in one transaction, once, or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from since import needs_limits
from without_spark import read, source, write, write_batch

import penstock
import penstock.spark.journals as stores
from penstock import Draft
from penstock.errors import ConfigError, Conflict, Locked, PenstockError, QueueFull

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]


def rows(count: int, **columns: Callable[[int], Any]) -> Rows:
    """Rows with a kind, a payload and a key; `columns` says what others hold, or these instead."""
    made = {
        "kind": lambda n: "odd" if n % 2 else "even",
        "payload": lambda n: f'{{"id":{n}}}',
        "key": lambda n: f"k{n % 7}",
        **columns,
    }
    return [{name: make(n) for name, make in made.items()} for n in range(count)]


def without(found: Rows, name: str) -> Rows:
    return [{other: value for other, value in row.items() if other != name} for row in found]


def test_rows_of_tasks_become_events_in_order_and_nothing_is_left_behind(
    url: str, journal: penstock.Journal, tmp_path: Path
) -> None:
    made = rows(6_000)
    write(url, made[:2_000], made[2_000:4_000], made[4_000:], topic="orders")
    orders = journal.topic("orders")
    events = list(orders.read())
    assert [event.seq for event in events] == list(range(1, 6_001))
    assert [event.payload["id"] for event in events] == list(range(6_000))
    assert [event.kind for event in events[:3]] == ["even", "odd", "even"]
    assert [event.key for event in events[:9]] == [f"k{n % 7}" for n in range(9)]
    assert len({event.id for event in events}) == 6_000 and len({event.recorded_at for event in events}) == 1
    assert orders.find(events[4_123].id) == events[4_123]
    assert {path.name for path in tmp_path.iterdir()} <= {"shop.db", "shop.db-wal", "shop.db-shm", "shop.db-line"}
    assert orders.append("after", None).seq == 6_001


def test_a_column_says_the_topic_when_no_option_does(url: str, journal: penstock.Journal) -> None:
    write(url, rows(100, topic=lambda n: "odds" if n % 2 else "evens"))
    assert {name: len(journal.topic(name)) for name in journal.topics()} == {"evens": 50, "odds": 50}
    assert {event.kind for event in journal.topic("odds").read()} == {"odd"}


def test_what_was_read_can_be_written_back_with_its_causes(place: dict[str, str], journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    root = orders.append("placed", 1)
    orders.append("paid", 2, cause=root)
    orders.append("noted", 3, correlation="mine")
    found = read(place, "kind STRING, payload STRING, id STRING, correlation_id STRING", topic="orders")
    for name, cause in (
        ("a", lambda row: row["id"]),
        ("b", lambda row: {"id": row["id"], "correlation_id": row["correlation_id"]}),
    ):
        write(place, [{"kind": "k", "payload": row["payload"], "cause": cause(row)} for row in found], topic=name)
        events = list(journal.topic(name).read())
        assert [event.causation_id for event in events] == [event.id for event in orders.read()], name
        assert [event.correlation_id for event in events] == [root.id, root.id, "mine"], name
    write(place, [{"kind": "x", "payload": "1", "cause": "no-such-event"}], topic="d")
    assert journal.topic("d").get(1).correlation_id == "no-such-event"


def test_an_application_writes_each_version_once(url: str, journal: penstock.Journal) -> None:
    for version, expected in ((3, 10), (3, 10), (2, 10), (4, 20)):
        write(url, rows(10), topic="orders", txnAppId="nightly", txnVersion=version)
        assert len(journal.topic("orders")) == expected
    write(url, rows(10), topic="refunds", txnAppId="nightly", txnVersion=3)
    assert len(journal.topic("refunds")) == 10, "versions are counted per topic, as Delta counts them per table"
    write(url, rows(10), topic="orders", txnAppId="other", txnVersion=1)
    assert len(journal.topic("orders")) == 30


def test_a_query_writes_each_batch_once(
    place: dict[str, str], journal: penstock.Journal, caplog: pytest.LogCaptureFixture
) -> None:
    for query, batch, expected in (("a", 0, 10), ("a", 0, 10), ("a", 1, 20), ("a", 1, 20), ("b", 0, 30)):
        write_batch(place, batch, rows(5), rows(5), query=query, topic="orders")
        assert len(journal.topic("orders")) == expected
    write_batch(place, 2, rows(9), query="a", topic="orders")
    write_batch(place, 2, rows(9)[4:], rows(9)[:4][::-1], query="a", topic="orders")
    assert len(journal.topic("orders")) == 39, "the same rows, in another order and by other tasks"
    assert not caplog.messages


def test_a_second_query_over_a_copied_checkpoint_is_refused_and_can_have_a_name_of_its_own(
    place: dict[str, str], journal: penstock.Journal, caplog: pytest.LogCaptureFixture
) -> None:
    write_batch(place, 4, rows(5), query="a", topic="orders")
    others = [rows(4), rows(6), rows(5, key=lambda n: "k"), rows(5, payload=lambda n: "7"), rows(5, kind=lambda n: "x")]
    for other in others:
        with pytest.raises(Conflict, match=r"batch 4 of .*:a:orders was written before, with other rows.*txnAppId"):
            write_batch(place, 4, other, query="a", topic="orders")
    with pytest.raises(Conflict, match=r"batch 3 of .*:a:orders was written before, and so was batch 4 after it"):
        write_batch(place, 3, rows(5), query="a", topic="orders")
    write_batch(place, 3, rows(5), query="a", topic="orders", txnAppId="second")
    assert len(journal.topic("orders")) == 10 and not caplog.messages
    write_batch(place, 4, rows(7), query="a", topic="orders", failOnOtherRows="false")
    (said,) = caplog.messages
    assert said.startswith("batch 4 of query a was written before") and len(journal.topic("orders")) == 10


def test_a_view_is_read_and_written_with_the_same_options(place: dict[str, str], journal: penstock.Journal) -> None:
    options = {"topic": "orders", "payloadSchema": "n INT", "startingOffsets": "earliest", "kind": "made"}
    write(place, [{"payload": '{"n": 1}'}], **options)
    assert read(place, "kind STRING, n INT", **options) == [{"kind": "made", "n": 1}]


def test_txn_version_is_for_batch_writes(url: str, journal: penstock.Journal) -> None:
    with pytest.raises(ConfigError, match="txnVersion is for batch writes"):
        write_batch(url, 3, rows(5), query="a", topic="orders", txnAppId="second", txnVersion=1)


@pytest.mark.parametrize(
    ("made", "options", "says"),
    [
        (without(rows(9), "kind"), {}, 'no column "kind"'),
        (without(rows(9), "payload"), {}, 'no column "payload"'),
        (rows(9, amount=lambda n: 1), {}, "no column 'amount'"),
        (rows(9, key=lambda n: n), {}, "'key' must be text, not int64"),
        (rows(9), {"topic": "a b"}, "name 'a b'"),
        (rows(9), {"queue": "b"}, "topic or queue"),
        (rows(9), {"txnAppId": "a"}, "go together"),
        (rows(9), {"batchSize": "3"}, "no option 'batchsize'; there are url, writer"),
        (rows(9), {"txnApId": "a"}, "no option 'txnapid'; did you mean 'txnAppId'"),
        (rows(9, payload=lambda n: "{oops" if n == 7 else "1"), {}, "not JSON: '{oops'"),
        (rows(9, kind=lambda n: None if n == 7 else "k"), {}, "kind is null"),
        (rows(9, key=lambda n: ""), {}, "empty text"),
        (rows(9, payload=lambda n: {"x": float("nan")}), {}, "NaN"),
    ],
)
def test_rows_that_cannot_be_events_are_one_clear_error_and_no_half_batch(
    url: str, journal: penstock.Journal, tmp_path: Path, made: Rows, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PenstockError, match=says):
        write(url, made[:7], made[7:], **{"topic": "orders", **options})
    assert journal.topics() == [] and not list(tmp_path.glob("*.staging"))


def test_a_queue_takes_rows_as_messages_within_its_policy(place: dict[str, str], journal: penstock.Journal) -> None:
    alerts = journal.queue("alerts", max_size=12)
    write(place, without(rows(10), "kind"), queue="alerts")
    assert len(alerts) == 10
    delivery = alerts.take()
    assert delivery is not None
    assert (delivery.payload, delivery.event.kind, delivery.event.key) == ({"id": 0}, "message", "k0")
    delivery.ack()
    with pytest.raises(QueueFull, match="queue 'alerts' holds 9"):
        write(place, rows(10), queue="alerts")
    assert len(alerts) == 9
    write(place, without(rows(3), "key"), queue="made-here")
    assert journal.queues() == ["alerts", "made-here"]
    assert [delivery.event.kind for delivery in journal.queue("made-here").take_many(5)] == ["even", "odd", "even"]


def test_a_verified_topic_keeps_hashes(url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    orders.configure(verified=True)
    orders.append("here", 1, key="k0")
    write(url, rows(25), rows(25), topic="orders")
    orders.append("here", 2, key="k0")
    assert orders.verify().events == 52


def test_a_locked_journal_is_one_clear_error(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'held'}"
    with penstock.open(url) as journal:
        journal.topic("orders").append("placed", 1)
        with pytest.raises(Locked):
            write(url, rows(10), topic="orders")
        assert len(journal.topic("orders")) == 1
    write(url, rows(10), topic="orders")
    with penstock.open(url, read_only=True) as journal:
        assert len(journal.topic("orders")) == 11


def test_a_topic_with_settings_keeps_them(url: str, journal: penstock.Journal) -> None:
    journal.topic("orders").configure(max_events=500)
    write(url, rows(1000), topic="orders")
    journal.maintain()
    assert journal.topic("orders").oldest > 1 and journal.topic("orders").latest == 1000


def test_writes_of_spark_and_of_this_process_take_turns(url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    for round_ in range(3):
        orders.append_many([Draft("here", round_)] * 5)
        write(url, rows(7), topic="orders")
        assert orders.append("here", round_).seq == 13 * (round_ + 1)
    events = list(orders.read())
    assert [event.seq for event in events] == list(range(1, 40))
    assert [event.recorded_at for event in events] == sorted(event.recorded_at for event in events)
    assert [event.id for event in events] == sorted({event.id for event in events})


def test_a_write_that_would_replace_what_is_there_is_refused(url: str, journal: penstock.Journal) -> None:
    schema = StructType().add("kind", "string").add("payload", "string")
    for writer in ("writer", "streamWriter"):
        with pytest.raises(ConfigError, match="only grows"):
            getattr(source(url, topic="counts"), writer)(schema, True)
    assert journal.topics() == []


def test_a_micro_batch_opens_no_journal_twice(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps it open from its first batch on, for what looks at it and for what changes it."""
    penstock.open(url).close()
    opened: list[bool] = []
    really_open = stores.open_local

    def counting(url: str, **how: Any) -> Any:
        opened.append(bool(how.get("read_only")))
        return really_open(url, **how)

    monkeypatch.setattr(stores, "open_local", counting)
    for batch in range(3):
        opened.clear()
        write_batch(url, batch, [{"kind": "made", "payload": str(batch)}], topic="orders")
        assert sorted(opened) == ([False, True] if batch == 0 else [])
    assert [event.payload for event in stores.reading(url).topic("orders").read()] == [0, 1, 2]
    stores.reading(url).close()


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def save(frame: DataFrame, url: str, mode: str = "append", **options: object) -> None:
    frame.write.format("penstock").mode(mode).options(url=url, **options).save()


def test_rows_of_a_frame_become_events_in_order(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    save(spark.range(0, 6_000, 1, 3).selectExpr("'n' AS kind", "to_json(struct(id)) AS payload"), url, topic="orders")
    assert [event.payload["id"] for event in journal.topic("orders").read()] == list(range(6_000))


def test_every_column_is_written(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    frame = spark.sql("""
        SELECT 'a' AS kind, '{"x":1}' AS payload, 'k' AS key, 'eu' AS scope, map('h', '1') AS headers,
               TIMESTAMP '2026-01-02 03:04:05.678Z' AS occurred_at, 'corr' AS correlation_id, 'caus' AS causation_id
        UNION ALL SELECT 'b', 'null', NULL, NULL, NULL, NULL, NULL, NULL
        UNION ALL SELECT 'c', '7', 'ü', NULL, map(), NULL, 'corr', NULL
    """)
    save(frame.coalesce(1), url, topic="orders")
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
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    frame = spark.sql("""
        SELECT 'order' AS kind, named_struct(
            'n', 1L, 'price', 2.50BD, 'ratio', 1D, 'text', 'say "hi"\\n\\\\', 'ok', true, 'none', CAST(NULL AS INT),
            'day', DATE '2026-01-02', 'at', TIMESTAMP '2026-01-02 03:04:05Z', 'list', array(1, NULL),
            'map', map('k', struct(1 AS a)), 'nested', named_struct('deep', 'x')) AS payload
    """)
    save(frame, url, topic="orders")
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
    blobs = spark.sql("SELECT 'blob' AS kind, X'FF00' AS payload UNION ALL SELECT 'none', NULL")
    save(blobs.coalesce(1), url, topic="blobs")
    assert [event.payload for event in journal.topic("blobs").read()] == [b"\xff\x00", None]


def test_a_write_that_fails_in_a_task_says_so_in_one_sentence_and_writes_nothing(
    spark: SparkSession, url: str, journal: penstock.Journal, tmp_path: Path
) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr("'n' AS kind", "if(id = 777, '{oops', '1') AS payload")
    for mode, says in (("append", "a payload is not JSON: '{oops'"), ("overwrite", "only grows")):
        with pytest.raises(PySparkException) as failure:
            save(frame, url, mode, topic="orders")
        said = set(re.findall(r"penstock\.errors\..*", str(failure.value)))
        assert len(said) == 1 and says in said.pop() and "Traceback" not in str(failure.value), str(failure.value)
    assert journal.topics() == [] and not list(tmp_path.glob("*.staging"))


@needs_limits
def test_windowed_totals_land_in_a_topic(
    spark: SparkSession, url: str, journal: penstock.Journal, tmp_path: Path
) -> None:
    """In append mode: a window's total is written once, when the watermark has passed it."""
    from pyspark.sql import functions as F

    for minute in (0, 0, 1, 1, 1, 9):
        journal.topic("orders").append("placed", {"amount": 2}, occurred_at=datetime(2026, 1, 1, 0, minute, tzinfo=UTC))
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
