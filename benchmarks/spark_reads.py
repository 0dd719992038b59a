"""Queries that want a part of a topic, as a share of a query that looks at every value of it; Parquet beside, alike.

python -m benchmarks spark_reads [events]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

import penstock.spark
from benchmarks.harness import Table, versions
from benchmarks.spark_rows import aggregate, read_topic, run, seconds, write_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 2_000_000
KEYS = 100_000
ROUNDS = 3
COLUMNS = "seq BIGINT, kind STRING, key STRING"


def orders(spark: SparkSession, count: int) -> DataFrame:
    """Events of 100,000 keys; one in a hundred is of a kind that is spread over all, and as many of one that is not."""
    number = F.col("id")
    kind = F.when(number % 100 == 0, "spread").when(number.between(count // 2, count // 2 + count // 100), "rare")
    return spark.range(0, count, 1, 8).select(
        kind.otherwise("placed").alias("kind"),
        F.format_string("k%06d", (number * 7919) % KEYS).alias("key"),
        F.format_string('{"n":%d,"sku":"%s"}', number, F.substring(F.sha2(number.cast("string"), 256), 1, 60)).alias(
            "payload"
        ),
    )


GOALS = {
    "key = x": (0.15, lambda frame, _: frame.where("key = 'k042424'")),
    "key IN (3)": (0.15, lambda frame, _: frame.where("key IN ('k042424', 'k000007', 'k099999')")),
    "key LIKE 'k04242%'": (0.15, lambda frame, _: frame.where("key LIKE 'k04242%'")),
    "a kind of 1 %, side by side": (0.2, lambda frame, _: frame.where("kind = 'rare'")),
    "a kind of 1 %, everywhere": (0.2, lambda frame, _: frame.where("kind = 'spread'")),
    "seq IN (1, last)": (0.15, lambda frame, count: frame.where(f"seq IN (1, {count})")),
    "count(*)": (0.15, lambda frame, _: frame.groupBy().count()),
    "select seq, kind, key": (0.35, lambda frame, _: frame.select("seq", "kind", "key")),
}
"""What is asked, and how long it may take, in full scans."""


def share(frame: DataFrame, query: DataFrame) -> float:
    """How long a query takes, in full scans; the median over rounds, each with a scan of its own."""
    run(query)
    return statistics.median(seconds(lambda: run(query)) / seconds(lambda: aggregate(frame)) for _ in range(ROUNDS))


def main() -> None:
    sizes = [int(word.replace("_", "")) for word in sys.argv[1:] if word.replace("_", "").isdigit()]
    count = sizes[-1] if sizes else COUNT
    notes = f"{(__doc__ or '').strip()}\n\n{count:,} events, {KEYS:,} keys. {versions('pyspark', 'pyarrow', 'numpy')}."
    table = Table("spark_reads", "Spark: reading a part", notes)
    with tempfile.TemporaryDirectory() as folder:
        spark = penstock.spark.session("reads", master="local[2]")
        url, files = str(Path(folder) / "shop.db"), str(Path(folder) / "shop.parquet")
        write_topic(orders(spark, count), url)
        topic = read_topic(spark, url)
        topic.write.parquet(files)
        parquet = spark.read.parquet(files)
        aggregate(topic)
        aggregate(parquet)
        for name, (goal, query) in GOALS.items():
            found, other = share(topic, query(topic, count)), share(parquet, query(parquet, count))
            table.row(name, f"{found:.2f} (Parquet: {other:.2f})", f"≤ {goal}", found <= goal)
        few = spark.read.format("penstock").options(url=url, topic="orders").schema(COLUMNS).load()
        for name, query in ((f'.schema("{COLUMNS}")', few), ("the same, count(*)", few.groupBy().count())):
            found = share(topic, query)
            table.row(name, f"{found:.2f}", "≤ 0.35", found <= 0.35)
        table.save()
        penstock.spark.stop()


if __name__ == "__main__":
    main()
