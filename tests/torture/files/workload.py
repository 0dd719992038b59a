"""Run under the recorder: fills a buffer, exports, seals, and marks in the record what was tried and acknowledged.

    python workload.py <folder> <seed> <steps> [<kinds>:<at>:<errno>:<more> …]

All lies in <folder>/0; with failures given, there is one run for each, in <folder>/0, <folder>/1, ….
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock import Draft
from penstock.buffer import Consumer, Producer
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.sealed.tables import TableRequest
from penstock.errors import PenstockError
from torture.recorder import arm, armed_calls, mark

SINGLE = ("jsonl", "parquet", "arrow", "csv")
"""Formats of a topic in one file."""


class Load:
    """Steps, each marked before it begins and after it was acknowledged."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.number = 0
        url = f"file://{folder / 'buffer'}"
        self.producers = [
            Producer(url, flush_interval=0.001, compression="zstd", gc_grace=0),
            Producer(url, flush_interval=0.001, gc_grace=0),
        ]
        self.url = url
        self.consumer = Consumer(url, gc_interval=None, gc_grace=0)
        self.acked = -1
        self.source = penstock.open("memory:")
        mark(source=self.source.id)
        self.sealed = penstock.open(f"{rng.choice(['file', 'sqlite'])}:{folder / 'store'}")
        self.table = TableRequest(rng.choice([None, "delta", "iceberg"]))

    def step(self) -> None:
        kinds: list[tuple[Callable[[str], None], int]] = [
            (self.produce, 8), (self.produce_many, 2), (self.consume, 6), (self.collect, 2), (self.reopen, 1),
            (self.export_lines, 2), (self.export_parts, 2), (self.export_file, 2), (self.seal, 3),
        ]  # fmt: skip
        doing = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        self.number += 1
        doing(f"n{self.number}")

    def _entries(self, label: str) -> list[bytes]:
        rows = self.rng.choice([1, 5, 200])
        mark(producing=label, rows=rows)
        return [f"{label} {row} {'x' * self.rng.choice([1, 40])}".encode() for row in range(rows)]

    def produce(self, label: str) -> None:
        self.rng.choice(self.producers).produce(self._entries(label)).result(60)
        mark(produced=label)

    def produce_many(self, label: str) -> None:
        """Several producers at once, whose batches race for the manifest."""
        labels = [f"{label}.{part}" for part in range(4)]
        tickets = [self.producers[part % 2].produce(self._entries(one)) for part, one in enumerate(labels)]
        for one, ticket in zip(labels, tickets, strict=True):
            ticket.result(60)
            mark(produced=one)

    def consume(self, label: str) -> None:
        batch = self.consumer.next_batch()
        if batch is None:
            return
        inside = sorted({bytes(entry).split(b" ")[0].decode() for entry in batch.entries})
        mark(acking=inside, sequence=batch.sequence)
        self.consumer.ack_through(batch.sequence)
        self.acked = batch.sequence
        mark(acked=inside, sequence=batch.sequence)

    def collect(self, label: str) -> None:
        self.consumer.collect_garbage()

    def reopen(self, label: str) -> None:
        """A new consumer, which fences the one before."""
        self.consumer = Consumer(self.url, gc_interval=None, gc_grace=0)

    def _grow(self, journal: Any) -> int:
        rows = self.rng.choice([1, 30, 150])
        receipts = journal.topic("t").append_many([Draft("k", f"{'y' * 30} {row}") for row in range(rows)])
        latest: int = receipts[-1].seq
        return latest

    def _exporting(self) -> int:
        latest = self._grow(self.source)
        mark(exporting=latest)
        return latest

    def export_lines(self, label: str) -> None:
        latest = self._exporting()
        self.source.export(self.folder / "lines", topics=["t"])
        mark(lines=latest)

    def export_parts(self, label: str) -> None:
        latest = self._exporting()
        self.source.export(self.folder / "parts", topics=["t"], format="parquet")
        mark(parts=latest)

    def export_file(self, label: str) -> None:
        latest = self._exporting()
        ending = self.rng.choice(SINGLE)
        self.source.export(self.folder / f"one.{ending}", topics=["t"])
        mark(one=ending, latest=latest)

    def seal(self, label: str) -> None:
        latest = self._grow(self.sealed)
        mark(stored=latest)
        through = latest - self.rng.choice([0, 1, 20])
        if through > 0:
            seal_topic(
                self.sealed._core, "t", lake=str(self.folder / "lake"), through=through, table=self.table,
                compact=self.rng.random() < 0.3,
            )  # fmt: skip
            mark(sealed=through)


def run(folder: Path, seed: int, steps: int, failing: str) -> None:
    load = Load(folder, random.Random(seed))
    scheme = "file" if (folder / "store").is_dir() else "sqlite"
    load.produce("first")
    load.seal("first")
    mark(opened=True, scheme=scheme, table=load.table.format)
    if failing:
        kinds, at, error, more = failing.split(":")
        arm(kinds, int(at), int(error), more=int(more))
    for _ in range(steps):
        try:
            load.step()
        except PenstockError as error:
            mark(failed=f"{type(error).__name__}: {error}")
    if failing:
        reached = armed_calls()
        arm("", 0, 0)
        mark(calls=reached)
        for number in range(3):  # the disk works again; whatever is acknowledged now holds too
            for doing in (load.produce, load.export_lines, load.export_parts, load.seal):
                with suppress(PenstockError):
                    doing(f"after{number}")


def main() -> None:
    root, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number, failing in enumerate(sys.argv[4:] or [""]):
        folder = root / str(number)
        folder.mkdir()
        mark(begin=number)
        run(folder, seed, steps, failing)
        mark(end=number)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
