"""Spark Connect: what a program does with its own Spark, it does over a real server, of which it sees an address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import _free_port
from since import HAS_TIME, program
from test_pipeline_process import wait_until

import penstock
from penstock import Draft
from penstock.core.observe.pipelines import status
from penstock.spark.startup import java
from penstock.spark.versions import SPARK

DEPENDENCIES = Path(sys.prefix) / "declarative"


class ConnectServer:
    """A server of Spark Connect, a process of its own; it may be killed, and started again at its address."""

    def __init__(self, folder: Path) -> None:
        assert DEPENDENCIES.exists(), "scripts/setup.py puts what Spark Connect needs there: make clean test"
        self._folder = folder
        self._port = _free_port()
        self.url = f"sc://127.0.0.1:{self._port}"
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(DEPENDENCIES),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(java.home_for_scripts(java.find(), folder)),
        }
        self.start()

    def start(self) -> None:
        command = [SPARK / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        # Spark 4.0 may lose count of its idle workers (SPARK-52642) and fail a task: it may try again, as on clusters.
        master = "local[2]" if HAS_TIME else "local[2,4]"
        command += ["--master", master, "--conf", f"spark.connect.grpc.binding.port={self._port}"]
        command += ["--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
        command += ["--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"]
        command += ["--conf", f"spark.local.dir={self._folder}", "spark-internal"]
        with (self._folder / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self.environ, cwd=self._folder, stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, self.said()
                time.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def said(self) -> str:
        return (self._folder / "connect.log").read_text()[-3000:]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    running = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield running
    running.kill()


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline's file, with a module beside it, in a folder that the server knows nothing of."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "prices.py").write_text("def doubled(n: int) -> int:\n    return 2 * n\n")
    (folder / "shop.py").write_text(PIPELINE)
    return folder / "shop.py"


PIPELINE = program("""
from prices import doubled
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import penstock
from penstock.spark import flow, project, topic

ORDERS = topic("orders", payloadSchema="n BIGINT", maxOffsetsPerTrigger=40)


@F.udf(returnType=LongType())
def twice(n):
    return doubled(n)


class Total(penstock.Projection):
    total: int = 0

    @penstock.on("made")
    def made(self, payload: dict) -> None:
        self.total += payload["n"]


@flow(source=ORDERS, target=topic("doubled"))
def double(orders):
    return orders.select("kind", F.struct(twice("n").alias("n")).alias("payload"))


@flow(source=ORDERS, target=topic("sums"), output_mode="update")
def sums(orders):
    sums = orders.groupBy("key").agg(F.sum("n").alias("n"))
    return sums.select(F.lit("sum").alias("kind"), "key", F.struct("n").alias("payload"))


@flow(source=topic("orders", maxOffsetsPerTrigger=40), target=topic("states"))
def states(orders):
    return project(orders, Total).select(F.lit("state").alias("kind"), "key", F.col("state").alias("payload"))
