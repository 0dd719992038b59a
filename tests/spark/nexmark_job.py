"""Five of NEXMark's stateful queries at once, to be killed: python nexmark_job.py MASTER URL CHECKPOINTS.

It ends by itself when the queries have read what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.nexmark import streams

import penstock.spark

STATEFUL = ("q3", "q5", "q11", "q17", "q18")
"""A join of two streams, hopping windows in two steps, sessions, and two folds in update mode."""


def main(master: str, url: str, checkpoints: Path) -> None:
    spark = penstock.spark.session("nexmark", master=master, spark_sql_shuffle_partitions=2)
    streams.read(spark, url)
    for query in [streams.start(spark, name, url, checkpoints) for name in STATEFUL]:
        query.awaitTermination()
    penstock.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
