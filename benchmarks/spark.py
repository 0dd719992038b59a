"""The data pipeline: reading, writing and following topics from Spark.

    python -m benchmarks spark              # everything, some ten minutes
    python -m benchmarks spark quick        # a fifth of the rows

Everything is a ratio to Spark's own reader and writer on the same rows, measured next to each other in the same run,
local[2], the median of several rounds after warming up.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import penstock
import penstock.spark
from benchmarks.harness import Table, versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
WARM_UP = 2


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed(base: Callable[[], Any], work: Callable[[], Any]) -> float:
    """How many times as fast as `base` the work is: the median over rounds of one after the other."""
    for _ in range(WARM_UP):
        base()
        work()
    return statistics.median(seconds(base) / seconds(work) for _ in range(ROUNDS))


def events(spark: SparkSession, count: int) -> DataFrame:
    """Events of 100 bytes: a kind, a key out of 20,000, a payload of JSON text."""
    number = F.col("id")
    head = F.concat(F.lit('{"customer":"c'), F.lpad((number % 20_000).cast("string"), 5, "0"), F.lit('","amount":'))
    amount = F.lpad((number % 8999 + 1000).cast("string"), 4, "0")
    sku = F.substring(F.sha2(number.cast("string"), 256), 1, 52)
    return spark.range(0, count, 1, 4).select(
        F.when(number % 3 == 0, "placed").otherwise("paid").alias("kind"),
        F.concat(head, amount, F.lit(',"sku":"'), sku, F.lit('"}')).alias("payload"),
        F.concat(F.lit("c"), number % 20_000).alias("key"),
    )


def read_topic(spark: SparkSession, url: str, topic: str = "orders", **options: str) -> DataFrame:
    return spark.read.format("penstock").options(url=url, topic=topic, **options).load()


def aggregate(frame: DataFrame) -> Any:
    """Looks at every value of every column."""
    values = [F.size(name) if name == "headers" else F.xxhash64(name) for name in frame.columns]
    return frame.select([F.bit_xor(value.cast("bigint")) for value in values]).collect()


def measure_write(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    frame = events(spark, count).persist()
    frame.count()
    written = iter(range(1000))

    def to_topic() -> None:
        url = str(folder / f"write-{next(written)}.db")
        frame.write.format("penstock").mode("append").options(url=url, topic="orders").save()
        for file in folder.glob("write-*"):
            file.unlink()

    def to_parquet() -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / "written"))

    found = speed(to_parquet, to_topic)
    table.row("write to a topic", f"{found:.2f} × df.write.parquet (zstd)", "≥ 0.8 ×", found >= 0.8)
    frame.unpersist()


def measure_read(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    url, files = str(folder / "read.db"), str(folder / "read")
    events(spark, count).write.format("penstock").mode("append").options(url=url, topic="orders").save()
    read_topic(spark, url).write.option("compression", "zstd").parquet(files)
    assert aggregate(read_topic(spark, url)) == aggregate(spark.read.parquet(files))
    found = speed(lambda: aggregate(spark.read.parquet(files)), lambda: aggregate(read_topic(spark, url)))
    table.row("read a hot topic, aggregate all columns", f"{found:.2f} × spark.read.parquet", "≥ 0.75 ×", found >= 0.75)


def batch_times(query: Any, rows: int) -> list[float]:
    """How long each batch of so many rows took, without the first few."""
    found = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows == rows]
    return found[len(found) // 4 :]


def measure_batches(table: Table, spark: SparkSession, folder: Path, batches: int) -> None:
    url = str(folder / "stream.db")
    frame = events(spark, 1000 * batches)
    frame.write.format("penstock").mode("append").options(url=url, topic="orders").save()
    ratios = []
    for round_ in range(3):
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
        noop = rate.writeStream.format("noop").option("checkpointLocation", str(folder / f"rate-{round_}")).start()
        while noop.lastProgress is None or noop.lastProgress.batchId < batches:
            time.sleep(0.2)
        noop.stop()
        orders = spark.readStream.format("penstock").options(url=url, topic="orders", maxOffsetsPerTrigger="1000")
        copied = orders.load().select("kind", "payload", "key")
        writer = copied.writeStream.format("penstock").options(url=url, topic="copies")
        query = writer.option("checkpointLocation", str(folder / f"copy-{round_}")).start()
        query.processAllAvailable()
        query.stop()
        ratios.append(statistics.median(batch_times(query, 1000)) / statistics.median(batch_times(noop, 1000)))
    found = statistics.median(ratios)
    table.row("micro-batch of 1,000 events, source → sink", f"{found:.2f} × rate → noop", "≤ 1.5 ×", found <= 1.5)


def append_for(topic: penstock.Topic, duration: float) -> float:
    """Events appended in a second by one producer in batches of 100, with a little work in between."""
    drafts = [penstock.Draft("placed", {"pad": "x" * 80}, key="k") for _ in range(100)]
    done = 0
    stop = time.perf_counter() + duration
    while time.perf_counter() < stop:
        topic.append_many(drafts)
        done += 100
        time.sleep(0.002)
    return done / duration


def measure_following(table: Table, spark: SparkSession, folder: Path) -> None:
    url = str(folder / "follow.db")
    with penstock.open(url) as journal:
        topic = journal.topic("orders")
        topic.append("placed", {})
        ratios = []
        for round_ in range(3):
            alone = append_for(topic, 4)
            stream = spark.readStream.format("penstock").options(url=url, topic="orders", startingOffsets="latest")
            writer = stream.load().writeStream.format("noop").trigger(processingTime="1 second")
            query = writer.option("checkpointLocation", str(folder / f"follow-{round_}")).start()
            warm = threading.Event()
            while not warm.is_set():
                topic.append("placed", {})
                query.processAllAvailable()
                warm.set()
            followed = append_for(topic, 4)
            query.stop()
            ratios.append(followed / alone)
    found = statistics.median(ratios)
    table.row("append while a streaming query follows", f"{found:.2f} × alone", "≥ 0.85 ×", found >= 0.85)


def main() -> None:
    quick = "quick" in sys.argv[1:]
    count = 400_000 if quick else 2_000_000
    table = Table(
        "spark",
        "Spark",
        (__doc__ or "").strip() + f"\n\n{count:,} events of 100 bytes. {versions('pyspark', 'pyarrow', 'numpy')}.",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = penstock.spark.session("benchmarks", master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        measure_read(table, spark, folder, count)
        measure_write(table, spark, folder, count)
        measure_batches(table, spark, folder, 20 if quick else 60)
        measure_following(table, spark, folder)
        penstock.spark.stop()
    table.save()


if __name__ == "__main__":
    main()
