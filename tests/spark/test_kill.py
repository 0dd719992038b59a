"""kill -9, at every stage of a batch, of whatever takes part in it, between topics and buffers: all arrives once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killing import STAGES, order_kill, was_killed
from killing_flows import PAD, Flow, all_flows, register_sources
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def flows(spark: SparkSession, tmp_path: Path) -> list[Flow]:
    register_sources(spark)
    return all_flows(tmp_path)


def run(spark: SparkSession, flows: list[Flow]) -> None:
    for query in [flow.start(spark) for flow in flows]:
        query.awaitTermination()


def test_a_python_process_killed_at_every_stage_of_a_stream(spark: SparkSession, flows: list[Flow]) -> None:
    """Each run begins with the batch that the kill before it has interrupted."""
    for stage in STAGES:
        for flow in flows:
            flow.feed()
            order_kill(flow.folder, stage, "worker", hits=1)
        for flow, query in [(flow, flow.start(spark)) for flow in flows]:
            with pytest.raises(PySparkException):
                query.awaitTermination()
            assert was_killed(flow.folder), (stage, flow)
            flow.check_whole_batches()
    run(spark, flows)
    for flow in flows:
        flow.check_exactly_once()


@pytest.mark.parametrize("stage", ["writing", "publishing", "published"])
def test_a_python_process_killed_at_any_stage_of_a_batch_write(
    spark: SparkSession, flows: list[Flow], tmp_path: Path, stage: str
) -> None:
    def save() -> None:
        pad = F.lit(PAD).alias("pad")
        frame = spark.range(0, 1000, 1, 2).select(F.lit("n").alias("kind"), F.struct("id", pad).alias("payload"))
        writer = frame.write.format("penstock-killing").mode("append").options(txnAppId="numbers", txnVersion="1")
        writer.options(url=str(tmp_path / "shop.db"), kill=str(tmp_path), topic="numbers").save()

    order_kill(tmp_path, stage, "worker")
    with pytest.raises((PySparkException, Py4JJavaError)):
        save()
    assert was_killed(tmp_path)
    with penstock.open(tmp_path / "shop.db") as journal:
        assert len(journal.topic("numbers")) == (1000 if stage == "published" else 0)
        save()
        assert [event.payload["id"] for event in journal.topic("numbers").read()] == list(range(1000))
    assert not list(tmp_path.glob("*.staging"))


def test_the_newest_commit_log_entry_lost(spark: SparkSession, flows: list[Flow]) -> None:
    for flow in flows:
        flow.feed()
    run(spark, flows)
    for consumed in (False, True):
        for flow in flows:
            if consumed:
                flow.consume()
            flow.lose_newest_commit()
        run(spark, flows)
        for flow in flows:
            flow.check_exactly_once()


@pytest.mark.slow
def test_the_jvm_or_the_program_killed_at_every_stage_one_after_the_other(
    spark: SparkSession, flows: list[Flow], tmp_path: Path
) -> None:
    """Each run begins with the batches that the kill before it has interrupted. Between kills the filled buffer is
    emptied, so that only marks can tell what was written."""
    kills = [("planned", "jvm"), ("reading", "program"), ("writing", "jvm")]
    kills += [("publishing", "jvm-orphan"), ("published", "program")]
    for number, (stage, target) in enumerate(kills):
        for flow in flows:
            flow.feed()
            order_kill(flow.folder, stage, target, hits=1)
        assert run_program(tmp_path) != 0
        for flow in flows:
            assert was_killed(flow.folder), (stage, target, flow, (tmp_path / "log").read_text()[-3000:])
            flow.check_whole_batches()
            if number % 2:
                flow.consume()
    run(spark, flows)
    for flow in flows:
        flow.check_exactly_once()


def run_program(folder: Path) -> int:
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("killing_flows.py")), str(folder)],
            stdout=log,
            stderr=log,
            timeout=900,
            check=False,
        )
    return done.returncode
