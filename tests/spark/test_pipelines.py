"""Pipelines as they run: flows carried through exactly once, restarted, stopped, reset, and what they report."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F
from since import HAS_LIMITS, most, needs_limits, program

import penstock
from penstock import Draft
from penstock.buffer import Producer
from penstock.core.observe.pipelines import FlowStatus, status
from penstock.errors import ConfigError, FlowFailed, Locked
from penstock.limits import BUFFER_MANIFEST
from penstock.spark import buffer_at, external, flow, queue, topic
from penstock.spark.pipeline import running
from penstock.spark.pipeline import running as stopping
from penstock.spark.pipeline.alone import alone, checkpoint_root
from penstock.spark.pipeline.flows import BoundFlow, Flow, Pipeline
from penstock.spark.pipeline.progress import Lag
from penstock.spark.pipeline.running import Runner, run
from waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def url(folder: Path) -> str:
    return str(folder / "shop.db")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name is not a plain word; failed flows are started again soon."""
    monkeypatch.setattr(running, "BACKOFF", (0.1,))
    place = tmp_path / "le magasin d'été"
    place.mkdir()
    return place


def url_of(journal: penstock.Journal) -> str:
    return str(journal.describe().location)


def add_orders(journal: penstock.Journal, count: int) -> None:
    orders = journal.topic("orders")
    start = orders.latest
    orders.append_many([Draft("placed", {"n": start + n, "product": f"p{n % 3}"}) for n in range(count)])


PIPELINE = program('''
"""Copies of orders, letters about some, and how many there are of each product."""
from pyspark.sql import functions as F
from penstock.spark import flow, queue, topic

ORDERS = topic("orders", payload_schema="n BIGINT, product STRING", maxOffsetsPerTrigger=400)


def rounded(n):
    return n // 10 * 10


@flow(source=topic("letters"), target=topic("sent"))
def send(letters):
    return letters.select("kind", "payload", F.col("id").alias("cause"))


@flow(source=ORDERS, target=queue("letters", policy={"max_attempts": 7}))
def write(orders):
    tens = F.udf(rounded, "bigint")
    letters = orders.where("n % 10 = 0")
    return letters.select(F.struct(tens("n").alias("n")).alias("payload"), F.col("id").alias("cause"))


@flow(source=ORDERS, target=topic("counts"), output_mode="update")
def count(orders):
    counts = orders.groupBy("product").count()
    return counts.selectExpr("'counted' AS kind", "product AS key", "struct(count) AS payload")
''')


def check_carried_through(journal: penstock.Journal) -> None:
    """Every order has been counted once, and every tenth has led to one letter that was sent once."""
    orders = [event.payload for event in journal.topic("orders").read()]
    tens = [order["n"] for order in orders if order["n"] % 10 == 0]
    assert sorted(event.payload["n"] for event in journal.topic("letters").read()) == tens
    assert sorted(event.payload["n"] for event in journal.topic("sent").read()) == tens
    newest = {event.key: event.payload["count"] for event in journal.topic("counts").read()}
    assert newest == Counter(order["product"] for order in orders)


def test_one_run_carries_everything_through_all_flows_and_the_next_one_what_is_new(
    spark: SparkSession, journal: penstock.Journal, folder: Path
) -> None:
    file = folder / "täglich.py"
    file.write_text(PIPELINE, encoding="utf-8")
    add_orders(journal, 600)
    seen: list[list[str]] = []
    found = run(file, url=url_of(journal), once=True, watch=lambda flows: seen.append([f.state for f in flows]))
    assert set(seen[0]) == {"pending", "starting"} and seen[-1] == ["done"] * 3
    assert {one.flow: (one.state, one.rows, one.lag) for one in found} == {
        "send": ("done", 60, 0),
        "write": ("done", 600, 0),
        "count": ("done", 600, 0),
    }
    check_carried_through(journal)
    state = Path(checkpoint_root(url_of(journal))) / "t-glich" / "count" / "state"
    assert list(state.glob("0/*/*.changelog")), "a flow that keeps state keeps it in RocksDB"
    assert journal.queue("letters", max_attempts=7).policy.max_attempts == 7
    assert not HAS_LIMITS or journal.topic("orders").lag("t-glich/write") == 0

    add_orders(journal, 300)
    run(file, url=url_of(journal), once=True)
    check_carried_through(journal)
    stood = {one.flow: one for one in status(journal)}
    assert {name: one.rows for name, one in stood.items()} == {"send": 30, "write": 300, "count": 300}
    send = stood["send"]
    assert (send.pipeline, send.state, send.mode, send.lag, send.restarts) == ("t-glich", "done", "once", 0, 0)
    assert send.sources == ["topic letters"] and send.target == "topic sent" and send.error is None
    assert send.pid == os.getpid() and send.batch_seconds and send.reported_at
    assert status(journal, pipeline="another") == []
    reports = {(event.kind, event.key) for event in journal.topic("penstock.pipelines").read()}
    assert reports == {("flow.reported", f"t-glich/{name}") for name in stood}


