"""A program on a cluster: reads and writes a served journal in every way, and notes what its executors saw.

    python cluster_served_job.py MASTER URL FOLDER

The folder is the driver's own: executors must not see it. The token is in PENSTOCK_TOKEN, here and at the executors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from since import most

import penstock.spark
from penstock import Projection, on


class Total(Projection):
    """The sum of an entity's numbers."""

    total: int = 0

    @on("made")
    def made(self, event: Any) -> None:
        self.total += event.payload["n"]


def seen(folder: str) -> str:
    """Which executor this is (each has a parent process of its own for its Python workers), and what it finds."""
    import os

    return f"{os.getppid()}:{'|'.join(sorted(one.name for one in os.scandir(folder)))}"


def main(master: str, url: str, folder: Path) -> None:
    spark = penstock.spark.session(
        "cluster",
        master=master,
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_ui_enabled=False,
        spark_executor_cores=1,
        spark_executor_memory="512m",
        spark_scheduler_minRegisteredResourcesRatio=1.0,
        spark_scheduler_maxRegisteredResourcesWaitingTime="300s",
        **{"spark.executorEnv.PENSTOCK_TOKEN": os.environ["PENSTOCK_TOKEN"]},
    )
    copy_stream(spark, url, folder)
    write_large(spark, url)
    fold(spark, url)
    sort_out(spark, url)
    refused(spark, folder)
    penstock.spark.stop()


def copy_stream(spark: SparkSession, url: str, folder: Path) -> None:
    """A stream from topic to topic; the key of a copy says who made it."""
    options = {"url": url, "topic": "orders", "minPartitions": "4", **most(6000)}
    orders = spark.readStream.format("penstock").options(**options).load()
    copies = orders.select("kind", "payload", F.udf(seen)(F.lit(str(folder))).alias("key"))
    writer = copies.writeStream.format("penstock").options(url=url, topic="copies")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def write_large(spark: SparkSession, url: str) -> None:
    """Two tasks with some MiB each: more than travels in a message."""
    rows = spark.range(8_000, numPartitions=2).select(
        F.lit("large").alias("kind"), F.struct("id", F.repeat(F.lit("x"), 1_000).alias("pad")).alias("payload")
    )
    rows.write.format("penstock").mode("append").options(url=url, topic="large").save()


def fold(spark: SparkSession, url: str) -> None:
    """A projected frame, written to a queue."""
    orders = spark.read.format("penstock").options(url=url, topic="orders").load()
    totals = penstock.spark.project(orders, Total).select("key", F.col("state").alias("payload"))
    totals.write.format("penstock").mode("append").options(url=url, queue="totals").save()


def sort_out(spark: SparkSession, url: str) -> None:
    """What does not fit is put into a topic by the tasks that find it."""
    options = {"url": url, "topic": "mixed", "payloadSchema": "n INT", "badRecords": "misfits", "minPartitions": "4"}
    fitting = spark.read.format("penstock").options(**options).load()
    fitting.select("kind", F.struct("n").alias("payload")).write.format("penstock").mode("append").options(
        url=url, topic="fitting"
    ).save()


def refused(spark: SparkSession, folder: Path) -> None:
    """The driver's own file is no place for a cluster, though the driver sees it."""
    try:
        spark.read.format("penstock").options(url=str(folder / "shop.db"), topic="orders").load()
    except Exception as error:  # Spark wraps what a source raises while it is planned
        (folder / "refused").write_text(str(error))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