""")


def orders(first: int, last: int) -> list[Draft]:
    return [Draft("made", {"n": n}, key=f"k{n % 2}") for n in range(first, last)]


def newest(topic: penstock.Topic) -> dict[str | None, object]:
    return {event.key: event.payload for event in topic.read()}


def check_results(journal: penstock.Journal, count: int) -> None:
    """Each order was doubled once, and counted once in the sum and in the state of its key."""
    assert sorted(event.payload["n"] for event in journal.topic("doubled").read()) == [2 * n for n in range(count)]
    totals = {f"k{odd}": sum(range(odd, count, 2)) for odd in (0, 1)}
    assert newest(journal.topic("sums")) == {key: {"n": total} for key, total in totals.items()}
    assert newest(journal.topic("states")) == {key: {"total": total} for key, total in totals.items()}


def run_command(pipeline: Path, url: str, server: ConnectServer, *more: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli", "run", str(pipeline), "--url", url, "--remote", server.url, *more]


def test_penstock_run_over_spark_connect(tmp_path: Path, pipeline: Path, server: ConnectServer) -> None:
    url = str(tmp_path / "shop.db")
    command = run_command(pipeline, url, server, "--once")
    with penstock.open(url) as journal:
        for count in (100, 150):
            journal.topic("orders").append_many(orders(0 if count == 100 else 100, count))
            done = subprocess.run(
                command, env=server.environ, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path
            )
            assert done.returncode == 0, done.stdout + done.stderr + server.said()
            check_results(journal, count)
        assert {one.state for one in status(journal)} == {"done"}
        assert [one.rows for one in status(journal)] == [50, 50, 50], "of the second run"


def test_topics_over_spark_connect(tmp_path: Path, server: ConnectServer) -> None:
    url = str(tmp_path / "shop.db")
    client = Path(__file__).with_name("connect_client.py")
    with penstock.open(url) as journal:
        journal.topic("orders").append_many(orders(0, 100))
        done = subprocess.run(
            [sys.executable, str(client), server.url, url, str(tmp_path)],
            env=server.environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:] + server.said()
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["sum"] == sum(range(10, 100)) and said["lake"] == 100
        totals = {"k0": sum(range(0, 100, 2)), "k1": sum(range(1, 100, 2))}
        assert said["states"] == totals
        for name in ("written", "streamed", "byhand"):
            assert sorted(event.payload["n"] for event in journal.topic(name).read()) == list(range(100)), name
        assert newest(journal.topic("sums")) == {key: {"n": total} for key, total in totals.items()}
        assert newest(journal.topic("totals")) == {key: {"total": total} for key, total in totals.items()}
        assert said["rebuilt"] == 2
        assert "give it a name that stays, into(…, txnAppId=…)" in said["nameless"]
        assert sorted(event.payload["n"] for event in journal.topic("flowed").read()) == list(range(100))


SEALING = """
import sys
import penstock, penstock.spark
from penstock import Draft
from pyspark.sql import SparkSession

folder = sys.argv[1]
with penstock.open(folder + "/shop.db") as journal:
    journal.topic("orders").append_many([Draft("n", {"n": n}) for n in range(1000)])
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    report = penstock.spark.seal(journal, "orders", lake=folder + "/lake", through=900, file_events=300)
    assert "connect" in type(spark).__module__ and report.events == 900, report
    rows = penstock.spark.read_topic(spark, folder + "/shop.db", "orders").collect()
    assert sorted(row.seq for row in rows) == list(range(1, 1001))
spark.stop()
"""


def test_a_topic_is_sealed_where_the_server_of_spark_connect_is_the_programs_own(tmp_path: Path) -> None:
    paths = [str(DEPENDENCIES), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYSPARK_PYTHON": sys.executable}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(java.home_for_scripts(java.find(), tmp_path))}
    command = [sys.executable, "-c", SEALING, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_what_spark_connect_needs_is_said_before_anything_is_asked_of_it(pipeline: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", str(pipeline), "--remote", "sc://127.0.0.1:1", "--once"]
    command += ["--create", "--url", "http://127.0.0.1:1"]
    without = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert without.returncode == 2 and 'run pip install "penstock[connect]"' in without.stderr, without.stderr
    environ = {**os.environ, "PYTHONPATH": str(DEPENDENCIES)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "progress is kept where its server is: say where, with --checkpoints" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly("spark-kills")
def test_killed_programs_and_servers_of_spark_connect_lose_and_double_nothing(tmp_path: Path, pipeline: Path) -> None:
    """The program first, whose queries the server runs on until the next run takes them over; then the server."""
    server = ConnectServer(tmp_path)
    url = str(tmp_path / "shop.db")
    command = run_command(pipeline, url, server)
    process: subprocess.Popen[bytes] | None = None
    try:
        with penstock.open(url) as journal, (tmp_path / "log").open("wb") as log:
            topic = journal.topic("orders")
            topic.append_many(orders(0, 400))
            process = subprocess.Popen(command, env=server.environ, stdout=log, stderr=log)
            wait_until(lambda: all(len(journal.topic(name)) for name in ("doubled", "sums", "states")), process)
            process.kill()
            process.wait()
            topic.append_many(orders(400, 600))
            process = subprocess.Popen(command, env=server.environ, stdout=log, stderr=log)
            mine = process.pid
            wait_until(lambda: all((one.pid, one.state) == (mine, "running") for one in status(journal)), process)
            server.kill()
            server.start()
            topic.append_many(orders(600, 800))
            flows = ("double", "sums", "states")
            wait_until(lambda: all(topic.lag(f"shop/{name}") == 0 for name in flows), process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0, (tmp_path / "log").read_text()
            check_results(journal, 800)
            assert {one.state for one in status(journal)} == {"stopped"}
            assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        if process is not None:
            process.kill()
            process.wait()
        server.kill()
