"""How long a command takes to start, beside a bare interpreter.

    python -m benchmarks cli

Every command runs in a process of its own, turn by turn with `python -c pass` of the same interpreter; the ratio is of
the medians. The store has three topics and a queue.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import penstock
from benchmarks.harness import Table

ROUNDS = 11
GOAL = 8.0

COMMANDS = (
    ("--version",),
    ("--help",),
    ("topics",),
    ("tail", "orders", "-n", "5"),
    ("append", "orders", "placed", '{"total": 9.5}'),
    ("queues",),
    ("push", "emails", '{"to": "ann"}'),
    ("lag",),
    ("check",),
    ("read", "orders", "--where", "payload.total > 5", "--limit", "5", "--json"),
)


def took(words: list[str], environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    table = Table("cli", "The command line: start", __doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "shop.db"
        with penstock.open(place) as journal:
            for name in ("orders", "payments", "audit"):
                journal.topic(name).append_many([penstock.Draft("placed", {"total": n}) for n in range(1000)])
            journal.queue("emails").push_many(range(100))
        environment = {**os.environ, "PENSTOCK_URL": str(place), "PYTHONDONTWRITEBYTECODE": ""}
        bare = [sys.executable, "-c", "pass"]
        script = str(Path(sys.executable).parent / "penstock")
        took(bare, environment)
        for words in COMMANDS:
            took([script, *words], environment)
            pairs = [(took(bare, environment), took([script, *words], environment)) for _ in range(ROUNDS)]
            ratio = statistics.median(ours for _, ours in pairs) / statistics.median(base for base, _ in pairs)
            shown = " ".join(word for word in words[:2] if not word.startswith("{"))
            table.row(f"penstock {shown}", f"{ratio:.1f} × python -c pass", f"≤ {GOAL:g} ×", ratio <= GOAL)
    table.save()


if __name__ == "__main__":
    main()
