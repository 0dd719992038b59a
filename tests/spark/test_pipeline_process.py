"""`penstock run` as a process: its JVM killed, a second run refused, SIGTERM; every event arrives once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from since import program

import penstock
from penstock import Draft
from penstock.core.observe.pipelines import status

PIPELINE = program("""
from penstock.spark import flow, topic

@flow(source=topic("orders", maxOffsetsPerTrigger=100), target=topic("copies"))
def copies(orders):
    return orders.select("kind", "payload")

NUMBERS = topic("orders", payloadSchema="n BIGINT", maxOffsetsPerTrigger=100)

@flow(source=NUMBERS, target=topic("sums"), output_mode="update")
def sums(orders):
    return orders.groupBy().agg({"n": "sum"}).selectExpr("'sum' AS kind", "struct(`sum(n)` AS n) AS payload")
""")


@pytest.mark.nightly("spark-programs")
def test_a_killed_jvm_is_replaced_and_sigterm_ends_the_run_well(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    url = str(tmp_path / "shop.db")
    command = [sys.executable, "-m", "penstock.cli", "run", str(tmp_path / "shop.py"), "--url", url]
    with penstock.open(url) as journal, (tmp_path / "log").open("wb") as log:
        orders, copies, sums = (journal.topic(name) for name in ("orders", "copies", "sums"))
        orders.append_many([Draft("placed", {"n": n}) for n in range(1000)])
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(copies) > 0 and len(sums) > 0, process)
            again = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False)
            assert again.returncode == 1 and f"runs already over this journal (process {process.pid})" in again.stderr
            for child in children(process.pid):
                os.kill(child, signal.SIGKILL)
            wait_until(lambda: any(one.restarts for one in status(journal)), process)
            orders.append_many([Draft("placed", {"n": n}) for n in range(1000, 1500)])
            wait_until(lambda: all(orders.lag(f"shop/{name}") == 0 for name in ("copies", "sums")), process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
        said = (tmp_path / "log").read_text()
        assert "Spark is gone" in said and "Traceback" not in said
        assert [event.payload["n"] for event in copies.read()] == list(range(1500))
        assert list(sums.read())[-1].payload["n"] == sum(range(1500))
        assert {one.state for one in status(journal)} == {"stopped"}


@pytest.mark.nightly("spark-programs")
def test_sigterm_in_the_middle_of_much_work_ends_between_batches_and_shows_no_java(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    url = str(tmp_path / "shop.db")
    command = [sys.executable, "-m", "penstock.cli", "run", str(tmp_path / "shop.py"), "--url", url, "--ui"]
    with penstock.open(url) as journal, (tmp_path / "log").open("wb") as log:
        journal.topic("orders").append_many([Draft("placed", {"n": n}) for n in range(50_000)])
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(journal.topic("copies")) > 300 and len(journal.topic("sums")) > 3, process)
            before = (tmp_path / "log").stat().st_size
            address = re.search(r"Spark's pages: (http://\S+)", (tmp_path / "log").read_text())
            assert address is not None
            with urllib.request.urlopen(f"{address[1]}/jobs/", timeout=60) as page:
                assert page.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
        copied = len(journal.topic("copies"))
        assert 0 < copied < 50_000, "there was more to do"
    said = (tmp_path / "log").read_bytes()[before:].decode()
    for java in ("\tat ", "Exception", "java.", "org.apache.spark", "py4j", "Traceback", "WARN", "ERROR"):
        assert java not in said, said
    for flow in ("copies", "sums"):
        checkpoint = tmp_path / "shop.db.checkpoints" / "shop" / flow
        begun, ended = (batches(checkpoint / part) for part in ("offsets", "commits"))
        assert begun == ended, "no batch was begun and not finished"
    ended = batches(tmp_path / "shop.db.checkpoints" / "shop" / "copies" / "commits")
    assert copied == 100 * (1 + max(map(int, ended)))


def batches(log: Path) -> set[str]:
    """The numbers of the batches in a checkpoint's log; Spark keeps the newest hundred."""
    return {path.name for path in log.iterdir() if path.name.isdigit()}


def children(pid: int) -> list[int]:
    """The processes a process has started: here, Spark's JVM."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes], timeout: float = 600.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
