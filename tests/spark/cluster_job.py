"""A program on a cluster: follows a buffer, notes which executor saw each entry, and writes to another buffer.

    python cluster_job.py MASTER SOURCE TARGET FOLDER STORE-OPTIONS-AS-JSON

It ends when the file `enough` is in the folder and everything that was produced has been written.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

import penstock.spark


def executor(entry: bytes) -> str:
    """Which executor this is: each has a parent process of its own for its Python workers."""
    import os

    return str(os.getppid())


def main(master: str, source: str, target: str, folder: Path, options: dict[str, str]) -> None:
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
    )
    try:
        spark.read.format("penstock").options(url=folder / "shop.db", topic="orders").load()
    except Exception as error:
        (folder / "refused").write_text(str(error))
    entries = spark.readStream.format("penstock-buffer").options(url=source, **options).load()
    writer = entries.select("entry", F.udf(executor)("entry").alias("metadata")).writeStream.format("penstock-buffer")
    query = writer.options(url=target, **options).option("checkpointLocation", str(folder / "checkpoint")).start()
    while not (folder / "enough").exists() and query.isActive:
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    penstock.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), json.loads(sys.argv[5]))