def copy_events(events: DataFrame) -> DataFrame:
    return events.select("kind", "payload", "key")


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_flow_from_a_buffer_tells_how_many_entries_wait(journal: penstock.Journal, tmp_path: Path) -> None:
    def events(entries: DataFrame, orders: DataFrame | None = None) -> DataFrame:
        return entries.select(F.lit("read").alias("kind"), F.col("entry").cast("string").alias("payload"))

    readings = buffer_at((tmp_path / "readings").as_uri())
    both = flow(source=[readings, topic("orders")], target=topic("copies"))(events)
    bound = BoundFlow(both, "shop", url_of(journal))
    add_orders(journal, 4)
    assert Lag(bound).total({}) == 4  # there is no buffer yet
    with Producer(readings.options["url"]) as producer:
        for n in range(3):
            producer.produce([b"%d" % n, b"%d" % n], b"")
            producer.flush()
    assert Lag(bound).total({}) == 7
    assert Lag(bound).total({0: {BUFFER_MANIFEST: 2}, 1: {"orders": 4}}) == 1


def test_an_error_in_a_flow_ends_the_run_with_its_line_and_without_a_second_try(
    spark: SparkSession, journal: penstock.Journal, folder: Path
) -> None:
    add_orders(journal, 10)
    file = folder / "pipeline.py"
    file.write_text(PIPELINE.replace("n // 10 * 10", "n // 0"), encoding="utf-8")
    line = file.read_text("utf-8").splitlines().index("    return n // 0") + 1
    with pytest.raises(FlowFailed, match=rf"'write': ZeroDivisionError: .*pipeline.py, line {line}\)") as failed:
        run(file, url=url_of(journal), once=True)
    assert failed.value.flow == "write"
    found = {one.flow: one for one in status(journal)}
    assert found["write"].state == "failed" and found["write"].restarts == 0
    assert "ZeroDivisionError" in str(found["write"].error)
    assert found["send"].state == "stopped"
    assert len(journal.topic("letters")) == 0


