"""The rows of the Spark benchmark about whole histories: folding them, sealing them, reading what is sealed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, Row, StructField, StructType

import penstock.spark
from benchmarks.harness import Table
from benchmarks.spark_rows import aggregate, events, read_topic, run, seconds, speed, write_topic
from penstock import Projection, on
from penstock.spark import backfill
from penstock.spark.pipeline.flows import Flow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


# ── projections ──────────────────────────────────────────────────────────────────────────────────────────────────────
class Customer(Projection):
    orders: int = 0
    amount: int = 0

    @on("placed", "paid")
    def order(self, payload: Any) -> None:
        self.orders += 1
        self.amount += payload["amount"]


class CustomerProcessor(StatefulProcessor):
    """The same fold for transformWithState."""

    def init(self, handle: Any) -> None:
        fields = [StructField("orders", LongType()), StructField("amount", LongType())]
        self.state = handle.getValueState("customer", StructType(fields))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        orders, amount = self.state.get() if self.state.exists() else (0, 0)
        generation = 0
        for row in rows:
            orders += 1
            amount += msgspec.json.decode(row.payload)["amount"]
            generation = row.seq
        self.state.update((orders, amount))
        yield Row(key=key[0], generation=generation, orders=orders, amount=amount)

    def close(self) -> None:
        pass


def built_in(frame: DataFrame) -> DataFrame:
    """The same by Spark's own functions."""
    amount = F.from_json("payload", "amount BIGINT")["amount"]
    return frame.groupBy("key").agg(
        F.max("seq").alias("generation"), F.count("*").alias("orders"), F.sum(amount).alias("amount")
    )


def with_state(frame: DataFrame) -> DataFrame:
    schema = "key STRING, generation BIGINT, orders BIGINT, amount BIGINT"
    rows = frame.select("key", "seq", "payload").groupBy("key")
    return rows.transformWithState(CustomerProcessor(), schema, outputMode="Update", timeMode="None")


def measure_project(table: Table, spark: SparkSession, url: str) -> None:
    """`url` holds the events already."""

    def project() -> DataFrame:
        return penstock.spark.project(read_topic(spark, url), Customer)

    def flat(frame: DataFrame) -> list[Any]:
        return sorted(tuple(row) for row in frame.collect())

    ours = flat(project().select("key", "generation", "state.orders", "state.amount"))
    assert ours == flat(built_in(read_topic(spark, url)))
    found = speed(lambda: run(built_in(read_topic(spark, url))), lambda: run(project()), 3, 1)
    table.row("project, 20,000 keys", f"{found:.2f} × a built-in aggregation", "≥ 0.4 ×", found >= 0.4)
    if find_spec("pandas") is None or find_spec("google.protobuf") is None:
        table.row(
            "project, 20,000 keys, in state", "transformWithState needs pandas and protobuf: not measured", "≥ 5 ×"
        )
        return
    cloudpickle: Any = import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    slow = seconds(lambda: run(with_state(read_topic(spark, url))))
    found = slow / seconds(lambda: run(project()))
    table.row("project, 20,000 keys, in state", f"{found:.1f} × transformWithState", "≥ 5 ×", found >= 5)


# ── sealing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def measure_lake(table: Table, spark: SparkSession, folder: Path, url: str, files: str, count: int) -> None:
    """`url` holds the events, `files` the same rows as Spark writes them."""
    copy = str(folder / "lake.db")
    with penstock.open(url, read_only=True) as journal:  # a copy of the file would lack what is in SQLite's log
        journal.backup(copy)
    penstock.spark.seal(copy, "orders", lake=str(folder / "lake"), through=count)
    assert aggregate(penstock.spark.read_topic(spark, copy, "orders")) == aggregate(spark.read.parquet(files))
    found = speed(
        lambda: aggregate(spark.read.parquet(files)),
        lambda: aggregate(penstock.spark.read_topic(spark, copy, "orders")),
    )
    table.row("read a sealed topic through read_topic", f"{found:.2f} × spark.read.parquet", "≥ 0.95 ×", found >= 0.95)
    shutil.rmtree(folder / "lake")


