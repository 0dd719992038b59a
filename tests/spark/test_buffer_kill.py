"""kill -9 at every stage of a batch between a buffer and a topic, both ways: every entry arrives exactly once."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import killing
import killing_buffer
import pytest
from killing import STAGES, order_kill, was_killed
from killing_buffer import FLOWS, into_buffer, into_topic
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import penstock
from penstock.buffer import Consumer, Producer
from penstock.buffer.format import decode_batch, parse_manifest
from penstock.buffer.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Pipe:
    """A buffer that fills, a topic in between, and a buffer that is filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.produced = 0
        self.consumed: list[bytes] = []
        for flow in FLOWS:
            (folder / flow).mkdir()

    def produce(self, objects: int = 6) -> None:
        with Producer(f"file://{self.folder}/arriving") as producer:
            for _ in range(objects):
                producer.produce([f"{self.produced + n}".encode() for n in range(3)])
                producer.flush()
                self.produced += 3

    def events(self) -> list[int]:
        with penstock.open(self.folder / "shop.db") as journal:
            return [event.payload for event in journal.topic("events").read()]

    def leaving(self) -> list[bytes]:
        """What is in the filled buffer's manifest now."""
        store = open_store(f"file://{self.folder}/leaving")
        manifest = parse_manifest(store.get("ingest/manifest"))
        return [entry for each in manifest for entry in decode_batch(store.get(each.location))]

    def consume(self) -> None:
        with Consumer(f"file://{self.folder}/leaving", gc_interval=None) as consumer:
            consumer.run(lambda batch: self.consumed.extend(batch), until_empty=True)

    def check_exactly_once(self) -> None:
        assert self.events() == list(range(self.produced))
        assert [int(entry) for entry in [*self.consumed, *self.leaving()]] == list(range(self.produced))

    def lose_newest_commit(self, flow: str) -> None:
        commits = self.folder / flow / "checkpoint" / "commits"
        newest = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


@pytest.fixture
def killer(spark: SparkSession) -> None:
    for module in (killing, killing_buffer):
        cloudpickle.register_pickle_by_value(module)  # workers cannot import them
    spark.dataSource.register(killing.KillingSource)
    spark.dataSource.register(killing_buffer.KillingBufferSource)


def test_a_python_process_killed_at_every_stage_both_ways(spark: SparkSession, killer: None, pipe: Pipe) -> None:
    """Each run of the flow out begins with the batch that the kill before it has interrupted."""
    for stage in STAGES:
        pipe.produce()
        for name, flow in FLOWS.items():
            order_kill(pipe.folder / name, stage, "worker", hits=1)
            with pytest.raises(PySparkException):
                flow(spark, pipe.folder)
            assert was_killed(pipe.folder / name), (stage, name)
            assert len(pipe.events()) % 6 == len(pipe.leaving()) % 6 == 0, "no half batch"
            if flow is into_topic:
                flow(spark, pipe.folder)
    into_buffer(spark, pipe.folder)
    pipe.check_exactly_once()


def test_the_newest_commit_log_entry_lost_both_ways(spark: SparkSession, killer: None, pipe: Pipe) -> None:
    pipe.produce()
    into_topic(spark, pipe.folder)
    into_buffer(spark, pipe.folder)
    for consumed in (False, True):
        if consumed:
            pipe.consume()
        for name, flow in FLOWS.items():
            pipe.lose_newest_commit(name)
            flow(spark, pipe.folder)
        pipe.check_exactly_once()


def run_program(folder: Path) -> int:
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "killing_buffer.py"), str(folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PENSTOCK_SPARK_ARCHIVE": "use"},
            timeout=900,
            check=False,
        )
    return done.returncode


@pytest.mark.slow
def test_the_program_and_its_jvm_killed_after_one_another_both_ways(pipe: Pipe) -> None:
    """Between the kills the filled buffer is emptied, so that only marks can tell what was written."""
    kills = [("in", "planned", "program"), ("out", "published", "jvm"), ("in", "publishing", "program")]
    for (flow, stage, target), number in zip(kills, itertools.count()):
        pipe.produce()
        order_kill(pipe.folder / flow, stage, target, hits=1)
        assert run_program(pipe.folder) != 0
        assert was_killed(pipe.folder / flow), (flow, stage, (pipe.folder / "log").read_text()[-3000:])
        assert len(pipe.consumed) + len(pipe.leaving()) < pipe.produced
        if number % 2:
            pipe.consume()
    assert run_program(pipe.folder) == 0, (pipe.folder / "log").read_text()[-3000:]
    pipe.check_exactly_once()
