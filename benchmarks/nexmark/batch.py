"""NEXMark's tables in a journal, in Parquet and in DuckDB, and the answers of all three."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from pyspark.sql import functions as F

import penstock
import penstock.spark
from benchmarks.nexmark.generator import SCHEMAS, Generator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

Answer = list[tuple[Any, ...]]
SIDE = [(number, f"value-{number}") for number in range(0, 10_000, 7)]
_TYPES = {"BIGINT": pa.int64(), "STRING": pa.string()}


def fields(topic: str) -> dict[str, str]:
    """Returns the columns of a table and their types."""
    return dict(field.split() for field in SCHEMAS[topic].split(", "))  # type: ignore[arg-type]


def make_tables(count: int, seed: int, *, step_ms: int = 1) -> dict[str, pa.Table]:
    """Returns the generator's events as tables."""
    rows: dict[str, list[dict[str, Any]]] = {topic: [] for topic in SCHEMAS}
    for topic, row in Generator(seed, step_ms=step_ms).events(count):
        rows[topic].append(row)
    return {
        topic: pa.Table.from_pylist(found, pa.schema([(name, _TYPES[type]) for name, type in fields(topic).items()]))
        for topic, found in rows.items()
    }


def write_topics(spark: SparkSession, folder: Path, url: str, lake: str | None = None) -> None:
    """Writes the tables of `folder`, which are Parquet, to topics of their names, in one order of time."""
    for topic in SCHEMAS:
        frame = spark.read.parquet(str(folder / topic)).orderBy("dateTime")
        rows = frame.select(
            F.lit(topic).alias("kind"),
            F.timestamp_millis("dateTime").alias("occurred_at"),
            F.struct(*fields(topic)).alias("payload"),
        )
        options = {"url": url, "topic": topic} | ({} if lake is None else {"lake": lake})
        rows.write.format("penstock").mode("append").options(**options).save()


PREFIX = "of_"
"""What the columns of payloads begin with: every event has an `id` of its own."""


def named(topic: str, frame: DataFrame) -> DataFrame:
    """Returns the payload's fields under their own names."""
    return frame.select([F.col(PREFIX + name).alias(name) for name in fields(topic)])


def in_journal(spark: SparkSession, url: str) -> dict[str, DataFrame]:
    """Returns the tables as `read_topic` gives them."""
    return {
        topic: named(topic, penstock.spark.read_topic(spark, url, topic, payloadSchema=schema, payloadPrefix=PREFIX))
        for topic, schema in SCHEMAS.items()
    }


def in_source(spark: SparkSession, url: str) -> dict[str, DataFrame]:
    """Returns the tables as the source alone gives them, with the columns named."""
    found = {}
    for topic, schema in SCHEMAS.items():
        columns = ", ".join(f"{PREFIX}{name} {type}" for name, type in fields(topic).items())
        reader = spark.read.format("penstock").schema(columns).options(url=url, topic=topic, payloadPrefix=PREFIX)
        found[topic] = named(topic, reader.option("payloadSchema", schema).load())
    return found


def in_parquet(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """Returns the tables as typed Parquet."""
    return {topic: spark.read.parquet(str(folder / topic)) for topic in SCHEMAS}


def register(spark: SparkSession, tables: dict[str, DataFrame]) -> None:
    """Names the tables for SQL, without the last event of each."""
    for topic, frame in tables.items():
        frame.where(F.col("auction" if topic == "bid" else "id") > 0).createOrReplaceTempView(topic)
    spark.createDataFrame(SIDE, "key BIGINT, value STRING").createOrReplaceTempView("side")


def reference(journal: penstock.Journal) -> duckdb.DuckDBPyConnection:
    """Returns DuckDB with the tables that it parses out of the journal's payloads itself."""
    found = duckdb.connect()
    for topic in SCHEMAS:
        batches = list(journal.topic(topic).read_arrow())
        found.register("events", pa.Table.from_batches(batches).select(["payload"]))
        columns = ", ".join(
            f"CAST(payload->>'$.{name}' AS {'BIGINT' if type == 'BIGINT' else 'VARCHAR'}) AS {name}"
            for name, type in fields(topic).items()
        )
        first = "auction" if topic == "bid" else "id"
        found.execute(f"CREATE TABLE {topic} AS SELECT * FROM (SELECT {columns} FROM events) E WHERE {first} > 0")
        found.unregister("events")
    found.register("events", pa.table({"key": [one for one, _ in SIDE], "value": [text for _, text in SIDE]}))
    found.execute("CREATE TABLE side AS SELECT * FROM events")
    return found


def answer(rows: Iterable[Iterable[Any]]) -> Answer:
    """Returns rows in an order of their own."""
    return sorted((tuple(row) for row in rows), key=repr)
