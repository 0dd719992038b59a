"""NEXMark's queries over topics have the answers that DuckDB has over the same journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest
from benchmarks.nexmark import batch, streams
from benchmarks.nexmark.queries import BATCH
from since import SPARK

import penstock

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

EVENTS = 5_000
NIGHTLY = pytest.mark.nightly("nexmark")
BY_DAY = ("q3", "q9")
STREAMS_BY_DAY = ("q5",)


def by_day(names: Iterable[str], day: Sequence[str]) -> list[object]:
    """Some of the queries by day, the others by night."""
    return [pytest.param(name, marks=() if name in day else NIGHTLY) for name in names]


@dataclass
class Nexmark:
    url: str
    duck: duckdb.DuckDBPyConnection
    folder: Path

    def expected(self, name: str) -> batch.Answer:
        found = batch.answer(self.duck.execute(BATCH[name]).fetchall())
        assert found
        return found


@pytest.fixture(scope="module")
def nexmark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Nexmark:
    """A journal with the tables as topics, and DuckDB over it."""
    folder = tmp_path_factory.mktemp("nexmark")
    for topic, rows in batch.make_tables(EVENTS, seed=7, step_ms=40).items():
        (folder / topic).mkdir()
        pyarrow.parquet.write_table(rows, folder / topic / "rows.parquet")
    url = str(folder / "nexmark.db")
    batch.write_topics(spark, folder, url)
    with penstock.open(url) as journal:
        return Nexmark(url, batch.reference(journal), folder)


@pytest.mark.parametrize("name", by_day(BATCH, BY_DAY))
def test_a_batch_has_the_answer_of_duckdb(spark: SparkSession, nexmark: Nexmark, name: str) -> None:
    batch.register(spark, batch.in_journal(spark, nexmark.url))
    assert batch.answer(spark.sql(BATCH[name]).collect()) == nexmark.expected(name)


STREAMED = [name for name in streams.QUERIES if name in BATCH and (SPARK >= (4, 2) or name not in streams.WINDOWED)]


@pytest.mark.parametrize("name", by_day(STREAMED, STREAMS_BY_DAY))
def test_a_stream_has_the_answer_of_duckdb(spark: SparkSession, nexmark: Nexmark, name: str) -> None:
    query = streams.QUERIES[name]
    batch.register(spark, batch.in_journal(spark, nexmark.url))
    limit = {"maxOffsetsPerTrigger": "2000"} if SPARK >= (4, 2) else {}
    with penstock.open(nexmark.url) as journal:
        if query.after and journal.topic(query.after).latest == 0:
            streams.read(spark, nexmark.url)
            streams.start(spark, query.after, nexmark.url, nexmark.folder / "checkpoints").awaitTermination()
        streams.read(spark, nexmark.url, **limit)
        streams.start(spark, name, nexmark.url, nexmark.folder / "checkpoints").awaitTermination()
        assert streams.result(spark, journal, name) == nexmark.expected(name)
