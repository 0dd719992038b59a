"""What compressed blocks save and cost: the size of stores beside zstd Parquet of the same events, and full scans.

    python -m benchmarks compression        # about a minute

200,000 events with JSON payloads of about 100 bytes, loaded 5,000 at a time, then `maintain()`; with and without keys, which
the index has once more, with the events. CPU time of reading everything, from stores with and without compression in turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median

import pyarrow as pa
import pyarrow.parquet

import penstock
from benchmarks.harness import Table
from penstock import Draft
from penstock.core.journal import blocks

EVENTS = 200_000
BATCH = 5_000
ROUNDS = 9
SIZE_GOAL = 2.5
"""The bytes of a store, as a multiple of zstd Parquet's."""
SCAN_GOAL = 1.05
"""The CPU time of a scan, as a multiple of the time without compression."""


def drafts(keyed: bool) -> Iterator[Draft]:
    random = Random(7)
    for number in range(EVENTS):
        order = {
            "order": number,
            "customer": f"c{random.randrange(20_000):05d}",
            "amount": random.randrange(100_000) / 100,
            "currency": random.choice(["EUR", "USD", "GBP"]),
            "sku": f"{random.randrange(1 << 40):010x}",
        }
        key = f"k{number * 7919 % 20_000}" if keyed else None
        yield Draft("placed" if number % 3 else "paid", order, key=key)


@contextmanager
def plain() -> Iterator[None]:
    """Stores what is written meanwhile as it is."""
    usual = blocks.COMPRESSED_BYTES
    blocks.COMPRESSED_BYTES = 1 << 60  # type: ignore[misc]
    try:
        yield
    finally:
        blocks.COMPRESSED_BYTES = usual  # type: ignore[misc]


def load(path: Path, keyed: bool) -> int:
    """Makes a store, and returns its bytes."""
    with penstock.open(f"sqlite:{path}", durability="process") as journal:
        waiting = list(drafts(keyed))
        for start in range(0, EVENTS, BATCH):
            journal.topic("orders").append_many(waiting[start : start + BATCH])
        journal.maintain()
        return journal.describe().size_bytes


def by_arrow(journal: penstock.Journal) -> None:
    assert sum(batch.num_rows for batch in journal.topic("orders").read_arrow()) == EVENTS


def by_event(journal: penstock.Journal) -> None:
    assert sum(len(event.raw) > 0 for event in journal.topic("orders").read()) == EVENTS


def cpu(work: Callable[[penstock.Journal], None], journal: penstock.Journal) -> float:
    began = time.process_time()
    work(journal)
    return time.process_time() - began


def main() -> None:
    table = Table("compression", "Compressed blocks", (__doc__ or "").strip(), rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for keyed in (False, True):
            small = load(folder / f"small-{keyed}.db", keyed)
            with plain():
                large = load(folder / f"large-{keyed}.db", keyed)
            with penstock.open(f"sqlite:{folder}/small-{keyed}.db") as journal:
                events = pa.Table.from_batches(list(journal.topic("orders").read_arrow()))
            pyarrow.parquet.write_table(events, folder / "events.parquet", compression="zstd")
            parquet = (folder / "events.parquet").stat().st_size
            table.row(
                f"bytes, {'with' if keyed else 'without'} keys",
                f"{small / parquet:.2f} × Parquet ({small / EVENTS:.0f} an event; uncompressed {large / parquet:.2f} ×)",
                f"≤ {SIZE_GOAL}",
                small <= SIZE_GOAL * parquet,
            )
        with (
            penstock.open(f"sqlite:{folder}/small-False.db") as packed,
            penstock.open(f"sqlite:{folder}/large-False.db") as loose,
        ):
            for name, work in (("read_arrow()", by_arrow), ("read()", by_event)):
                cpu(work, packed), cpu(work, loose)
                ratios = [cpu(work, packed) / cpu(work, loose) for _ in range(ROUNDS)]
                found = median(ratios)
                table.row(f"scan by {name}", f"{found:.2f} × the CPU time", f"≤ {SCAN_GOAL}", found <= SCAN_GOAL)
    table.save()
