"""A served journal as Spark's source and sink, beside its file; and applications that append while Spark commits."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from benchmarks.spark_rows import aggregate, events, read_topic, speed, write_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.harness import Table


@contextmanager
def served(url: str) -> Iterator[str]:
    """`penstock serve` in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "serve", "--create", "--url", url, "--port", str(port)]
    )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def measure_served_read(table: Table, spark: SparkSession, url: str) -> None:
    """Reading through a server, by one task and by two, beside reading the file."""

    def one_task(where: str) -> None:
        aggregate(read_topic(spark, where).coalesce(1))

    with served(url) as place:
        assert aggregate(read_topic(spark, place)) == aggregate(read_topic(spark, url))
        one = speed(lambda: one_task(url), lambda: one_task(place), rounds=3, warm_up=1)
        two = speed(lambda: one_task(place), lambda: aggregate(read_topic(spark, place)), rounds=3, warm_up=1)
    table.row("read a served topic, one task", f"{one:.2f} × from its file", "≥ 0.8 ×", one >= 0.8)
    table.row("read a served topic, two tasks", f"{two:.2f} × one task", "≥ 1.4 ×", two >= 1.4)


def measure_served_write(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    """Writing through a server beside writing to the file."""
    frame = events(spark, count).persist()
    frame.count()
    names = iter(range(1000))

    def to(place: str | None) -> None:
        local = str(folder / f"served-write-{next(names)}.db")
        write_topic(frame, place or local)
        for file in folder.glob("served-write-*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    with served(str(folder / "target.db")) as place:
        found = speed(lambda: to(None), lambda: to(place), rounds=3, warm_up=1)
    table.row("write to a served topic", f"{found:.2f} × to a local one", "≥ 0.7 ×", found >= 0.7)
    frame.unpersist()


def measure_append_beside(table: Table, spark: SparkSession, folder: Path, count: int) -> None:
    """How long single appends of an application take while Spark writes and commits rows to the same journal."""
    url = str(folder / "beside.db")
    frame = events(spark, count).persist()
    frame.count()
    with penstock.open(url) as journal:
        topic = journal.topic("app")
        topic.append("placed", {})
        times: list[float] = []
        done = threading.Event()

        def append() -> None:
            while not done.is_set():
                begun = time.perf_counter()
                topic.append("placed", {})
                times.append(time.perf_counter() - begun)
                time.sleep(0.001)

        appending = threading.Thread(target=append)
        appending.start()
        try:
            write_topic(frame, url)
        finally:
            done.set()
            appending.join()
        assert len(journal.topic("orders")) == count
    times.sort()
    high, most = times[int(len(times) * 0.99)] * 1000, times[-1] * 1000
    said = f"p99 {high:.0f} ms, longest {most:.0f} ms"
    table.row(f"appends while {count:,} rows are written and committed", said, "p99 ≤ 100 ms", high <= 100)
    frame.unpersist()
