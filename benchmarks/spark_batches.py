"""What people wait for: a pipeline's first batch, and a micro-batch, beside Spark's own sources and sinks.

    python -m benchmarks spark_batches                  # both, some ten minutes
    python -m benchmarks spark_batches first 3          # `penstock run` to its first batches, so many rounds
    python -m benchmarks spark_batches micro 2          # micro-batches of 1,000 events
    python -m benchmarks spark_batches parts 3          # what each part of the start saves

Everything is a ratio to the same queries from JSON files into Parquet, measured next to them in the same run, local[2],
two shuffle partitions for both, the median of the rounds; a first round, in which the JVM compiles, does not count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import penstock
import penstock.spark
from benchmarks.harness import Table, versions
from benchmarks.spark_rows import events, write_topic
from penstock.spark import into

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "customer STRING, amount BIGINT, sku STRING"
_FLOWS = ("copies", "large", "sums")
_PIPELINE = """
from penstock.spark import flow, topic

ORDERS = topic("orders", payloadSchema="customer STRING, amount BIGINT, sku STRING")


@flow(source=ORDERS, target=topic("copies"))
def copies(orders):
    return orders.selectExpr("kind", "key", "struct(customer, amount, sku) AS payload")


@flow(source=ORDERS, target=topic("large"))
def large(orders):
    return orders.where("amount > 9000").selectExpr("kind", "key", "struct(customer, amount) AS payload")


@flow(source=ORDERS, target=topic("sums"), output_mode="update")
def sums(orders):
    return orders.groupBy("kind").sum("amount").selectExpr("kind", "struct(`sum(amount)` AS amount) AS payload")
"""
_PLAIN = """
import sys
from pyspark.sql import SparkSession

files, folder = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    .config("spark.ui.enabled", "false").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
orders = spark.readStream.schema("kind STRING, key STRING, customer STRING, amount BIGINT, sku STRING").json(files)


def start(frame, name):
    writer = frame.writeStream.format("parquet").option("path", f"{folder}/{name}")
    writer.option("checkpointLocation", f"{folder}/checkpoints/{name}").start()


start(orders, "copies")
start(orders.where("amount > 9000").select("kind", "key", "customer", "amount"), "large")
sums = orders.groupBy("kind").sum("amount").withColumnRenamed("sum(amount)", "amount")
append = lambda batch, number: batch.write.mode("append").parquet(f"{folder}/sums")
writer = sums.writeStream.foreachBatch(append).outputMode("update")
writer.option("checkpointLocation", f"{folder}/checkpoints/sums").start()
spark.streams.awaitAnyTermination()
"""


# ── the first batch ──────────────────────────────────────────────────────────────────────────────────────────────────
class Waited(NamedTuple):
    """What a program took until its first batches were committed."""

    first: float
    """Seconds until one of its queries had a batch."""
    every: float
    """Seconds until each had one."""
    cpu: float
    """Seconds of all its processes together until then: what a busy machine does not change."""


def wait_for_first(command: list[str], checkpoints: Path, log: Path, variables: dict[str, str]) -> Waited:
    began, first = time.perf_counter(), None
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **variables})
    used: dict[int, float] = {process.pid: 0.0}
    try:
        while True:
            done = [(checkpoints / flow / "commits" / "0").exists() for flow in _FLOWS]
            now = time.perf_counter() - began
            first = now if first is None and any(done) else first
            _add_used(used)
            if first is not None and all(done):
                return Waited(first, now, sum(used.values()))
            if process.poll() is not None:
                sys.exit(f"a measured program ended:\n{log.read_text()[-4000:]}")
            time.sleep(0.02)
    finally:
        process.terminate()
        process.wait()


def _add_used(used: dict[int, float]) -> None:
    """Takes in what the processes of a tree have used so far; those of a parent that is known are known too."""
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        pid, parent = int(stat.parent.name), int(fields[1])
        if pid in used or parent in used:
            used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Programs:
    """A pipeline and a plain program over the same thousand orders, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url, self._files = str(folder / "shop.db"), folder / "files"
        self._files.mkdir()
        rows = [(f"k{n}", n) for n in range(1000)]
        with penstock.open(self._url) as journal:
            order = {"customer": "ada", "sku": "x"}
            journal.topic("orders").append_many(
                [penstock.Draft("placed", {**order, "amount": n * 10}, key=key) for key, n in rows]
            )
        line = '{{"kind":"placed","key":"{}","customer":"ada","amount":{},"sku":"x"}}\n'
        (self._files / "orders.json").write_text("".join(line.format(key, n * 10) for key, n in rows))
        (folder / "shop.py").write_text(_PIPELINE)
        (folder / "plain.py").write_text(_PLAIN)

    def ours(self, **variables: str) -> Waited:
        """Runs the pipeline, with more variables in its environment."""
        checkpoints = self._folder / "ours"
        command = [sys.executable, "-m", "penstock.cli", "run", str(self._folder / "shop.py"), "--url", self._url]
        command += ["--master", "local[2]", "--checkpoints", str(checkpoints)]
        return wait_for_first(command, checkpoints / "shop", self._folder / "ours.log", variables)

    def plain(self) -> Waited:
        command = [sys.executable, str(self._folder / "plain.py"), str(self._files), str(self._folder)]
        return wait_for_first(command, self._folder / "checkpoints", self._folder / "plain.log", {})


