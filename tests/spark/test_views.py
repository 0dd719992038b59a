"""A view shows what is there whenever it is used, from whatever thread and through whatever other view."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import Draft
from penstock.errors import ConfigError
from penstock.spark import seal, view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def count(spark: SparkSession, name: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0])


def test_a_view_shows_what_is_there_now(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("placed", {"total": n}) for n in range(30)])
    view(spark, "orders", url, "orders", payloadSchema="total BIGINT")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW large AS SELECT * FROM orders WHERE total >= 20")
    held = spark.table("orders")
    assert (count(spark, "orders"), count(spark, "large")) == (30, 10)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=25, columns="total BIGINT")
    topic.append_many([Draft("placed", {"total": 20})] * 5)
    assert (count(spark, "orders"), count(spark, "large")) == (35, 15)
    assert held.count() == 30, "a frame has what was there when it was made"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(count, spark, "orders").result() == 35
    assert count(spark, "orders a JOIN orders b USING (seq)") == 35


def test_a_view_outlives_the_handle_it_was_made_with(spark: SparkSession, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("orders").append("placed", {})
        view(spark, "kept", journal, "orders")
    assert count(spark, "kept") == 1


def test_a_view_that_cannot_be_is_refused_when_it_is_made(spark: SparkSession, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", {})
    with pytest.raises(ConfigError, match="no topic 'nowhere'"):
        view(spark, "orders", journal, "nowhere")
    with pytest.raises(ConfigError, match="a view is named by"):
        view(spark, "or ders", journal, "orders")
