"""The data pipeline: reading, writing and following topics from Spark.

    python -m benchmarks spark                  # everything, some twenty minutes
    python -m benchmarks spark quick            # a fifth of the rows; nothing is written down
    python -m benchmarks spark read seal        # only some rows, which take the place of the last run's
    python -m benchmarks spark 50000 read       # with so many events; nothing is written down

Everything is a ratio to Spark's own reader and writer on the same rows, measured next to each other in the same run,
local[2], the median of several rounds after warming up.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
import penstock.spark
from benchmarks.harness import Table, versions
from benchmarks.spark_history import (
    measure_backfill,
    measure_lake,
    measure_project,
    measure_seal,
    measure_seal_typed,
    measure_state,
)
from benchmarks.spark_rows import aggregate, events, read_topic, speed, write_topic
from benchmarks.spark_served import measure_append_beside, measure_served_read, measure_served_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def measure_write(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    frame = events(spark, count).persist()
    frame.count()
    written = iter(range(1000))

    def to_topic() -> None:
        url = str(folder / f"write-{next(written)}.db")
        write_topic(frame, url)
        for file in folder.glob("write-*"):
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()

    def to_parquet() -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / "written"))

    found = speed(to_parquet, to_topic)
    table.row("write to a topic", f"{found:.2f} × df.write.parquet (zstd)", "≥ 0.8 ×", found >= 0.8)
    frame.unpersist()


class Stored:
    """The events of the reading benchmarks, in a topic and as Spark's own Parquet; made when first asked for."""

    def __init__(self, spark: SparkSession, folder: Path, count: int) -> None:
        self.spark = spark
        self.count = count
        self.url, self.files = str(folder / "read.db"), str(folder / "read")

    def make(self) -> Stored:
        if not Path(self.files).exists():
            write_topic(events(self.spark, self.count), self.url)
            read_topic(self.spark, self.url).write.option("compression", "zstd").parquet(self.files)
        return self


def measure_read(table: Table, spark: SparkSession, stored: Stored) -> None:
    url, files = stored.url, stored.files
    assert aggregate(read_topic(spark, url)) == aggregate(spark.read.parquet(files))
    found = speed(lambda: aggregate(spark.read.parquet(files)), lambda: aggregate(read_topic(spark, url)))
    table.row("read a hot topic, aggregate all columns", f"{found:.2f} × spark.read.parquet", "≥ 0.75 ×", found >= 0.75)


def batch_times(query: Any, rows: int) -> list[float]:
    """How long each batch of so many rows took, without the first few."""
    found = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows == rows]
    return found[len(found) // 4 :]


def measure_batches(table: Table, spark: SparkSession, folder: Path, batches: int) -> None:
    url = str(folder / "stream.db")
    write_topic(events(spark, 1000 * batches), url)
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
    table.row("micro-batch of 1,000 events, source → sink", f"{found:.2f} × rate → noop", "≤ 1.3 ×", found <= 1.3)


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
    """Appending alone, while a query follows, and, to tell what Spark itself takes, beside one that reads no journal."""
    url = str(folder / "follow.db")
    names = iter(range(1000))

    def beside(frame: DataFrame) -> float:
        writer = frame.writeStream.format("noop").trigger(processingTime="1 second")
        query = writer.option("checkpointLocation", str(folder / f"follow-{next(names)}")).start()
        while not any(progress.numInputRows for progress in query.recentProgress):
            topic.append("placed", {})
            time.sleep(0.1)
        appended = append_for(topic, 4)
        query.stop()
        return appended

    with penstock.open(url) as journal:
        topic = journal.topic("orders")
        topic.append("placed", {})
        following, others = [], []
        for _ in range(5):
            alone = append_for(topic, 4)
            options = {"url": url, "topic": "orders", "startingOffsets": "latest"}
            following.append(beside(spark.readStream.format("penstock").options(**options).load()) / alone)
            alone = append_for(topic, 4)
            rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", int(alone))
            others.append(beside(rate.load()) / alone)
    found, control = statistics.median(following), statistics.median(others)
    table.row("append while a streaming query follows", f"{found:.2f} × alone", "≥ 0.85 ×", found >= 0.85)
    table.row("append beside a query from rate to noop, every second too", f"{control:.2f} × alone")


def main() -> None:
    words = sys.argv[1:]
    quick = "quick" in words
    sizes = [int(word.replace("_", "")) for word in words if word.replace("_", "").isdigit()]
    count = sizes[-1] if sizes else 400_000 if quick else 2_000_000
    table = Table(
        "spark",
        "Spark",
        (__doc__ or "").strip() + f"\n\n{count:,} events of 100 bytes. {versions('pyspark', 'pyarrow', 'numpy')}.",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = penstock.spark.session("benchmarks", master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        stored = Stored(spark, folder, count)
        rows: dict[str, Callable[[], None]] = {
            "read": lambda: measure_read(table, spark, stored.make()),
            "lake": lambda: measure_lake(table, spark, folder, stored.make().url, stored.files, count),
            "write": lambda: measure_write(table, spark, folder, count),
            "batches": lambda: measure_batches(table, spark, folder, 20 if quick else 60),
            "project": lambda: measure_project(table, spark, stored.make().url),
            "follow": lambda: measure_following(table, spark, folder),
            "seal": lambda: measure_seal(table, spark, folder, 5 * count),
            "seal-typed": lambda: measure_seal_typed(table, spark, folder, 5 * count),
            "backfill": lambda: measure_backfill(table, spark, folder, stored.make().url, count),
            "state": lambda: measure_state(table, spark, folder, stored.make().url, count),
            "served-read": lambda: measure_served_read(table, spark, stored.make().url),
            "served-write": lambda: measure_served_write(table, spark, folder, count),
            "beside": lambda: measure_append_beside(table, spark, folder, count // 2),
        }
        chosen = [word for word in words if word != "quick" and not word.replace("_", "").isdigit()] or list(rows)
        unknown = [word for word in chosen if word not in rows]
        if unknown:
            sys.exit(f"there is no row {unknown[0]!r}; there are {', '.join(rows)}")
        for row in chosen:
            rows[row]()
        penstock.spark.stop()
    if not quick and not sizes:
        table.save_rows() if words else table.save()


if __name__ == "__main__":
    main()
