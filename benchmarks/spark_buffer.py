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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

import penstock.spark
from benchmarks.harness import Table, versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
WARM_UP = 1


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


def entries(spark: SparkSession, count: int) -> DataFrame:
    """Entries of 100 bytes: JSON text with a customer, an amount and half of it as good as random."""
    number = F.col("id")
    head = F.concat(F.lit('{"customer":"c'), F.lpad((number % 20_000).cast("string"), 5, "0"), F.lit('","amount":'))
    amount = F.lpad((number % 8999 + 1000).cast("string"), 4, "0")
    sku = F.substring(F.sha2(number.cast("string"), 256), 1, 52)
    return spark.range(0, count, 1, 4).select(
        F.concat(head, amount, F.lit(',"sku":"'), sku, F.lit('"}')).alias("entry")
    )


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
        found = speed(to_parquet, to_buffer(compression))
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
    found = speed(from_parquet, from_buffer)
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
