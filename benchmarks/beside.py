"""Appending beside a thread that computes, and what `sys.setswitchinterval` does about it.

    python -m benchmarks beside

One thread appends single events, durable on disk, for a second; another counts in plain Python. An append lets go of the
interpreter's lock for the disk and must get it back afterwards, which takes up to one switch interval (5 ms unless
changed) each time. Medians of several rounds, as shares of what each thread does alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import penstock
from benchmarks.harness import Table

SECONDS = 0.4
ROUNDS = 2


def appends(topic: penstock.Topic) -> float:
    """Appends a second."""
    count, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < SECONDS:
        topic.append("k", {"n": count})
        count += 1
    return count / spent


class Counting(threading.Thread):
    """A thread that does nothing but count."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopping = False
        self.count = 0
        self.begun = time.perf_counter()

    def run(self) -> None:
        while not self.stopping:
            for _ in range(1000):
                self.count += 1

    def stop(self) -> float:
        spent = time.perf_counter() - self.begun
        self.stopping = True
        self.join()
        return self.count / spent


def alone() -> float:
    counting = Counting()
    counting.start()
    time.sleep(SECONDS)
    return counting.stop()


def main() -> None:
    table = Table("beside", "Beside a thread that computes", __doc__ or "")
    usual = sys.getswitchinterval()
    with tempfile.TemporaryDirectory() as folder, penstock.open(Path(folder) / "a.db") as journal:
        topic = journal.topic("t")
        topic.append("k")
        for interval in (usual, 0.001, 0.0005, 0.0001):
            shares, costs = [], []
            for _ in range(ROUNDS):
                sys.setswitchinterval(usual)
                base_appends, base_count = appends(topic), alone()
                sys.setswitchinterval(interval)
                counting = Counting()
                counting.start()
                beside = appends(topic)
                counted = counting.stop()
                sys.setswitchinterval(usual)
                shares.append(beside / base_appends)
                costs.append(counted / base_count)
            said = f"appends {statistics.median(shares):.2f} × alone, counting {statistics.median(costs):.2f} × alone"
            table.row(f"switch interval {interval * 1000:g} ms", said)
    table.save()


if __name__ == "__main__":
    main()
