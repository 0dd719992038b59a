"""Many writers, one reader: collectors write to a buffer, and one process drains it into a journal, exactly once.

Run it: `python examples/buffer_many_writers.py`. With s3://bucket/prefix as its argument it uses S3.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import penstock
from penstock.buffer import Consumer, Producer, drain


def collect(url: str, machine: str) -> None:
    """Collects readings on one machine, without state and without coordination."""
    with Producer(url, flush_interval=0.05) as producer:
        tickets = [producer.produce([f"{machine} reading {n}".encode()], machine.encode()) for n in range(100)]
        for ticket in tickets:
            ticket.result(60)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"file://{Path(folder) / 'buffer'}"
        machines = [threading.Thread(target=collect, args=(url, f"machine-{n}")) for n in range(4)]
        for machine in machines:
            machine.start()
        for machine in machines:
            machine.join()
        with penstock.open(Path(folder) / "events.db") as journal, Consumer(url) as consumer:
            report = drain(consumer, journal.topic("readings"), kind="reading", until_empty=True)
            print(
                f"{report.entries} entries in {report.batches} batches; the topic has {len(journal.topic('readings'))}"
            )


if __name__ == "__main__":
    main()
