"""Which journal a task works on: the one its query was planned with, on a machine that can see it, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.core.context import SparkContext
from pyspark.sql.types import StructType

import penstock
import penstock.spark
from penstock import Draft
from penstock.errors import ConfigError
from penstock.spark import flow, topic
from penstock.spark.journals import check_reach, journal_id
from penstock.spark.options import absolute_url
from penstock.spark.pipeline.flows import Pipeline
from penstock.spark.pipeline.running import Runner
from penstock.spark.source import PenstockSource
from penstock.spark.startup.settings import MASTER_VARIABLE
from penstock.transfer.objects import area_of, own_area

COLUMNS = StructType().add("kind", "string").add("payload", "string")


def made(url: str, count: int) -> None:
    with penstock.open(url) as journal:
        journal.topic("orders").append_many([Draft("placed", n) for n in range(count)])


def replaced(path: Path, count: int) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    made(str(path), count)


def source(path: Path, **options: Any) -> PenstockSource:
    return PenstockSource({"url": str(path), "topic": "orders", **options})


def test_a_task_that_finds_another_journal_fails_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    made(str(path), 5)
    reader = source(path).reader(COLUMNS)
    [share] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(share)) == 5
    replaced(path, 50)
    with pytest.raises(ConfigError, match="there is another journal at"):
        list(reader.read(share))
    [again] = source(path).reader(COLUMNS).partitions()
    assert sum(batch.num_rows for batch in reader.read(again)) == 50


def test_a_stream_that_finds_another_journal_fails_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    made(str(path), 5)
    reader: Any = source(path).streamReader(COLUMNS)
    [share] = reader.partitions({"orders": 0}, {"orders": 5})
    replaced(path, 5)
    with pytest.raises(ConfigError, match="there is another journal at"):
        list(reader.read(share))


def test_a_commit_that_finds_another_journal_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    made(str(path), 5)
    writer: Any = source(path).writer(COLUMNS, False)
    message = writer.write(iter([pa.record_batch({"kind": ["a"], "payload": ["1"]})]))
    replaced(path, 3)
    with pytest.raises(ConfigError, match="there is another journal at"):
        writer.commit([message])
    with penstock.open(path, read_only=True) as journal:
        assert len(journal.topic("orders")) == 3


def test_a_first_write_makes_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    assert journal_id(f"sqlite:{path}") is None
    writer: Any = source(path).writer(COLUMNS, False)
    writer.commit([writer.write(iter([pa.record_batch({"kind": ["a"], "payload": ["1"]})]))])
    with penstock.open(path, read_only=True) as journal:
        assert len(journal.topic("orders")) == 1


def test_what_is_staged_lies_beside_a_file_and_inside_a_bucket(tmp_path: Path) -> None:
    assert absolute_url("s3://bucket/shop") == "s3://bucket/shop"
    assert own_area("s3://bucket/shop") == "s3://bucket/shop/penstock/staging"
    assert own_area(f"sqlite:{tmp_path}/shop.db") is None
    beside = area_of(f"sqlite:{tmp_path}/shop.db")
    assert beside.put("job", 0, "b", 0, b"x").startswith("shop.db.staging/") and (tmp_path / "shop.db.staging").exists()
    assert beside.sweep("job") == 1 and not (tmp_path / "shop.db.staging").exists()


def test_a_file_is_out_of_reach_for_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.db"
    made(str(path), 1)
    for master in ("local", "local[2]", "local-cluster[2,1,1024]"):
        check_reach(f"sqlite:{path}", master)
    check_reach("s3://bucket/shop", "spark://host:7077")
    monkeypatch.setenv(MASTER_VARIABLE, "spark://host:7077")
    with pytest.raises(ConfigError, match=r"spark://host:7077 runs tasks on other machines.*buffer"):
        source(path)


@pytest.mark.parametrize("action", ["check", "run"])
def test_a_pipeline_over_a_file_is_refused_before_a_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    path = tmp_path / "shop.db"
    made(str(path), 1)

    @flow(source=topic("orders"), target=topic("copies"))
    def copies(orders: Any) -> Any:
        return orders.select("kind", "payload")

    runner = Runner(Pipeline.of([copies]), str(path), master="spark://nowhere:7077")
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # the session of other tests, if there is one
    with pytest.raises(ConfigError, match="runs tasks on other machines"):
        getattr(runner, action)()
    assert not (tmp_path / "shop.db.checkpoints").exists()


def test_spark_connect_is_refused_by_pipelines_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    made(str(path), 1)

    @flow(source=topic("orders"), target=topic("copies"))
    def copies(orders: Any) -> Any:
        return orders.select("kind", "payload")

    with pytest.raises(ConfigError, match="Spark Connect"):
        Runner(Pipeline.of([copies]), str(path), master="sc://localhost").check()
