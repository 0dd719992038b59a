"""kill -9 of whatever takes part in a batch, at every stage, between topics, buffers and a server: all arrives once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killing import STAGES, order_kill, was_killed
from killing_flows import PAD, Flow, all_flows, register_sources
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import penstock
from server.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def flows(spark: SparkSession, tmp_path: Path) -> Iterator[list[Flow]]:
    register_sources(spark)
    made = all_flows(tmp_path)
    served = made[-1]
    with ServerProcess(served.url) as server:
        (served.folder / "server").write_text(server.url)
        yield made


def run(spark: SparkSession, flows: list[Flow]) -> None:
    for query in [flow.start(spark) for flow in flows]:
        query.awaitTermination()


def kills(rounds: Sequence[int], flows: list[Flow]) -> Iterator[dict[Flow, str]]:
    """In each round every flow is killed at another stage; rounds 0 to 4 have every flow at every stage."""
    for number in rounds:
        yield {flow: STAGES[(place + number) % len(STAGES)] for place, flow in enumerate(flows)}


@pytest.mark.parametrize("rounds", [(0, 3), pytest.param(range(5), marks=pytest.mark.nightly)], ids=["some", "all"])
def test_a_python_process_killed_at_every_stage_of_a_stream_and_its_newest_commit_lost(
    spark: SparkSession, flows: list[Flow], rounds: Sequence[int]
) -> None:
    """Each run begins with the batch that the kill before it has interrupted. At the end a batch is run again because
    Spark no longer knows that it was committed."""
    for flow in flows:
        flow.feed()
    for stages in kills(rounds, flows):
        for flow, stage in stages.items():
            flow.feed()
            order_kill(flow.folder, stage, "worker", hits=1)
        for flow, query in [(flow, flow.start(spark)) for flow in flows]:
            with pytest.raises(PySparkException):
                query.awaitTermination()
            assert was_killed(flow.folder), (stages[flow], flow)
            flow.check_whole_batches()
    run(spark, flows)
    for flow in flows:
        flow.check_exactly_once()
    for consumed in (False, True):
        for flow in flows:
            if consumed:
                flow.consume()
            flow.lose_newest_commit()
        run(spark, flows)
        for flow in flows:
            flow.check_exactly_once()


@pytest.mark.parametrize("stage", ["writing", "publishing", "published"])
def test_a_python_process_killed_at_any_stage_of_a_batch_write(spark: SparkSession, tmp_path: Path, stage: str) -> None:
    register_sources(spark)

    def save() -> None:
        pad = F.lit(PAD).alias("pad")
        payload, name = F.struct("id", pad).alias("payload"), F.concat(F.lit("k"), "id")
        expecting = (name.alias("key"), name.alias("dedup"), F.lit(0).cast("long").alias("expect"))
        frame = spark.range(0, 1000, 1, 2).select(F.lit("n").alias("kind"), payload, *expecting)
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


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [(1, 4), pytest.param(range(5), marks=pytest.mark.nightly)], ids=["some", "all"])
def test_the_jvm_or_the_program_killed_at_every_stage_one_after_the_other(
    spark: SparkSession, flows: list[Flow], tmp_path: Path, rounds: Sequence[int]
) -> None:
    """Each run begins with the batches that the kill before it has interrupted. Between kills the filled buffer is
    emptied, so that only marks can tell what was written."""
    targets = cycle(["jvm-orphan", "program", "jvm"])
    for flow in flows:
        flow.feed()
    for stages, target in zip(kills(rounds, flows), targets, strict=False):
        for flow, stage in stages.items():
            flow.feed()
            order_kill(flow.folder, stage, target, hits=1)
        assert run_program(tmp_path) != 0
        for flow, stage in stages.items():
            assert was_killed(flow.folder), (stage, target, flow, (tmp_path / "log").read_text()[-3000:])
            flow.check_whole_batches()
            if target == "program":
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
