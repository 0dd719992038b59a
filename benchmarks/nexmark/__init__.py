"""NEXMark on Spark, from penstock topics: the queries' answers beside DuckDB's, their speed beside typed Parquet's and file streams'.

    python -m benchmarks nexmark              # about twenty minutes
    python -m benchmarks nexmark q3 q7        # some queries; their rows take the place of earlier ones

Batch: every query over `read_topic` of topics that Spark wrote with a lake, over the source alone, and over typed
Parquet, in turns; how many times as fast as Parquet, the median of the rounds. The answers are compared row by row with
DuckDB's over the same journal, which parses the payloads itself.

Streams: five queries from topics to topics, in five batches, beside the same from Parquet files with JSON text to such
files; how many times as fast, in turns. `NEXMARK_EVENTS` sets how many events there are.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow.parquet
from pyspark.sql import functions as F

import penstock
import penstock.spark
from benchmarks.harness import Table
from benchmarks.nexmark import batch, streams
from benchmarks.nexmark.queries import BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

EVENTS = int(os.environ.get("NEXMARK_EVENTS", "1000000"))
ROUNDS = 3
STREAMED = ("q0", "q2", "q3", "q7", "q17")
STREAM_ROUNDS = 2
BATCHES = 5
GOAL = 0.9
"""How fast batches of q0 to q8 should be, beside typed Parquet."""


def main() -> None:
    table = Table("nexmark", "NEXMark", (__doc__ or "").strip(), rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as scratch:
        _measure(table, Path(scratch))
    table.save_rows()


def _measure(table: Table, folder: Path) -> None:
    for topic, rows in batch.make_tables(EVENTS, seed=1, step_ms=1).items():
        (folder / "parquet" / topic).mkdir(parents=True)
        pyarrow.parquet.write_table(rows, folder / "parquet" / topic / "rows.parquet", compression="zstd")
    url = str(folder / "nexmark.db")
    spark = penstock.spark.session("nexmark", master="local[2]", spark_sql_session_timeZone="UTC")
    batch.write_topics(spark, folder / "parquet", url, lake=str(folder / "lake"))
    with penstock.open(url) as journal:
        duck = batch.reference(journal)
        sides = {
            "Parquet": batch.in_parquet(spark, folder / "parquet"),
            "read_topic": batch.in_journal(spark, url),
            "source": batch.in_source(spark, url),
        }
        for name in filter(_is_wanted, BATCH):
            sql = BATCH[name]
            took: dict[str, list[float]] = {side: [] for side in sides}
            batch.register(spark, sides["read_topic"])
            same = batch.answer(spark.sql(sql).collect()) == batch.answer(duck.execute(sql).fetchall())
            for number in range(ROUNDS + 1):
                for side, tables in sides.items():
                    batch.register(spark, tables)
                    began = time.perf_counter()
                    spark.sql(sql).write.format("noop").mode("overwrite").save()
                    if number:
                        took[side].append(time.perf_counter() - began)
            shares = {
                side: median(base / own for base, own in zip(took["Parquet"], took[side], strict=True))
                for side in sides
            }
            goal = GOAL if int(name[1:]) <= 8 else None
            table.row(
                f"{name}, batch",
                f"{shares['read_topic']:.2f} × Parquet (source {shares['source']:.2f}; {median(took['Parquet']):.2f} s)"
                + ("" if same else "; ANOTHER ANSWER than DuckDB"),
                "" if goal is None else f"≥ {goal}, same answer",
                same and (goal is None or shares["read_topic"] >= goal),
            )
    _measure_streams(table, spark, url, folder)
    penstock.spark.stop()


def _measure_streams(table: Table, spark: SparkSession, url: str, folder: Path) -> None:
    for topic, rows in batch.in_parquet(spark, folder / "parquet").items():
        texts = rows.orderBy("dateTime").select(F.to_json(F.struct("*")).alias("payload"))
        texts.repartitionByRange(BATCHES, F.get_json_object("payload", "$.dateTime")).write.parquet(
            str(folder / "json" / topic)
        )
    for name in filter(_is_wanted, STREAMED):
        took: list[tuple[float, float]] = []
        for number in range(STREAM_ROUNDS + 1):
            streams.read_files(spark, folder / "json", 1)
            files = _seconds(
                streams.start_to_files(spark, name, folder / f"out{number}", folder / f"from-files{number}")
            )
            target = str(folder / f"streams{number}.db")
            streams.read(spark, url, maxOffsetsPerTrigger=str(EVENTS // BATCHES))
            topics = _seconds(streams.start(spark, name, target, folder / f"from-topics{number}"))
            if number:
                took.append((files, topics))
        found = median(files / topics for files, topics in took)
        speed = EVENTS / median(topics for _, topics in took)
        table.row(f"{name}, stream", f"{found:.2f} × file → Parquet ({speed:,.0f} events/s)", "≥ 1", found >= 1)


def _is_wanted(name: str) -> bool:
    return name in sys.argv[1:] or not sys.argv[1:]


def _seconds(query: StreamingQuery) -> float:
    began = time.perf_counter()
    query.awaitTermination()
    return time.perf_counter() - began
