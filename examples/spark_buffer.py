"""Many machines, one query: collectors write to a buffer, and Spark turns it into another, exactly once.

Run it: `python examples/spark_buffer.py`. With s3://bucket/prefix as its argument it uses S3; with a Spark master as
its second one, a cluster. Run it again with the same folder and nothing is counted twice.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as F

import penstock.spark
from penstock.buffer import Producer


def collect(url: str, machine: str) -> None:
    """Collects readings on one machine, without state and without coordination."""
    with Producer(url) as producer:
        producer.produce([f'{{"machine":"{machine}","value":{n}}}'.encode() for n in range(1000)], machine.encode())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = sys.argv[1] if len(sys.argv) > 1 else f"file://{folder}"
        master = sys.argv[2] if len(sys.argv) > 2 else "local[2]"
        for n in range(4):
            collect(f"{root}/readings", f"machine-{n}")
        spark = penstock.spark.session("spark-buffer", master=master)
        readings = spark.readStream.format("penstock-buffer").option("url", f"{root}/readings").load()
        parsed = F.from_json(F.col("entry").cast("string"), "machine STRING, value INT").alias("reading")
        high = readings.select("metadata", parsed).where("reading.value >= 900")
        query = (
            high.select(F.to_json("reading").alias("entry"), "metadata")
            .writeStream.format("penstock-buffer")
            .option("url", f"{root}/alerts")
            .option("checkpointLocation", str(Path(folder) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        alerts = spark.read.format("penstock-buffer").load(f"{root}/alerts")
        alerts.groupBy(F.col("metadata").cast("string").alias("machine")).count().orderBy("machine").show()
        penstock.spark.stop()


if __name__ == "__main__":
    main()
