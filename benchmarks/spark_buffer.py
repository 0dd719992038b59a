"""Spark and the buffer: writing to it, and reading from it.

    python -m benchmarks spark_buffer             # a few minutes
    python -m benchmarks spark_buffer quick       # a fifth of the rows

Ratios to Spark's own Parquet writer (zstd) and reader on the same rows, one column of text, measured next to each
other in the same run: local[2], file://, the median of several rounds after warming up. The buffer's objects are
fsynced, Spark's files are not.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import penstock.spark
from benchmarks.harness import Table, versions
from benchmarks.spark_rows import events, speed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 1


def entries(spark: SparkSession, count: int) -> DataFrame:
    """Entries of 100 bytes: what is the payload of the other benchmarks' events."""
    return events(spark, count).select(F.col("payload").alias("entry"))


def measure_write(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    frame = entries(spark, count).persist()
    frame.count()

    def to_parquet() -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / "parquet"))

    def to_buffer(compression: str) -> Callable[[], None]:
        def write() -> None:
            shutil.rmtree(folder / "buffer", ignore_errors=True)
            writer = frame.write.format("penstock-buffer").mode("append").option("compression", compression)
            writer.save(f"file://{folder}/buffer")

        return write

    for compression, goal in (("none", "≥ 1.2 ×"), ("zstd", "")):
        found = speed(to_parquet, to_buffer(compression), warm_up=WARM_UP)
        work = "write to the buffer" if goal else f"write to the buffer, {compression}"
        table.row(work, f"{found:.2f} × df.write.parquet (zstd)", goal, found >= 1.2 if goal else None)
    frame.unpersist()


def measure_read(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    files, url = str(folder / "read.parquet"), f"file://{folder}/read"
    entries(spark, count).write.option("compression", "zstd").parquet(files)
    entries(spark, count).write.format("penstock-buffer").mode("append").save(url)
    hashed = F.bit_xor(F.xxhash64("entry"))

    def from_parquet() -> Any:
        return spark.read.schema("entry BINARY").parquet(files).select(hashed).collect()

    def from_buffer() -> Any:
        return spark.read.format("penstock-buffer").schema("entry BINARY").load(url).select(hashed).collect()

    assert from_parquet() == from_buffer()
    found = speed(from_parquet, from_buffer, warm_up=WARM_UP)
    table.row("read the buffer, hash every entry", f"{found:.2f} × spark.read.parquet")


def main() -> None:
    quick = "quick" in sys.argv[1:]
    count = 400_000 if quick else 2_000_000
    load = f"Load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    notes = f"{__doc__}\n{count:,} entries of 100 bytes. {load}; {versions('pyspark', 'pyarrow', 'obstore')}."
    table = Table("spark_buffer", "Spark and the buffer", notes)
    with tempfile.TemporaryDirectory() as name:
        spark = penstock.spark.session("benchmarks", master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        measure_write(table, spark, Path(name), count)
        measure_read(table, spark, Path(name), count)
        penstock.spark.stop()
    if not quick:
        table.save()


if __name__ == "__main__":
    main()
