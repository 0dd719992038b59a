"""Times of every public operation in a small store and a large one, in every state of a store.

The rows are those of tests/growth, which counts what they do; here the processor's time is measured, in milliseconds.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Table

sys.path[:0] = ["tests"]

from growth import journal_rows, queue_rows  # noqa: E402
from growth.world import STATES, worlds  # noqa: E402

FACTOR, FLOOR = 3, 1.0
"""The same answer may cost so many times as much in the large store; what takes less than a millisecond may anyway."""


def main() -> None:
    """`python -m benchmarks growth [words]`: all rows, or those whose names contain one of the words."""
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    small, large = [int(word) for word in sys.argv[1:] if word.isdigit()] or (3_000, 60_000)
    rows = [
        row for row in [*journal_rows.ROWS, *queue_rows.ROWS] if not words or any(word in row.name for word in words)
    ]
    table = Table(
        "growth",
        "Cost follows the answer",
        f"CPU time of one call in ms, SQLite, in a store of {small:,} → {large:,} events in each of twelve topics, and "
        "as many messages in each of five queues; right after building, closed and opened again, after `maintain()`. "
        "Run again with `python -m benchmarks growth`.",
    )
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        names = itertools.count()
        with worlds((small, large), lambda: str(Path(folder) / f"{next(names)}.db")) as built:
            for row in rows:
                shown, holds = [], True
                for state in STATES:
                    (few, before), (many, after) = [timed(row.on(built[state, size])) for size in (small, large)]
                    shown.append(f"{before:.1f} → {after:.1f}")
                    holds = holds and after <= FACTOR * max(before, FLOOR) * max(1, many / max(few, 1))
                table.row(row.name, ", ".join(shown), row.grows and "grows", holds)
    if not words:
        table.save()


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """The size of the answer, and the milliseconds that this thread had the processor."""
    start = time.thread_time()
    answer = work()
    return answer, (time.thread_time() - start) * 1000


if __name__ == "__main__":
    main()
