"""kill -9 of whatever takes part in a batch, at every stage and on every path: all arrives once.

With every push the process of a commit is killed within it, once on every path, and the main job kills a whole driver;
the rest is for the night.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killing import STAGES, _alive, order_kill, was_killed
from killing_flows import KINDS, PAD, Copying, Flow, Handing, Passing, finish, register_sources
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from since import HAS_LIMITS, SECOND

import penstock
from buffer.emulator import Emulator
from server.process import ServerProcess
from waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NIGHTLY = pytest.mark.nightly("spark-kills")
PATIENCE_SECONDS = 900


class Program:
    """A Spark program over some flows, started as often as it is killed, and the servers that work for them."""

    def __init__(self, folder: Path, homes: str, kinds: tuple[type[Flow], ...]) -> None:
        self.folder = folder
        (folder / "where").write_text(homes)
        self.flows = [kind(folder / kind.__name__.lower()) for kind in kinds]
        self._servers: dict[Flow, ServerProcess] = {}
        self._running = ExitStack()
        for flow in self.flows:
            if isinstance(flow, Copying) and flow.served:
                self._servers[flow] = server = self._running.enter_context(ServerProcess(flow.url))
                (flow.folder / "server").write_text(server.url)

    def stop(self) -> None:
        self._running.close()

    def feed(self) -> None:
        for flow in self.flows:
            flow.feed()

    def run(self) -> int:
        """Until it ends or is killed; a server that is killed meanwhile is started again."""
        with (self.folder / "log").open("ab") as log:
            words = [sys.executable, str(Path(__file__).with_name("killing_flows.py")), str(self.folder)]
            running = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while running.poll() is None and time.monotonic() < deadline:
                for flow, server in self._servers.items():
                    server.revive()
                    (flow.folder / "server.pid").write_text(str(server.pid))
                try:
                    running.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            running.kill()
            running.wait(60)
        return running.returncode

    def kill(self, stages: dict[Flow, str], target: str, hits: int = SECOND) -> None:
        """Runs it until every flow has come to its stage, and the target is killed there."""
        for flow, stage in stages.items():
            flow.feed()
            order_kill(flow.folder, stage, target, hits)
        assert self.run() != 0, self.said()
        for flow in stages:
            assert was_killed(flow.folder), (stages[flow], target, flow, self.said())
            flow.check_whole_batches()

    def said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


def homes(tmp_path: Path) -> str:
    (tmp_path / "homes").mkdir(exist_ok=True)
    return f"slatedb:{tmp_path}/homes"


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    """Over every path but one, which differs from another in who publishes only; by day without the one
    from buffer to buffer: that is the source of one and the sink of another."""
    by_day = request.node.get_closest_marker("nightly") is None
    left_out = (Handing, Passing) if by_day else (Handing,)
    made = Program(tmp_path, homes(tmp_path), tuple(kind for kind in KINDS if kind not in left_out))
    yield made
    made.stop()


@pytest.fixture(params=["folder", "s3"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Over the paths within object storage."""
    place = homes(tmp_path)
    if request.param == "s3":
        emulator: Emulator = request.getfixturevalue("emulator")
        place = f"{emulator.bucket()}/shops"
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
    made = Program(tmp_path, place, KINDS[-2:])
    yield made
    made.stop()


def run(spark: SparkSession, flows: list[Flow]) -> None:
    register_sources(spark)
    for flow in flows:
        (flow.folder / "done").unlink(missing_ok=True)
    assert finish(spark, flows) == {}
    for flow in flows:
        flow.check_exactly_once()


def stages_of(flows: list[Flow], number: int) -> dict[Flow, str]:
    """Every flow at another stage; rounds 0 to 4 have every flow at every stage."""
    return {flow: STAGES[(place + number) % len(STAGES)] for place, flow in enumerate(flows)}


def kill_workers(spark: SparkSession, stages: dict[Flow, str]) -> None:
    """Runs flows in which a Python process is killed, each at its stage; whole batches have arrived then."""
    register_sources(spark)
    for flow, stage in stages.items():
        flow.feed()
        order_kill(flow.folder, stage, "worker", SECOND)
    failed = finish(spark, stages)
    for flow in stages:
        assert flow in failed and was_killed(flow.folder), (stages[flow], flow, failed.get(flow))
        flow.check_whole_batches()