def test_with_keep_going_a_flow_that_fails_rests_and_the_others_run(
    spark: SparkSession, journal: penstock.Journal
) -> None:
    add_orders(journal, 20)

    @flow(source=topic("orders", payload_schema="n STRING"), target=topic("never"))
    def wrong(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("kind", "struct(n) AS payload")

    @flow(source=topic("orders"), target=topic("copies"))
    def copies(orders: DataFrame) -> DataFrame:
        return orders.select("kind", "payload")

    with pytest.raises(FlowFailed, match=r"flow 'wrong': .*event 1 of topic 'orders': field 'n'") as failure:
        run([wrong, copies], url=url_of(journal), once=True, name="shop", keep_going=True)
    assert failure.value.flow == "wrong"
    assert len(journal.topic("copies")) == 20
    assert {one.flow: one.state for one in status(journal)} == {"wrong": "failed", "copies": "done"}


def test_a_worker_that_is_killed_is_no_reason_to_give_up(
    spark: SparkSession, journal: penstock.Journal, folder: Path
) -> None:
    add_orders(journal, 100)
    marker = str(folder / "killed")

    def die_once(n):  # type: ignore[no-untyped-def]  # Spark would read type hints
        if n == 77 and not os.path.exists(marker):  # noqa: PTH110
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    @flow(source=topic("orders", payload_schema="n BIGINT", **most(50)), target=topic("copies"))
    def copies(orders: DataFrame) -> DataFrame:
        return orders.select("kind", F.struct(F.udf(die_once, "bigint")("n").alias("n")).alias("payload"))

    (found,) = run([copies], url=url_of(journal), once=True)
    assert (found.state, found.restarts, found.error) == ("done", 1, None)
    assert sorted(event.payload["n"] for event in journal.topic("copies").read()) == list(range(100))


def test_a_flow_that_keeps_failing_in_passing_is_given_up(spark: SparkSession, journal: penstock.Journal) -> None:
    add_orders(journal, 10)
    journal.queue("small", max_size=3)
    fill = flow(source=topic("orders"), target=queue("small"))(copy_events)
    with pytest.raises(FlowFailed, match=r"of at most 3.*\(after 2 attempts\)"):
        run([fill], url=url_of(journal), once=True, restarts=1)
    assert status(journal)[0].restarts == 1
    assert len(journal.topic("small")) == 0


def test_a_pipeline_runs_once_at_a_time(journal: penstock.Journal, tmp_path: Path) -> None:
    add_orders(journal, 1)
    copies = flow(source=topic("orders"), target=topic("copies"))(copy_events)
    said = rf"'shop' runs already .*process {os.getpid()}"
    with alone(url_of(journal), "shop"), pytest.raises(Locked, match=said):
        run([copies], url=url_of(journal), once=True, name="shop")


# ── checking without running ─────────────────────────────────────────────────────────────────────────────────────────
def dry(journal: penstock.Journal, *flows: Flow) -> dict[str, list[str]]:
    return Runner(Pipeline.of(flows, "shop"), url_of(journal)).check()


def test_a_dry_run_tells_the_columns_and_changes_nothing(
    spark: SparkSession, journal: penstock.Journal, folder: Path
) -> None:
    add_orders(journal, 3)
    copies = flow(source=topic("orders"), target=topic("copies"))(copy_events)
    again = flow(source=topic("copies"), target=queue("again"), name="again")(copy_events)
    columns = ["kind", "payload", "key"]
    assert dry(journal, copies, again) == {"copy_events": columns, "again": columns}
    assert journal.topics() == ["orders"] and journal.queues() == []
    assert not (folder / "shop.db.checkpoints").exists()


def test_a_dry_run_finds_every_frame_that_does_not_fit(spark: SparkSession, journal: penstock.Journal) -> None:
    add_orders(journal, 3)

    def flow_of(name: str, make: Callable[[Any], Any], **how: Any) -> Flow:
        return flow(source=topic("orders"), target=topic("t"), name=name, **how)(make)

    with pytest.raises(ConfigError) as found:
        dry(
            journal,
            flow_of("unknown", lambda frame: frame.select("kind", "payload", F.lit(1).alias("price"))),
            flow_of("bare", lambda frame: frame.select("kind")),
            flow_of("typo", lambda frame: frame.select("kindd")),
            flow_of("nothing", lambda frame: None),
            flow_of("static", lambda frame: frame.sparkSession.range(3)),
            flow_of("unbounded", lambda frame: frame.groupBy("kind").agg(F.max("payload").alias("payload"))),
        )
    expected = ["no column 'price'", 'no column "payload"', "kindd", "returned NoneType", "is no stream", "watermark"]
    for line, text in zip(str(found.value).split("\nflow "), expected, strict=True):
        assert text in line


def test_a_dry_run_says_of_a_wrong_column_one_sentence(spark: SparkSession, journal: penstock.Journal) -> None:
    add_orders(journal, 3)
    wrong = flow(source=topic("orders"), target=topic("t"), name="wrong")(lambda frame: frame.select(F.col("price")))
    logged = BufferingHandler(9)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).addHandler(logged)
    with pytest.raises(ConfigError) as found:
        dry(journal, wrong)
    assert logged.buffer == [], "pyspark printed a stack of the JVM's"
    said = str(found.value)
    assert "`price` cannot be resolved. Did you mean one of the following?" in said
    assert len(said) < 400 and "\n" not in said, said


def test_a_dry_run_finds_a_sink_that_spark_does_not_have(spark: SparkSession, journal: penstock.Journal) -> None:
    add_orders(journal, 1)
    known = flow(source=topic("orders"), target=external("console"), name="known")(copy_events)
    lost = flow(source=topic("orders"), target=external("delta", "/data/orders"), name="lost")(copy_events)
    with pytest.raises(ConfigError, match=r"^flow 'lost': .*no data source 'delta'.*--conf spark\.jars"):
        dry(journal, known, lost)


# ── going on, stopping, beginning again ──────────────────────────────────────────────────────────────────────────────
@needs_limits
def test_a_continuous_run_is_stopped_between_two_batches_and_the_next_one_goes_on(
    spark: SparkSession, journal: penstock.Journal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE", 600.0)  # a batch may take long on a busy machine
    source = topic("orders", maxOffsetsPerTrigger=20)
    copies = flow(source=source, target=topic("copies"), every=0.05)(copy_events)
    add_orders(journal, 1000)
    for copied in (1, 100):
        told: list[FlowStatus] = []
        runner = Runner(Pipeline.of([copies], "shop"), url_of(journal), watch=told.extend)
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        eventually(lambda copied=copied: len(journal.topic("copies")) >= copied)
        runner.stop()
        thread.join(600)
        assert not thread.is_alive()
        assert told[-1].state == "stopped" and told[-1].mode == "continuous"
        checkpoint = folder / "shop.db.checkpoints" / "shop" / "copy_events"
        begun, ended = (
            max(int(file.name) for file in (checkpoint / name).iterdir() if file.name.isdigit())
            for name in ("offsets", "commits")
        )
        assert begun == ended, "a batch had begun when the run was stopped"
    found = [event.payload["n"] for event in journal.topic("copies").read()]
    assert found == list(range(20 * (ended + 1)))
