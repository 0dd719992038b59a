"""Threads that begin late and waits that end late, as on a busy machine: what `pytest --late SEED` runs the tests with.

A test that waits by time and not on a condition fails so within a run or two; in an ordinary run it fails once a month.
"""

from __future__ import annotations

import random
import threading
import time

LATE_START = 0.15
LATE_WAKE = 0.03
"""Seconds, at the most."""


def be_late(seed: int) -> None:
    """Makes every second thread of this process begin late, and every twentieth wait for a condition end late."""
    rng = random.Random(seed)
    run, wait = threading.Thread.run, threading.Condition.wait

    def run_late(thread: threading.Thread) -> None:
        if rng.random() < 0.5:
            time.sleep(rng.random() * LATE_START)
        run(thread)

    def wait_longer(condition: threading.Condition, timeout: float | None = None) -> bool:
        met = wait(condition, timeout)
        if rng.random() < 0.05:
            time.sleep(rng.random() * LATE_WAKE)
        return met

    threading.Thread.run = run_late  # type: ignore[method-assign]
    threading.Condition.wait = wait_longer  # type: ignore[method-assign]
