"""Spark Connect: topics are read and written over a real server of it; what needs the driver says so in a sentence."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from cluster import _free_port

import penstock
from penstock import Draft
from penstock.spark.startup import java

DEPENDENCIES = Path(sys.prefix) / "declarative"
SPARK = Path(pyspark.__file__).parent


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    assert DEPENDENCIES.exists(), "scripts/setup.py puts what Spark Connect needs there: make clean test"
    return {
        **os.environ,
        "PYTHONPATH": str(DEPENDENCIES),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java.home_for_scripts(java.find(), tmp_path)),
    }


@pytest.fixture
def remote(tmp_path: Path, environ: dict[str, str]) -> Iterator[str]:
    """The address of a server of Spark Connect, a process of its own."""
    port = _free_port()
    command = [SPARK / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}"]
    command += ["--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path}", "spark-internal"]
    with (tmp_path / "connect.log").open("wb") as log:
        server = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                said = (tmp_path / "connect.log").read_text()[-3000:]
                assert server.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_penstock_run_refuses_spark_connect(tmp_path: Path) -> None:
    """Before anything is asked of the server: nobody listens at this address."""
    url = str(tmp_path / "shop.db")
    flows = Path(__file__).with_name("connect_client.py")
    with penstock.open(url) as journal:
        journal.topic("orders").append("made", {"n": 1})
    command = [sys.executable, "-m", "penstock.cli", "run", str(flows), "--once", "--url", url]
    command += ["--master", "sc://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Spark Connect (sc://) has that elsewhere: give a master like local[*] or spark://…" in done.stderr
    assert "Traceback" not in done.stderr


def test_topics_over_spark_connect(tmp_path: Path, environ: dict[str, str], remote: str) -> None:
    url = str(tmp_path / "shop.db")
    client = Path(__file__).with_name("connect_client.py")
    with penstock.open(url) as journal:
        journal.topic("orders").append_many([Draft("made", {"n": n}, key=f"k{n % 2}") for n in range(100)])
        done = subprocess.run(
            [sys.executable, str(client), remote, url, str(tmp_path)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:] + (tmp_path / "connect.log").read_text()[-3000:]
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["sum"] == sum(range(10, 100)) and said["lake"] == 100
        assert said["states"] == {"k0": sum(range(0, 100, 2)), "k1": sum(range(1, 100, 2))}
        for name in ("written", "streamed"):
            assert sorted(event.payload["n"] for event in journal.topic(name).read()) == list(range(100))
        assert "a stream over Spark Connect (sc://) cannot be projected" in said["projected stream"]
        for refused in ("run", "run by master"):
            assert said[refused].startswith("ConfigError") and "Spark Connect" in said[refused], said[refused]
        assert "flowed" not in journal.topics()
