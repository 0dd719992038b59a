"""kill -9, at every stage of a batch, of whatever takes part in it: every event arrives exactly once, counted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import killing
import pytest
from killing import copy_orders, order_kill, was_killed
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import penstock
from penstock import Draft

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAD = "x" * 5000
"""Makes a task's share of a batch too large for its message, so that staging files are part of the test."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as journal:
        yield journal


def add_orders(journal: penstock.Journal, count: int) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("placed", {"n": topic.latest + n, "pad": PAD}, key=f"k{n % 5}") for n in range(count)])


def check_exactly_once(journal: penstock.Journal, folder: Path) -> None:
    orders, copies = list(journal.topic("orders").read()), list(journal.topic("copies").read())
    assert [copy.payload["n"] for copy in copies] == [order.payload["n"] for order in orders]
    assert [copy.causation_id for copy in copies] == [order.id for order in orders]
    assert journal.topic("orders").cursor("copier") == len(orders)
    assert not list(folder.glob("*.staging")), "what killed tasks have staged is swept away"


@pytest.fixture
def killer(spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(killing)  # workers cannot import it
    spark.dataSource.register(killing.KillingSource)


@pytest.mark.parametrize("stage", killing.STAGES)
def test_a_python_process_killed_at_any_stage_of_a_stream(
    spark: SparkSession, killer: None, journal: penstock.Journal, tmp_path: Path, stage: str
) -> None:
    add_orders(journal, 800)
    order_kill(tmp_path, stage, "worker", hits=1)
    with pytest.raises(PySparkException):
        copy_orders(spark, tmp_path)
    assert was_killed(tmp_path)
    copied = len(journal.topic("copies"))
    assert copied % 300 == 0, "no half batch"
    assert copied < 800
    copy_orders(spark, tmp_path)
    check_exactly_once(journal, tmp_path)


@pytest.mark.parametrize("stage", ["writing", "publishing", "published"])
def test_a_python_process_killed_at_any_stage_of_a_batch_write(
    spark: SparkSession, killer: None, journal: penstock.Journal, tmp_path: Path, stage: str
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
    assert len(journal.topic("numbers")) == (1000 if stage == "published" else 0)
    save()
    assert [event.payload["id"] for event in journal.topic("numbers").read()] == list(range(1000))
    assert not list(tmp_path.glob("*.staging"))


def run_program(folder: Path) -> int:
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "killing.py"), str(folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PENSTOCK_SPARK_ARCHIVE": "use"},
            timeout=900,
            check=False,
        )
    return done.returncode


@pytest.mark.slow
def test_the_jvm_or_the_program_killed_at_every_stage_one_after_the_other(
    journal: penstock.Journal, tmp_path: Path
) -> None:
    """Each run begins with the batch that the kill before it has interrupted."""
    kills = [("planned", "jvm"), ("reading", "program"), ("writing", "jvm")]
    kills += [("publishing", "jvm-orphan"), ("published", "program")]
    for stage, target in kills:
        add_orders(journal, 700)
        order_kill(tmp_path, stage, target, hits=1)
        assert run_program(tmp_path) != 0
        assert was_killed(tmp_path), (stage, target, (tmp_path / "log").read_text()[-3000:])
        assert len(journal.topic("copies")) < len(journal.topic("orders"))
    assert run_program(tmp_path) == 0, (tmp_path / "log").read_text()[-3000:]
    check_exactly_once(journal, tmp_path)