def measure_first(table: Table, rounds: int) -> None:
    ratios: list[list[float]] = []
    for at in range(rounds + 1):  # the first fills the page cache
        with tempfile.TemporaryDirectory(prefix="p-") as name:
            programs = Programs(Path(name))
            mine, other = programs.ours(), programs.plain()
            if at:
                print("round", at, "penstock run", mine, "plain", other)
                ratios.append([one / beside for one, beside in zip(mine, other, strict=True)])
    first, every, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    plainly = "a plain program, files → Parquet"
    table.row("penstock run: the first committed batch", f"{first:.2f} × {plainly}", "≤ 1.25 ×", first <= 1.25)
    table.row("penstock run: a batch of each of three queries", f"{every:.2f} × {plainly}", "≤ 1.25 ×", every <= 1.25)
    table.row("penstock run: the same, CPU of all processes", f"{cpu:.2f} × {plainly}")


def measure_parts(rounds: int) -> None:
    """Prints what the parts of the start save: the same run without each of them."""
    with tempfile.TemporaryDirectory(prefix="p-") as empty:
        ways = {
            "as it is": {},
            "without forked workers": {"PYSPARK_PYTHON": sys.executable},
            "by Spark's own scripts": {"HADOOP_CONF_DIR": empty},
        }
        found: dict[str, list[Waited]] = {way: [] for way in (*ways, "plain")}
        for at in range(rounds + 1):
            for way, waited in found.items():
                with tempfile.TemporaryDirectory(prefix="p-") as name:
                    programs = Programs(Path(name))
                    waited.append(programs.plain() if way == "plain" else programs.ours(**ways[way]))
                    print("round", at, way, waited[-1], flush=True)
    for way, waited in found.items():
        first, every, cpu = (statistics.median(column) for column in zip(*waited[1:], strict=True))
        print(f"{way}: the first batch after {first:.1f} s, each query's after {every:.1f} s, CPU {cpu:.1f} s")


# ── micro-batches ────────────────────────────────────────────────────────────────────────────────────────────────────
def measure_micro(table: Table, rounds: int, batches: int = 40) -> None:
    with tempfile.TemporaryDirectory(prefix="p-") as name:
        folder = Path(name)
        spark = penstock.spark.session("benchmarks", master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        url, files = str(folder / "shop.db"), str(folder / "files")
        write_topic(events(spark, 1000 * batches), url)
        rows = spark.read.format("penstock").options(url=url, topic="orders", payloadSchema=_SCHEMA).load()
        rows.select("kind", "key", "customer", "amount", "sku").repartition(batches).write.json(files)
        times: dict[str, list[tuple[float, float]]] = {}
        for at in range(rounds + 1):
            # Each round has folders of its own: a Parquet sink passes over batches that its folder knows already.
            for way, writer in _ways(spark, url, files, folder / str(at)).items():
                found = _batch_time(writer(), folder / str(at) / way)
                times.setdefault(way, []).extend([found] if at else [])
        penstock.spark.stop()
    base = times["file → Parquet"]
    goals = {"topic → topic": 0.7, "topic → sums → topic": 1.2}
    for way, found in times.items():
        ratio, cpu = (
            statistics.median(mine[at] / other[at] for mine, other in zip(found, base, strict=True)) for at in (0, 1)
        )
        goal = goals.get(way)
        shown = f"{ratio:.2f} × file → Parquet ({statistics.median(wall for wall, _ in found):.0f} ms), CPU {cpu:.2f} ×"
        table.row(f"micro-batch of 1,000: {way}", shown, *([] if goal is None else [f"≤ {goal} ×", ratio <= goal]))


def _ways(spark: SparkSession, url: str, files: str, folder: Path) -> dict[str, Callable[[], Any]]:
    def topic() -> DataFrame:
        options = {"url": url, "topic": "orders", "payloadSchema": _SCHEMA, "maxOffsetsPerTrigger": "1000"}
        return spark.readStream.format("penstock").options(**options).load()

    def file() -> DataFrame:
        schema = f"kind STRING, key STRING, {_SCHEMA}"
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(files)

    def events_of(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("kind", "key", "struct(customer, amount, sku) AS payload")

    def sums(frame: DataFrame) -> DataFrame:
        return frame.groupBy("kind").sum("amount").selectExpr("kind", "struct(`sum(amount)` AS amount) AS payload")

    def parquet(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(str(folder / "sums"))

    return {
        "file → Parquet": lambda: file().writeStream.format("parquet").option("path", str(folder / "parquet")),
        "topic → topic": lambda: events_of(topic()).writeStream.format("penstock").options(url=url, topic="copies"),
        "topic → noop": lambda: topic().writeStream.format("noop"),
        "file → noop": lambda: file().writeStream.format("noop"),
        "topic → sums → topic": lambda: (
            sums(topic()).writeStream.foreachBatch(into(url=url, topic="sums")).outputMode("update")
        ),
        "file → sums → Parquet": lambda: sums(file()).writeStream.foreachBatch(parquet).outputMode("update"),
    }


def _batch_time(writer: Any, checkpoint: Path) -> tuple[float, float]:
    """The median of a query's batches, in ms, without its first quarter; and what a batch used of all cores."""
    before, after = {os.getpid(): 0.0}, {os.getpid(): 0.0}
    _add_used(before)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    _add_used(after)
    query.stop()
    found = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if "addBatch" in one["durationMs"]]
    used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
    return statistics.median(found[len(found) // 4 :]), 1000 * used / len(found)


def main() -> None:
    words = sys.argv[1:]
    rounds = next((int(word) for word in words if word.isdigit()), 3)
    if "parts" in words:
        measure_parts(rounds)
        return
    table = Table(
        "spark_batches", "What Spark waits for", f"{(__doc__ or '').strip()}\n\n{versions('pyspark', 'pyarrow')}."
    )
    if "micro" not in words:
        measure_first(table, rounds)
    if "first" not in words:
        measure_micro(table, rounds)
    table.save_rows() if words else table.save()


if __name__ == "__main__":
    main()
