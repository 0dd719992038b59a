"""What the Spark benchmarks share: the events, ways to read them, and how two works are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
WARM_UP = 2


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed(base: Callable[[], Any], work: Callable[[], Any], rounds: int = ROUNDS, warm_up: int = WARM_UP) -> float:
    """How many times as fast as `base` the work is: the median over rounds of one after the other."""
    for _ in range(warm_up):
        base()
        work()
    return statistics.median(seconds(base) / seconds(work) for _ in range(rounds))


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


def write_topic(frame: DataFrame, url: str, topic: str = "orders", **options: str) -> None:
    frame.write.format("penstock").mode("append").options(url=url, topic=topic, **options).save()


def read_topic(spark: SparkSession, url: str, topic: str = "orders", **options: str) -> DataFrame:
    return spark.read.format("penstock").options(url=url, topic=topic, **options).load()


def aggregate(frame: DataFrame) -> Any:
    """Looks at every value of every column."""
    values = [F.size(name) if name == "headers" else F.xxhash64(name) for name in frame.columns]
    return frame.select([F.bit_xor(value.cast("bigint")) for value in values]).collect()


def run(frame: DataFrame) -> None:
    """Computes every row and drops it."""
    frame.write.format("noop").mode("overwrite").save()
