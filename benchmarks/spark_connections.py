"""One reader of a served topic over one, two and four connections, in turns: wall time, and CPU of the reader.

    python -m benchmarks spark_connections

200,000 events of about 250 bytes, decoded to Arrow; the server is a process of its own on the same machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql.types import StructType

import penstock
from benchmarks.spark_served import served
from penstock import Draft
from penstock.spark.source import PenstockSource

COLUMNS = StructType().add("seq", "long").add("kind", "string").add("key", "string").add("payload", "string")
EVENTS = 200_000
ROUNDS = 7


def drafts(first: int, count: int) -> Iterator[Draft]:
    for n in range(first, first + count):
        yield Draft("placed", {"n": n, "text": os.urandom(100).hex()}, key=f"k{n % 999}")


def read(place: str, connections: int) -> None:
    reader = PenstockSource({"url": place, "topic": "orders", "minPartitions": str(connections)}).reader(COLUMNS)
    with ThreadPoolExecutor(connections) as pool:
        found = pool.map(lambda share: sum(batch.num_rows for batch in reader.read(share)), reader.partitions())
        assert sum(found) == EVENTS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "shop.db")
        with penstock.open(url) as journal:
            for first in range(0, EVENTS, 10_000):
                journal.topic("orders").append_many(list(drafts(first, 10_000)))
        times: dict[int, list[tuple[float, float]]] = {1: [], 2: [], 4: []}
        with served(url) as place:
            for turn in range(ROUNDS + 1):
                for connections, found in times.items():
                    wall, cpu = time.perf_counter(), time.process_time()
                    read(place, connections)
                    if turn:
                        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    for connections, found in times.items():
        wall, cpu = (statistics.median(one[at] for one in found) for at in (0, 1))
        least = min(one[0] for one in found)
        print(f"{connections} connections: wall {wall:.2f} s (least {least:.2f}), CPU of the reader {cpu:.2f} s")
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
