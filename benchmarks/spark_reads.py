"""Queries that want a part of a topic, as a share of one that looks at every value of it; Parquet beside, alike.

    python -m benchmarks spark_reads             # 2,000,000 events, a few minutes
    python -m benchmarks spark_reads 300_000     # quicker, and more of it what every query costs

Every query loads its frame anew, and runs in turn with the others; shares are of medians over rounds. CPU time is of all
processes of the session: it decides, since others use the machine as well. "fetched" is what the plan and
the tasks open of the topic, in events of whole blocks, counted in one process without Spark.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql import types as T

import penstock
import penstock.spark
from benchmarks.harness import Table, versions
from benchmarks.spark_rows import aggregate, run, write_topic
from penstock.core.journal.blocks import Block
from penstock.spark.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 2_000_000
KEYS = 100_000
ROUNDS = 5
FEW = "seq BIGINT, kind STRING, key STRING"
THREE = "'k042424', 'k000007', 'k099999'"


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


class Query(NamedTuple):
    """What is asked: of a topic by options and a schema, of Parquet by a frame; and how long it may take."""

    name: str
    options: dict[str, str]
    schema: str | None
    parquet: Callable[[DataFrame], Any] | None
    goal: float | None
    ask: Callable[[DataFrame], Any] = run


def queries(count: int) -> list[Query]:
    def where(name: str, condition: str, goal: float) -> Query:
        sql = condition.replace("startswith 'k04242'", "LIKE 'k04242%'")
        return Query(name, {"where": condition}, None, lambda frame: run(frame.where(sql)), goal)

    return [
        Query("everything", {}, None, aggregate, None, aggregate),
        Query("nothing: what a query costs", {"endingOffsets": "0"}, None, lambda f: run(f.where("seq < 0")), None),
        where("key = x (20 events)", "key = 'k042424'", 0.15),
        where("key in (3)", f"key in ({THREE})", 0.15),
        where("key startswith 'k04242'", "key startswith 'k04242'", 0.15),
        where("a kind of 1 %, side by side", "kind = 'rare'", 0.2),
        where("a kind of 1 %, everywhere", "kind = 'spread'", 0.2),
        where("seq in (1, last)", f"seq in (1, {count})", 0.15),
        Query("count(*)", {}, None, lambda frame: frame.count(), None, lambda frame: frame.count()),
        Query('count(*), .schema("seq BIGINT")', {}, "seq BIGINT", None, 0.15, lambda frame: frame.count()),
        Query(f'.schema("{FEW}")', {}, FEW, lambda frame: run(frame.select("seq", "kind", "key")), 0.35),
        Query(
            "sum of a field of the payload",
            {"payloadSchema": "n BIGINT"},
            "n BIGINT",
            lambda frame: frame.agg(F.sum(F.get_json_object("payload", "$.n").cast("bigint"))).collect(),
            0.8,
            lambda frame: frame.agg(F.sum("n")).collect(),
        ),
    ]


def cpu_seconds() -> float:
    """CPU time of this process and all below it, ended ones included."""
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = int(words[1]), sum(map(int, words[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in mine} - mine:
        mine |= more
    return sum(found[pid][1] for pid in mine) / os.sysconf("SC_CLK_TCK")


def fetched(url: str, query: Query) -> int:
    """How many events the blocks have that a query opens, in the plan and in tasks."""
    opened: set[tuple[int, int]] = set()
    make = Block.__init__

    def counting(self: Block, wire: Any, topic: str) -> None:
        if wire.first:  # one that is stored by itself has no place until it is opened
            opened.add((wire.first, wire.count))
        make(self, wire, topic)

    types: dict[str, T.DataType] = {"BIGINT": T.LongType(), "STRING": T.StringType()}
    columns = [part.split() for part in (query.schema or FEW).split(", ")]
    reader = PenstockSource({"url": url, "topic": "orders", **query.options}).reader(
        T.StructType([T.StructField(name, types[kind]) for name, kind in columns])
    )
    for measured in (False, True):  # the first plan also loads what is in memory afterwards
        Block.__init__ = counting if measured else make  # type: ignore[method-assign]
        try:
            for share in reader.partitions():
                for _ in reader.read(share):
                    pass
        finally:
            Block.__init__ = make  # type: ignore[method-assign]
    return sum(count for _, count in opened)


def measure(spark: SparkSession, url: str, files: str, count: int, table: Table, state: str) -> None:
    asked = queries(count)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def of_topic(query: Query) -> Any:
        reader = spark.read.format("penstock").options(url=url, topic="orders", **query.options)
        return query.ask((reader if query.schema is None else reader.schema(query.schema)).load())

    for turn in range(ROUNDS + 2):
        for query in asked:
            works = {"topic": lambda query=query: of_topic(query)}
            if query.parquet is not None:
                works["parquet"] = lambda query=query: query.parquet(spark.read.parquet(files))
            for place, work in works.items():
                cpu, clock = cpu_seconds(), time.perf_counter()
                work()
                if turn > 1:
                    spent = time.perf_counter() - clock, cpu_seconds() - cpu
                    times.setdefault((place, query.name), []).append(spent)
    medians = {key: [statistics.median(part) for part in zip(*spent, strict=True)] for key, spent in times.items()}
    for query in asked:
        clock, cpu = medians["topic", query.name]
        all_clock, all_cpu = medians["topic", asked[0].name]
        beside = ""
        if query.parquet is not None:
            other, whole = medians["parquet", query.name], medians["parquet", asked[0].name]
            beside = f"; Parquet {other[0] / whole[0]:.2f}, CPU {other[1] / whole[1]:.2f}"
        found = f"{clock / all_clock:.2f}, CPU {cpu / all_cpu:.2f} (fetched {fetched(url, query):,}{beside})"
        if query.goal is None:
            found += f", {clock:.2f} s, CPU {cpu:.2f} s"
        holds = None if query.goal is None else cpu / all_cpu <= query.goal
        table.row(f"{state}: {query.name}", found, "" if query.goal is None else f"≤ {query.goal}", holds)


def main() -> None:
    sizes = [int(word.replace("_", "")) for word in sys.argv[1:] if word.replace("_", "").isdigit()]
    count = sizes[-1] if sizes else COUNT
    notes = f"{(__doc__ or '').strip()}\n\n{count:,} events, {KEYS:,} keys. {versions('pyspark', 'pyarrow', 'numpy')}."
    table = Table("spark_reads", "Spark: reading a part", notes)
    with tempfile.TemporaryDirectory() as folder:
        spark = penstock.spark.session("reads", master="local[2]")
        url, files = str(Path(folder) / "shop.db"), str(Path(folder) / "shop.parquet")
        write_topic(orders(spark, count), url)
        spark.read.format("penstock").options(url=url, topic="orders").load().write.parquet(files)
        measure(spark, url, files, count, table, "as Spark wrote it")
        with penstock.open(url) as journal:
            journal.maintain()
        measure(spark, url, files, count, table, "indexed")
        table.save()
        penstock.spark.stop()


if __name__ == "__main__":
    main()
