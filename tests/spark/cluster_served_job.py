"""A program on a cluster: copies a served topic into another, and notes which executor made each copy.

    python cluster_served_job.py MASTER URL FOLDER

The token is in PENSTOCK_TOKEN, here and at the executors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import functions as F

import penstock.spark


def executor(payload: str) -> str:
    """Which executor this is: each has a parent process of its own for its Python workers."""
    import os

    return str(os.getppid())


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
    options = {"url": url, "topic": "orders", "minPartitions": "4", "maxOffsetsPerTrigger": "6000"}
    orders = spark.readStream.format("penstock").options(**options).load()
    copies = orders.select("kind", "payload", F.udf(executor)("payload").alias("key"))
    writer = copies.writeStream.format("penstock").options(url=url, topic="copies")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    penstock.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
