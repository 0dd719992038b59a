"""What of a micro-batch is penstock's: CPU time of every call that Spark makes to the source and the sink.

    python -m benchmarks spark_parts

A batch of 1,000 events of about 100 bytes from topic to topic, one task, in one process without Spark; each call 40 times,
its median, once for a journal in a file and once for the same at a server, whose own time does not count. What a batch of
`python -m benchmarks spark batches` takes beyond the sum is Spark's: its threads, its logs, its workers.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

import penstock
from benchmarks.spark_served import served
from penstock import Draft
from penstock.spark.sink import StreamWriter, encoded
from penstock.spark.source import PenstockSource, StreamReader

T = TypeVar("T")
READ = StructType().add("seq", "long").add("kind", "string").add("payload", "string")
WRITTEN = StructType().add("kind", "string").add("payload", "string")
TURNS, ROWS = 40, 1_000


def measured(name: str, call: Callable[[int], T]) -> T:
    times = []
    for turn in range(TURNS):
        begun = time.process_time()
        found = call(turn)
        times.append((time.process_time() - begun) * 1000)
    print(f"| {name} | {times[0]:.1f} | {statistics.median(times):.2f} |")
    return found


def measure(url: str) -> None:
    print("| | first, ms | then, ms |\n|---|---|---|")
    source = PenstockSource({"url": url, "topic": "orders"})
    found = measured("make the reader (once a query)", lambda _: source.streamReader(READ))
    assert isinstance(found, StreamReader)
    reader = found
    end = measured("newest offset", lambda _: reader.end_after({"orders": 0}, limited=True))
    (share,) = measured("plan", lambda _: reader.partitions({"orders": 0}, end))
    rows = measured("read and decode, in a task", lambda _: pa.Table.from_batches(list(reader.read(share))))
    assert rows.num_rows == ROWS
    given = {"url": url, "topic": "copies"}
    writer = measured("make the writer, twice a batch", lambda _: StreamWriter.of(given, WRITTEN, False))
    batches = rows.select(["kind", "payload"]).to_batches()
    # The task's own part of `write`, which asks Spark for the query's name.
    staging = writer.staging.of("query")
    message = measured(
        "encode and stage, in a task",
        lambda turn: staging.stage(encoded(iter(batches), writer.layout), "query", str(turn)),
    )
    measured("commit, with the journal's opening", lambda turn: writer.commit([message], turn))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "shop.db")
        with penstock.open(url) as journal:
            drafts = [Draft("placed", {"n": n, "text": "x" * 80}) for n in range(ROWS)]
            journal.topic("orders").append_many(drafts)
            journal.topic("copies").configure()
        print("a journal in a file\n")
        measure(url)
        with served(url) as place:
            print("\nthe same at a server\n")
            measure(place)
    print(f"\nload {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