def measure_seal(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    url = str(folder / "seal.db")
    write_topic(events(spark, count), url)
    frame = read_topic(spark, url).persist()
    frame.count()

    def to_parquet() -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / "sealed"))

    to_parquet()
    before = seconds(to_parquet)
    ours = seconds(lambda: penstock.spark.seal(url, "orders", lake=str(folder / "lake"), through=count))
    found = (before + seconds(to_parquet)) / 2 / ours
    frame.unpersist()
    work = f"seal {count:,} events"
    table.row(work, f"{found:.2f} × writing the same Parquet from memory", "≥ 0.7 ×", found >= 0.7)


def measure_seal_typed(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    """Sealing with typed columns into a Delta table, beside writing rows with the same columns from memory."""
    url = str(folder / "typed.db")
    write_topic(events(spark, count), url)
    columns = "customer STRING, amount BIGINT, sku STRING"
    frame = read_topic(spark, url).persist()
    frame.count()
    typed = frame.select("*", F.from_json("payload", columns).alias("fields")).select(*frame.columns, "fields.*")

    def to_parquet() -> None:
        typed.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / "typed"))

    to_parquet()
    before = seconds(to_parquet)
    lake = str(folder / "typed-lake")
    ours = seconds(
        lambda: penstock.spark.seal(url, "orders", lake=lake, through=count, format="delta", columns=columns)
    )
    found = (before + seconds(to_parquet)) / 2 / ours
    frame.unpersist()
    work = f"seal {count:,} events with typed columns into Delta"
    table.row(work, f"{found:.2f} × writing the same Parquet from memory", "≥ 0.5 ×", found >= 0.5)


# ── the state of streams ─────────────────────────────────────────────────────────────────────────────────────────────
_HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def measure_state(table: Table, spark: SparkSession, folder: Path, url: str, count: int) -> None:
    """An aggregation that follows a topic, 20,000 keys: its state in RocksDB, as pipelines have it, and in the heap."""

    def follow(provider: str, name: str) -> float:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
        stream = spark.readStream.format("penstock").options(url=url, topic="orders")
        rows = built_in(stream.option("maxOffsetsPerTrigger", str(count // 10)).load())
        writer = rows.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / name)).start()
        query.awaitTermination()
        return float(sum(one.durationMs["triggerExecution"] for one in query.recentProgress[2:]))

    follow(_ROCKSDB, "state-warm")
    rocks, heap = follow(_ROCKSDB, "state-rocksdb"), follow(_HEAP, "state-heap")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    table.row("batches of a stream that keeps state, in RocksDB", f"{rocks / heap:.2f} × the time with it in the heap")


# ── pipelines over a long history ────────────────────────────────────────────────────────────────────────────────────
def measure_backfill(table: Table, spark: SparkSession, folder: Path, url: str, count: int) -> None:
    """Flows over a sealed topic from its beginning, which Spark's own reader and the source read in turn."""
    copy = str(folder / "backfill.db")
    with penstock.open(url, read_only=True) as journal:
        journal.backup(copy)
    fields = "customer STRING, amount BIGINT"
    penstock.spark.seal(copy, "orders", lake=str(folder / "backfill"), through=count - 1000, columns=fields)
    source = penstock.spark.topic("orders", payloadSchema=fields)

    @penstock.spark.flow(source=source, target=penstock.spark.topic("sums"), output_mode="update")
    def sums(orders: DataFrame) -> DataFrame:
        kinds = orders.groupBy("kind").agg(F.sum("amount").alias("amount"))
        return kinds.selectExpr("'summed' AS kind", "kind AS key", "struct(amount) AS payload")

    @penstock.spark.flow(source=source, target=penstock.spark.topic("large"))
    def large(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 9990").select("kind", F.struct("customer").alias("payload"))

    numbers = iter(range(1000))

    def carry(flow: Flow, least: int) -> Any:
        backfill.BACKFILL_EVENTS = least  # type: ignore[misc]
        (done,) = penstock.spark.run([flow], url=copy, once=True, name=f"run-{next(numbers)}")
        assert done.rows == count

    for flow, work in ((sums, "sums"), (large, "a filter")):
        found = speed(partial(carry, flow, count + 1), partial(carry, flow, 1), 3, 1)
        row = f"a flow over {count:,} sealed events, {work}"
        table.row(row, f"{found:.2f} × the speed through the source", "≥ 1.5 ×", found >= 1.5)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