def test_a_commit_that_is_killed_on_any_path_is_made_once_by_the_next_run(
    spark: SparkSession, program: Program
) -> None:
    kill_workers(spark, dict.fromkeys(program.flows, "publishing"))
    run(spark, program.flows)


@NIGHTLY
def test_a_driver_killed_within_its_commits_and_run_again_loses_and_doubles_nothing(
    spark: SparkSession, program: Program
) -> None:
    """On every path at once, in the second batch; its JVM ends with it."""
    program.kill(dict.fromkeys(program.flows, "publishing"), "program")
    jvm = int((program.folder / "jvm.pid").read_text())
    eventually(lambda: not _alive(jvm))
    run(spark, program.flows)


@pytest.mark.parametrize(
    "stage", ["publishing", pytest.param("writing", marks=NIGHTLY), pytest.param("published", marks=NIGHTLY)]
)
def test_a_python_process_killed_at_any_stage_of_a_batch_write(
    spark: SparkSession, url: str, tmp_path: Path, stage: str
) -> None:
    register_sources(spark)

    def save() -> None:
        pad = F.lit(PAD).alias("pad")
        payload, name = F.struct("id", pad).alias("payload"), F.concat(F.lit("k"), "id")
        expecting = (name.alias("key"), name.alias("dedup"), F.lit(0).cast("long").alias("expect"))
        frame = spark.range(0, 1000, 1, 2).select(F.lit("n").alias("kind"), payload, *expecting)
        writer = frame.write.format("penstock-killing").mode("append").options(txnAppId="numbers", txnVersion="1")
        writer.options(url=url, kill=str(tmp_path), topic="numbers").save()

    order_kill(tmp_path, stage, "worker")
    with pytest.raises((PySparkException, Py4JJavaError)):
        save()
    assert was_killed(tmp_path)
    with penstock.open(url) as journal:
        assert len(journal.topic("numbers")) == (1000 if stage == "published" else 0)
        save()
        assert [event.payload["id"] for event in journal.topic("numbers").read()] == list(range(1000))
    assert not list(tmp_path.glob("*.staging"))


@NIGHTLY
def test_a_python_process_killed_at_every_stage_of_a_stream_and_its_newest_commit_lost(
    spark: SparkSession, program: Program
) -> None:
    """Each run begins with the batch that the kill before it has interrupted. At the end a batch is run again because
    Spark no longer knows that it was committed."""
    flows = program.flows
    program.feed()
    for number in range(5):
        kill_workers(spark, stages_of(flows, number))
    run(spark, flows)
    for consumed in (False, True):
        for flow in flows:
            if consumed:
                flow.consume()
            flow.lose_newest_commit()
        run(spark, flows)


@NIGHTLY
def test_the_jvm_or_the_program_killed_at_every_stage_one_after_the_other(
    spark: SparkSession, program: Program
) -> None:
    """Each run begins with the batches that the kill before it has interrupted. Between kills the filled buffer is
    emptied, so that only marks can tell what was written."""
    program.feed()
    for number, target in zip(range(5), cycle(["jvm-orphan", "program", "jvm"]), strict=False):
        program.kill(stages_of(program.flows, number), target)
        if target == "program":
            for flow in program.flows:
                flow.consume()
    run(spark, program.flows)


@NIGHTLY
def test_driver_jvm_and_server_killed_one_after_the_other_over_object_storage(
    spark: SparkSession, stored: Program
) -> None:
    kills = [("planned", "jvm"), ("reading", "program"), ("writing", "jvm"), ("publishing", "jvm-orphan")]
    kills += [("publishing", "program"), ("published", "jvm"), ("published", "program")]
    for stage, target in kills:
        early = stage in ("planned", "reading", "writing")  # of the second batch; else the first one's commit
        stored.kill(dict.fromkeys(stored.flows, stage), target, hits=int(early and HAS_LIMITS))
    handing = stored.flows[-1]
    for stage in ("writing", "publishing", "published"):
        stored.feed()
        order_kill(handing.folder, stage, "server-orphan")
        assert stored.run() == 0, stored.said()
        assert was_killed(handing.folder), stored.said()
        for flow in stored.flows:
            flow.check_exactly_once()
